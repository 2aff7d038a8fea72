"""The publication of a write that its audit refused: its rows, which wait beside the table, are committed after all.

Here belong the writes that wait, and the conditions under which one may still be committed. The rows go through `write`
under the identifier of the refused write and in its slice. So Delta accepts them once, from a publication or from a
repetition of the run, and nothing else is overwritten.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipeline.dataset import Merge, Replace, TableRef
from pipeline.dataset.side_tables import NO_ROWS, RUN_ID, TOKEN, WRITE
from pipeline.delta import sql
from pipeline.delta.inspect.check import typed_values
from pipeline.delta.log.commits import PartitionValues, commit_info, commit_note, newest_infos
from pipeline.delta.log.mark import HISTORY_LIMIT, CommitNote, Mark, rows_changed
from pipeline.delta.log.retry import NO_RETRY
from pipeline.delta.spark.doors import door
from pipeline.delta.sql import exact
from pipeline.delta.sql.slices import Slice, slice_of_document
from pipeline.delta.table.open_table import TableState, require_table, rows_at, table_state
from pipeline.delta.write import quarantine
from pipeline.delta.write.merge import repeats_differ
from pipeline.delta.write.result import WriteResult, no_commit
from pipeline.delta.write.transaction import Identifier, Written, cursor_identifier, identifier, version_holding
from pipeline.delta.write.write import write
from pipeline.errors import NewerRowsReplacedError, NewerWritesError, NothingRejectedError

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


@dataclass(frozen=True, kw_only=True)
class RejectedWrite:
    """A write that its audit refused: what it would commit, and what was found of it.

    `rows` are all rows of its frame. `failed` maps each expectation that failed to what was found. `version` is the
    version of the table at which it was judged, `rejected_version` that of the table of rejected writes. `frame_schema`
    has the columns that only the frame has.
    """

    run_id: str
    token: str
    rejected_at: dt.datetime
    rejected_version: int
    note: CommitNote
    within: Slice | None
    replace_all: bool
    rows: int
    failed: Mapping[str, str]
    table_id: str
    version: int
    frame_schema: StructType

    @property
    def mark(self) -> Mark:
        """The mark of a publication: the writer and epoch of the write, and a token of its own."""
        mark = self.note.mark
        if mark.epoch is None:
            return Mark(writer=f"{mark.writer}/{mark.token}", epoch=0)
        return Mark(writer=mark.writer, epoch=mark.epoch, attempt=mark.attempt)


@dataclass(frozen=True, kw_only=True)
class Publication:
    """What a publication of a write would do.

    `held_at` is the version that has the rows already, None if none has. `is_overtaken`: rows that the write would
    replace have changed since it was judged. `is_consumed`: the consumer's cursors have moved on.
    """

    write: RejectedWrite
    table_version: int
    held_at: int | None
    is_overtaken: bool
    is_consumed: bool


@door
def rejected_writes(session: SparkSession, table: TableRef) -> list[RejectedWrite]:
    """The writes that wait beside the table, the oldest first. Without an audit, or if none waits, empty."""
    to = _beside(table)
    state = None if to is None else table_state(session, to)
    if to is None or state is None:
        return []
    run, token, document = (sql.identifier(name) for name in (RUN_ID, TOKEN, WRITE))
    rows = session.sql(
        f"SELECT {run} AS run, {token} AS token, min({document}) AS document, "  # noqa: S608  all quoted
        f"unix_micros(min(_rejected_at)) AS at FROM {sql.path_table(to.location)} VERSION AS OF {state.version} "
        f"GROUP BY {run}, {token}"
    ).collect()
    return sorted((_read(state, row) for row in rows), key=lambda one: one.rejected_at)


def _read(state: TableState, row: Any) -> RejectedWrite:
    document = json.loads(row["document"])
    return RejectedWrite(
        run_id=row["run"], token=row["token"], rejected_at=_EPOCH + dt.timedelta(microseconds=row["at"]),
        rejected_version=state.version, note=CommitNote.from_document(document["note"]),
        within=None if document["within"] is None else slice_of_document(document["within"]),
        replace_all=document["replace_all"], rows=document["rows"], failed=document["failed"],
        table_id=document["table_id"], version=document["version"],
        frame_schema=StructType.fromJson(document["frame_schema"]),
    )  # fmt: skip


@door
def plan_publications(session: SparkSession, table: TableRef, run_id: str) -> list[Publication]:
    """What a publication of a run's rejected writes would do, the oldest first. Makes no commit.

    Raises:
        TableNotFoundError: the table was never opened for a write.
        NothingRejectedError: no write of the run waits.
    """
    state = require_table(session, table)
    waiting = rejected_writes(session, table)
    found = [one for one in waiting if one.run_id == run_id]
    if not found:
        runs = tuple(dict.fromkeys(one.run_id for one in waiting))
        raise table.error(NothingRejectedError, run_id=run_id, waiting=runs)
    return [_plan(session, table, state, one) for one in found]


@door
def publish(
    session: SparkSession, table: TableRef, rejected: RejectedWrite, *, over_newer: bool = False
) -> WriteResult:
    """Commit the rows of a rejected write, once, and remove them from the table of rejected writes.

    If they were committed before, by a publication or by a repetition of the run, the result is `skipped`. Newer rows
    are looked for before the statement of each attempt. Delta looks for those that are committed while it runs.

    Args:
        over_newer: replace rows even if they were written after this write was judged.

    Raises:
        NewerWritesError: rows that the write would replace have changed since it was judged; nothing was committed.
        NewerRowsReplacedError: they have changed after they were looked for and before the statement, and are replaced.
        PipelineError: the errors of `write`. The rows wait as before.
    """
    state = require_table(session, table)
    plan = _plan(session, table, state, rejected)
    dataset = replace(table.dataset, audit="after", expectations=(), row_count=None)
    if plan.held_at is not None:
        result = no_commit(dataset, state, rejected.mark, skipped_at=plan.held_at)
    else:
        judged = _Lookout(session=session, table=table, rejected=rejected, over_newer=over_newer, until=state.version)
        judged.refuse_if_overtaken(plan)
        result = write(
            waiting_rows(session, table, rejected), table=TableRef(dataset, table.location), within=rejected.within,
            note=replace(rejected.note, mark=rejected.mark), replace_all=rejected.replace_all, source_is_stable=True,
            is_identified=True, retry=None if rejected.note.cursors is None else NO_RETRY, proviso=judged.look,
        )  # fmt: skip
        with result.behind():
            replaced = judged.replaced(result)
        if replaced is not None:
            raise replaced
    with result.behind():
        discard(session, table, rejected)
    return result


@dataclass(kw_only=True)
class _Lookout:
    """The search for newer rows that a publication would replace. `until` is the version up to which there are none."""

    session: SparkSession
    table: TableRef
    rejected: RejectedWrite
    over_newer: bool
    until: int

    def look(self) -> None:
        """Refuse the next attempt if newer rows were committed, but let one pass whose own rows were: Delta skips it.

        Raises:
            NewerWritesError: as it says.
        """
        if self.over_newer:
            return
        state = require_table(self.session, self.table)
        self.refuse_if_overtaken(_plan(self.session, self.table, state, self.rejected))

    def refuse_if_overtaken(self, plan: Publication) -> None:
        """Raise if the plan's write would replace newer rows."""
        if plan.is_consumed or (plan.is_overtaken and not self.over_newer):
            raise self.table.error(
                NewerWritesError, run_id=self.rejected.run_id, judged=self.rejected.version,
                version=plan.table_version, is_consumed=plan.is_consumed,
            )  # fmt: skip
        self.until = plan.table_version

    def replaced(self, result: WriteResult) -> NewerRowsReplacedError | None:
        """The error of a commit that has replaced newer rows: those after the last look that its statement has read.

        Delta itself refuses a statement if such rows are committed after it has read the table.
        """
        if self.over_newer or not result.committed:
            return None
        read_at = (commit_info(self.table.location, result.version) or {}).get("readVersion")
        read_at = result.version - 1 if read_at is None else int(read_at)
        state = replace(require_table(self.session, self.table), version=read_at)
        if not _is_overtaken(self.table, state, replace(self.rejected, version=self.until)):
            return None
        return self.table.error(
            NewerRowsReplacedError, run_id=self.rejected.run_id, version=result.version, first=self.until + 1,
            last=read_at,
        )  # fmt: skip


