"""The background Spark server of a project: its process, and the sessions of commands that share one.

It knows Spark and the settings, and nothing of datasets.
"""

__all__ = ["process", "warm"]
