"""A Delta-first pipeline: every dataset is declared once, written by Spark, and is a Dagster asset.

Data flows down this page; an import points up it only.

- `errors`: every error raised on purpose.
- `dataset`, `settings`: declarations and settings; no table is read or written, no JVM is started.
- `delta`: everything that uses Spark or a Delta log, and the records of commits; does not depend on Dagster.
- `orchestration`: the Dagster adapter; translates, decides nothing.
- `assets`: the subjects that ship, one package each; a project of your own has none of them.
- `definitions`, `cli`: the parts put together.

`docs` holds the pages that `pipeline docs` prints, and no code.

Importing this package imports none of them.
"""
