"""Rows of a version and of a commit, from logs that are written line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.delta.log.commits import PartitionCounts, commit_file, read_commit
from pipeline.delta.log.counts import table_rows

MAPPED = {"delta.columnMapping.physicalName": "col-1"}


def metadata(column: dict[str, Any] | None = None) -> dict[str, Any]:
    field = {"name": "part", "type": "string", "nullable": True, "metadata": column or {}}
    schema = json.dumps({"type": "struct", "fields": [field]})
    return {"metaData": {"id": "T", "schemaString": schema, "partitionColumns": ["part"], "configuration": {}}}


def added(path: str, part: str | None, rows: int | None, deleted: int = 0, column: str = "part") -> dict[str, Any]:
    vector = {"storageType": "u", "pathOrInlineDv": f"v{deleted}", "offset": 1, "cardinality": deleted}
    return {
        "add": {
            "path": path, "partitionValues": {column: part}, "size": 10, "dataChange": True,
            "stats": None if rows is None else json.dumps({"numRecords": rows}),
        } | ({"deletionVector": vector} if deleted else {})
    }  # fmt: skip


def removed(path: str, part: str | None, deleted: int = 0, column: str = "part") -> dict[str, Any]:
    vector = {"storageType": "u", "pathOrInlineDv": f"v{deleted}", "offset": 1, "cardinality": deleted}
    file = {"path": path, "partitionValues": {column: part}, "dataChange": True}
    return {"remove": file | ({"deletionVector": vector} if deleted else {})}


def told(operation: str, **metrics: int) -> dict[str, Any]:
    return {"commitInfo": {"operation": operation, "operationMetrics": {name: str(n) for name, n in metrics.items()}}}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "_delta_log").mkdir()
    return tmp_path


def commit(table: Path, number: int, *actions: dict[str, Any]) -> None:
    Path(commit_file(str(table), number)).write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")


def rows(table: Path, version: int) -> dict[tuple[str | None, ...], int] | None:
    found = table_rows(str(table), version)
    return None if found is None else dict(found.by_partition)


def test_a_file_with_another_deletion_vector_replaces_itself_in_whatever_order_the_actions_stand(table: Path) -> None:
    commit(table, 0, metadata(), added("a", "x", 5), added("b", None, 2))
    commit(table, 1, added("a", "x", 5, deleted=2), removed("a", "x"))
    commit(table, 2, removed("a", "x", deleted=2), added("a", "x", 5, deleted=4))
    commit(table, 3, removed("b", None))
    assert [rows(table, version) for version in range(4)] == [
        {("x",): 5, (None,): 2}, {("x",): 3, (None,): 2}, {("x",): 1, (None,): 2}, {("x",): 1},
    ]  # fmt: skip
    assert table_rows(str(table), 2).total == 3


def test_a_file_without_statistics_or_a_commit_that_is_gone_leaves_the_count_unknown(table: Path) -> None:
    commit(table, 0, metadata(), added("a", "x", 5))
    commit(table, 1, added("b", "x", None))
    commit(table, 2, removed("b", "x"))
    assert [rows(table, version) for version in range(3)] == [{("x",): 5}, None, {("x",): 5}]
    Path(commit_file(str(table), 1)).unlink()
    assert rows(table, 2) is None
    assert table_rows("/nowhere/table", 0) is None


def test_columns_are_found_under_the_names_that_the_log_has_for_them(table: Path) -> None:
    commit(table, 0, metadata(MAPPED), added("a", "x", 5, column="col-1"))
    assert rows(table, 0) == {("x",): 5}


def test_a_checkpoint_may_keep_its_statistics_as_a_struct_alone(table: Path) -> None:
    """So with `delta.checkpoint.writeStatsAsJson` switched off; commits before it are gone."""
    action = pa.struct([
        ("path", pa.string()), ("partitionValues", pa.map_(pa.string(), pa.string())), ("stats", pa.string()),
        ("stats_parsed", pa.struct([("numRecords", pa.int64()), ("minValues", pa.struct([("n", pa.int64())]))])),
        ("deletionVector", pa.struct([
            ("storageType", pa.string()), ("pathOrInlineDv", pa.string()), ("offset", pa.int32()),
            ("cardinality", pa.int64()),
        ])),
    ])  # fmt: skip
    meta = pa.struct([
        ("id", pa.string()), ("schemaString", pa.string()), ("partitionColumns", pa.list_(pa.string())),
    ])  # fmt: skip
    vector = {"storageType": "u", "pathOrInlineDv": "v", "offset": 1, "cardinality": 3}
    file = {"path": "a", "partitionValues": [("part", "x")], "stats": None}
    adds = [
        None,
        file | {"stats_parsed": {"numRecords": 10}, "deletionVector": vector},
        file | {"path": "b", "stats_parsed": {"numRecords": 4}},
    ]
    kept = {name: metadata()["metaData"][name] for name in ("id", "schemaString", "partitionColumns")}
    columns = {"add": pa.array(adds, action), "metaData": pa.array([kept, None, None], meta)}
    pq.write_table(pa.table(columns), table / "_delta_log" / f"{4:020d}.checkpoint.parquet")
    commit(table, 5, added("c", "y", 1), removed("b", "x"))
    assert (rows(table, 4), rows(table, 5)) == ({("x",): 11}, {("x",): 7, ("y",): 1})


def test_a_commit_is_counted_by_partition_without_the_rows_that_it_only_wrote_again(table: Path) -> None:
    def counts(number: int) -> dict[tuple[str | None, ...], PartitionCounts] | None:
        found = read_commit(str(table), number, ("part",)).partitions
        return None if found is None else dict(found)

    one = {"files_added": 1, "bytes_added": 10}
    commit(table, 0, metadata(), told("WRITE"), added("a", "x", 5), added("b", "y", 2))
    assert counts(0) == {("x",): PartitionCounts(rows=5, **one), ("y",): PartitionCounts(rows=2, **one)}
    commit(
        table, 1, told("MERGE", numTargetRowsInserted=1, numTargetRowsUpdated=1), added("c", "x", 6), removed("a", "x")
    )
    assert counts(1) == {("x",): PartitionCounts(rows=None, files_removed=1, **one)}
    commit(
        table, 2, told("MERGE", numTargetRowsInserted=1, numTargetRowsUpdated=1), added("c", "x", 6, deleted=1),
        removed("c", "x"), added("d", "x", 2),
    )  # fmt: skip
    assert counts(2) == {("x",): PartitionCounts(rows=2, files_added=2, bytes_added=20, files_removed=1)}
    commit(table, 3, told("RESTORE"), removed("d", "x"), added("a", "x", 5))
    assert counts(3) == {("x",): PartitionCounts(rows=None, files_removed=1, **one)}
    unnamed = removed("b", "y")
    del unnamed["remove"]["partitionValues"]
    commit(table, 4, told("DELETE"), unnamed)
    assert counts(4) is None


def of_state(action: dict[str, Any], state: str = "deletion-2026-01-01") -> dict[str, Any]:
    """The action, for a file of a partition of rows that are no rows of the dataset."""
    (file,) = action.values()
    file["partitionValues"]["_pipeline_state"] = state
    return action


@pytest.mark.parametrize(
    ("actions", "counts"),
    [
        ([added("a", "x", 2), of_state(added("s", "x", 3)), told("MERGE", numTargetRowsInserted=5)], 2),
        ([added("a", "x", 2), of_state(added("s", "x", 3)), told("MERGE", numTargetRowsInserted=6)], None),
        (
            [added("a", "x", 2), of_state(added("s", None, 3)), of_state(removed("r", None)),
             told("MERGE", numTargetRowsInserted=3, numTargetRowsUpdated=1)],
            2,
        ),
        (
            [added("a", "x", 2), removed("b", "x"), of_state(added("s", None, 3)), of_state(removed("r", None)),
             told("MERGE", numTargetRowsInserted=1, numTargetRowsUpdated=1)],
            None,
        ),
    ],
    ids=["a tombstone for each deletion", "copies", "a tombstone moved", "a tombstone moved beside a rewritten file"],
)  # fmt: skip
def test_a_commit_counts_rows_of_the_dataset_alone(
    table: Path, actions: list[dict[str, Any]], counts: int | None
) -> None:
    commit(table, 0, *actions)
    found = read_commit(str(table), 0, ("part",))
    assert found.partitions is not None
    assert {values: count.rows for values, count in found.partitions.items()} == {("x",): counts}
    assert (found.changes_rows, found.rows_by_partition) == (True, {("x",): 2})


def test_a_commit_of_tombstones_alone_changes_no_rows(table: Path) -> None:
    commit(table, 0, of_state(added("a", "x", 2)), of_state(removed("b", None)), told("MERGE"))
    found = read_commit(str(table), 0, ("part",))
    assert (found.changes_rows, found.partitions, found.files_added, found.files_removed) == (False, {}, 1, 1)
