"""Damage of a table that Spark writes: reads, writes, consumers and overviews refuse it by name, or are right.

Delta itself reads past some of it. The table is written once and copied.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pipeline.dataset import Features, TableRef
from pipeline.delta.inspect.describe import describe, describe_all
from pipeline.delta.inspect.doctor import examine
from pipeline.delta.log.mark import Cursor
from pipeline.delta.maintain.maintain import checkpoint
from pipeline.delta.read.verdict import VerdictKind, verdict_on
from pipeline.delta.read.version import ReadOptions, read
from pipeline.delta.sql.slices import of_values
from pipeline.delta.table.open_table import require_table
from pipeline.errors import DamagedTableError
from pipeline_tests.delta.sample import REPLACED, day, put
from pipeline_tests.tiers import first_is_quick

CHECKPOINT, NEWEST = 3, 6


@pytest.fixture(scope="module")
def sound(classic: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions 1 to 5 write a day each, version 6 replaces two of them; with a checkpoint of version 3."""
    root = tmp_path_factory.mktemp("sound")
    for number in range(1, NEWEST):
        put(classic, REPLACED, str(root), [(day(number), number, "x")], of_values("day", [day(number)]))
        if number == CHECKPOINT:
            checkpoint(classic, REPLACED.at(str(root)))
    put(classic, REPLACED, str(root), [(day(4), 44, "y")], of_values("day", [day(4), day(5)]))
    return root


@pytest.fixture
def root(sound: Path, tmp_path: Path) -> str:
    """A copy to be damaged."""
    return str(shutil.copytree(sound, tmp_path / "tables"))


def log(root: str, name: str) -> Path:
    return Path(REPLACED.location(root)) / "_delta_log" / name


def entry(root: str, number: int) -> Path:
    return log(root, f"{number:020d}.json")


def keep(root: str, number: int, *kinds: str) -> None:
    """Keep the lines of some kinds of action, each with its end."""
    lines = entry(root, number).read_text().splitlines()
    kept = [line for line in lines if next(iter(json.loads(line))) in kinds]
    entry(root, number).write_text("".join(f"{line}\n" for line in kept))


def without_metrics(root: str, number: int) -> None:
    """An entry that has lost what it removed, and of which only the checksum tells."""
    info, *others = (json.loads(line) for line in entry(root, number).read_text().splitlines())
    del info["commitInfo"]["operationMetrics"]
    kept = [info, *(action for action in others if "remove" not in action)]
    entry(root, number).write_text("".join(f"{json.dumps(action)}\n" for action in kept))


def refused(classic: SparkSession, root: str, cursor: Cursor) -> set[Path]:
    """The files that a read, a write, a consumer and an overview name when they refuse."""
    location, named = REPLACED.location(root), set()
    for attempt in (
        lambda: read(classic, TableRef(REPLACED, location)).frame,
        lambda: put(classic, REPLACED, root, [(day(9), 9, "z")], of_values("day", [day(9)])),
        lambda: verdict_on(classic, TableRef(REPLACED, location), cursor),
        lambda: describe(classic, TableRef(REPLACED, location)),
    ):
        with pytest.raises(DamagedTableError) as caught:
            attempt()
        assert caught.value.dataset == "days"
        assert caught.value.remedy().startswith("pipeline doctor days")
        named.add(Path(caught.value.file))
    return named


DAMAGES: dict[str, tuple[int, Callable[[str], object]]] = {
    "no bytes": (5, lambda root: entry(root, 5).write_bytes(b"")),
    "the newest without bytes": (6, lambda root: entry(root, 6).write_bytes(b"")),
    "cut after its first line": (5, lambda root: keep(root, 5, "commitInfo")),
    "without what it removes": (6, lambda root: keep(root, 6, "commitInfo", "add")),
    "nor any metric that tells": (6, lambda root: without_metrics(root, 6)),
    "without the end of its last line": (5, lambda root: entry(root, 5).write_bytes(entry(root, 5).read_bytes()[:-1])),
    "a copy from below the checkpoint": (5, lambda root: shutil.copy(entry(root, 2), entry(root, 5))),
    "gone": (5, lambda root: entry(root, 5).unlink()),
    "the newest gone": (6, lambda root: entry(root, 6).unlink()),
}


