"""Reading of tables: one version, or the changes between two. Every read is pinned to versions."""

__all__ = [
    "changes",
    "cursors",
    "data_files",
    "outcome",
    "pinned",
    "readable",
    "restores",
    "verdict",
    "version",
    "window",
]
