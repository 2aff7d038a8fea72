"""Programs that tests run as processes of their own, each `python -m` with its arguments."""