@pytest.mark.parametrize(("number", "damage"), DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_entry_is_refused_by_reads_writes_consumers_and_overviews(
    classic: SparkSession, root: str, number: int, damage: Callable[[str], object]
) -> None:
    location = REPLACED.location(root)
    cursor = Cursor(table_id=require_table(classic, TableRef(REPLACED, location)).table_id, version=CHECKPOINT)
    damage(root)
    files = {path: path.read_bytes() for path in Path(location).rglob("*") if path.is_file()}
    assert refused(classic, root, cursor) == {entry(root, number)}
    (shown,) = describe_all([REPLACED], root, partial(describe, classic))
    assert (shown.standing, entry(root, number).name in str(shown.problem)) == ("unreadable", True)
    assert {path: path.read_bytes() for path in Path(location).rglob("*") if path.is_file()} == files
    found = examine(REPLACED.name, location)
    assert (Path(found.findings[0].path).name, found.healthy) == (entry(root, number).name, False)
    # What was there before the damage can still be read, unless Delta itself refuses a log with a gap above it.
    if number == NEWEST or entry(root, number).exists():
        assert read(classic, TableRef(REPLACED, location), ReadOptions(version=4)).frame.count() == 4


def test_an_entry_below_the_checkpoint_is_refused_to_the_consumer_that_needs_it_and_to_nobody_else(
    classic: SparkSession, root: str
) -> None:
    location = REPLACED.location(root)
    table_id = require_table(classic, TableRef(REPLACED, location)).table_id
    entry(root, 2).write_bytes(b"")
    with pytest.raises(DamagedTableError) as caught:
        verdict_on(classic, TableRef(REPLACED, location), Cursor(table_id=table_id, version=1))
    assert Path(caught.value.file) == entry(root, 2)
    assert (
        verdict_on(classic, TableRef(REPLACED, location), Cursor(table_id=table_id, version=3)).kind
        is VerdictKind.CHANGES
    )
    assert read(classic, TableRef(REPLACED, location)).frame.count() == 4
    with pytest.raises(DamagedTableError):
        read(classic, TableRef(REPLACED, location), ReadOptions(version=2))


@pytest.mark.parametrize("damage", first_is_quick(["a copy of another", "cut"]))
def test_an_entry_below_the_checkpoint_that_is_another_is_refused_to_the_consumer_that_needs_it(
    classic: SparkSession, root: str, damage: str
) -> None:
    location = REPLACED.location(root)
    table_id = require_table(classic, TableRef(REPLACED, location)).table_id
    if damage == "cut":
        without_metrics(root, 2)
        keep(root, 2, "commitInfo")
    else:
        shutil.copy(entry(root, 1), entry(root, 2))
    with pytest.raises(DamagedTableError) as caught:
        verdict_on(classic, TableRef(REPLACED, location), Cursor(table_id=table_id, version=0))
    assert (caught.value.dataset, Path(caught.value.file)) == ("days", entry(root, 2))
    assert read(classic, TableRef(REPLACED, location)).frame.count() == 4


@pytest.mark.parametrize("damage", first_is_quick(["no bytes", "gone"]))
def test_a_file_beside_a_checkpoint_that_is_damaged_is_named(
    classic: SparkSession, tmp_path: Path, damage: str
) -> None:
    dataset = replace(REPLACED, features=Features(v2_checkpoints=True))
    written, root = tmp_path / "written", str(tmp_path / "tables")
    put(classic, dataset, str(written), [(day(1), 1, "x")])
    table_id = require_table(classic, dataset.at(str(written))).table_id
    checkpoint(classic, dataset.at(str(written)))
    shutil.copytree(written, root)
    (beside,) = Path(dataset.location(root)).glob("_delta_log/_sidecars/*.parquet")
    beside.write_bytes(b"") if damage == "no bytes" else beside.unlink()
    assert refused(classic, root, Cursor(table_id=table_id, version=0)) == {beside}


@pytest.mark.parametrize("damage", first_is_quick(["gone", "cut", "a byte changed"]))
def test_a_damaged_deletion_vector_is_named_by_the_doctor(classic: SparkSession, tmp_path: Path, damage: str) -> None:
    dataset = replace(REPLACED, features=Features(deletion_vectors=True))
    location = dataset.location(str(tmp_path))
    put(classic, dataset, str(tmp_path), [(day(1), number, "x") for number in range(9)])
    classic.sql(f"DELETE FROM delta.`{location}` WHERE id < 3").collect()
    assert examine(dataset.name, location).findings == ()
    (vector,) = Path(location).glob("deletion_vector_*.bin")
    content = vector.read_bytes()
    vector.write_bytes(content[:-1] if damage == "cut" else content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    if damage == "gone":
        vector.unlink()
    (found,) = examine(dataset.name, location).findings
    assert (found.kind, found.path, found.serious) == ("damaged file", vector.name, True)


def test_a_checkpoint_whose_pages_were_changed_is_damage_to_the_doctor(classic: SparkSession, root: str) -> None:
    location = REPLACED.location(root)
    (path,) = Path(location).glob("_delta_log/*.checkpoint*.parquet")
    content = path.read_bytes()
    metadata = pq.ParquetFile(path).metadata.row_group(0)
    columns = [metadata.column(number) for number in range(metadata.num_columns)]
    place = next(c.data_page_offset + c.total_compressed_size - 1 for c in columns if c.path_in_schema == "add.path")
    path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
    found = examine(REPLACED.name, location)
    assert [finding.kind for finding in found.findings] == ["damaged checkpoint"]


def test_a_checkpoint_of_no_bytes_is_done_without_while_the_entries_below_it_are_there(
    classic: SparkSession, root: str
) -> None:
    location = REPLACED.location(root)
    (path,) = Path(location).glob("_delta_log/*.checkpoint*.parquet")
    path.write_bytes(b"")
    cursor = Cursor(table_id=require_table(classic, TableRef(REPLACED, location)).table_id, version=CHECKPOINT)
    assert verdict_on(classic, TableRef(REPLACED, location), cursor).kind is VerdictKind.CHANGES
    assert read(classic, TableRef(REPLACED, location)).frame.count() == 4
    assert put(classic, REPLACED, root, [(day(9), 9, "z")], of_values("day", [day(9)])).version == NEWEST + 1
    assert describe(classic, TableRef(REPLACED, location)).rows == 5
    for number in range(CHECKPOINT):
        entry(root, number).unlink()
    assert refused(classic, root, cursor) == {path}


def test_a_checkpoint_that_can_t_be_read_is_refused_by_name(classic: SparkSession, root: str) -> None:
    """Delta finds it out in the middle of a query, and for some queries never."""
    location = REPLACED.location(root)
    cursor = Cursor(table_id=require_table(classic, TableRef(REPLACED, location)).table_id, version=CHECKPOINT)
    (path,) = Path(location).glob("_delta_log/*.checkpoint*.parquet")
    path.write_bytes(b"PAR1 and no more")
    assert refused(classic, root, cursor) == {path}
    # Which the doctor says to do.
    path.unlink()
    log(root, "_last_checkpoint").unlink()
    assert read(classic, TableRef(REPLACED, location)).frame.count() == 4


def test_an_overview_names_the_data_file_that_can_t_be_read(classic: SparkSession, root: str) -> None:
    location = REPLACED.location(root)
    (path,) = Path(location).glob("day=2026-01-02/*.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DamagedTableError) as caught:
        describe(classic, TableRef(REPLACED, location))
    assert path.name in caught.value.file
    assert "PIPELINE_ROOT" not in str(caught.value)
