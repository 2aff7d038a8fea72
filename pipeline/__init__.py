"""A Delta-first pipeline: every dataset is declared once, written by Spark, and is a Dagster asset.

Data flows down this page; an import points up it only.

- `errors`: every error raised on purpose.
- `dataset`, `registry`, `settings`: what is declared; no input or output, no JVM.
- `delta`: everything that touches Spark or a Delta log; knows nothing of Dagster.
- `record`: what one commit was, kept beside the tables.
- `orchestration`: the Dagster adapter; translates, decides nothing.
- `assets`: one module per subject, plain frame functions above and thin assets below.
- `definitions`, `demo`, `cli`, `dagster_command`: where the parts are put together.

Importing this package imports none of them.
"""
