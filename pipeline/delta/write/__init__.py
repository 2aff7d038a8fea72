"""Writes of rows to tables: one commit or none, exactly once. No other code writes rows."""

__all__ = [
    "changelog",
    "clauses",
    "consume",
    "merge",
    "quarantine",
    "result",
    "transaction",
    "write",
]
