"""The record of the files that migrations have taken: in force if, and only if, a commit with its token is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Append, Dataset, TableRef
from pipeline.delta.log.commits import FORMAT
from pipeline.delta.log.mark import MIGRATION, MIGRATION_WRITER
from pipeline.delta.migrate.files import DataFile
from pipeline.delta.migrate.folders import source_folders
from pipeline.delta.migrate.plan import Target, plan_migration
from pipeline.delta.migrate.taken import (
    Record,
    Selection,
    Taken,
    TakenFile,
    report_path,
    select_files,
    taken,
    write_record,
)
from pipeline.delta.table.open_table import state_from_log
from pipeline.errors import RecordError

NUMBERS = Dataset(name="t", schema=StructType([StructField("n", LongType())]), write=Append(), change_feed=False)
FIRST, SECOND, THIRD = (digit * 32 for digit in "123")


@pytest.fixture
def table(tmp_path: Path) -> TableRef:
    deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"n": pa.array([], pa.int64())}))
    return TableRef(NUMBERS, str(tmp_path / "t"))


def record(token: str, number: int, after: str | None, *names: str, **facts: Any) -> Record:
    files = tuple(TakenFile(path=name, size=1, changed_nanoseconds=2, rows=3) for name in names)
    return Record(token=token, number=number, after=after, source="/lake", mode="copy", files=files, **facts)


def commit(table: TableRef, token: str, writer: str = MIGRATION_WRITER) -> None:
    """Rows under a mark with that token, as version 1, 2, …"""
    note = json.dumps({"pipeline": FORMAT, "mark": {"writer": writer, "epoch": 1, "attempt": 1, "token": token}})
    deltalake.write_deltalake(
        table.location, pa.table({"n": [1]}), mode="append",
        commit_properties=deltalake.CommitProperties(custom_metadata={"userMetadata": note}),
    )  # fmt: skip


def verify(table: TableRef, token: str, version: int, *, seal: bool = True) -> None:
    Path(report_path(table, token)).write_text(json.dumps({"version": version}), encoding="utf-8")
    if seal:
        deltalake.DeltaTable(table.location).alter.set_table_properties(
            {MIGRATION: token}, raise_if_not_exists=False
        )  # fmt: skip


def found(table: TableRef) -> Taken:
    return taken(None, table, state_from_log(table.location))


def test_a_table_without_migrations_has_taken_nothing(table: TableRef) -> None:
    assert found(table) == Taken() == taken(None, table, None)
    commit(table, FIRST, "somebody else")
    assert found(table) == Taken()


def test_a_record_counts_from_its_commit_on_and_is_verified_by_its_report(table: TableRef) -> None:
    first = record(FIRST, 1, None, "a")
    write_record(table, first)
    assert found(table) == Taken()
    commit(table, FIRST)
    assert found(table) == Taken(records=(first,), unverified=1)
    verify(table, FIRST, 1, seal=False)
    assert found(table) == Taken(records=(first,), is_unsealed=True)
    verify(table, FIRST, 1)
    assert found(table) == Taken(records=(first,))


def test_records_follow_each_other_and_later_ones_replace_what_was_known_of_a_file(table: TableRef) -> None:
    first, second = record(FIRST, 1, None, "a", "b"), record(SECOND, 2, FIRST, "c", vanished=("b",), replaced="all")
    write_record(table, first)
    commit(table, FIRST)
    verify(table, FIRST, 1)
    write_record(table, second)
    commit(table, SECOND)
    both = found(table)
    assert (both.records, both.unverified, both.newest) == ((first, second), 3, second)
    assert (sorted(both.files("/lake")), both.files("/other"), both.rows()) == (["a", "c"], {}, 6)


def test_a_restore_puts_the_records_that_it_undoes_out_of_force(table: TableRef) -> None:
    first = record(FIRST, 1, None, "a")
    write_record(table, first)
    commit(table, FIRST)
    verify(table, FIRST, 1)
    write_record(table, record(SECOND, 2, FIRST, "b"))
    commit(table, SECOND)
    deltalake.DeltaTable(table.location).restore(2)
    assert found(table) == Taken(records=(first,))
    deltalake.DeltaTable(table.location).restore(0)
    assert found(table).records == ()


def test_a_record_that_is_gone_or_of_another_format_is_an_error_with_its_path(table: TableRef) -> None:
    commit(table, FIRST)
    with pytest.raises(RecordError) as caught:
        found(table)
    assert caught.value.path.endswith(f"_migration/{FIRST}.json")
    write_record(table, record(FIRST, 1, None, "a"))
    path = Path(caught.value.path)
    path.write_text(path.read_text(encoding="utf-8").replace('"format": 1', '"format": 2'), encoding="utf-8")
    with pytest.raises(RecordError, match="its format is 2"):
        found(table)


def test_after_a_clean_up_of_the_log_the_property_is_enough_and_a_later_record_is_refused(table: TableRef) -> None:
    first = record(FIRST, 1, None, "a")
    write_record(table, first)
    commit(table, FIRST)
    verify(table, FIRST, 1)
    write_record(table, record(SECOND, 1, None, "b"))  # of a process that was killed before its commit
    deltalake.DeltaTable(table.location).create_checkpoint()
    for version in (0, 1):
        (Path(table.location) / "_delta_log" / f"{version:020d}.json").unlink()
    assert found(table) == Taken(records=(first,))
    write_record(table, record(THIRD, 2, FIRST, "c"))
    with pytest.raises(RecordError, match="the log was cleaned"):
        found(table)


def test_a_file_that_changed_before_its_rows_were_verified_is_refused_with_the_way_out(
    table: TableRef, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    pq.write_table(pa.table({"n": [1]}), lake / "a.parquet")
    taken_before = TakenFile(path="a.parquet", size=1, changed_nanoseconds=2, rows=3)
    write_record(table, replace(record(FIRST, 1, None), source=str(lake), files=(taken_before,)))
    commit(table, FIRST)
    plan = plan_migration(str(lake), Target(name="t", location=table.location))
    assert plan.unverified is not None
    assert plan.unverified.problems == (
        "a.parquet: it changed or vanished before its rows in version 1 were verified",
        "pipeline restore t --version 0 removes those rows, to take the files again",
    )
    deltalake.DeltaTable(table.location).restore(0)
    plan = plan_migration(str(lake), Target(name="t", location=table.location))
    assert ([file.path for file in plan.files], plan.unverified, plan.problems) == (["a.parquet"], None, ())


def test_a_commit_without_files_that_replaced_those_of_vanished_ones_can_be_verified(
    table: TableRef, tmp_path: Path
) -> None:
    write_record(table, replace(record(FIRST, 1, None), source=str(tmp_path / "lake"), replaced="all", vanished=("a",)))
    commit(table, FIRST)
    plan = plan_migration(str(tmp_path / "lake"), Target(name="t", location=table.location))
    assert plan.unverified is not None
    assert (plan.unverified.files, plan.unverified.problems) == ((), ())


# --- which files ------------------------------------------------------------------------------------------------------


def selected(names: dict[str, int], done: Taken, *, accept_changed: bool = False, table: TableRef) -> Selection:
    files = [DataFile(path=name, size=size, changed_nanoseconds=2) for name, size in names.items()]
    state = state_from_log(table.location)
    return select_files(
        "/lake", files, done, source_folders(list(names), ()), known=NUMBERS, state=state, accept_changed=accept_changed
    )


def test_new_changed_and_vanished_files_are_told_apart(table: TableRef) -> None:
    done = Taken(records=(record(FIRST, 1, None, "a", "b", "c"),))
    chosen = selected({"a": 1, "b": 9, "d": 1}, done, table=table)
    assert ([f.path for f in chosen.files], chosen.unchanged) == (["d"], 1)
    assert (chosen.changed, chosen.vanished, chosen.replaces) == (("b",), ("c",), False)


def test_without_partitions_the_whole_table_is_replaced_if_all_its_rows_are_of_the_files(table: TableRef) -> None:
    done = Taken(records=(record(FIRST, 1, None, "a", "b"),))
    commit(table, FIRST)
    chosen = selected({"a": 9, "d": 1}, done, accept_changed=True, table=table)
    assert ([f.path for f in chosen.files], chosen.replaces, chosen.within) == (["a", "d"], True, None)
    assert chosen.problems == ()
    deltalake.DeltaTable(table.location).optimize.compact()
    assert selected({"a": 9}, done, accept_changed=True, table=table).problems == ()
    deltalake.DeltaTable(table.location).update({"n": "5"})
    (problem,) = selected({"a": 9}, done, accept_changed=True, table=table).problems
    assert "version 2 (UPDATE), which is of another writer, changed rows" in problem
    other = Taken(records=(*done.records, record(SECOND, 2, FIRST, "a")))
    assert selected({"a": 1, "b": 1}, other, accept_changed=True, table=table).replaces is False


def test_after_a_clean_up_of_the_log_the_number_of_rows_decides_what_may_be_replaced(table: TableRef) -> None:
    done = Taken(records=(record(FIRST, 1, None, "a"),))
    commit(table, FIRST)
    deltalake.DeltaTable(table.location).alter.set_table_properties({"a": "b"}, raise_if_not_exists=False)
    deltalake.DeltaTable(table.location).create_checkpoint()
    for version in (0, 1):
        (Path(table.location) / "_delta_log" / f"{version:020d}.json").unlink()
    (problem,) = selected({"a": 9}, done, accept_changed=True, table=table).problems
    assert "has 1 rows where migrations have taken 3" in problem
    for _ in range(2):
        deltalake.write_deltalake(table.location, pa.table({"n": [1]}), mode="append")
    (problem,) = selected({"a": 9}, done, accept_changed=True, table=table).problems
    assert "of another writer" in problem
