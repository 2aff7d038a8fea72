"""The tables below a root and around a place are found in a bucket as on a disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Dataset, TableRef
from pipeline.delta.export.target import refuse_place
from pipeline.delta.inspect.tables import table_around, tables_below
from pipeline.delta.migrate.plan import Target, plan_migration
from pipeline.delta.storage.options import use_confs
from pipeline.errors import ExportTargetError, StorageAccessError
from pipeline_tests.object_stores import Bucket, Fault, FaultKind, served_bucket

ROWS = Dataset(name="rows", schema=StructType([StructField("n", LongType())]))
TABLES = ("a", "group/b", "group/deep/c", "part=1")


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with served_bucket() as served:
        use_confs(served.hadoop)
        yield served


@pytest.fixture(params=["disk", "bucket"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Four tables, one of them partitioned, and folders that are none."""
    folder = tmp_path / "root"
    for name in TABLES:
        rows = pa.table({"n": [1], "day": ["x"]})
        deltalake.write_deltalake(folder / name, rows, partition_by=["day"] if name == "a" else None)
    deltalake.write_deltalake(folder / "a" / "inner", pa.table({"n": [1]}))
    deltalake.write_deltalake(folder / "_hidden", pa.table({"n": [1]}))
    (folder / "empty" / "of tables").mkdir(parents=True)
    (folder / "empty" / "of tables" / "file").write_text("x", encoding="utf-8")
    if request.param == "disk":
        return str(folder)
    bucket: Bucket = request.getfixturevalue("bucket")
    return bucket.upload(folder, request.node.name)


def test_all_tables_are_found_but_those_in_tables_and_hidden_folders(root: str) -> None:
    assert tables_below(root) == TABLES
    assert tables_below(root, without=("a", "group/deep")) == ("group/b", "part=1")
    assert tables_below(f"{root}/nowhere") == ()


def test_the_table_around_a_place_is_found(root: str) -> None:
    assert table_around(f"{root}/a/day=x/below") == f"{root}/a"
    assert table_around(f"{root}/group/b") == f"{root}/group/b"
    assert table_around(f"{root}/group") is None
    with pytest.raises(ExportTargetError) as caught:
        refuse_place(TableRef(ROWS, "/elsewhere"), f"{root}/a/day=x")
    assert caught.value.reason == "it lies in the folder of a Delta table"
    refuse_place(TableRef(ROWS, "/elsewhere"), f"{root}/group/new")
    problems = plan_migration(f"{root}/a/day=x", Target(name="t", location=f"{root}/new")).problems
    assert problems == (f"the folder is in that of the Delta table {root}/a, whose rows are not those of its files",)


def test_a_folder_above_that_the_account_may_not_list_is_no_table(bucket: Bucket) -> None:
    bucket.faults[:] = [Fault(FaultKind.REFUSE, "GET", "", times=None, status=403, code="AccessDenied")]
    try:
        assert table_around(f"{bucket.uri}/a/b") is None
        with pytest.raises(StorageAccessError):
            tables_below(bucket.uri)
    finally:
        bucket.faults.clear()
