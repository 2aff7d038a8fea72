"""Structured Streaming: frames written batch by batch, each batch exactly once."""

__all__ = ["query_log", "structured_streaming"]
