"""The storage below everything: one file system for each URI, and files that are written completely or not at all.

Nothing here knows Spark, Delta or a dataset.
"""

__all__ = [
    "access",
    "download",
    "file_system",
    "local_files",
    "object_stores",
    "options",
    "published_jars",
    "text_files",
]
