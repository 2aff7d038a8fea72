"""Logs, records and small files in a bucket are read and written without Spark, as on a disk."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.dataset import Dataset
from pipeline.delta.inspect.describe import described_in_log
from pipeline.delta.inspect.doctor import examine
from pipeline.delta.inspect.history import history_in_log
from pipeline.delta.inspect.sample import sample
from pipeline.delta.log.commits import commit_identity, commit_versions, newest_infos, read_commit
from pipeline.delta.log.counts import table_rows
from pipeline.delta.log.replay import replay
from pipeline.delta.storage import ranged_file
from pipeline.delta.storage.file_system import (
    create_file,
    file_system,
    list_files,
    read_file,
    write_file,
)
from pipeline.delta.storage.options import use_confs
from pipeline.delta.storage.text_files import read_texts, write_text
from pipeline.delta.table.open_table import latest_version, state_from_log
from pipeline.delta.table.undeclared import dataset_of
from pipeline.errors import AccessProblem, ExtraMissingError, FileAccessError, StorageAccessError, UnknownSchemeError
from pipeline_tests.object_stores import (
    NAMES,
    Bucket,
    Fault,
    FaultKind,
    require_exact_name,
    require_parts_of_a_file,
    require_single_requests,
    served_bucket,
    unreachable_bucket,
)
from pipeline_tests.remedies import follows, refused


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with served_bucket() as served:
        use_confs(served.hadoop)
        yield served


@pytest.fixture(scope="module")
def table(bucket: Bucket) -> str:
    return written(bucket, "tables/rows")


def written(bucket: Bucket, folder: str) -> str:
    """Three appends, a checkpoint after the second, and a deletion."""
    uri, options = f"s3://{bucket.name}/{folder}", dict(bucket.delta_rs)
    for part in ("a", "b", "c"):
        rows = pa.table({"part": [part] * 2, "n": pa.array([1, 2], pa.int64())})
        deltalake.write_deltalake(uri, rows, mode="append", partition_by=["part"], storage_options=options)
        if part == "b":
            deltalake.DeltaTable(uri, storage_options=options).create_checkpoint()
    deltalake.DeltaTable(uri, storage_options=options).delete("part = 'a'")
    return f"{bucket.uri}/{folder}"


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_read_byte_by_byte_as_it_was_written(bucket: Bucket, name: str) -> None:
    require_exact_name(bucket, name)


def test_small_files_cost_one_request_each(bucket: Bucket) -> None:
    require_single_requests(bucket)


def test_texts_are_found_at_any_depth_and_named_by_their_uris(bucket: Bucket) -> None:
    folder = f"{bucket.uri}/texts"
    assert read_texts(folder, ".json") == []
    write_text(f"{folder}/one/a.json", "ä")
    write_text(f"{folder}/one/a.json", "ö")
    write_file(f"{folder}/two/b.json", b"\xff")
    write_text(f"{folder}/two/c.txt", "other")
    first, second = read_texts(folder, ".json")
    assert (first.path, first.text) == (f"{folder}/one/a.json", "ö")
    assert (second.path, second.text, second.problem) == (
        f"{folder}/two/b.json", None, "it is not UTF-8 text from byte 0 on",
    )  # fmt: skip


def test_a_file_that_does_not_exist_is_told_from_a_bucket_that_does_not(bucket: Bucket) -> None:
    with pytest.raises(FileNotFoundError):
        read_file(f"{bucket.uri}/nothing")
    use_confs({name.replace(bucket.name, "no-bucket"): text for name, text in bucket.hadoop.items()})
    with pytest.raises(OSError, match="404"):
        list_files("s3a://no-bucket/folder")
    with pytest.raises(FileAccessError, match="s3a://no-bucket/r"):
        read_texts("s3a://no-bucket/r", ".json")


def test_an_endpoint_that_does_not_answer_is_given_up_within_30_seconds() -> None:
    uri = unreachable_bucket()
    started = time.monotonic()
    with pytest.raises(OSError, match=re.escape("127.0.0.1:1")):
        read_file(f"{uri}/file")
    with pytest.raises(OSError, match=re.escape("127.0.0.1:1")):
        list_files(f"{uri}/folder")
    assert time.monotonic() - started < 30


def test_a_file_is_created_once_by_a_store_that_honours_the_condition() -> None:
    with served_bucket() as honest, served_bucket(ignores_conditions=True) as other:
        for served, honours in ((honest, True), (other, False)):
            use_confs(served.hadoop)
            assert create_file(f"{served.uri}/tables/file", b"first")
            assert create_file(f"{served.uri}/tables/file", b"second") is not honours
            assert read_file(f"{served.uri}/tables/file") == (b"first" if honours else b"second")


def test_another_account_of_a_bucket_holds_from_the_next_call_on(bucket: Bucket) -> None:
    conf = f"spark.hadoop.fs.s3a.bucket.{bucket.name}.endpoint"
    use_confs({conf: "http://127.0.0.1:1"})
    with pytest.raises(OSError, match=re.escape("127.0.0.1:1")):
        list_files(f"{bucket.uri}/names")
    use_confs({conf: bucket.endpoint})
    list_files(f"{bucket.uri}/names")


@follows(UnknownSchemeError)
def test_a_scheme_without_a_client_is_named_and_a_path_is_read(tmp_path: Path) -> None:
    error = refused(UnknownSchemeError, lambda: list_files("nowhere://host/folder"), "PIPELINE_ROOT to a path")
    assert (error.scheme, "s3a" in error.known) == ("nowhere", True)
    assert list_files(str(tmp_path)) == []


@follows(ExtraMissingError)
def test_a_client_that_is_not_installed_is_named_with_its_extra_and_used_once_it_is(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"s3n://{bucket.name}/names"  # no other test has opened it under this scheme
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "obstore.store", None)
        refused(ExtraMissingError, lambda: list_files(folder), 'pip install "delta-first-pipeline[s3]"')
    list_files(folder)


def test_files_are_written_and_read_in_parts_through_pyarrow(bucket: Bucket) -> None:
    system, path = file_system(f"{bucket.uri}/parquet/part-0.parquet")
    rows = pa.table({"n": pa.array(range(1000), pa.int64())})
    with pq.ParquetWriter(path, rows.schema, filesystem=system) as writer:
        writer.write_table(rows, row_group_size=100)
    file = pq.ParquetFile(path, filesystem=system)
    assert file.metadata.num_row_groups == 10
    assert file.read_row_group(3)["n"].to_pylist() == list(range(300, 400))
    system.delete_dir(path.rpartition("/")[0])
    assert list_files(f"{bucket.uri}/parquet") == []


def test_a_large_file_is_opened_by_one_request_whose_bytes_are_used(bucket: Bucket) -> None:
    require_parts_of_a_file(bucket)


@given(
    size=st.integers(1, 40),
    first=st.integers(0, 40),
    reads=st.lists(st.tuples(st.integers(0, 50), st.integers(-1, 50)), max_size=20),
)
def test_a_file_read_in_parts_gives_the_bytes_of_the_file(size: int, first: int, reads: list[tuple[int, int]]) -> None:
    content = bytes(range(size))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ranged_file, "WINDOW_BYTES", 8)
        file = ranged_file.RangedFile(content[:first], size, lambda start, end: content[start:end])
        whole = io.BytesIO(content)
        for offset, count in reads:
            assert file.seek(offset) == whole.seek(offset)
            assert file.read(count) == whole.read(count)
            assert file.seek(0, os.SEEK_END) == size


def test_a_log_in_a_bucket_is_read_as_on_a_disk(table: str) -> None:
    assert (commit_versions(table), latest_version(table)) == ([0, 1, 2, 3], 3)
    state = state_from_log(table)
    assert state is not None
    assert (state.version, state.partition_by, state.schema.names) == (3, ("part",), ["part", "n"])
    assert read_commit(table, 1, ("part",)).rows_by_partition == {("b",): 2}
    assert [(number, info["operation"]) for number, info in newest_infos(table, 2)] == [(3, "DELETE"), (2, "WRITE")]
    assert commit_identity(table, 3) != commit_identity(table, 2)
    assert commit_identity(table, 4) is None
    rows = table_rows(table, 3)
    assert rows is not None
    assert dict(rows.by_partition) == {("b",): 2, ("c",): 2}
    replayed = replay(table)
    assert replayed is not None
    assert (len(replayed.files), replayed.faults) == (2, ())


def test_operators_see_a_table_in_a_bucket_without_spark(table: str) -> None:
    state = state_from_log(table)
    assert state is not None
    declared: Dataset = dataset_of("rows", state)
    described = described_in_log("rows", table, declared)
    assert described is not None
    assert (described.rows, described.partitions, described.standing) == (4, 2, "ok")
    history = history_in_log("rows", table)
    assert history is not None
    assert [entry.version for entry in history] == [3, 2, 1, 0]
    assert sample(table, 2, 1) == [{"part": "c", "n": 1}]
    diagnosis = examine("rows", table, deep=True)
    assert (diagnosis.version, diagnosis.files, diagnosis.healthy) == (3, 2, True)


@pytest.mark.parametrize("file", [r"checkpoint\.parquet", r"00000000000000000003\.json"])
def test_a_store_that_refuses_a_file_is_no_damage_of_the_table(bucket: Bucket, file: str) -> None:
    use_confs(bucket.hadoop)
    table = written(bucket, f"refused/{len(file)}")  # no process has read it
    for call in (lambda: examine("rows", table), lambda: described_in_log("rows", table, None)):
        bucket.faults[:] = [Fault(FaultKind.REFUSE, "GET", file, times=None, status=403, code="ExpiredToken")]
        with pytest.raises(StorageAccessError) as caught:
            call()
        assert caught.value.problem is AccessProblem.EXPIRED
        bucket.faults.clear()
    assert examine("rows", table).findings == ()
