"""Maintenance of tables: vacuum, optimize, checkpoint, the clean-up of a log, restore, and publication.

Each keeps what a consumer of changes still needs.

No other rows are written here than those that a restore brings back, and refused ones that a publication commits.
"""

__all__ = [
    "checkpoint",
    "clean_log",
    "exchange",
    "health",
    "maintain",
    "publish",
    "repair",
    "restore",
    "retention",
    "routine",
]
