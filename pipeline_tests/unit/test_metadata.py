"""What a run tells of a write: its order, its sample of rows and its line in the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from dagster import MarkdownMetadataValue

from pipeline.dataset import Append, Dataset
from pipeline.delta.inspect.sample import sample
from pipeline.delta.log.commits import PartitionCounts
from pipeline.delta.log.mark import Mark
from pipeline.delta.write.quarantine import Violation
from pipeline.delta.write.result import WriteResult
from pipeline.orchestration.io.reporting import commit_line, sample_metadata
from pipeline.orchestration.metadata import foremost_first, sample_table, write_metadata
from pipeline.orchestration.metadata_keys import VIOLATIONS
from pipeline_tests.delta.sample import DAYS

DAILY = Dataset(name="shop/days", schema=DAYS, partition_by=("day",), write=Append())


def result(**fields: Any) -> WriteResult:
    told: dict[str, Any] = {
        "dataset": "shop/days", "location": "/nowhere", "table_id": "T", "version": 3, "committed": True,
        "operation": "WRITE", "rows_written": 1200, "rows_deleted": None, "files_added": 2, "files_removed": 0,
        "bytes_added": 10, "rows_by_partition": {}, "schema_fingerprint": "f" * 64, "timestamp": None,
        "mark": Mark(writer="w"), "features": (),
    }  # fmt: skip
    return WriteResult(**(told | fields))


def test_what_a_person_asks_first_comes_first_and_nothing_is_lost() -> None:
    metadata = write_metadata(DAILY, result(), {}) | {"dagster/row_count": 5, "delta/verdict": "all", "mine": 1}
    ordered = foremost_first(metadata)
    assert list(ordered)[:6] == [
        "delta/rows_written", "dagster/row_count", "delta/version", "delta/schema_fingerprint", "delta/operation",
        "delta/committed",
    ]  # fmt: skip
    assert ordered == metadata
    assert list(foremost_first({"delta/version": 1, "delta/commit_rows_written": 2})) == [
        "delta/commit_rows_written", "delta/version",
    ]  # fmt: skip


def test_only_constraints_that_rows_have_broken_are_told() -> None:
    held = Violation(constraint="held", kind="check", on_violation="drop", rows=0, examples=())
    broken = Violation(constraint="broken", kind="check", on_violation="drop", rows=2, examples=("n = 1",))
    metadata = write_metadata(DAILY, result(violations=(held, broken), rows_dropped=2), {})
    assert list(metadata[VIOLATIONS].value) == ["broken"]
    sound = write_metadata(DAILY, result(violations=(held,)), {})
    assert VIOLATIONS not in sound
    assert sound["delta/rows_dropped"].value == 0


@pytest.mark.parametrize(
    ("told", "within", "seconds", "line"),
    [
        (result(), None, 0.84, "shop/days: version 3 (WRITE), 1200 rows written, 0.8 s"),
        (result(rows_written=1), "day = 2026-01-02", 1.0,
         "shop/days: version 3 (WRITE), 1 row written, partitions: day = 2026-01-02, 1.0 s"),
        (result(partitions={("a",): PartitionCounts(), ("b",): PartitionCounts()}), None, None,
         "shop/days: version 3 (WRITE), 1200 rows written, partitions: 2 changed"),
        (result(committed=False), None, 2.0, "shop/days: nothing to commit, version 3, 2.0 s"),
        (result(committed=False, skipped=True), None, 2.0, "shop/days: already written, version 3, 2.0 s"),
    ],
    ids=["whole", "slice", "partitions", "nothing", "skipped"],
)  # fmt: skip
def test_a_commit_is_one_line(told: WriteResult, within: str | None, seconds: float | None, line: str) -> None:
    assert commit_line(told, within, seconds) == line


# --- the sample -------------------------------------------------------------------------------------------------------


def put(location: str, rows: pa.Table, **options: Any) -> None:
    deltalake.write_deltalake(location, rows, mode="append", **options)


def test_a_sample_is_of_the_commit_and_of_no_other(tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    put(location, pa.table({"id": [1], "day": ["a"]}), partition_by=["day"])
    put(location, pa.table({"id": list(range(10, 30)), "day": ["b"] * 20}))
    assert sample(location, 1, 3) == [{"id": 10, "day": "b"}, {"id": 11, "day": "b"}, {"id": 12, "day": "b"}]
    assert sample(location, 0, 3) == [{"id": 1, "day": "a"}]
    shown = sample_metadata(result(location=location, version=1), 2)["delta/sample"]
    assert shown.value.splitlines()[2:] == ["| `10` | `b` |", "| `11` | `b` |"]


def test_where_no_sample_can_be_had_cheaply_there_is_none(tmp_path: Path) -> None:
    location = tmp_path / "table"
    put(str(location), pa.table({"id": [1]}))
    assert sample(str(location), 0, 0) is None
    assert sample("/nowhere/table", 0, 5) is None
    assert sample(str(location), 1, 5) is None
    assert sample_metadata(result(location=str(location), version=0, files_added=0), 5) == {}
    assert sample_metadata(replace(result(location=str(location), version=0), committed=False), 5) == {}
    next(location.glob("*.parquet")).write_bytes(b"no Parquet")
    assert sample(str(location), 0, 5) is None
    next(location.glob("*.parquet")).unlink()
    assert sample(str(location), 0, 5) is None


def test_no_value_of_a_sample_is_markup_or_breaks_the_table() -> None:
    hostile = "a|b\n`c` <img src=x onerror=alert(1)> [l](http://x) " + "y" * 100
    table = sample_table([{"text|": hostile, "n": None}, {"text|": "", "n": 1}])
    assert isinstance(table, MarkdownMetadataValue)
    head, rule, first, second = (table.value or "").splitlines()
    assert (head, rule) == ("| `text\\|` | `n` |", "| --- | --- |")
    assert first == "| `a\\|b 'c' <img src=x onerror=alert(1)> [l…` | `NULL` |"
    assert second == "| ` ` | `1` |"
