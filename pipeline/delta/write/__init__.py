"""Writes of rows to tables: one commit or none, exactly once. No other code writes rows."""

__all__ = [
    "audit",
    "changelog",
    "clauses",
    "consume",
    "durable",
    "merge",
    "quarantine",
    "result",
    "transaction",
    "write",
]
