"""Exports: a version of a table as files elsewhere, complete or not there, and kept up to date partition by partition.

Nothing here writes to a table or its folder.
"""

__all__ = ["export", "refresh", "request", "target"]
