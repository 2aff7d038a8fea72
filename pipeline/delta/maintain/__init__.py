"""Maintenance of tables: vacuum, optimize, checkpoint, the clean-up of a log, and restore.

Each keeps what a consumer of changes still needs.

No other rows are written here than those that a restore brings back.
"""

__all__ = [
    "checkpoint",
    "clean_log",
    "exchange",
    "health",
    "maintain",
    "repair",
    "restore",
    "retention",
    "routine",
]