@door
def discard(session: SparkSession, table: TableRef, rejected: RejectedWrite) -> None:
    """Remove the rows of a rejected write, in a commit of the table of rejected writes."""
    to = _beside(table)
    assert to is not None  # noqa: S101  it has the rows
    note = CommitNote(mark=Mark(writer=f"{table.name}/publish"), run_id=rejected.run_id)
    quarantine.delete_rows(session, to, note, _is_of(rejected))


def waiting_rows(session: SparkSession, table: TableRef, rejected: RejectedWrite) -> DataFrame:
    """The rows of a rejected write in the form of its frame. Lazy."""
    to = _beside(table)
    assert to is not None  # noqa: S101  it has the rows
    of_frame = [
        f"{exact.from_text(sql.identifier(field.name), field.dataType, sql.type_name(field.dataType))} "
        f"AS {sql.identifier(field.name)}"
        for field in rejected.frame_schema.fields
    ]
    rows = rows_at(session, to.location, rejected.rejected_version)
    rows = rows.filter(f"{_is_of(rejected)} AND NOT {sql.identifier(NO_ROWS)}")
    return rows.selectExpr(*(sql.identifier(name) for name in table.dataset.schema.names), *of_frame)


def _is_of(rejected: RejectedWrite) -> str:
    """SQL that is true for the rows of a rejected write."""
    values = {RUN_ID: rejected.run_id, TOKEN: rejected.token}
    return " AND ".join(f"{sql.identifier(name)} = {sql.string(value)}" for name, value in values.items())


