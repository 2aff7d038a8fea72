"""One module per subject: plain frame functions above, thin assets below.

A subject's declarations stand in a module of their own (`<subject>_datasets`), so that the command line can read them
without Dagster. Importing this package imports none of them.
"""
