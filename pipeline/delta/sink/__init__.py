"""Sinks: continuous rows are acknowledged on disk and committed in micro-batches, exactly once."""

from pipeline.delta.sink.buffer import Receipt
from pipeline.delta.sink.metrics import SinkMetrics
from pipeline.delta.sink.receiver import SinkSettings
from pipeline.delta.sink.sink import DeltaSink, UpdateHandler

__all__ = ["DeltaSink", "Receipt", "SinkMetrics", "SinkSettings", "UpdateHandler", "left_behind", "ndjson"]
