"""Everything that touches Spark or a Delta log; knows nothing of Dagster.

From the top: `failures`, `sql` and `slices` (plain values), `runtime` and `session` (a Spark that can do Delta), `log`,
`commit` and `table` (the log), `read`, `quality`, `conform` and `write` (the rows), `maintain` (the files), `server` (a
warm Spark in the background).
"""
