"""What the steps of this process have read: told with what they write, and the origin of its columns made of it.

Here belong the reads that wait for their step's outputs, and what Dagster calls column lineage. Where a column comes
from is `pipeline.delta.inspect.lineage`'s to say.
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
from pipeline.orchestration.metadata_keys import COLUMN_LINEAGE, VERSION


@dataclass(frozen=True)
class InputRead:
    """One source as a step has read it, and where its table lies; the dataset's name is the path of the asset key."""

    facts: ReadFacts
    location: str


# The reads of each step, by dataset. A step may read through one IO manager and write through another, and it may have
# several outputs: its reads live as long as the step itself.
_READS: WeakKeyDictionary[StepExecutionContext, dict[str, InputRead]] = WeakKeyDictionary()


def note_read(step: StepExecutionContext, read: InputRead) -> None:
    """Keep what a step has read of a source."""
    _READS.setdefault(step, {})[read.facts.name] = read


def reads_of(step: StepExecutionContext | None) -> dict[str, InputRead]:
    """The reads of a step as frames, by dataset; none outside a step."""
    return {} if step is None else dict(_READS.get(step, {}))


def changes_read(changes: SourceChanges) -> dict[str, InputRead]:
    """What a consumer has read, by dataset; a full snapshot is a read of the table."""
    found = {}
    for name, source in changes.sources.items():
        verdict = source.verdict
        facts = ReadFacts(
            name=name, dataset=name, version=verdict.version,
            kind="table" if verdict.kind is VerdictKind.FULL else "changes",
            first=None if verdict.window is None else verdict.window[0],
            files=None if verdict.kind is VerdictKind.FULL else verdict.files,
        )  # fmt: skip
        found[name] = InputRead(facts, source.source.location)
    return found


def version_written_in_run(step: StepExecutionContext, source: AssetKey) -> int | None:
    """The version that this run has committed of the source; None where it has not written it."""
    records = step.instance.get_records_for_run(
        step.run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION, ascending=False
    ).records
    for record in records:
        materialization = record.event_log_entry.asset_materialization
        if materialization is not None and materialization.asset_key == source:
            value = materialization.metadata.get(VERSION)
            return int(str(value.value)) if value is not None else None
    return None


def lineage_metadata(frame: DataFrame, dataset: Dataset, reads: Iterable[InputRead]) -> dict[str, Any]:
    """The columns of the sources that each column of a frame comes from, where that is known of any."""
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
