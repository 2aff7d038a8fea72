"""Damage in scripted ways, each with the answers of the doctor, of a read, of a consumer and of a write.

An answer is right, or an error that names the damage. A write that is refused leaves the log as it was. The table is
prepared once and copied. Damaged files lose the checksum that Hadoop keeps beside them, as a bucket has none.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipeline.dataset import Features, Merge, Replace
from pipeline.delta.inspect.doctor import Finding, examine
from pipeline.delta.maintain.health import health_findings
from pipeline.delta.maintain.maintain import checkpoint
from pipeline.delta.read.changes import changes_since
from pipeline.delta.read.cursors import effective_cursors
from pipeline.delta.read.verdict import VerdictKind
from pipeline.delta.read.version import read
from pipeline.delta.spark.doors import through_door
from pipeline.delta.sql.slices import of_values
from pipeline.delta.table.open_table import require_table
from pipeline.delta.write.write import write
from pipeline.errors import DamagedTableError, PipelineError
from pipeline_tests.delta.sample import day, days, frame_of, note, ordered, put, versions_of
from pipeline_tests.tiers import some_are_quick

LEDGER = days(Replace(), features=Features(deletion_vectors=True))
MERGED = replace(LEDGER, write=Merge(), keys=("id",))
FOLLOWER = days(Replace(), name="follower", reads=("days",), reads_changes_of=("days",))
# Version 2 has the checkpoint, version 3 writes the deletion vector, version 4 a file of the change feed.
CHECKPOINT, NEWEST = 2, 4
READ_TO = 1
ROWS = [(day(1), 2, "x"), (day(1), 3, "x"), (day(2), 4, "x"), (day(3), 5, "x")]
CHANGED = [("delete", 1), ("delete", 6), ("insert", 5), ("insert", 6)]
PERSISTENT = "spark.databricks.delta.delete.deletionVectors.persistent"
# What the write brings in place of two days, among them those of the damaged data file and of the deletion vector.
WRITTEN = [(day(1), 2, "z"), (day(1), 3, "z"), (day(2), 4, "z")]


@pytest.fixture(scope="module")
def sound(classic: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table, and a consumer that has read its first version with rows."""
    root = tmp_path_factory.mktemp("sound")
    table = LEDGER.at(str(root))
    first = [(day(1), 1, "x"), (day(1), 2, "x"), (day(1), 3, "x"), (day(2), 4, "x")]
    for rows, within in ((first, None), ([(day(3), 5, "x"), (day(3), 6, "x")], of_values("day", [day(3)]))):
        write(frame_of(classic, LEDGER, rows).coalesce(1), table=table, note=note(), within=within)
    checkpoint(classic, table)
    for number, persistent in ((1, "true"), (6, "false")):
        classic.conf.set(PERSISTENT, persistent)
        classic.sql(f"DELETE FROM delta.`{table.location}` WHERE id = {number}").collect()
    classic.conf.unset(PERSISTENT)
    table_id = require_table(classic, table).table_id
    cursors = {"number": 1, "read_at": -1, "sources": {"days": {"table_id": table_id, "version": READ_TO}}}
    metadata = {"userMetadata": json.dumps({"pipeline": 1, "cursors": cursors})}
    deltalake.write_deltalake(
        FOLLOWER.location(str(root)), pa.table({"id": [1]}),
        commit_properties=deltalake.CommitProperties(custom_metadata=metadata),
    )  # fmt: skip
    return root


@dataclass(frozen=True)
class Copy:
    """A copy of the table that is damaged."""

    root: str

    @property
    def folder(self) -> Path:
        return Path(LEDGER.location(self.root))

    def log(self, name: str) -> Path:
        return self.folder / "_delta_log" / name

    def entry(self, number: int) -> Path:
        return self.log(f"{number:020d}.json")

    def checksum(self, number: int) -> Path:
        return self.log(f"{number:020d}.crc")

    def one(self, pattern: str) -> Path:
        (path,) = self.folder.glob(pattern)
        return path

    @property
    def checkpoint(self) -> Path:
        return self.one("_delta_log/*.checkpoint*.parquet")

    @property
    def data(self) -> Path:
        return self.one("day=2026-01-02/*.parquet")

    @property
    def vector(self) -> Path:
        return self.one("deletion_vector_*.bin")

    @property
    def feed(self) -> Path:
        return self.one("_change_data/**/*.parquet")

    def commits(self) -> dict[str, bytes]:
        """The entries of the log with their contents."""
        return {path.name: path.read_bytes() for path in self.folder.glob("_delta_log/*.json")}


