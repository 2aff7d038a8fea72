"""Read-only inspection of tables, for operators, checks and reports."""
