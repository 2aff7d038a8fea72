"""A refusal arrives in Dagster as a failure that says what was refused, and is tried again only where that may help."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    ExecuteInProcessResult,
    Failure,
    RetryPolicy,
    build_output_context,
    materialize,
)
from pyspark.sql.types import LongType, StructField, StructType

from pipeline import errors
from pipeline.dataset import Dataset
from pipeline.errors import FrameMismatchError, SourceFileError
from pipeline.orchestration import DeltaIOManager, DeltaSparkResource, dataset_asset, dataset_metadata
from pipeline.orchestration.failures import failure_of
from pipeline.orchestration.io import io_manager
from pipeline.settings import SparkSettings
from pipeline_tests.tiers import first_is_quick
from pipeline_tests.unit.sink_sample import NOBODY
from pipeline_tests.unit.test_doors import ERRORS
from pipeline_tests.unit.test_errors import CONCRETE, built, fields_of

NUMBERS = Dataset(name="numbers", schema=StructType([StructField("n", LongType())]))


def run(root: Path, returned: Any, *, retries: int = 2) -> tuple[ExecuteInProcessResult, int]:
    """A run of an asset that returns or raises something, where no Spark answers, and how often it was tried."""
    spark = DeltaSparkResource.from_settings(SparkSettings(remote=NOBODY))
    tried: list[dt.datetime] = []

    @dataset_asset(NUMBERS, retry_policy=RetryPolicy(max_retries=retries))
    def numbers() -> Any:
        tried.append(dt.datetime.now(dt.timezone.utc))
        if isinstance(returned, Exception):
            raise returned
        return returned

    resources = {"spark": spark, "delta_io_manager": DeltaIOManager(root=str(root), spark=spark)}
    with DagsterInstance.ephemeral() as instance:
        return materialize([numbers], resources=resources, instance=instance, raise_on_error=False), len(tried)


def failure_in(result: ExecuteInProcessResult) -> Any:
    (event,) = [event for event in result.all_events if event.is_step_failure]
    return event.step_failure_data.user_failure_data


def test_a_frame_that_is_refused_is_told_by_its_message_and_its_fields_and_not_tried_again(tmp_path: Path) -> None:
    result, tried = run(tmp_path, pd.DataFrame({"m": ["x"]}))
    told = failure_in(result)
    assert tried == 1
    assert told.description.startswith("The frame for dataset 'numbers' does not fit its declaration:")
    assert "Select and cast to the declared columns of 'numbers'" in told.description
    metadata = {name: value.value for name, value in told.metadata.items()}
    assert (metadata["error"], metadata["dataset"]) == ("FrameMismatchError", "numbers")
    assert metadata["differences"] == ["column n: missing, declared bigint", "column m: not declared"]


def test_a_server_that_is_away_may_be_back_and_is_asked_again(tmp_path: Path) -> None:
    result, tried = run(tmp_path, pd.DataFrame({"n": [1]}))
    assert (failure_in(result).metadata["error"].value, tried) == ("SparkUnavailableError", 3)


def test_a_refusal_inside_of_the_assets_function_is_not_tried_again_and_an_error_of_the_user_is(tmp_path: Path) -> None:
    refused, tried = run(tmp_path, SourceFileError(path="a.csv", problem="it is missing"))
    assert (failure_in(refused).description.splitlines()[0], tried) == ("a.csv: it is missing", 1)
    failed, tried = run(tmp_path, LookupError("no entry"))
    assert (failed.success, tried) == (False, 3)


@pytest.mark.parametrize("kind", first_is_quick(["disk in Java", "rpc", "text"]))
def test_every_foreign_error_under_the_io_manager_ends_the_step_as_a_failure(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any, **named: Any) -> Any:
        raise ERRORS[kind][0]()

    monkeypatch.setattr(io_manager, "declared_dataset", fails)
    result, _ = run(tmp_path, pd.DataFrame({"n": [1]}), retries=0)
    told = failure_in(result)
    assert told.metadata["error"].value in vars(errors)


def test_outside_of_a_run_a_refusal_is_the_error_itself(tmp_path: Path) -> None:
    spark = DeltaSparkResource.from_settings(SparkSettings(remote=NOBODY))
    context = build_output_context(
        asset_key=AssetKey("numbers"), run_id="r", definition_metadata=dict(dataset_metadata(NUMBERS))
    )
    with pytest.raises(FrameMismatchError):
        DeltaIOManager(root=str(tmp_path), spark=spark).handle_output(context, pd.DataFrame({"m": [1]}))


@pytest.mark.parametrize("cls", CONCRETE, ids=lambda cls: cls.__name__)
def test_every_error_makes_a_failure_with_its_fields(cls: type) -> None:
    error = built(cls)
    failure = failure_of(error)
    assert isinstance(failure, Failure)
    assert (failure.description, failure.allow_retries) == (str(error), error.may_pass)
    assert set(failure.metadata) == {"error", *fields_of(error)}
