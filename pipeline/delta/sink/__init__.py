"""Rows that arrive all the time: acknowledged on disk, committed in micro-batches exactly once."""
