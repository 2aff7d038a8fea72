"""Everything that touches Spark or a Delta log; knows nothing of Dagster.

From the bottom: `spark` (sessions), `sql` (text), `log` (commits), `frames` (rows as they come), `table` (declared
against observed), `read`, `write`, `inspect`, `maintain`, `export`, `stream` and `sink`. A package imports only from
itself and from those before it.
"""
