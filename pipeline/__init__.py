"""A Delta-first pipeline: every dataset is declared once, written by Spark, and is a Dagster asset.

Data flows down this page; an import points up it only.

- `errors`: every error raised on purpose.
- `dataset`, `settings`: what is declared; no input or output, no JVM.
- `delta`: everything that touches Spark or a Delta log; knows nothing of Dagster.
- `record`: what one commit was, kept beside the tables.
- `orchestration`: the Dagster adapter; translates, decides nothing.
- `assets`: the subjects that ship, a package each; no project of your own has them.
- `definitions`, `cli`: where the parts are put together.

`docs` holds the pages that `pipeline docs` prints, and no code.

Importing this package imports none of them.
"""