# --- damages ----------------------------------------------------------------------------------------------------------

Part = Callable[[Copy], Path]
Damage = Callable[[Copy], object]


def gone(*parts: Part) -> Damage:
    def damage(copy: Copy) -> None:
        for path in [part(copy) for part in parts]:
            path.unlink()
            (path.parent / f".{path.name}.crc").unlink(missing_ok=True)

    return damage


def content(part: Part, change: Callable[[bytes], bytes]) -> Damage:
    """A file with other content."""

    def damage(copy: Copy) -> None:
        path = part(copy)
        before = path.read_bytes()
        gone(part)(copy)
        path.write_bytes(change(before))

    return damage


def all_of(*damages: Damage) -> Damage:
    return lambda copy: [damage(copy) for damage in damages]


def entry(number: int) -> Part:
    return lambda copy: copy.entry(number)


def checksum(number: int) -> Part:
    return lambda copy: copy.checksum(number)


def as_is(part: Part, other: Part) -> Damage:
    """A file with the content of another one."""
    return lambda copy: content(part, lambda _: other(copy).read_bytes())(copy)


def empty(part: Part) -> Damage:
    return content(part, lambda _: b"")


def halved(part: Part) -> Damage:
    return content(part, lambda whole: whole[: len(whole) // 2])


def zeroed(part: Part) -> Damage:
    """A file of the same size that holds nothing."""
    return content(part, lambda whole: bytes(len(whole)))


def byte_changed(part: Part, at: int) -> Damage:
    return content(part, lambda whole: whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at:][1:])


def without(number: int, kind: str) -> Damage:
    """An entry without its actions of one kind, each line whole."""
    start = f'{{"{kind}"'.encode()
    lines = lambda whole: [line for line in whole.splitlines(keepends=True) if not line.startswith(start)]  # noqa: E731
    return content(entry(number), lambda whole: b"".join(lines(whole)))


def lying(number: int, **fields: Any) -> Damage:
    """A checksum file with other values."""
    return content(checksum(number), lambda whole: json.dumps(json.loads(whole) | fields).encode())


def pointer(copy: Copy) -> Path:
    return copy.log("_last_checkpoint")


def checkpoint_of(copy: Copy) -> Path:
    return copy.checkpoint


def data(copy: Copy) -> Path:
    return copy.data


def vector(copy: Copy) -> Path:
    return copy.vector


def feed(copy: Copy) -> Path:
    return copy.feed


def part_missing(copy: Copy) -> None:
    """The checkpoint as the first of two parts."""
    copy.checkpoint.rename(copy.log(f"{CHECKPOINT:020d}.checkpoint.{1:010d}.{2:010d}.parquet"))


def killed_first_write(copy: Copy) -> None:
    """A first commit without bytes, and nothing else."""
    shutil.rmtree(copy.folder)
    copy.entry(0).parent.mkdir(parents=True)
    copy.entry(0).write_bytes(b"")


def half_written(copy: Copy) -> None:
    """The temporary files of a commit that was killed."""
    half = copy.entry(NEWEST).read_bytes()[:99]
    copy.log(f".{NEWEST + 1:020d}.json.0a1b2c3d-0000-4000-8000-000000000000.tmp").write_bytes(half)
    copy.log(f".{NEWEST + 1:020d}.json.0a1b2c3d-0000-4000-8000-000000000000.tmp.crc").write_bytes(b"crc\0")


def orphan(copy: Copy) -> None:
    shutil.copy(copy.data, copy.data.with_name("part-orphan.parquet"))


# --- the table of damages ---------------------------------------------------------------------------------------------

Answer = type[PipelineError] | None  # None is the right answer
REFUSED = DamagedTableError


@dataclass(frozen=True)
class Case:
    """A damage. `serious` and `minor` are the kinds of the doctor's findings, and the others are answers."""

    name: str
    damage: Damage
    serious: tuple[str, ...] = ()
    minor: tuple[str, ...] = ()
    read: Answer = None
    consumer: Answer | VerdictKind = VerdictKind.CHANGES
    replace: Answer = None
    merge: Answer = None


def unreadable(name: str, damage: Damage, *serious: str, minor: tuple[str, ...] = ()) -> Case:
    """Damage of the log that hides the rows of the table."""
    return Case(name, damage, serious, minor, read=REFUSED, consumer=REFUSED, replace=REFUSED, merge=REFUSED)


ENTRY, GAP, CHECKPOINT_FAULT, FILE = "damaged commit", "log gap", "damaged checkpoint", "damaged file"
FULL = VerdictKind.FULL
BELOW = tuple(entry(number) for number in range(CHECKPOINT))
CASES = (
    unreadable("an entry missing in the middle", gone(entry(3)), GAP),
    unreadable("the newest entry missing", gone(entry(4)), GAP),
    unreadable("the newest entry without bytes", empty(entry(4)), ENTRY),
    unreadable("the newest entry cut in half", halved(entry(4)), ENTRY),
    unreadable("an entry with the content of another", as_is(entry(3), entry(1)), ENTRY),
    unreadable("a garbled line", byte_changed(entry(3), 5), ENTRY),
    unreadable("an entry without what it removes", without(4, "remove"), ENTRY),
    unreadable("an entry without what it adds", without(4, "add"), ENTRY),
    unreadable("an entry without its change files", without(4, "cdc"), ENTRY),
    unreadable("a first commit without bytes", killed_first_write, ENTRY),
    unreadable("no protocol", all_of(gone(checkpoint_of, pointer), without(0, "protocol")), ENTRY),
    unreadable("no metadata", all_of(gone(checkpoint_of, pointer), without(0, "metaData")), ENTRY),
    unreadable("a checkpoint of garbage", content(checkpoint_of, lambda _: b"PAR1 and no more"), CHECKPOINT_FAULT),
    Case("a checkpoint without bytes", empty(checkpoint_of), (CHECKPOINT_FAULT,), ("wrong pointer",)),
    unreadable("a checkpoint without bytes, and no entries below", all_of(empty(checkpoint_of), gone(*BELOW)),
               CHECKPOINT_FAULT, GAP, GAP, minor=("wrong pointer",)),
    Case("a checkpoint with a part missing", part_missing, minor=("incomplete checkpoint", "wrong pointer")),
    unreadable("a checkpoint with a part missing, and no entries below", all_of(part_missing, gone(*BELOW)),
               GAP, GAP, minor=("incomplete checkpoint", "wrong pointer")),
    Case("a pointer of garbage", content(pointer, lambda _: b'{"version":'), minor=("wrong pointer",)),
    Case("a pointer to no checkpoint", content(pointer, lambda _: b'{"version":3,"size":9}'), minor=("wrong pointer",)),
    Case("a pointer beyond", content(pointer, lambda _: b'{"version":99,"size":9}'), minor=("wrong pointer",)),
    Case("a checksum file of garbage", content(checksum(4), lambda _: b'{"numFiles":'), minor=("wrong checksum",)),
    unreadable("a checksum file with another number of files", lying(4, numFiles=9), ENTRY),
    unreadable("a checksum file of another commit", as_is(checksum(4), checksum(3)), ENTRY),
    Case("a checksum file with other files", lying(4, allFiles=[])),
    Case("no checksum files", gone(*map(checksum, range(NEWEST + 1)))),
    Case("a data file missing", gone(data), ("missing file",), read=REFUSED, merge=REFUSED),
    Case("a data file cut", halved(data), (FILE,), read=REFUSED, merge=REFUSED),
    Case("a data file of garbage", zeroed(data), (FILE,), read=REFUSED, merge=REFUSED),
    # The changes of the entry that writes a deletion vector follow from it.
    Case("a deletion vector missing", gone(vector), (FILE,), read=REFUSED, consumer=REFUSED, merge=REFUSED),
    Case("a deletion vector cut", halved(vector), (FILE,), read=REFUSED, consumer=REFUSED, merge=REFUSED),
    Case("a deletion vector changed", byte_changed(vector, -9), (FILE,), read=REFUSED, consumer=REFUSED, merge=REFUSED),
    Case("a change file missing", gone(feed), minor=("unread changes",), consumer=FULL),
    Case("a change file cut", halved(feed), (FILE,), consumer=REFUSED),
    Case("a file of no commit", orphan, minor=("orphan",)),
    Case("a half-written entry", half_written),
    Case("a gap below the checkpoint", gone(entry(2)), (GAP,), consumer=FULL),
    Case("an entry without bytes below the checkpoint", empty(entry(2)), (ENTRY,), consumer=REFUSED),
)  # fmt: skip
QUICK = [case for case in CASES if case.name == "an entry missing in the middle"]


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Copy:
    return Copy(str(shutil.copytree(sound, tmp_path / "tables")))


def findings(copy: Copy) -> list[Finding]:
    """The findings of `pipeline doctor`."""
    consumers, location = [FOLLOWER.at(copy.root)], LEDGER.location(copy.root)
    found = examine(LEDGER.name, location, consumers=consumers).findings
    return [*found, *health_findings(LEDGER.name, location, declared=LEDGER, consumers=consumers)]


def rows(session: SparkSession, copy: Copy) -> list[tuple[Any, ...]]:
    with through_door(LEDGER.name, LEDGER.location(copy.root)):
        return ordered(map(tuple, read(session, LEDGER.at(copy.root)).frame.collect()))


def consumed(session: SparkSession, copy: Copy) -> VerdictKind:
    """Read what the consumer has not read yet, which must be right."""
    cursors = effective_cursors(session, require_table(session, FOLLOWER.at(copy.root)))
    with (
        through_door(LEDGER.name, LEDGER.location(copy.root)),
        changes_since(session, [LEDGER.at(copy.root)], cursors) as changes,
    ):
        source = changes[LEDGER.name]
        expected = [("insert", row[1]) for row in ROWS] if source.is_full else CHANGED
        assert sorted(map(tuple, source.frame.select("_change_type", "id").collect())) == sorted(expected)
        return source.verdict.kind


def answered(expected: Answer | VerdictKind, attempt: Callable[[], Any], right: Any) -> None:
    """An attempt has the right result, or raises the expected error."""
    if isinstance(expected, type):
        with pytest.raises(expected) as caught:
            attempt()
        assert type(caught.value) is expected
    else:
        assert attempt() == right


def written(session: SparkSession, copy: Copy, dataset: Any) -> list[tuple[Any, ...]]:
    """The rows after a write of two days."""
    newest = versions_of(LEDGER, copy.root)[-1]
    assert put(session, dataset, copy.root, WRITTEN, of_values("day", [day(1), day(2)])).version == newest + 1
    return rows(session, copy)


def kinds(found: Iterable[Finding], *, serious: bool) -> list[str]:
    return sorted(finding.kind for finding in found if finding.serious is serious)


@pytest.mark.parametrize("case", some_are_quick(CASES, *QUICK), ids=lambda case: case.name)
def test_each_damage_has_its_answers(classic: SparkSession, copy: Copy, tmp_path: Path, case: Case) -> None:
    case.damage(copy)
    found = findings(copy)
    assert (kinds(found, serious=True), kinds(found, serious=False)) == (sorted(case.serious), sorted(case.minor))
    before = copy.commits()
    answered(case.read, lambda: rows(classic, copy), ROWS)
    answered(case.consumer, lambda: consumed(classic, copy), case.consumer)
    assert copy.commits() == before
    for number, (expected, dataset) in enumerate(((case.replace, LEDGER), (case.merge, MERGED))):
        other = Copy(str(shutil.copytree(copy.root, tmp_path / f"{number}")))
        answered(expected, lambda: written(classic, other, dataset), [*WRITTEN, ROWS[-1]])  # noqa: B023  called at once
        assert (other.commits() == before) is (expected is not None)


def test_a_sound_table_has_the_right_answers(classic: SparkSession, copy: Copy) -> None:
    assert findings(copy) == []
    assert rows(classic, copy) == ROWS
    assert consumed(classic, copy) is VerdictKind.CHANGES


@pytest.mark.exhaustive
@pytest.mark.parametrize("damage", [lying(4, numFiles=9), lying(3, numFiles=9), as_is(checksum(4), checksum(3))])
def test_a_checksum_file_that_lies_is_named_and_without_it_the_table_is_sound(
    classic: SparkSession, copy: Copy, damage: Damage
) -> None:
    damage(copy)
    found = findings(copy)
    (serious,) = [one for one in found if one.serious]
    named = [copy.checksum(number) for number in range(NEWEST + 1) if str(copy.checksum(number)) in serious.remedy]
    assert 1 <= len(named) <= 2
    for path in named:
        path.unlink()
    assert findings(copy) == []
    assert rows(classic, copy) == ROWS
    assert consumed(classic, copy) is VerdictKind.CHANGES
