"""A write that replaces the whole table, schema and partitioning included.

Here belongs the one statement that is no SQL: Delta replaces a schema and the rows in one commit through the writer of
a DataFrame alone. That makes every column NULL-able, so what is declared NOT NULL, and what checks say, is held by the
query here, and put in force behind the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from pipeline.dataset import Dataset
from pipeline.delta import sql
from pipeline.delta.log.mark import CommitNote, Mark, private_session, write_confs
from pipeline.delta.sql import constraints
from pipeline.delta.table.apply import Applied
from pipeline.delta.table.open_table import require_table
from pipeline.delta.table.plan import observed_shape, shape_differences
from pipeline.delta.table.steps import DropCheck


def overwrite(clone: SparkSession, dataset: Dataset, table: Applied, view: str) -> tuple[str, ...]:
    """Replace table and schema by the rows of the view; the partition columns under their names in the log.

    Checks that are not declared go first, since they may speak of columns that go; under a mark of their own, lest such
    a commit is taken for that of the rows where those fail.
    """
    location = table.after.location
    note = CommitNote(mark=Mark(writer=f"{dataset.name}/conform"))
    for name, condition in observed_shape(table.after).checks.items():
        if name not in {check.name for check in dataset.checks}:
            with private_session(clone, write_confs(note, clone, dataset.fingerprint)) as other:
                other.sql(DropCheck(name=name, before=condition).statement(location)).collect()
    rows = clone.sql(f"SELECT {', '.join(_columns(dataset))} FROM {sql.identifier(view)}")  # noqa: S608  all quoted
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.partitionBy(*dataset.partition_by).save(location)
    return require_table(clone, dataset, location).log_partition_by


def _columns(dataset: Dataset) -> list[str]:
    broken = {
        **constraints.empty_partition_conditions(dataset),
        **constraints.null_conditions(dataset.schema),
        **{f"check {name}": condition for name, condition in constraints.check_conditions(dataset).items()},
    }
    columns = [sql.identifier(name) for name in dataset.schema.names]
    if broken:
        rule = " OR ".join(f"({condition})" for condition in broken.values())
        columns[0] = f"CASE WHEN {rule} THEN raise_error('broken') ELSE {columns[0]} END AS {columns[0]}"
    return columns


def evolution(dataset: Dataset, tables: Sequence[Applied]) -> dict[str, Any]:
    """What the attempts of a write have changed of the table's schema, as fields of its result; none where nothing."""
    changes = tuple(step for table in tables for step in table.steps)
    if tables[-1].overwrites:
        changes += tuple(shape_differences(dataset, tables[-1].after))
    return {"fingerprint_before": tables[0].before.fingerprint, "schema_changes": changes} if changes else {}
