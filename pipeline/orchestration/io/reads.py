"""The reads of this process's steps: they are reported with the steps' writes, and the column lineage is made of them.

Here belong the reads that are kept until their step's outputs are written, and Dagster's column lineage. The origins
of a column belong to `pipeline.delta.inspect.lineage`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from dagster import AssetKey, DagsterEventType, StepExecutionContext, TableColumnDep, TableColumnLineage
from pyspark.sql import DataFrame

from pipeline.dataset import Dataset
from pipeline.dataset.schema import casefolded
from pipeline.delta.inspect.lineage import column_lineage, plain_location
from pipeline.delta.read.changes import SourceChanges
from pipeline.delta.read.verdict import VerdictKind
from pipeline.delta.read.version import ReadFacts
from pipeline.orchestration.metadata_keys import CACHED, COLUMN_LINEAGE, VERSION


@dataclass(frozen=True)
class InputRead:
    """A step's read of a source, and the location of its table. The dataset's name is the path of the asset key."""

    facts: ReadFacts
    location: str


# The reads of each step, by dataset. A step may read through one IO manager and write through another, and it may have
# several outputs: its reads live as long as the step itself.
_READS: WeakKeyDictionary[StepExecutionContext, dict[str, InputRead]] = WeakKeyDictionary()


def note_read(step: StepExecutionContext, read: InputRead) -> None:
    """Keep a step's read of a source."""
    _READS.setdefault(step, {})[read.facts.name] = read


def reads_of(step: StepExecutionContext | None) -> dict[str, InputRead]:
    """The reads of a step as frames, by dataset. Outside a step, empty."""
    return {} if step is None else dict(_READS.get(step, {}))


def changes_read(changes: SourceChanges) -> dict[str, InputRead]:
    """The reads of a consumer, by dataset. A full snapshot counts as a read of the table."""
    reads = {}
    for name, source in changes.sources.items():
        verdict = source.verdict
        facts = ReadFacts(
            name=name, dataset=name, version=verdict.version,
            kind="table" if verdict.kind is VerdictKind.FULL else "changes",
            first=None if verdict.window is None else verdict.window[0],
            files=None if verdict.kind is VerdictKind.FULL else verdict.files,
        )  # fmt: skip
        reads[name] = InputRead(facts, source.source.location)
    return reads


def version_written_in_run(step: StepExecutionContext, source: AssetKey) -> int | None:
    """The version of the source that this run has committed. If the run has not written it, None.

    A version whose rows were cached is not one of this run: other partitions may be newer.
    """
    records = step.instance.get_records_for_run(
        step.run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION, ascending=False
    ).records
    for record in records:
        materialization = record.event_log_entry.asset_materialization
        if materialization is not None and materialization.asset_key == source:
            value = materialization.metadata.get(VERSION)
            return int(str(value.value)) if value is not None and CACHED not in materialization.metadata else None
    return None


def lineage_metadata(frame: DataFrame, dataset: Dataset, reads: Iterable[InputRead]) -> dict[str, Any]:
    """The columns of the sources that each column of a frame comes from. If no origin is known, empty."""
    keys = {plain_location(read.location): AssetKey(read.facts.name.split("/")) for read in reads}
    if not keys:
        return {}
    declared = {casefolded(name): name for name in dataset.schema.names}
    lineage = {
        declared[casefolded(column)]: [
            TableColumnDep(asset_key=keys[location], column_name=name)
            for location, name in sorted(origins)
            if location in keys
        ]
        for column, origins in column_lineage(frame).items()
        if casefolded(column) in declared
    }
    known = {column: origins for column, origins in lineage.items() if origins}
    return {COLUMN_LINEAGE: TableColumnLineage(deps_by_column=known)} if known else {}
