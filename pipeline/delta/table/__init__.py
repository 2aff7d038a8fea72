"""A dataset's table: its state, its creation, and the steps from its state to its declaration."""

__all__ = ["apply", "compatibility", "durable", "open_table", "plan", "steps", "storage_facts", "undeclared"]
