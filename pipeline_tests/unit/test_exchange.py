"""What comes and goes between two versions, from logs that are written by another engine."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pyarrow as pa

from pipeline.delta.log.commits import commit_file
from pipeline.delta.maintain.exchange import PartitionExchange, exchange


def put(location: str, day: str, *ids: int, mode: str = "append") -> None:
    rows = pa.table({"day": [day] * len(ids), "id": pa.array(ids, pa.int64())})
    predicate = {"predicate": f"day = '{day}'"} if mode == "overwrite" else {}
    deltalake.write_deltalake(location, rows, mode=mode, partition_by=["day"], **predicate)


def test_files_rows_and_partitions_are_those_between_the_two_versions(tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    put(location, "a", 1, 2)
    put(location, "b", 3)
    put(location, "a", 4, 5, 6, mode="overwrite")
    back = exchange(location, 2, 0)
    assert back is not None
    assert (back.files_back, back.files_gone, back.rows_back, back.rows_gone) == (1, 2, 2, 4)
    assert (back.rows_now, back.rows_then) == (4, 2)
    assert back.partitions == (
        PartitionExchange(partition={"day": "a"}, rows_now=3, rows_then=2, files_back=1, files_gone=1),
        PartitionExchange(partition={"day": "b"}, rows_now=1, rows_then=0, files_back=0, files_gone=1),
    )
    deltalake.DeltaTable(location).restore(0)
    done = exchange(location, 2, 3)
    assert done == back
    nothing = exchange(location, 3, 0)
    assert nothing is not None
    assert (nothing.files_back, nothing.files_gone, nothing.rows_back, nothing.partitions) == (0, 0, 0, ())


def test_rows_of_a_file_without_statistics_are_unknown_and_those_of_other_partitions_are_not(tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    put(location, "a", 1, 2)
    put(location, "b", 3)
    put(location, "c", 4)
    entry = Path(commit_file(location, 1))
    lines = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line.get("add", {}).pop("stats", None)
    entry.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    found = exchange(location, 2, 0)
    assert found is not None
    assert (found.rows_back, found.rows_gone, found.rows_now, found.rows_then) == (0, None, None, 2)
    assert [(one.partition, one.rows_now, one.rows_then) for one in found.partitions] == [
        ({"day": "b"}, None, 0), ({"day": "c"}, 1, 0),
    ]  # fmt: skip


def test_a_file_of_which_other_rows_are_deleted_comes_back_as_another_file(tmp_path: Path) -> None:
    location = tmp_path / "table"
    put(str(location), "a", 1, 2, 3)
    entry = Path(commit_file(str(location), 0))
    added = next(a for a in map(json.loads, entry.read_text(encoding="utf-8").splitlines()) if "add" in a)["add"]
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 1, "cardinality": 2}
    actions = [{"remove": {"path": added["path"], "dataChange": True}}, {"add": added | {"deletionVector": vector}}]
    Path(commit_file(str(location), 1)).write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")
    found = exchange(str(location), 1, 0)
    assert found is not None
    assert (found.files_back, found.files_gone, found.rows_back, found.rows_gone) == (1, 1, 3, 1)
    assert (found.rows_now, found.rows_then) == (1, 3)


def test_of_a_log_that_does_not_say_it_nothing_is_claimed(tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    put(location, "a", 1)
    put(location, "a", 2)
    Path(commit_file(location, 0)).unlink()
    assert exchange(location, 1, 1) is None
    assert exchange("/nowhere/table", 1, 0) is None
