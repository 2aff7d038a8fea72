"""Read-only inspection of tables, for operators, checks and reports.

No module here writes a table; `record` writes JSON files next to the tables.
"""

__all__ = [
    "check",
    "describe",
    "diff",
    "doctor",
    "history",
    "lineage",
    "maintenance_record",
    "manifest",
    "query",
    "record",
    "sample",
    "tables",
]
