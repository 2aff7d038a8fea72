"""A write that replaces the whole table, with its schema and partitioning.

Here belongs the only statement that is not SQL: Delta replaces a schema and the rows in one commit only through the
writer of a DataFrame. That writer makes every column nullable, so the query here enforces the declared NOT NULL and the
checks, and a later commit puts them in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from pipeline.dataset import Dataset, TableRef
from pipeline.delta import sql
from pipeline.delta.log.mark import CommitNote, Mark, private_session, write_confs
from pipeline.delta.sql import constraints
from pipeline.delta.table.apply import Applied
from pipeline.delta.table.open_table import require_table
from pipeline.delta.table.plan import observed_shape, shape_differences
from pipeline.delta.table.steps import DropCheck


def overwrite(clone: SparkSession, table: TableRef, opened: Applied, view: str) -> tuple[str, ...]:
    """Replace the table and its schema by the rows of the view. Return the partition columns by their names in the log.

    Checks that are not declared are dropped first, since they may name columns that the schema loses. Their commits
    have a mark of their own: if the write fails, they must not be mistaken for the commit of the rows.
    """
    dataset = table.dataset
    note = CommitNote(mark=Mark(writer=f"{dataset.name}/conform"))
    for name, condition in observed_shape(opened.after).checks.items():
        if name.lower() not in {check.name.lower() for check in dataset.checks}:
            with private_session(clone, write_confs(note, clone, dataset.fingerprint)) as other:
                other.sql(DropCheck(name=name, before=condition).statement(table.location)).collect()
    rows = clone.sql(f"SELECT {', '.join(_columns(dataset))} FROM {sql.identifier(view)}")  # noqa: S608  all quoted
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.partitionBy(*dataset.partition_by).save(table.location)
    return require_table(clone, table).log_partition_by


def _columns(dataset: Dataset) -> list[str]:
    broken = {
        **constraints.lost_partition_conditions(dataset),
        **constraints.null_conditions(dataset.schema),
        **{f"check {name}": condition for name, condition in constraints.check_conditions(dataset).items()},
    }
    columns = [sql.identifier(name) for name in dataset.schema.names]
    if broken:
        rule = " OR ".join(f"({condition})" for condition in broken.values())
        columns[0] = f"CASE WHEN {rule} THEN raise_error('broken') ELSE {columns[0]} END AS {columns[0]}"
    return columns


def evolution(dataset: Dataset, tables: Sequence[Applied]) -> dict[str, Any]:
    """The changes that a write's attempts made to the table's schema, as fields of its result. If none, empty."""
    changes = tuple(step for table in tables for step in table.steps)
    if tables[-1].overwrites:
        changes += tuple(shape_differences(dataset, tables[-1].after))
    return {"fingerprint_before": tables[0].before.fingerprint, "schema_changes": changes} if changes else {}
