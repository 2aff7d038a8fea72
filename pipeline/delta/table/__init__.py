"""A table against its declaration: opened, created, compared, and the plan between the two."""
