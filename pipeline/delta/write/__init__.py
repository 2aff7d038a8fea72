"""Rows into tables: one commit or none, exactly once. The only code that writes rows."""
