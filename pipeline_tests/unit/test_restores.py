"""Which version a restore has brought back, from the log alone: tables and restores are delta-rs's."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pytest

from pipeline.delta.log.commits import commit_file, entry_identity, read_entry
from pipeline.delta.log.entry import info_of
from pipeline.delta.read.restores import contradictory_commits, restored_version
from pipeline.errors import DamagedTableError

NO_SESSION = None  # of a time in milliseconds nothing is asked of Spark
START = dt.datetime.now(dt.timezone.utc).replace(microsecond=0) - dt.timedelta(days=3)


def append(location: str, value: int) -> None:
    deltalake.write_deltalake(location, pa.table({"a": [value]}), mode="append")
    settle(location)


def settle(location: str) -> None:
    """Give each commit's file a time of its own: version n was committed n hours after the start."""
    for number in range(deltalake.DeltaTable(location).version() + 1):
        path = commit_file(location, number)
        if Path(path).exists():
            os.utime(path, (START.timestamp() + 3600 * number,) * 2)


def restore_to(location: str, hours: float) -> int:
    """Restore to a time; the version of the restore."""
    table = deltalake.DeltaTable(location)
    table.restore(START + dt.timedelta(hours=hours))
    settle(location)
    return deltalake.DeltaTable(location).version()


def brought_back(location: str, number: int) -> int | None:
    info = info_of(read_entry(location, number))
    assert info["operation"] == "RESTORE"
    return restored_version(NO_SESSION, location, number, info["operationParameters"])


def test_the_files_tell_which_version_a_restore_to_a_time_has_brought_back(tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    for value in range(4):
        append(location, value)
    first = restore_to(location, 1.5)
    append(location, 9)
    append(location, 10)
    second = restore_to(location, 5.5)  # to what was there after the first restore and one more append
    append(location, 11)
    deltalake.DeltaTable(location).restore(2)
    assert (first, second) == (4, 7)
    assert [brought_back(location, number) for number in (4, 7, 9)] == [1, 5, 2]
    for number in range(10):  # times that a copy of the folder has taken away change nothing
        os.utime(commit_file(location, number))
    assert [brought_back(location, number) for number in (4, 7)] == [1, 5]


def test_of_versions_with_the_same_files_the_time_decides_and_else_the_oldest_counts(tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    append(location, 0)
    append(location, 1)
    deltalake.DeltaTable(location).delete("a = 1")  # a whole file: the files are those of version 0
    settle(location)
    append(location, 3)
    late = restore_to(location, 2.5)
    append(location, 5)
    early = restore_to(location, 0.5)
    assert [brought_back(location, number) for number in (late, early)] == [2, 0]
    assert restored_version(NO_SESSION, location, late, {"datetime": str(int(START.timestamp() * 1000))}) == 0
    for number in range(early + 1):
        os.utime(commit_file(location, number))
    assert brought_back(location, late) == 0


def test_a_log_that_was_cleaned_is_read_from_its_checkpoint_and_one_that_is_broken_is_refused(
    tmp_path: Path,
) -> None:
    location = str(tmp_path / "table")
    for value in range(3):
        append(location, value)
    deltalake.DeltaTable(location).create_checkpoint()
    append(location, 3)
    append(location, 4)
    restored = restore_to(location, 3.5)
    for number in (0, 1):
        Path(commit_file(location, number)).unlink()
    assert brought_back(location, restored) == 3
    Path(commit_file(location, 2)).unlink()
    assert brought_back(location, restored) == 3
    Path(commit_file(location, 4)).write_text("{", encoding="utf-8")
    with pytest.raises(DamagedTableError):
        brought_back(location, restored)


@pytest.mark.parametrize(
    ("parameters", "version"),
    [({"version": "3"}, 3), ({"version": 3}, 3), ({"version": "0"}, 0), ({"version": 7}, None)],
)
def test_a_version_that_is_named_needs_no_log(tmp_path: Path, parameters: dict[str, Any], version: int | None) -> None:
    assert restored_version(NO_SESSION, str(tmp_path), 7, parameters) == version


def test_two_commits_of_one_number_differ_and_copies_of_one_do_not() -> None:
    one = ['{"commitInfo":{"timestamp":1}}', '{"add":{"path":"a"}}', ""]
    assert entry_identity(one) == entry_identity([f"{line}\n" for line in reversed(one)])
    assert entry_identity(one) != entry_identity(['{"commitInfo":{"timestamp":2}}', '{"add":{"path":"a"}}'])
    assert entry_identity(['{"add":{"path":"a"}}']) != entry_identity(['{"add":{"path":"b"}}'])


def test_a_commit_that_names_files_as_the_table_does_not_know_them_is_told_of(tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    for value in range(3):
        append(location, value)
    restored = restore_to(location, 0.5)
    assert contradictory_commits(location, {1, 2, restored}) == []
    path = Path(commit_file(location, restored))
    lines = path.read_text(encoding="utf-8").splitlines()
    removed = next(json.loads(line)["remove"] for line in lines if line.startswith('{"remove"'))
    for other in (
        {"remove": removed | {"path": "another"}},
        {"remove": removed | {"deletionVector": {"storageType": "u", "pathOrInlineDv": "x", "offset": 1}}},
        {"add": removed | {"path": next(iter(deltalake.DeltaTable(location).file_uris())).rpartition("/")[2]}},
    ):
        path.write_text("\n".join([*lines, json.dumps(other)]), encoding="utf-8")
        assert contradictory_commits(location, {1, restored}) == [restored]
    Path(commit_file(location, 1)).unlink()
    assert contradictory_commits(location, {restored}) == []  # nobody knows


def test_a_file_that_delta_rs_removes_by_another_spelling_than_spark_s_is_told_of(tmp_path: Path) -> None:
    """Spark writes a letter like ü into the log as it is; delta-rs spells it by percent signs: another file."""
    location = tmp_path / "table"
    schema = pa.schema([("a", pa.int64()), ("p", pa.string())])
    for _ in range(2):
        rows = pa.Table.from_pylist([{"a": 1, "p": "ü"}], schema)
        deltalake.write_deltalake(location, rows, mode="append", partition_by=["p"])
    path = Path(commit_file(str(location), 1))
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    added = next(line["add"] for line in lines if "add" in line)
    folder, _, name = unquote(added["path"]).rpartition("/")
    (location / "p=ü").mkdir()
    (location / folder / name).rename(location / "p=ü" / name)
    added["path"] = f"p=ü/{name}"
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
    deltalake.write_deltalake(location, rows, mode="append", partition_by=["p"])
    deltalake.DeltaTable(location).restore(0)
    assert contradictory_commits(str(location), {3}) == [3]
    assert deltalake.DeltaTable(location).to_pyarrow_table().num_rows == 2, "the file is still there"
