"""A dataset's table: open it, create it, compare it with its declaration, and plan and apply the differences."""
