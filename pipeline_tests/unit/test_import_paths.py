"""Import paths that the documentation of an earlier version named still lead to the same things."""

import pipeline.dataset
import pipeline.orchestration
import pipeline.settings
from pipeline.definitions import build_definitions
from pipeline.delta.sink import DeltaSink, Receipt, SinkSettings
from pipeline.delta.sink.receiver import SinkSettings as DefinedSinkSettings
from pipeline.delta.sink.sink import DeltaSink as DefinedSink


def test_the_earlier_import_paths_lead_to_what_is_defined_elsewhere_now() -> None:
    assert build_definitions is pipeline.orchestration.build_definitions
    assert (DeltaSink, SinkSettings) == (DefinedSink, DefinedSinkSettings)
    assert Receipt.__module__.startswith("pipeline.delta.sink.")
    assert callable(pipeline.settings.load_settings)
    assert {"Append", "Check", "Dataset", "Merge", "Replace"} <= set(pipeline.dataset.__all__)
