"""Everything that touches Spark or a Delta log; knows nothing of Dagster.

From the top: `failures`, `sql` and `slices` (plain values), `runtime` and `session` (a Spark that can do Delta), `log`,
`commit`, `snapshot` (the log), `clients`, `steps`, `evolve`, `conform` and `apply` (declared against observed), `table`
(opened and created), `feed`, `changes`, `window` and `diff` (what has changed), `read`, `files`,
`describe` and `query` (what is there), `quality`, `fit`, `arrow`, `staging`, `frames`, `write` and `consume` (the
rows), `retention` and `maintain` (the files), `server` (a warm Spark in the background).
"""
