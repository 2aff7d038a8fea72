"""What changes files or versions and no rows of its own, and never what a consumer still needs."""
