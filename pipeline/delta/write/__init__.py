"""Writes of rows to tables: one commit or none, exactly once. No other code writes rows."""
