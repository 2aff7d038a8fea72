"""One package per subject: plain frame functions first, thin assets after them.

A subject's declarations have a module of their own (`<subject>/datasets.py`), so that the command line can read them
without Dagster. Importing this package imports none of them.
"""
