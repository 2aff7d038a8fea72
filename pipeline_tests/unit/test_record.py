"""Records: what one commit was, in a file of its own; tables here are written by delta-rs, so that no JVM is needed."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, StoragePolicy
from pipeline.delta.inspect.manifest import manifest, runs
from pipeline.delta.inspect.record import (
    DatasetRecord,
    diff,
    hide_secrets,
    verify,
    write_record,
)
from pipeline.delta.log.commits import read_commit
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.log.snapshot import table_facts
from pipeline.delta.storage.file_system import local_folder
from pipeline.delta.table.storage_facts import StorageFacts
from pipeline.delta.write.result import WriteResult
from pipeline.errors import RecordError, RunNotFoundError

NOTES = Dataset(
    name="notes/kept",
    schema=StructType([StructField("part", StringType()), StructField("id", LongType(), False)]),
    partition_by=("part",),
    keys=("id",),
    write=Append(),
    change_feed=False,
)


class NoSpark:
    """A session of which nothing is asked but its version and where it runs."""

    version = "4.2.0"


def commit(root: str, rows: list[tuple[str | None, int]], mark: Mark, run_id: str = "run-1") -> WriteResult:
    """Rows appended by delta-rs, under a note such as ours, and the result that our own write would have given."""
    location = NOTES.location(root)
    note = CommitNote(mark=mark, run_id=run_id)
    text = json.dumps({"pipeline": 1, "mark": vars(mark), "run_id": run_id, "runtime": {"spark": "none"}})
    schema = pa.schema([pa.field("part", pa.string()), pa.field("id", pa.int64(), nullable=False)])
    table = pa.table({"part": [p for p, _ in rows], "id": [i for _, i in rows]}, schema)
    deltalake.write_deltalake(
        location, table, mode="append", partition_by=["part"],
        commit_properties=deltalake.CommitProperties(custom_metadata={"userMetadata": text}),
    )  # fmt: skip
    found = deltalake.DeltaTable(location)
    made = read_commit(location, found.version(), NOTES.partition_by)
    assert made.token == note.mark.token
    return WriteResult(
        dataset=NOTES.name, location=location, table_id=str(found.metadata().id), version=found.version(),
        committed=True, operation="WRITE", rows_written=len(rows), rows_deleted=None, files_added=made.files_added,
        files_removed=0, bytes_added=made.bytes_added, rows_by_partition=made.rows_by_partition,
        schema_fingerprint=NOTES.fingerprint, timestamp=made.timestamp, mark=mark, features=("appendOnly",),
    )  # fmt: skip


def keep(root: str, result: WriteResult, run_id: str = "run-1", **further: Any) -> Path:
    session: Any = NoSpark()
    path = write_record(session, NOTES, result, root=root, run_id=run_id, **({"sources": {}, "options": {}} | further))
    return Path(path)


def nothing_committed(result: WriteResult) -> WriteResult:
    """A later write of the same run that had nothing to commit."""
    return WriteResult(
        **(
            vars(result)
            | {"committed": False, "rows_written": 0, "rows_by_partition": {}, "mark": Mark(writer="w", epoch=9)}
        )
    )


def test_a_record_says_all_of_its_commit_and_survives_its_file(root: str) -> None:
    commit(root, [("a", 1)], Mark(writer="w"))
    result = commit(root, [("a", 2), ("a", 3), (None, 4)], Mark(writer="w", attempt=2))
    path = keep(root, result, sources={"upstream": 7}, partitions="part = a", options={"fs.s3a.endpoint": "here"})

    (record,) = manifest(root, "run-1")
    assert path.parent == Path(root) / "_records" / "run-1" / "notes"
    assert path.name == f"kept@1-{result.mark.token[:8]}.json"
    assert record == DatasetRecord.from_json(path.read_text(encoding="utf-8"), str(path))
    table = deltalake.DeltaTable(NOTES.location(root))
    assert (record.name, record.version, record.committed, record.rows_written) == ("notes/kept", 1, True, 3)
    assert record.table_id == str(table.metadata().id)
    protocol = table.protocol()
    assert record.protocol == {"reader": protocol.min_reader_version, "writer": protocol.min_writer_version}
    assert record.schema == json.loads(table.schema().to_json())
    assert record.rows_by_partition is not None
    assert sorted((row["partition"]["part"] or "", row["rows"]) for row in record.rows_by_partition) == [
        ("", 1),
        ("a", 2),
    ]
    policies = {"storage": asdict(StoragePolicy()), "schema": {"mode": "exact", "renames": [], "drops": []}}
    assert record.write_policy == {"mode": "append", "partition_by": ["part"], "keys": ["id"]} | policies
    assert record.mark == {"writer": "w", "epoch": None, "attempt": 2, "token": result.mark.token}
    assert (record.sources, record.partitions) == ({"upstream": 7}, "part = a")
    assert record.storage_options == {"fs.s3a.endpoint": "here"}
    assert record.runtime == {"spark": "none"}
    assert record.storage == asdict(StorageFacts(uri="file:", scheme="file"))
    entry = record.commit
    assert entry["operation"] == "WRITE"
    assert json.loads(entry["user_metadata"])["mark"]["token"] == result.mark.token
    assert result.timestamp is not None
    assert entry["timestamp"] == result.timestamp.isoformat()
    assert abs(dt.datetime.fromisoformat(record.recorded_at) - result.timestamp) < dt.timedelta(minutes=1)
    assert [file.name for file in path.parent.iterdir()] == [path.name], "a temporary file stayed behind"


def test_a_record_of_an_older_version_without_the_facts_of_its_storage_is_read(root: str) -> None:
    path = keep(root, commit(root, [("a", 1)], Mark(writer="w")))
    document = json.loads(path.read_text(encoding="utf-8"))
    del document["storage"]
    path.write_text(json.dumps(document), encoding="utf-8")
    (record,) = manifest(root, "run-1")
    assert (record.version, record.storage) == (0, {})


def test_a_second_write_of_a_run_does_not_overwrite_the_first_and_the_same_write_has_one_record(root: str) -> None:
    first = commit(root, [("a", 1)], Mark(writer="w/a"))
    second = commit(root, [("b", 2)], Mark(writer="w/b"))
    idle = nothing_committed(second)
    paths = {keep(root, result) for result in (first, second, idle, second)}

    assert len(paths) == 3
    assert [(r.version, r.committed) for r in manifest(root, "run-1")] == [(0, True), (1, False), (1, True)]


def test_only_options_that_are_known_to_hold_no_secret_are_kept() -> None:
    options = {
        "fs.s3a.access.key": "AKIA",
        "fs.s3a.secret.key": "s",
        "fs.azure.sas.Fixed.TOKEN": "t",
        "spark.ssl.keyPassword": "p",
        "spark.driver.extraJavaOptions": "-Dhttps.proxyPassword=hush",
        "spark.proxy": "http://user:hush@proxy:80",
        "spark.hadoop.fs.s3a.endpoint": "http://user:hush@localhost:9000",
        "spark.driver.host": "h?sig=hush",
        "spark.sql.catalog.other.pass": "hush",
        "fs.azure.account.auth": "hush",
        "javax.jdo.option.ConnectionURL": "jdbc:postgresql://h/db?user=u&pw=hush",
        "my.own.name": "hush",
        "spark.databricks.delta.snapshotPartitions": "4",
        "fs.s3a.endpoint": "http://localhost:9000",
        "spark.sql.shuffle.partitions": "2",
    }
    shown = hide_secrets(options)
    assert {name for name, value in shown.items() if value != "***"} == {
        "fs.s3a.endpoint",
        "spark.databricks.delta.snapshotPartitions",
        "spark.sql.shuffle.partitions",
    }
    assert shown["fs.s3a.endpoint"] == "http://localhost:9000"


@pytest.mark.parametrize("run_id", ["../outside", "a/b", "_hidden", ".dot", "ünï 1", "%2e"])
def test_a_run_of_any_name_has_a_folder_of_its_own_below_the_records(root: str, run_id: str) -> None:
    path = keep(root, commit(root, [("a", 1)], Mark(writer="w")), run_id)
    folder = path.relative_to(Path(root) / "_records").parts[0]
    assert folder[0] not in "._"
    assert len(path.relative_to(Path(root) / "_records").parts) == 3
    assert [record.run_id for record in manifest(root, run_id)] == [run_id]


def test_runs_are_listed_newest_first_and_found_by_the_beginning_of_their_id(root: str) -> None:
    for run_id, rows in (("aa-1", 2), ("ab-2", 1), ("ab-3", 1)):
        keep(root, commit(root, [("a", n) for n in range(rows)], Mark(writer="w"), run_id), run_id)

    assert [(s.run_id, s.records, s.rows_written, s.datasets) for s in runs(root)] == [
        ("ab-3", 1, 1, ("notes/kept",)),
        ("ab-2", 1, 1, ("notes/kept",)),
        ("aa-1", 1, 2, ("notes/kept",)),
    ]
    assert [record.run_id for record in manifest(root, "aa")] == ["aa-1"]
    for asked, near in (("ab", ("ab-2", "ab-3")), ("aa-9", ("aa-1",)), ("", ())):
        with pytest.raises(RunNotFoundError) as caught:
            manifest(root, asked)
        assert caught.value.near == near, asked
    assert runs(str(Path(root) / "nowhere")) == []


Change = Callable[[dict[str, Any]], object]
HOSTILE: dict[str, bytes | Change] = {
    "cut off": b'{"record": 1',
    "another document": b"[]",
    "no text": b"\xff\xfe{}",
    "nested too deep": b'{"record": ' + b"[" * 100_000,
    "newer": lambda record: record.update(record=2),
    "format of another type": lambda record: record.update(record="1"),
    "unknown field": lambda record: record.update(surprise=1),
    "field gone": lambda record: record.pop("table_id"),
    "version of another type": lambda record: record.update(version="7"),
    "name of another type": lambda record: record.update(name=None),
    "rows of another type": lambda record: record.update(rows_written=[1]),
    "partitions of another type": lambda record: record.update(rows_by_partition=7),
    "mark of another type": lambda record: record.update(mark="x"),
    "mark without a token": lambda record: record.update(mark={}),
    "policy without partitions": lambda record: record.update(write_policy={"partition_by": 1}),
    "commit of another type": lambda record: record.update(commit=[]),
    "commit without an operation": lambda record: record.update(commit={"operation": 1}),
    "sources of another type": lambda record: record.update(sources=["a"]),
    "storage of another type": lambda record: record.update(storage="s3"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_record_that_can_t_be_used_is_named_and_the_others_are_read(root: str, kind: str) -> None:
    keep(root, commit(root, [("a", 1)], Mark(writer="w")), "whole")
    path = keep(root, commit(root, [("a", 2)], Mark(writer="w")), "hurt")
    change = HOSTILE[kind]
    if callable(change):
        document = json.loads(path.read_text(encoding="utf-8"))
        change(document)
        path.write_text(json.dumps(document), encoding="utf-8")
    else:
        path.write_bytes(change)
    damaged: list[RecordError] = []
    assert [summary.run_id for summary in runs(root, damaged=damaged.append)] == ["whole"]
    assert [error.path for error in damaged] == [str(path)]
    assert len(str(damaged[0])) < 1_000
    (record,) = manifest(root, "whole", damaged=damaged.append)
    assert [verdict.problem for verdict in verify([record])] == [None]


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to nowhere"])
def test_what_is_no_file_in_the_place_of_a_record_is_named_and_never_waited_for(root: str, kind: str) -> None:
    path = keep(root, commit(root, [("a", 1)], Mark(writer="w")))
    strange = path.with_name("strange.json")
    if kind == "pipe":
        os.mkfifo(strange)
    elif kind == "folder":
        strange.mkdir()
    else:
        strange.symlink_to(path.with_name("nowhere"))
    damaged: list[RecordError] = []
    assert len(runs(root, damaged=damaged.append)) == 1
    assert [error.path for error in damaged] == [str(strange)]


def test_two_runs_differ_by_version_rows_and_what_only_one_of_them_wrote(root: str) -> None:
    keep(root, commit(root, [("a", 1)], Mark(writer="w")), "A")
    keep(root, commit(root, [("b", 2)], Mark(writer="w")), "A")
    keep(root, commit(root, [("a", 3)], Mark(writer="w")), "B")
    before, after = manifest(root, "A"), manifest(root, "B")

    (found,) = diff(before, after)
    assert found.before is not None
    assert found.after is not None
    assert (found.dataset, found.changes) == ("notes/kept", ("version", "rows"))
    assert (found.before.version, found.before.rows_written) == (1, 2)
    assert (found.after.version, found.after.rows_written) == (2, 1)
    assert [d.changes for d in diff(before, before)] == [()]
    assert [d.changes for d in diff(before, [])] == [("only in the first",)]
    assert [d.changes for d in diff([], after)] == [("only in the second",)]


def test_a_record_is_verified_as_long_as_the_log_carries_its_mark(root: str) -> None:
    first = commit(root, [("a", 1)], Mark(writer="w"))
    keep(root, first)
    keep(root, nothing_committed(first))
    records = manifest(root, "run-1")
    assert [verdict.problem for verdict in verify(records)] == [None, None]

    log = Path(NOTES.location(root)) / "_delta_log" / f"{0:020d}.json"
    log.write_text(log.read_text(encoding="utf-8").replace(first.mark.token, "f" * 32), encoding="utf-8")
    assert [v.problem for v in verify(records) if v.record.committed] == ["version 0 has another mark"]

    log.unlink()
    (problem,) = [v.problem for v in verify(records) if v.record.committed]
    assert problem is not None
    assert problem.startswith("version 0 is not in the log")


def test_the_facts_of_a_table_are_those_of_the_version_asked_for(root: str) -> None:
    commit(root, [("a", 1)], Mark(writer="w"))
    table = deltalake.DeltaTable(NOTES.location(root))
    table.alter.set_table_properties({"delta.appendOnly": "true"})
    commit(root, [("a", 2)], Mark(writer="w"))
    table.update_incremental()
    table.create_checkpoint()
    commit(root, [("a", 3)], Mark(writer="w"))
    folder = local_folder(NOTES.location(root))
    assert folder is not None

    def properties(version: int) -> Any:
        facts = table_facts(str(folder), version)
        return None if facts is None else dict(facts.properties)

    assert [properties(version) for version in range(4)] == [{}, *[{"delta.appendOnly": "true"}] * 3]
    for number in range(3):
        (folder / "_delta_log" / f"{number:020d}.json").unlink()
    assert properties(3) == {"delta.appendOnly": "true"}, "read from the checkpoint"
    assert properties(1) is None
    assert properties(4) is None


@pytest.mark.parametrize(
    ("uri", "folder"),
    [("/a/b c", "/a/b c"), ("file:/a/b", "/a/b"), ("file:///a/b", "/a/b"), ("s3a://bucket/a", None)],
)
def test_a_folder_on_this_machine_is_told_from_other_storage(uri: str, folder: str | None) -> None:
    assert local_folder(uri) == (None if folder is None else Path(folder))
