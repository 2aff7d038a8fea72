"""Exports: a version of a table as files elsewhere, complete or not there, and kept up to date partition by partition.

Nothing here writes to a table or its folder. `clone` makes a table elsewhere that begins as such a version.
"""

__all__ = ["clone", "export", "refresh", "request", "target"]
