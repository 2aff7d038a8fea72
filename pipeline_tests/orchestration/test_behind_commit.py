"""What fails between a commit and its report is raised with the version that stands, and the rows stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from dagster import RetryPolicy
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Append, Check, Dataset, InsertNew, Replace, SchemaPolicy, TableRef
from pipeline.delta.log.mark import AfterCommit
from pipeline.delta.maintain import restore
from pipeline.delta.read.version import ReadOptions
from pipeline.delta.write import write as write_module
from pipeline.errors import AfterCommitError, CommitConflictError
from pipeline.orchestration import DeltaSparkResource, dataset_asset
from pipeline.orchestration.io import io_manager
from pipeline.settings import SparkSettings
from pipeline_tests.delta.sample import frame_in, note, rows_of, versions_of
from pipeline_tests.orchestration.conftest import Project, materializations
from pipeline_tests.tiers import first_is_quick

NUMBERS = StructType([StructField("n", LongType())])
APPENDED = Dataset(name="appended", schema=NUMBERS, write=Append())


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@pytest.fixture
def spark_resource(classic: SparkSession, spark_settings: SparkSettings) -> DeltaSparkResource:
    return DeltaSparkResource.from_settings(spark_settings)


@pytest.mark.parametrize(
    "error",
    [
        TypeError("no len()"),
        KeyError("day"),
        OSError("away"),
        CommitConflictError(dataset="d", location="l", condition="c"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_error_behind_a_commit_names_the_version_and_is_not_tried_again(error: Exception) -> None:
    with pytest.raises(AfterCommitError) as caught, AfterCommit("d", "file:/d", 7):
        raise error
    assert (caught.value.dataset, caught.value.location, caught.value.version) == ("d", "file:/d", 7)
    assert caught.value.reason.startswith(f"{type(error).__name__}: ")
    assert "was committed as version 7" in str(caught.value)
    assert caught.value.__cause__ is error
    assert not caught.value.retryable
    with pytest.raises(KeyboardInterrupt), AfterCommit("d", "file:/d", 7):
        raise KeyboardInterrupt


@pytest.mark.parametrize("name", first_is_quick(["write_record", "write_metadata", "report_output"]))
def test_a_step_whose_report_fails_says_what_is_committed_and_its_retry_writes_nothing_twice(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    @dataset_asset(APPENDED, retry_policy=RetryPolicy(max_retries=1))
    def appended() -> pa.Table:
        return pa.table({"n": [1, 2]})

    real, calls = getattr(io_manager, name), []

    def fails_once(*arguments: Any, **options: Any) -> Any:
        calls.append(None)
        if len(calls) == 1:
            raise TypeError("no report")
        return real(*arguments, **options)

    monkeypatch.setattr(io_manager, name, fails_once)
    result = project.run(appended)
    (retried,) = [event for event in result.all_events if event.event_type_value == "STEP_UP_FOR_RETRY"]
    assert "was committed as version 1" in str(retried.event_specific_data.error.to_string())
    told = materializations(result, APPENDED)[None]
    assert (told["delta/skipped"], told["delta/version"]) == (True, 1)
    assert rows_of(APPENDED, project.root) == [(1,), (2,)]
    assert versions_of(APPENDED, project.root) == [0, 1]


def test_a_table_that_is_replaced_and_can_not_be_conformed_behind_it_names_the_version(
    classic: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Dataset(name="replaced", schema=NUMBERS, write=Replace())
    location = first.location(root)
    write_module.write(frame_in(classic, NUMBERS, [(1,)]), table=TableRef(first, location), note=note())
    wider = StructType([*NUMBERS.fields, StructField("more", LongType())])
    second = Dataset(name="replaced", schema=wider, write=Replace(), schema_policy=SchemaPolicy(mode="overwrite"))
    monkeypatch.setattr(write_module, "conform", failing(RuntimeError("no")))
    with pytest.raises(AfterCommitError) as caught:
        write_module.write(frame_in(classic, wider, [(2, 3)]), table=TableRef(second, location), note=note())
    assert caught.value.version == 2
    assert rows_of(second, root) == [(2, 3)]


@pytest.mark.exhaustive
def test_a_restore_whose_declaration_can_not_be_applied_again_names_the_version_of_the_restore(
    classic: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Dataset(name="restored", schema=NUMBERS, write=Append(), checks=(Check("positive", "n > 0"),))
    location = dataset.location(root)
    for number in (1, 2):
        write_module.write(frame_in(classic, NUMBERS, [(number,)]), table=TableRef(dataset, location), note=note())
    plan = restore.plan_restore(classic, TableRef(dataset, location), ReadOptions(version=1))
    conflict = CommitConflictError(dataset="restored", location=location, condition="DELTA_METADATA_CHANGED")
    monkeypatch.setattr(restore, "_apply_declared", failing(conflict))
    with pytest.raises(AfterCommitError) as caught:
        restore.restore(classic, dataset, plan, note("restore"))
    assert caught.value.version == 3
    assert rows_of(dataset, root) == [(1,)]


def test_a_write_that_made_no_commit_fails_as_itself(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    inserted = Dataset(name="inserted", schema=NUMBERS, keys=("n",), write=InsertNew())

    @dataset_asset(inserted)
    def nothing_new() -> pa.Table:
        return pa.table({"n": pa.array([], pa.int64())})

    monkeypatch.setattr(io_manager, "write_metadata", failing(TypeError("no report")))
    with pytest.raises(TypeError, match="no report"):
        project.run(nothing_new)
    assert versions_of(inserted, project.root) == [0]
