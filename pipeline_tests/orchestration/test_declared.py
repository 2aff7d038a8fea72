"""What Dagster is told of an asset comes from the declaration: freshness, code version, and what starts it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from dagster import (
    AssetKey,
    AssetsDefinition,
    AssetSelection,
    AutomationCondition,
    Definitions,
    FreshnessPolicy,
    Output,
    evaluate_automation_conditions,
    multi_asset,
)
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, FreshByCron, FreshWithin, SchemaPolicy
from pipeline.delta.write.consume import Touched
from pipeline.errors import DeclarationError
from pipeline.orchestration import dataset_asset, dataset_out, dataset_spec
from pipeline.orchestration.automation.sensors import on_changed_source
from pipeline.orchestration.dataset_asset import kinds_of_frame
from pipeline_tests.delta.sample import rows_of
from pipeline_tests.orchestration.conftest import Project, materializations

NUMBERS = StructType([StructField("n", LongType())])
HOUR = timedelta(hours=1)
SOURCE = Dataset(name="source", schema=NUMBERS, write=Append(), change_feed=False)
CONSUMER = Dataset(
    name="consumer",
    schema=NUMBERS,
    reads=("source",),
    code_version="7",
    starts_on_change=True,
    description="What the source has.",
    group="numbers",
    owners=("team:numbers",),
    tags=(("domain", "arithmetic"),),
    freshness=FreshByCron(cron="0 4 * * *", window=HOUR, timezone="Europe/Vilnius"),
    change_feed=False,
)
BY_CRON = FreshnessPolicy.cron(deadline_cron="0 4 * * *", lower_bound_delta=HOUR, timezone="Europe/Vilnius")
classic_only = pytest.mark.parametrize("spark_resource", ["classic"], indirect=True)


@dataset_asset(CONSUMER)
def consumer(source: pa.Table) -> pa.Table:
    return source


def test_an_asset_and_an_output_have_what_is_declared() -> None:
    @multi_asset(outs={"out": dataset_out(CONSUMER)}, deps=["source"])
    def several():
        yield Output(pa.table({"n": [1]}), "out")

    for asset, kinds in ((consumer, {"deltalake", "arrow"}), (several, {"deltalake"})):
        (spec,) = asset.specs
        assert spec.freshness_policy == BY_CRON
        assert spec.code_version == "7"
        assert spec.automation_condition == on_changed_source()
        assert (spec.description, spec.group_name, spec.owners) == ("What the source has.", "numbers", ["team:numbers"])
        assert (spec.tags["domain"], spec.kinds) == ("arithmetic", kinds)


def as_pandas(source: pa.Table) -> pd.DataFrame:
    return source.to_pandas()


def as_spark(source: pa.Table) -> Output[DataFrame]:
    raise NotImplementedError


def of_changes(source: pa.Table) -> Touched:
    raise NotImplementedError


def untold(source: pa.Table):
    raise NotImplementedError


def of_nothing_here(source: pa.Table) -> "nowhere.Frame":  # noqa: F821
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "kinds"),
    [
        (as_pandas, {"pandas"}), (as_spark, {"pyspark"}), (of_changes, {"pyspark"}), (untold, set()),
        (of_nothing_here, set()),
    ],
)  # fmt: skip
def test_the_kind_of_frame_that_a_function_says_it_returns_is_shown(
    function: Callable[..., Any], kinds: set[str]
) -> None:
    assert kinds_of_frame(function) == kinds


def test_a_table_that_is_written_elsewhere_has_its_freshness_and_nothing_that_is_said_of_a_computation() -> None:
    spec = dataset_spec(CONSUMER)
    assert (spec.freshness_policy, spec.code_version, spec.automation_condition) == (BY_CRON, None, None)
    assert (spec.kinds, spec.metadata["delta/write_mode"]) == ({"deltalake"}, "replace")
    keyed = dataset_spec(Dataset(name="a", schema=NUMBERS, keys=("n",)))
    assert keyed.metadata["delta/keys"] == "n"


def test_a_window_of_time_fails_and_warns_as_declared() -> None:
    declared = Dataset(name="a", schema=NUMBERS, freshness=FreshWithin(fail_after=2 * HOUR, warn_after=HOUR))
    assert dataset_spec(declared).freshness_policy == FreshnessPolicy.time_window(
        fail_window=2 * HOUR, warn_window=HOUR
    )
    assert dataset_spec(Dataset(name="a", schema=NUMBERS)).freshness_policy is None


@pytest.mark.parametrize(
    "freshness",
    [
        FreshByCron(cron="0 4 * * 9", window=HOUR),
        FreshByCron(cron="0 4 * * *", window=timedelta(days=2)),
        FreshByCron(cron="0 4 * * *", window=HOUR, timezone="Europe/Atlantis"),
    ],
    ids=["no cron", "a window longer than from tick to tick", "no time zone"],
)
def test_a_freshness_that_dagster_does_not_know_is_refused_with_the_dataset(freshness: FreshByCron) -> None:
    with pytest.raises(DeclarationError) as caught:
        dataset_spec(Dataset(name="a", schema=NUMBERS, freshness=freshness))
    assert caught.value.dataset == "a"
    assert caught.value.problems[0].startswith("freshness: ")


def test_a_condition_of_another_kind_may_be_given_and_a_second_one_is_refused() -> None:
    eager = AutomationCondition.eager()

    @dataset_asset(SOURCE, automation_condition=eager)
    def source() -> None: ...

    assert source.automation_conditions_by_key == {AssetKey("source"): eager}
    for form in (dataset_asset, dataset_out):
        with pytest.raises(DeclarationError) as caught:
            form(CONSUMER, automation_condition=eager)
        assert caught.value.dataset == "consumer"


class Looks:
    """The condition as the sensor evaluates it, look after look."""

    def __init__(self, project: Project, *assets: AssetsDefinition) -> None:
        self.instance = project.instance
        self.definitions = Definitions(assets=assets, resources=project.resources())
        self.cursor: Any = None

    def asked_for(self) -> int:
        result = evaluate_automation_conditions(
            self.definitions, self.instance, asset_selection=AssetSelection.all(), cursor=self.cursor
        )
        self.cursor = result.cursor
        return result.total_requested


@classic_only
def test_a_commit_of_the_source_starts_the_consumer_once_and_a_run_without_one_does_not(project: Project) -> None:
    rows: list[int] = []

    @dataset_asset(SOURCE)
    def source() -> pa.Table:
        return pa.table({"n": pa.array(rows, pa.int64())})

    looks = Looks(project, source, consumer)
    assert looks.asked_for() == 0
    rows.append(1)
    project.run(source)
    assert [looks.asked_for(), looks.asked_for()] == [1, 0]
    rows.clear()
    # Delta makes a commit for the identifier alone; the version of the rows stays the one that was told.
    empty = materializations(project.run(source), SOURCE)[None]
    assert (empty["delta/rows_written"], empty["delta/files_added"]) == (0, 0)
    assert empty["tags"]["dagster/data_version"].startswith(f"{empty['delta/table_id']}/1/")
    assert looks.asked_for() == 0
    rows.append(2)
    project.run(source)
    assert [looks.asked_for(), looks.asked_for()] == [1, 0]
    declared_late = Looks(project, source, consumer)
    assert [declared_late.asked_for(), declared_late.asked_for()] == [1, 0]
    project.run(source, consumer, selection=[consumer])
    assert Looks(project, source, consumer).asked_for() == 0


@classic_only
def test_a_run_that_evolves_the_table_tells_both_fingerprints_and_what_has_changed(project: Project) -> None:
    older = Dataset(name="evolving", schema=NUMBERS, write=Append(), change_feed=False)
    wider = StructType([*NUMBERS.fields, StructField("text", StringType())])
    newer = replace(older, schema=wider, schema_policy=SchemaPolicy(mode="add columns"))

    def told(dataset: Dataset, frame: pa.Table) -> dict[str, Any]:
        @dataset_asset(dataset)
        def evolving() -> pa.Table:
            return frame

        return materializations(project.run(evolving), dataset)[None]

    first, second = told(older, pa.table({"n": [1]})), told(newer, pa.table({"n": [1], "text": ["a"]}))
    assert "delta/schema_changes" not in first
    assert second["delta/schema_fingerprint_before"] == first["delta/schema_fingerprint"] == older.fingerprint
    assert second["delta/schema_fingerprint"] == newer.fingerprint
    assert second["delta/schema_changes"] == ["column text: added as string"]
    assert (first["delta/version"], second["delta/version"]) == (1, 3)
    assert rows_of(newer, project.root) == [(1, None), (1, "a")]


@classic_only
def test_a_table_that_is_put_back_from_a_copy_and_written_to_the_same_version_has_another_data_version(
    project: Project, tmp_path: Path
) -> None:
    rows: list[int] = [1]

    @dataset_asset(SOURCE)
    def source() -> pa.Table:
        return pa.table({"n": pa.array(rows, pa.int64())})

    def told() -> str:
        version: str = materializations(project.run(source), SOURCE)[None]["tags"]["dagster/data_version"]
        return version

    def put_back() -> None:
        shutil.rmtree(SOURCE.location(project.root))
        shutil.copytree(tmp_path / "copy", SOURCE.location(project.root))

    first = told()
    shutil.copytree(SOURCE.location(project.root), tmp_path / "copy")
    second = told()
    put_back()
    again = told()
    put_back()
    rows.clear()  # a commit that changes no rows tells the version of the rows, which is that of no commit that is lost
    empty = told()

    assert [version.split("/")[1] for version in (first, second, again, empty)] == ["1", "2", "2", "2"]
    assert len({first, second, again, empty}) == 4