def _beside(table: TableRef) -> TableRef | None:
    dataset = table.dataset.rejected
    return None if dataset is None else table.beside(dataset)


def _plan(session: SparkSession, table: TableRef, state: TableState, rejected: RejectedWrite) -> Publication:
    held_at, is_consumed = _held_at(session, state, rejected), False
    if held_at is None and rejected.note.cursors is not None:
        known = cursor_identifier(session, state, rejected.note.cursors.number)
        is_consumed = version_holding(state, rejected.mark, known) is not None
    return Publication(
        write=rejected, table_version=state.version, held_at=held_at,
        is_overtaken=held_at is None and _is_overtaken(table, state, rejected), is_consumed=is_consumed,
    )  # fmt: skip


def _held_at(session: SparkSession, state: TableState, rejected: RejectedWrite) -> int | None:
    """The version in which the rows were committed before. If they were not, None."""
    mark = rejected.mark
    if rejected.note.cursors is not None:  # all writes of a consumer share its identifiers
        for number, info in newest_infos(state.location, HISTORY_LIMIT):
            note = commit_note(info.get("userMetadata")) or {}
            theirs, cursors = note.get("mark") or {}, note.get("cursors") or {}
            same = (theirs.get("writer"), theirs.get("epoch")) == (mark.writer, mark.epoch)
            if same and cursors.get("number") == rejected.note.cursors.number:
                return number
        return None
    known = identifier(session, state, mark)
    if isinstance(known, Written):
        return known.version
    return version_holding(state, mark, known) if isinstance(known, Identifier) else None


def _is_overtaken(table: TableRef, state: TableState, rejected: RejectedWrite) -> bool:
    """Whether the write would replace rows, and any of them may have changed since it was judged."""
    mode, within = table.dataset.write, rejected.within
    replaces = rejected.replace_all or isinstance(mode, Replace)
    if not replaces and not (isinstance(mode, Merge) and repeats_differ(mode)):
        return False
    if state.table_id != rejected.table_id:
        return True
    is_by_partition = within is not None and set(within.columns) <= set(table.dataset.partition_by)

    def is_ours(values: PartitionValues) -> bool:
        typed = dict(zip(table.dataset.partition_by, typed_values(table.dataset, values), strict=True))
        return within is None or within.holds(typed)

    return rows_changed(
        table.location, rejected.version, state.version, partition_by=state.log_partition_by,
        is_ours=is_ours if is_by_partition else None,
    )  # fmt: skip
