"""The transaction log: commits, snapshots and checkpoints, read without Spark, and our mark in a commit.

Delta writes the log; this package reads it. It gives Delta our note for a commit, and removes a log without a commit.
"""

__all__ = [
    "checkpoints",
    "commits",
    "counts",
    "entry",
    "epochs",
    "integrity",
    "mark",
    "replay",
    "retry",
    "snapshot",
    "timestamps",
]
