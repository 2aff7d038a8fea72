"""Rows out of tables: one version, or the changes between two, always pinned."""
