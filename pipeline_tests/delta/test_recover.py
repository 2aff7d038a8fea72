"""Restoring: rows, schema and properties of the version asked for, and the declaration applied again after it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import deltalake
import pytest
from pyspark.sql import SparkSession

from pipeline.dataset import Check, Dataset, Features, TableRef
from pipeline.delta.inspect.doctor import examine
from pipeline.delta.maintain.exchange import Exchange, PartitionExchange
from pipeline.delta.maintain.maintain import vacuum
from pipeline.delta.maintain.restore import RestoreResult, plan_restore, restore
from pipeline.delta.read.version import ReadOptions, read
from pipeline.delta.spark.failures import SPARK_ERRORS
from pipeline.delta.table.open_table import require_table, shape_differences
from pipeline.delta.write.transaction import INCARNATION
from pipeline.errors import TableNotFoundError, VersionNotFoundError, VersionVacuumedError
from pipeline_tests.delta.sample import APPENDED, commit_info, day, note, put, rows_of, versions_of

case = pytest.mark.case
CHECKED = replace(APPENDED, name="checked", checks=(Check("id_positive", "id > 0"),))


def to(session: SparkSession, dataset: Dataset, root: str, pin: ReadOptions) -> RestoreResult:
    plan = plan_restore(session, dataset.at(root), pin)
    return restore(session, dataset, plan, note(writer="restore"))


def at(version: int) -> ReadOptions:
    return ReadOptions(version=version)


def test_a_plan_says_what_would_change_and_changes_nothing(spark: SparkSession, root: str) -> None:
    put(spark, APPENDED, root, [(day(1), 1, "a")])
    put(spark, APPENDED, root, [(day(2), 2, "b")])
    plan = plan_restore(spark, APPENDED.at(root), at(1))
    assert (plan.version, plan.target, plan.changes) == (2, 1, True)
    assert plan.exchange == Exchange(
        files_back=0, files_gone=1, rows_back=0, rows_gone=1, rows_now=2, rows_then=1,
        partitions=(
            PartitionExchange(partition={"day": "2026-01-02"}, rows_now=1, rows_then=0, files_back=0, files_gone=1),
        ),
    )  # fmt: skip
    assert (plan.flips, plan.reapplied) == ({}, {})
    assert versions_of(APPENDED, root) == [0, 1, 2]


@pytest.mark.both_modes
def test_a_restore_brings_back_the_rows_in_a_commit_of_its_own_with_our_mark(spark: SparkSession, root: str) -> None:
    put(spark, APPENDED, root, [(day(1), 1, "a")])
    put(spark, APPENDED, root, [(day(2), 2, "b")])
    result = to(spark, APPENDED, root, at(1))
    assert rows_of(APPENDED, root) == [(day(1), 1, "a")]
    assert rows_of(APPENDED, root, version=2) == [(day(1), 1, "a"), (day(2), 2, "b")]
    assert (result.version, result.latest) == (3, 4)
    assert commit_info(APPENDED, root, 3)["operation"] == "RESTORE"
    assert '"writer": "restore"' in commit_info(APPENDED, root, 3)["userMetadata"]
    assert require_table(spark, APPENDED.at(root)).properties[INCARNATION] == "3"


def test_what_a_restore_has_done_is_what_its_plan_has_told_deleted_rows_included(
    classic: SparkSession, root: str
) -> None:
    dataset = replace(APPENDED, features=Features(deletion_vectors=True))
    put(classic, dataset, root, [(day(1), number, "a") for number in range(5)])
    put(classic, dataset, root, [(day(2), 9, "b")])
    classic.sql(f"DELETE FROM delta.`{dataset.location(root)}` WHERE id = 1").collect()
    result = to(classic, dataset, root, at(1))
    told = result.plan.exchange
    assert told is not None
    assert told == result.exchange
    assert (told.files_back, told.files_gone, told.rows_now, told.rows_then) == (1, 2, 5, 5)
    assert told.rows_back == told.rows_gone
    assert result.written is not None
    metrics = result.written.metrics
    assert (metrics["numRestoredFiles"], metrics["numRemovedFiles"]) == (str(told.files_back), str(told.files_gone))
    assert classic.read.format("delta").load(dataset.location(root)).count() == told.rows_then


@pytest.mark.exhaustive
@case("X-RESTORE-META")
def test_a_check_that_was_dropped_comes_back_with_the_version_and_one_that_is_declared_is_applied_again(
    classic: SparkSession, root: str
) -> None:
    location = CHECKED.location(root)
    plain = replace(CHECKED, checks=())
    put(classic, plain, root, [(day(1), 1, "a")])
    classic.sql(f"ALTER TABLE delta.`{location}` ADD CONSTRAINT id_positive CHECK (id > 0)")
    classic.sql(f"ALTER TABLE delta.`{location}` UNSET TBLPROPERTIES ('delta.enableChangeDataFeed')")
    # Back to before the check: it is declared now, so it is planned, and set again together with the feed.
    plan = plan_restore(classic, TableRef(CHECKED, location), at(1))
    assert plan.flips == {
        "delta.constraints.id_positive": ("id > 0", None),
        "delta.enableChangeDataFeed": (None, "true"),
    }
    assert plan.reapplied == {"delta.constraints.id_positive": "id > 0"}
    result = to(classic, CHECKED, root, at(1))
    state = require_table(classic, TableRef(CHECKED, location))
    assert (shape_differences(CHECKED, state), result.latest) == ([], state.version)
    with pytest.raises(SPARK_ERRORS, match="id_positive"):
        classic.sql(f"INSERT INTO delta.`{location}` VALUES (DATE'2026-01-01', -1, 'x')").collect()
    # Back to the version that had the check, after somebody has dropped it.
    classic.sql(f"ALTER TABLE delta.`{location}` DROP CONSTRAINT id_positive")
    to(classic, CHECKED, root, at(state.version))
    with pytest.raises(SPARK_ERRORS, match="id_positive"):
        classic.sql(f"INSERT INTO delta.`{location}` VALUES (DATE'2026-01-01', -1, 'x')").collect()


@case("X-RESTORE-CURRENT")
@case("X-TIME-BOUNDARY")
def test_a_restore_to_what_is_there_changes_nothing_whatever_the_session_s_zone(
    classic: SparkSession, root: str
) -> None:
    """A time after the last commit means the last version; one before the first is refused, with the first."""
    put(classic, APPENDED, root, [(day(1), 1, "a")])
    second = put(classic, APPENDED, root, [(day(2), 2, "b")])
    tomorrow = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=1)
    assert second.timestamp is not None
    millisecond = dt.timedelta(milliseconds=1)
    for zone in ("UTC", "Asia/Tokyo"):
        with zone_of(classic, zone):
            for pin in (at(2), ReadOptions(timestamp=tomorrow), ReadOptions(timestamp=second.timestamp)):
                result = to(classic, APPENDED, root, pin)
                assert (result.plan.changes, result.version, result.latest) == (False, 2, 2)
            before = ReadOptions(timestamp=second.timestamp - millisecond)
            assert plan_restore(classic, APPENDED.at(root), before).target == 1
            with pytest.raises(VersionNotFoundError):
                to(classic, APPENDED, root, ReadOptions(timestamp=tomorrow - dt.timedelta(days=2)))
    assert versions_of(APPENDED, root) == [0, 1, 2]


@contextmanager
def zone_of(session: SparkSession, zone: str) -> Iterator[None]:
    before = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        session.conf.set("spark.sql.session.timeZone", before)


@case("X-VACUUM-SHORT")
@pytest.mark.exhaustive
def test_a_version_whose_files_were_vacuumed_is_refused_by_name_before_anything_is_done(
    classic: SparkSession, root: str
) -> None:
    """Also after the retention was set back, when Delta no longer knows that the files may be gone."""
    dataset = replace(APPENDED, properties=(("delta.deletedFileRetentionDuration", "interval 0 hours"),))
    location = dataset.location(root)
    put(classic, dataset, root, [(day(1), 1, "a")])
    classic.sql(f"DELETE FROM delta.`{location}`").collect()
    classic.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        vacuum(classic, TableRef(dataset, location), apply=True)
    finally:
        classic.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    with pytest.raises(VersionVacuumedError) as old:
        to(classic, dataset, root, at(1))
    assert (old.value.version, old.value.missing) == (1, ())
    with pytest.raises(VersionVacuumedError):
        read(classic, TableRef(dataset, location), at(1))
    classic.sql(f"ALTER TABLE delta.`{location}` UNSET TBLPROPERTIES ('delta.deletedFileRetentionDuration')")
    versions = versions_of(dataset, root)
    with pytest.raises(VersionVacuumedError) as gone:
        to(classic, dataset, root, at(1))
    assert (gone.value.version, len(gone.value.missing), versions_of(dataset, root)) == (1, 1, versions)
    assert examine(dataset.name, location).findings == ()


def test_a_pin_that_names_nothing_and_a_table_that_is_not_there_are_refused(classic: SparkSession, root: str) -> None:
    with pytest.raises(TableNotFoundError):
        to(classic, APPENDED, root, at(0))
    put(classic, APPENDED, root, [(day(1), 1, "a")])
    with pytest.raises(VersionNotFoundError) as caught:
        to(classic, APPENDED, root, at(7))
    assert caught.value.available == "0 to 1"
    assert deltalake.DeltaTable(APPENDED.location(root)).version() == 1
