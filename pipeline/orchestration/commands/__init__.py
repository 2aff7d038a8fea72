"""Child processes of the command line that need Dagster."""
