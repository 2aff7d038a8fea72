"""Exports that follow a table: after any history the folder holds the version, and only what changed was written."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as pads
import pytest
from pyspark.sql import SparkSession

from pipeline.dataset import Append, Dataset, Replace, TableRef
from pipeline.delta.export import refresh as refresh_module
from pipeline.delta.export.manifest import BEGUN, SUCCESS, parse_manifest
from pipeline.delta.export.refresh import FullReason, Refreshed, refresh_export
from pipeline.delta.export.request import ExportRequest
from pipeline.delta.export.target import data_files, files_below
from pipeline.delta.maintain.maintain import optimize
from pipeline.delta.maintain.restore import plan_restore, restore
from pipeline.delta.read.version import ReadOptions
from pipeline.delta.sql.slices import of_values
from pipeline.delta.table.open_table import latest_version
from pipeline.errors import ExportRefusedError, ExportTargetError
from pipeline_tests.delta.sample import day, days, note, put, rows_of

TABLE = days(Append())
FLAT = replace(days(Append(), name="flat"), partition_by=())
Act = Callable[[], object]


def request(tmp_path: Path, **fields: Any) -> ExportRequest:
    return ExportRequest(**({"target": str(tmp_path / "kept"), "format": "parquet"} | fields))


def exported_rows(target: str | Path) -> list[tuple[Any, ...]]:
    """The rows in the files of an export, as pyarrow reads a folder with partitions."""
    if not data_files(files_below(str(target))):
        return []
    rows = pads.dataset(str(target), partitioning="hive").to_table().to_pylist()
    return sorted((str(row["day"]), row["id"], row["text"]) for row in rows)


def table_rows(dataset: Dataset, root: str) -> list[tuple[Any, ...]]:
    return sorted((str(row[0]), row[1], row[2]) for row in rows_of(dataset, root))


def names(target: str | Path) -> set[str]:
    return {file.path for file in data_files(files_below(str(target)))}


def test_only_partitions_that_changed_are_written_and_an_empty_one_is_dropped(
    classic: SparkSession, root: str, tmp_path: Path
) -> None:
    table, asked = TABLE.at(root), request(tmp_path)
    put(classic, TABLE, root, [(day(n), n, "a") for n in (1, 2, 3)])
    first = refresh_export(classic, table, asked)
    assert (first.reason, first.previous, first.rows, len(first.written)) == (FullReason.FIRST, None, 3, 3)
    before = names(asked.target)

    again = refresh_export(classic, table, asked)
    assert (again.reason, again.written, again.dropped, again.version) == (None, (), (), first.version)
    assert names(asked.target) == before

    put(classic, TABLE, root, [(day(2), 20, "b"), (None, 40, None)])
    classic.sql(f"DELETE FROM delta.`{table.location}` WHERE day = DATE'2026-01-03'").collect()
    second = refresh_export(classic, table, asked)
    assert (second.reason, second.previous, second.rows, second.rows_written) == (None, first.version, 4, 3)
    assert second.written == ("day=2026-01-02", "day=__HIVE_DEFAULT_PARTITION__")
    assert second.dropped == ("day=2026-01-03",)
    assert {name for name in names(asked.target) if "01-01" in name} == {name for name in before if "01-01" in name}
    assert not (Path(asked.target) / "day=2026-01-03").exists()
    assert exported_rows(asked.target) == table_rows(TABLE, root)
    manifest = parse_manifest((Path(asked.target) / SUCCESS).read_bytes())
    assert manifest is not None
    assert (manifest.version, manifest.rows) == (second.version, 4)
    assert {file.path for file in manifest.files} == names(asked.target)


@pytest.mark.exhaustive
def test_a_commit_without_new_rows_writes_no_file(classic: SparkSession, root: str, tmp_path: Path) -> None:
    table, asked = TABLE.at(root), request(tmp_path)
    for n in (1, 2):
        put(classic, TABLE, root, [(day(1), n, "a")])
    refresh_export(classic, table, asked)
    before = names(asked.target)
    assert optimize(classic, table, note()).files_removed == 2
    refreshed = refresh_export(classic, table, asked)
    assert (refreshed.written, refreshed.version, refreshed.previous) == ((), 3, 2)
    assert names(asked.target) == before
    assert refresh_export(classic, table, asked, ReadOptions(version=2)).version == 3


@pytest.mark.exhaustive
def test_a_condition_is_evaluated_for_the_changed_partitions_alone(
    classic: SparkSession, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, asked = TABLE.at(root), request(tmp_path, where="id >= 10")
    put(classic, TABLE, root, [(day(1), 1, "a"), (day(1), 10, "a"), (day(2), 20, "b"), (day(3), 3, "c")])
    first = refresh_export(classic, table, asked)
    assert (first.rows, first.written) == (2, ("day=2026-01-01", "day=2026-01-02"))
    conditions: list[str | None] = []
    real = refresh_module.count_folders

    def counting(*arguments: Any) -> dict[str, int]:
        conditions.append(arguments[-1])
        return real(*arguments)

    monkeypatch.setattr(refresh_module, "count_folders", counting)
    put(classic, TABLE, root, [(day(3), 30, "c")])
    classic.sql(f"DELETE FROM delta.`{table.location}` WHERE id = 20").collect()
    second = refresh_export(classic, table, asked)
    assert (second.written, second.dropped, second.rows) == (("day=2026-01-03",), ("day=2026-01-02",), 2)
    # Of the second day no file is left, so that nothing is counted there.
    assert conditions == ["(`day` = DATE'2026-01-03')"]
    assert exported_rows(asked.target) == [("2026-01-01", 10, "a"), ("2026-01-03", 30, "c")]
    assert refresh_export(classic, table, asked).rows == 2
    assert len(conditions) == 1


def assert_all_exported(refreshed: Refreshed, reason: FullReason) -> None:
    assert (refreshed.reason, refreshed.rows_written) == (reason, refreshed.rows)


@pytest.mark.exhaustive
def test_a_restore_another_table_or_another_selection_exports_everything(
    classic: SparkSession, root: str, tmp_path: Path
) -> None:
    table, asked = TABLE.at(root), request(tmp_path)
    put(classic, TABLE, root, [(day(1), 1, "a"), (day(2), 2, "b")])
    refresh_export(classic, table, asked)
    put(classic, TABLE, root, [(day(3), 3, "c")])
    refresh_export(classic, table, asked)
    restore(classic, TABLE, plan_restore(classic, table, ReadOptions(version=1)), note())
    restored = refresh_export(classic, table, asked)
    assert_all_exported(restored, FullReason.RESTORED)
    assert restored.dropped == ("day=2026-01-03",)
    assert exported_rows(asked.target) == table_rows(TABLE, root)

    narrow = replace(asked, columns=("day", "id"))
    assert_all_exported(refresh_export(classic, table, narrow), FullReason.SELECTION_CHANGED)
    assert_all_exported(refresh_export(classic, table, asked), FullReason.SELECTION_CHANGED)

    shutil.rmtree(table.location)
    put(classic, TABLE, root, [(day(9), 9, "z")])
    assert_all_exported(refresh_export(classic, table, asked), FullReason.RECREATED)
    assert exported_rows(asked.target) == table_rows(TABLE, root) == [("2026-01-09", 9, "z")]


@pytest.mark.exhaustive
def test_a_table_without_partitions_is_one_folder(classic: SparkSession, root: str, tmp_path: Path) -> None:
    table, asked = FLAT.at(root), request(tmp_path)
    put(classic, FLAT, root, [(day(1), 1, "a")])
    refresh_export(classic, table, asked)
    put(classic, FLAT, root, [(day(2), 2, "b")])
    refreshed = refresh_export(classic, table, asked)
    assert (refreshed.reason, refreshed.written, refreshed.rows_written) == (None, ("",), 2)
    assert exported_rows(asked.target) == table_rows(FLAT, root)
    classic.sql(f"DELETE FROM delta.`{table.location}`").collect()
    emptied = refresh_export(classic, table, asked)
    assert (emptied.written, emptied.dropped, emptied.rows) == ((), ("",), 0)
    assert names(asked.target) == set()


@pytest.mark.exhaustive
def test_lost_and_foreign_files_in_the_folder_are_put_right(classic: SparkSession, root: str, tmp_path: Path) -> None:
    table, asked = TABLE.at(root), request(tmp_path)
    put(classic, TABLE, root, [(day(1), 1, "a"), (day(2), 2, "b")])
    refresh_export(classic, table, asked)
    lost = next((Path(asked.target) / "day=2026-01-01").glob("*.parquet"))
    shutil.copy(lost, lost.with_name("foreign.parquet"))
    lost.unlink()
    refreshed = refresh_export(classic, table, asked)
    assert refreshed.written == ("day=2026-01-01",)
    assert exported_rows(asked.target) == table_rows(TABLE, root)
    ours = next((Path(asked.target) / "day=2026-01-01").glob("*.parquet"))
    for name in ("day=2026-01-02", "day=2026-01-09", "other"):
        (Path(asked.target) / name).mkdir(exist_ok=True)
        shutil.copy(ours, Path(asked.target) / name / "f.parquet")
    refreshed = refresh_export(classic, table, asked)
    assert (refreshed.written, refreshed.rows) == (("day=2026-01-02",), 2)
    assert (Path(asked.target) / "other" / "f.parquet").exists(), "it is in no folder of a partition"
    shutil.rmtree(Path(asked.target) / "other")
    assert exported_rows(asked.target) == table_rows(TABLE, root)


@pytest.mark.exhaustive
def test_a_folder_of_others_is_refused_and_delta_is_not_kept(classic: SparkSession, root: str, tmp_path: Path) -> None:
    table, asked = TABLE.at(root), request(tmp_path)
    put(classic, TABLE, root, [(day(1), 1, "a")])
    Path(asked.target).mkdir()
    (Path(asked.target) / "theirs").touch()
    with pytest.raises(ExportTargetError):
        refresh_export(classic, table, asked)
    assert [path.name for path in Path(asked.target).iterdir()] == ["theirs"]
    with pytest.raises(ExportRefusedError):
        refresh_export(classic, table, request(tmp_path, format="delta"))


class Killed(BaseException):
    """The end of a process, which no handler sees."""


@pytest.mark.parametrize("moved", [1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (0, 99))])
def test_a_refresh_that_was_killed_between_two_renames_is_completed(
    classic: SparkSession, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    table, asked = TABLE.at(root), request(tmp_path)
    put(classic, TABLE, root, [(day(n), n, "a") for n in (1, 2, 3)])
    refresh_export(classic, table, asked)
    put(classic, TABLE, root, [(day(n), 10 * n, "b") for n in (1, 2)])
    from pipeline.delta.export import target as target_module

    real, left = target_module.os.rename, [moved]

    def rename(*paths: Any) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        real(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(target_module.os, "rename", rename)
        patch.setattr(target_module.LocalWorkspace, "close", lambda space: target_module.os.close(space._lock))
        if moved < 2:
            with pytest.raises(Killed):
                refresh_export(classic, table, asked)
            assert (Path(asked.target) / BEGUN).is_file()
            assert not (Path(asked.target) / SUCCESS).exists()
        else:
            refresh_export(classic, table, asked)
    put(classic, TABLE, root, [(day(3), 30, "c")])
    refreshed = refresh_export(classic, table, asked)
    assert refreshed.reason is None
    assert set(refreshed.written) == {f"day=2026-01-0{n}" for n in ((1, 2, 3) if moved < 2 else (3,))}
    assert exported_rows(asked.target) == table_rows(TABLE, root)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert not (Path(asked.target) / BEGUN).exists()


@pytest.mark.exhaustive
@pytest.mark.soaked(4)
@pytest.mark.parametrize("format_name", ["parquet", "csv", "ndjson"])
def test_after_any_history_the_folder_holds_the_version(
    classic: SparkSession, root: str, tmp_path: Path, soak_seed: int, format_name: str
) -> None:
    rng = random.Random(soak_seed)
    replaced = days(Replace(), name="replaced")
    table, asked = replaced.at(root), request(tmp_path, format=format_name)
    put(classic, replaced, root, [(day(n), n, "a") for n in range(1, 6)])
    refresh_export(classic, table, asked)
    for step in range(10):
        act = rng.choice(acts(classic, replaced, root, rng, step))
        act()
        if rng.random() < 0.7:
            refresh_export(classic, table, asked)
    refreshed = refresh_export(classic, table, asked)
    assert refreshed.rows == len(rows_of(replaced, root))
    if format_name == "parquet":
        assert exported_rows(asked.target) == table_rows(replaced, root)
    assert refresh_export(classic, table, asked).written == ()


def acts(session: SparkSession, dataset: Dataset, root: str, rng: random.Random, step: int) -> list[Act]:
    table, some = dataset.at(root), sorted({day(rng.randrange(1, 7)) for _ in range(2)})
    rows = [(value, 100 * step + n, rng.choice(["x", "", None])) for value in some for n in range(rng.randrange(3))]
    version = min(rng.randrange(1, 3), latest_version(table.location) or 0)
    return [
        lambda: put(session, dataset, root, rows, of_values("day", some)),
        lambda: session.sql(f"DELETE FROM delta.`{table.location}` WHERE day = DATE'{some[0]}'").collect(),
        lambda: session.sql(f"UPDATE delta.`{table.location}` SET text = 'u' WHERE id % 2 = {step % 2}").collect(),
        lambda: optimize(session, table, note()),
        lambda: restore(session, dataset, plan_restore(session, table, ReadOptions(version=version)), note()),
    ]


@pytest.mark.exhaustive
def test_the_partitions_of_many_keys_are_selected_by_their_values(
    classic: SparkSession, root: str, tmp_path: Path
) -> None:
    """The rows of changed partitions are read by a condition on two columns, NULL among their values."""
    both = days(Append(), name="both", partition_by=("day", "text"))
    table, asked = TableRef(both, both.location(root)), request(tmp_path)
    put(classic, both, root, [(day(1), 1, "a"), (day(1), 2, None), (None, 3, "a"), (day(2), 4, "b")])
    refresh_export(classic, table, asked)
    put(classic, both, root, [(day(1), 10, None), (None, 30, "a")])
    refreshed = refresh_export(classic, table, asked)
    null = "__HIVE_DEFAULT_PARTITION__"
    assert refreshed.written == (f"day=2026-01-01/text={null}", f"day={null}/text=a")
    assert refreshed.rows_written == 4
    assert exported_rows(asked.target) == table_rows(both, root)
