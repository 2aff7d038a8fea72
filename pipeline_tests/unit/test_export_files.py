"""The files of an export: names of folders, the target that has all of them or none, and copies of tables."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.dataset import Dataset, TableRef
from pipeline.dataset.exports import format_problems
from pipeline.delta.export.delta_copy import copy_files, copy_of
from pipeline.delta.export.manifest import BEGUN, SUCCESS, Begun, ExportedFile, Manifest, parse_begun, parse_manifest
from pipeline.delta.export.target import (
    data_files,
    files_below,
    leftovers_at,
    refuse_place,
    require_empty,
    target_state,
    workspace,
)
from pipeline.delta.inspect.doctor import examine
from pipeline.delta.log.entry import encoded_vector, vector_file
from pipeline.delta.sql.exact import folder, names_folders
from pipeline.delta.storage.file_system import read_file, write_file
from pipeline.delta.storage.options import use_confs
from pipeline.errors import DamagedTableError, ExportRefusedError, ExportRunningError, ExportTargetError
from pipeline_tests.object_stores import Bucket, served_bucket

ROWS = Dataset(name="rows", schema=StructType([StructField("id", LongType())]))
MANIFEST = Manifest(
    dataset="rows", table_id="id", version=3, entry=None, format="parquet", columns=("id",), where=None,
    partition_by=(), fingerprint="f", schema={"type": "struct", "fields": []}, rows=1,
    rows_by_folder={"": 1}, files=(ExportedFile(path="a.parquet", size=1, rows=1),),
)  # fmt: skip


# --- names of folders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "name"),
    [
        ("a", StringType(), "a"),
        ("a/b c:%", StringType(), "a%2Fb c%3A%25"),
        ("", StringType(), "__HIVE_DEFAULT_PARTITION__"),
        (None, LongType(), "__HIVE_DEFAULT_PARTITION__"),
        (-7, LongType(), "-7"),
        (True, BooleanType(), "true"),
        (dt.date(7, 1, 2), DateType(), "0007-01-02"),
        (Decimal("1.5"), DecimalType(38, 2), "1.50"),
        (Decimal("-12345678901234567890123456789012345678"), DecimalType(38, 0), "-" + "1234567890" * 3 + "12345678"),
        (Decimal("0E-18"), DecimalType(38, 18), f"0.{'0' * 18}"),
        (
            dt.datetime(2026, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))),
            TimestampType(),
            "2026-01-01 00%3A00%3A00.000000",
        ),
        (dt.datetime(1, 1, 1, 0, 0, 0, 7), TimestampNTZType(), "0001-01-01 00%3A00%3A00.000007"),
    ],
)
def test_a_partition_value_has_one_folder(value: Any, kind: DataType, name: str) -> None:
    assert names_folders(kind)
    assert folder([StructField("c=d", kind)], [value]) == f"c%3Dd={name}"


def test_floats_and_nested_values_name_no_folder_and_no_partition_is_the_top() -> None:
    assert [names_folders(kind) for kind in (DoubleType(), BinaryType(), ArrayType(LongType()))] == [False] * 3
    assert folder([], []) == ""


def test_columns_that_a_format_can_not_hold_are_named() -> None:
    schema = StructType(
        [
            StructField("day", DateType()),
            StructField("list", ArrayType(LongType())),
            StructField("by_number", MapType(LongType(), StringType())),
        ]
    )
    assert [problem.split()[1] for problem in format_problems("csv", schema, ("day",))] == ["'list'", "'by_number'"]
    assert [problem.split()[0] for problem in format_problems("ndjson", schema, ())] == ["'by_number'"]
    assert list(format_problems("parquet", schema, ())) == []
    alone = StructType([StructField("day", DateType()), StructField("text", StringType())])
    assert len(list(format_problems("csv", alone, ("day",)))) == 1
    assert list(format_problems("csv", alone, ())) == []


# --- the target -------------------------------------------------------------------------------------------------------


def test_a_manifest_and_a_begun_export_are_read_as_they_were_written() -> None:
    begun = Begun(token="t", previous=MANIFEST, folders=("a=1",))
    assert parse_manifest(MANIFEST.content) == MANIFEST
    assert parse_begun(begun.content) == begun
    assert parse_begun(Begun(token="t").content) == Begun(token="t")
    for other in (b"", b"{}", b"[]", b"\xff", b'{"export": 1}', b'{"export": 2, "token": "t"}'):
        assert (parse_manifest(other), parse_begun(other)) == (None, None)


@pytest.mark.parametrize("exists", [False, True])
def test_a_target_appears_with_all_files_and_its_manifest_and_nothing_is_left_beside_it(
    tmp_path: Path, exists: bool
) -> None:
    target = tmp_path / "exports" / "rows"
    if exists:
        target.mkdir(parents=True)
    with workspace("rows", str(target)) as space:
        write_file(f"{space.uri}/day=1/a.parquet", b"a")
        write_file(f"{space.uri}/day=1/.a.parquet.crc", b"c")
        assert [file.path for file in data_files(space.new_files())] == ["day=1/a.parquet"]
        assert list(target.iterdir() if exists else ()) == []
        space.publish(MANIFEST)
        assert sorted(file.path for file in files_below(str(target))) == [SUCCESS, "day=1/a.parquet"]
    assert target_state(str(target)).manifest == MANIFEST
    assert os.listdir(target.parent) == ["rows"]


def fail(target: str) -> None:
    """An export that fails after it has written a file."""
    with workspace("rows", target) as space:
        space.begin(None, None)
        write_file(f"{space.uri}/a", b"a")
        raise ZeroDivisionError


def publish_beside(target: str, name: str, content: bytes) -> None:
    """An export to a target into which another process puts a file meanwhile."""
    with workspace("rows", target) as space:
        space.begin(None, None)
        write_file(f"{target}/{name}", content)
        space.publish(MANIFEST)


def test_a_target_that_fails_is_as_it_was_before(tmp_path: Path) -> None:
    target = tmp_path / "rows"
    with pytest.raises(ZeroDivisionError):
        fail(str(target))
    assert list(tmp_path.iterdir()) == []


def test_files_that_another_process_has_put_there_since_are_kept(tmp_path: Path) -> None:
    target = tmp_path / "rows"
    with pytest.raises(ExportTargetError):
        publish_beside(str(target), "theirs", b"")
    assert [file.path for file in files_below(str(tmp_path))] == ["rows/theirs"]


def test_a_second_export_to_a_target_is_refused_and_a_killed_one_is_cleared(tmp_path: Path) -> None:
    target = str(tmp_path / "rows")
    with workspace("rows", target), pytest.raises(ExportRunningError) as caught, workspace("rows", target):
        pass
    assert (caught.value.dataset, caught.value.target) == ("rows", target)
    write_file(f"{tmp_path}/.rows.exporting/half/a", b"a")
    assert leftovers_at(target, target_state(target))
    with workspace("rows", target) as space:
        assert space.new_files() == []
        space.publish(MANIFEST)
    assert not leftovers_at(target, target_state(target))


def test_a_folder_with_files_or_in_a_table_is_no_target(tmp_path: Path) -> None:
    table = TableRef(ROWS, str(tmp_path / "tables" / "rows"))
    deltalake.write_deltalake(table.location, pa.table({"id": [1]}))
    (tmp_path / "file").touch()
    for place, reason in {
        f"{table.location}/below": "it lies in the folder of the table",
        table.location: "the table itself lies there",
        str(tmp_path / "tables"): "the table itself lies there",
        str(tmp_path / "file"): "it is a file",
    }.items():
        with pytest.raises(ExportTargetError) as caught:
            refuse_place(table, place)
        assert caught.value.reason == reason
    with pytest.raises(ExportTargetError) as caught:
        refuse_place(TableRef(ROWS, "/elsewhere"), f"{table.location}/below")
    assert caught.value.reason == "it lies in the folder of a Delta table"
    refuse_place(table, f"{table.location}2")
    for name in ("more", "and more"):
        (tmp_path / name).mkdir()
    with pytest.raises(ExportTargetError, match=r"not empty .and more, file, more, and 1 more"):
        require_empty("rows", str(tmp_path), target_state(str(tmp_path)))


def test_partitions_are_replaced_added_and_dropped_and_others_keep_their_files(tmp_path: Path) -> None:
    target = str(tmp_path / "rows")
    for path in ("day=1/old", "day=2/old", "day=3/old"):
        write_file(f"{target}/{path}", b"")
    write_file(f"{target}/{SUCCESS}", MANIFEST.content)
    begun = Begun(token="t", previous=MANIFEST, folders=("day=1", "day=2", "day=4"))
    with workspace("rows", target) as space:
        for path in ("day=1/new", "day=4/new"):
            write_file(f"{space.uri}/{path}", b"")
        space.begin(MANIFEST, begun.folders)
        space.publish_changes(MANIFEST, begun, target_state(target))
    assert [file.path for file in files_below(target)] == [SUCCESS, "day=1/new", "day=3/old", "day=4/new"]
    assert not (Path(target) / "day=2").exists()
    assert os.listdir(tmp_path) == ["rows"]


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with served_bucket() as served:
        use_confs(served.hadoop)
        yield served


def test_a_bucket_has_a_mark_until_the_export_is_complete(bucket: Bucket) -> None:
    target = f"{bucket.uri}/complete"
    with workspace("rows", target) as space:
        space.begin(None, None)
        write_file(f"{space.uri}/day=1/a", b"a")
        assert [file.path for file in files_below(target)] == [BEGUN, "day=1/a"]
        assert [file.path for file in space.new_files()] == ["day=1/a"]
        space.publish(MANIFEST)
    assert [file.path for file in files_below(target)] == [SUCCESS, "day=1/a"]
    with pytest.raises(ExportTargetError):
        require_empty("rows", target, target_state(target))


def test_in_a_bucket_a_failed_export_leaves_nothing_and_a_killed_one_is_cleared(bucket: Bucket) -> None:
    target = f"{bucket.uri}/failed"
    with pytest.raises(ZeroDivisionError):
        fail(target)
    assert files_below(target) == []
    write_file(f"{target}/{BEGUN}", Begun(token="of a killed export").content)
    write_file(f"{target}/half", b"")
    state = target_state(target)
    assert leftovers_at(target, state)
    require_empty("rows", target, state)
    with workspace("rows", target) as space:
        space.begin(None, None)
        assert files_below(target) == [file for file in files_below(target) if file.path == BEGUN]
        space.publish(MANIFEST)
    assert [file.path for file in files_below(target)] == [SUCCESS]


def test_in_a_bucket_an_export_that_another_has_taken_over_does_not_end_as_complete(bucket: Bucket) -> None:
    target = f"{bucket.uri}/taken"
    with pytest.raises(ExportRunningError):
        publish_beside(target, BEGUN, Begun(token="another").content)
    assert [file.path for file in files_below(target)] == [BEGUN]
    assert parse_begun(read_file(f"{target}/{BEGUN}")) == Begun(token="another")


def test_in_a_bucket_partitions_are_replaced_too(bucket: Bucket) -> None:
    target = f"{bucket.uri}/kept"
    for path in ("day=1/old", "day=2/old", "day=3/old"):
        write_file(f"{target}/{path}", b"")
    write_file(f"{target}/{SUCCESS}", MANIFEST.content)
    begun = Begun(token="t", previous=MANIFEST, folders=("day=1", "day=2"))
    state = target_state(target)
    with workspace("rows", target) as space:
        space.begin(MANIFEST, begun.folders)
        assert target_state(target).manifest is None
        write_file(f"{target}/day=1/new", b"")
        assert [file.path for file in space.new_files()] == ["day=1/new"]
        space.publish_changes(MANIFEST, begun, state)
    assert [file.path for file in files_below(target)] == [SUCCESS, "day=1/new", "day=3/old"]


# --- copies of tables -------------------------------------------------------------------------------------------------

VALUES = ["a", "a/b c", "ä:%20#", None]


def written(location: str, *, commits: int = 3) -> TableRef:
    """A table with partition values that are escaped, and a row each commit and value."""
    for number in range(commits):
        rows = pa.table({"part": pa.array(VALUES, pa.string()), "id": [number * 10 + n for n in range(len(VALUES))]})
        deltalake.write_deltalake(location, rows, partition_by=["part"], mode="append")
    return TableRef(ROWS, location)


def rows_at(location: str, version: int | None = None) -> list[tuple[Any, ...]]:
    rows = deltalake.DeltaTable(location, version=version).to_pyarrow_table().to_pylist()
    return sorted((str(row["part"]), row["id"]) for row in rows)


def copied(table: TableRef, version: int, target: Path, *, history: bool = False) -> int:
    target.mkdir()
    return copy_files(copy_of(table, version, history=history), table.location, str(target))


def test_a_copy_of_a_version_is_a_table_of_its_own(tmp_path: Path) -> None:
    table = written(str(tmp_path / "table"))
    assert copied(table, 1, tmp_path / "copy") == 8
    source, copy = deltalake.DeltaTable(table.location), deltalake.DeltaTable(tmp_path / "copy")
    assert rows_at(str(tmp_path / "copy")) == rows_at(table.location, 1)
    assert (copy.version(), copy.metadata().id == source.metadata().id) == (0, False)
    assert copy.metadata().partition_columns == ["part"]
    # A table that moves is still one: no path in it is a full one.
    (tmp_path / "copy").rename(tmp_path / "moved")
    assert rows_at(str(tmp_path / "moved")) == rows_at(table.location, 1)
    deltalake.write_deltalake(str(tmp_path / "moved"), pa.table({"part": ["a"], "id": [99]}), mode="append")
    assert ("a", 99) in rows_at(str(tmp_path / "moved"))


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_copy_with_history_has_every_earlier_version_that_can_be_read(tmp_path: Path, cleaned: bool) -> None:
    table = written(str(tmp_path / "table"))
    deltalake.DeltaTable(table.location, version=1).create_checkpoint()
    if cleaned:
        (Path(table.location) / "_delta_log" / f"{0:020d}.json").unlink()
    written(table.location, commits=1)
    assert copied(table, 2, tmp_path / "copy", history=True) == 12
    copy = str(tmp_path / "copy")
    assert deltalake.DeltaTable(copy).version() == 2
    assert [rows_at(copy, n) for n in (1, 2)] == [rows_at(table.location, n) for n in (1, 2)]
    assert deltalake.DeltaTable(copy).metadata().id == deltalake.DeltaTable(table.location).metadata().id


def test_a_copy_from_a_checkpoint_has_all_that_the_entries_have(tmp_path: Path) -> None:
    table = written(str(tmp_path / "table"))
    assert copied(table, 2, tmp_path / "by entries") == 12
    deltalake.DeltaTable(table.location).create_checkpoint()
    for number in range(3):
        (Path(table.location) / "_delta_log" / f"{number:020d}.json").unlink()
    assert copied(table, 2, tmp_path / "by checkpoint") == 12
    adds = [added_in(tmp_path / name) for name in ("by entries", "by checkpoint")]
    assert [add.keys() >= {"path", "size", "stats", "modificationTime"} for add in adds[1]] == [True] * 12
    assert [add["path"] for add in adds[0]] == [add["path"] for add in adds[1]]
    assert [add["partitionValues"] for add in adds[0]] == [add["partitionValues"] for add in adds[1]]
    assert rows_at(str(tmp_path / "by checkpoint")) == rows_at(str(tmp_path / "by entries"))


def entry_in(copy: Path) -> list[dict[str, Any]]:
    text = (copy / "_delta_log" / f"{0:020d}.json").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def added_in(copy: Path) -> list[dict[str, Any]]:
    return sorted((line["add"] for line in entry_in(copy) if "add" in line), key=lambda add: str(add["path"]))


def test_files_by_full_paths_are_copied_under_names_that_differ(tmp_path: Path) -> None:
    """A shallow clone names the files of another table, of which two may have one name."""
    table = written(str(tmp_path / "source of all"), commits=1)
    clone = tmp_path / "clone"
    (clone / "_delta_log").mkdir(parents=True)
    lines = [
        json.loads(line)
        for line in (Path(table.location) / "_delta_log" / f"{0:020d}.json").read_text(encoding="utf-8").splitlines()
    ]
    for number, add in enumerate(line["add"] for line in lines if "add" in line):
        source = Path(table.location, unquote(add["path"]))
        same_name = source.parent / "the same name.parquet"
        source.rename(same_name)
        assert number < len(VALUES)
        add["path"] = same_name.as_uri()
    (clone / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    assert copied(TableRef(ROWS, str(clone)), 0, tmp_path / "copy") == len(VALUES)
    paths = [add["path"] for add in added_in(tmp_path / "copy")]
    assert paths == ["1-the%20same%20name.parquet", "2-the%20same%20name.parquet", "3-the%20same%20name.parquet",
                     "the%20same%20name.parquet"]  # fmt: skip
    assert rows_at(str(tmp_path / "copy")) == sorted((str(value), n) for n, value in enumerate(VALUES))
    assert examine("copy", str(tmp_path / "copy")).findings == ()
    with pytest.raises(ExportRefusedError, match="leave out --history"):
        copy_of(TableRef(ROWS, str(clone)), 0, history=True)


def test_a_new_log_has_the_features_and_no_times_of_the_old_one(tmp_path: Path) -> None:
    table = written(str(tmp_path / "table"), commits=1)
    entry = Path(table.location) / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if "protocol" in line:
            line["protocol"] = {
                "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["columnMapping"],
                "writerFeatures": ["columnMapping", "inCommitTimestamp", "domainMetadata", "rowTracking"],
            }  # fmt: skip
        if "metaData" in line:
            line["metaData"]["configuration"] = {
                "delta.enableInCommitTimestamps": "true", "delta.inCommitTimestampEnablementVersion": "4",
                "delta.inCommitTimestampEnablementTimestamp": "4", "delta.columnMapping.mode": "name", "own": "kept",
            }  # fmt: skip
        if "add" in line:
            line["add"] |= {"baseRowId": 5, "defaultRowCommitVersion": 4, "tags": {"a": "b"}}
    domain = {"domain": "delta.rowTracking", "configuration": '{"rowIdHighWaterMark":9}', "removed": False}
    lines += [{"domainMetadata": domain}, {"domainMetadata": domain | {"domain": "gone", "removed": True}}]
    lines += [{"txn": {"appId": "writer", "version": 1}}]
    entry.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    copied(table, 0, tmp_path / "copy")
    copy = entry_in(tmp_path / "copy")
    assert [next(iter(line)) for line in copy][:4] == ["commitInfo", "protocol", "metaData", "domainMetadata"]
    assert copy[0]["commitInfo"]["inCommitTimestamp"] == copy[0]["commitInfo"]["timestamp"]
    assert copy[1]["protocol"]["writerFeatures"] == [
        "columnMapping", "inCommitTimestamp", "domainMetadata", "rowTracking",
    ]  # fmt: skip
    assert copy[2]["metaData"]["configuration"] == {
        "delta.enableInCommitTimestamps": "true", "delta.columnMapping.mode": "name", "own": "kept",
    }  # fmt: skip
    assert [line["domainMetadata"]["domain"] for line in copy if "domainMetadata" in line] == ["delta.rowTracking"]
    adds = [(add["baseRowId"], add["defaultRowCommitVersion"], add["tags"]) for add in added_in(tmp_path / "copy")]
    assert adds == [(5, 0, {"a": "b"})] * 4
    assert [line for line in copy if "txn" in line] == []


@pytest.mark.parametrize(("content", "reason"), [(b"short", "it has 5 bytes"), (None, "can't be read as Parquet")])
def test_a_damaged_file_is_not_copied_as_if_it_were_sound(tmp_path: Path, content: bytes | None, reason: str) -> None:
    table = written(str(tmp_path / "table"), commits=1)
    file = next(Path(table.location).rglob("*.parquet"))
    file.write_bytes(content or b"x" * file.stat().st_size)
    with pytest.raises(DamagedTableError, match=reason) as caught:
        copied(table, 0, tmp_path / "copy")
    assert caught.value.file == str(file)


def test_a_table_whose_catalog_has_the_commits_is_not_copied(tmp_path: Path) -> None:
    table = written(str(tmp_path / "table"), commits=1)
    entry = Path(table.location) / "_delta_log" / f"{0:020d}.json"
    protocol = '{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["catalogManaged"],"writerFeatures":[]}'
    lines = [line for line in entry.read_text(encoding="utf-8").splitlines() if '"protocol"' not in line]
    entry.write_text("\n".join([*lines, f'{{"protocol":{protocol}}}']), encoding="utf-8")
    with pytest.raises(ExportRefusedError, match="catalogManaged"):
        copy_of(table, 0, history=False)


def test_the_name_of_a_vector_is_the_one_that_is_read() -> None:
    for _ in range(20):
        name = uuid4()
        vector = {"storageType": "u", "pathOrInlineDv": encoded_vector(name)}
        assert vector_file(vector) == f"deletion_vector_{name}.bin"


def test_a_copy_goes_to_a_bucket_and_back(tmp_path: Path, bucket: Bucket) -> None:
    table = written(str(tmp_path / "table"))
    remote = TableRef(ROWS, f"{bucket.uri}/copy")
    assert copy_files(copy_of(table, 2, history=True), table.location, remote.location) == 12
    assert copied(remote, 2, tmp_path / "back", history=True) == 12
    assert [rows_at(str(tmp_path / "back"), n) for n in range(3)] == [rows_at(table.location, n) for n in range(3)]
