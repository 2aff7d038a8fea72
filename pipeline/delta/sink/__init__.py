"""Sinks: continuous rows are acknowledged on disk and committed in micro-batches, exactly once."""
