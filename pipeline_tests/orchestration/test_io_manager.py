"""What a user sees of the IO manager: rows in the table, metadata in Dagster, named errors, nothing half written."""

import re

import pytest
from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    DagsterInstance,
    DailyPartitionsDefinition,
    Definitions,
)
from pyspark.sql import DataFrame

from pipeline.dataset import Append, Dataset
from pipeline.delta.log.commits import commit_identity
from pipeline.delta.table.open_table import table_state_with_sizes
from pipeline.errors import (
    FrameMismatchError,
    PartitionKeyError,
    StrayRowsError,
    TableNotFoundError,
)
from pipeline.orchestration import DeltaSparkResource, dataset_asset, dataset_spec
from pipeline_tests.orchestration.conftest import DAYS, TOTAL, Project, day, materializations
from pipeline_tests.refusals import refused

DAILY = DailyPartitionsDefinition("2026-01-01", end_date="2026-02-01")


def days_asset(rows_of: dict[str, int], dataset: Dataset = DAYS, stray: str | None = None) -> AssetsDefinition:
    """An asset with that many rows a key, none for a key that is not named."""

    @dataset_asset(dataset, partitions_def=DAILY)
    def days(context: AssetExecutionContext, spark: DeltaSparkResource) -> DataFrame:
        rows = [(n, day(key)) for key in context.partition_keys for n in range(rows_of.get(key, 0))]
        extra = [(99, day(stray))] if stray else []
        return spark.spark_session.createDataFrame([*rows, *extra], "n BIGINT, day DATE")

    return days


@dataset_asset(TOTAL)
def total(days: DataFrame) -> DataFrame:
    return days.groupBy().sum("n").withColumnRenamed("sum(n)", "n")


def test_a_range_is_one_commit_with_a_count_for_each_key(project: Project) -> None:
    result = project.run_range(
        "2026-01-02", "2026-01-05", days_asset({"2026-01-02": 1, "2026-01-03": 2, "2026-01-05": 3})
    )
    found = materializations(result, DAYS)
    counts = {key: metadata["dagster/partition_row_count"] for key, metadata in found.items()}
    assert counts == {"2026-01-02": 1, "2026-01-03": 2, "2026-01-04": 0, "2026-01-05": 3}
    assert {metadata["delta/version"] for metadata in found.values()} == {1}
    assert {key: metadata["delta/rows_written"] for key, metadata in found.items()} == counts
    assert {metadata["delta/commit_rows_written"] for metadata in found.values()} == {6}
    assert project.version(DAYS) == 1


@pytest.mark.both_modes
def test_the_metadata_names_the_table_its_commit_and_its_schema(project: Project) -> None:
    result = project.run(days_asset({"2026-01-02": 2}), partition_key="2026-01-02")
    metadata = materializations(result, DAYS)["2026-01-02"]
    assert metadata["dagster/table_name"] == "feed.days"
    assert metadata["dagster/uri"] == DAYS.location(project.root)
    assert metadata["dagster/storage_kind"] == "delta"
    assert [column.name for column in metadata["dagster/column_schema"].columns] == ["n", "day"]
    assert metadata["delta/schema_fingerprint"] == DAYS.fingerprint
    assert metadata["delta/committed"] is True
    assert metadata["delta/files_added"] >= 1
    assert metadata["delta/bytes_added"] > 0
    assert "changeDataFeed" in metadata["delta/features"]
    commit = commit_identity(DAYS.location(project.root), 1)
    assert commit is not None
    assert metadata["tags"]["dagster/data_version"] == f"{metadata['delta/table_id']}/1/{commit[:12]}"


def test_a_run_s_log_has_one_line_a_commit_and_its_metadata_begins_with_what_is_asked_first(project: Project) -> None:
    result = project.run_range("2026-01-02", "2026-01-03", days_asset({"2026-01-02": 2, "2026-01-03": 1}))
    entries = project.instance.all_logs(result.run_id)
    lines = [entry.user_message for entry in entries if entry.user_message.startswith("feed/days: ")]
    assert len(lines) == 1
    assert re.fullmatch(
        r"feed/days: version 1 \(WRITE\), 3 rows written, partitions: day .*2026-01-0[23].*, \d+\.\d s", lines[0]
    )
    for key, rows in (("2026-01-02", 2), ("2026-01-03", 1)):
        metadata = materializations(result, DAYS)[key]
        assert metadata["delta/rows_written"] == rows
        assert {"delta/rows_written", "delta/version", "dagster/row_count"} < set(list(metadata)[:8])
        head, rule, *sample = metadata["delta/sample"].splitlines()
        assert (head, rule) == ("| `n` | `day` |", "| --- | --- |")
        assert set(sample) <= {"| `0` | `2026-01-02` |", "| `1` | `2026-01-02` |", "| `0` | `2026-01-03` |"}
        assert sample


def test_the_same_partition_again_replaces_it_in_one_new_version_and_leaves_the_others(project: Project) -> None:
    project.run_range("2026-01-02", "2026-01-03", days_asset({"2026-01-02": 2, "2026-01-03": 1}))
    project.run(days_asset({"2026-01-02": 1}), partition_key="2026-01-02")
    assert project.rows(DAYS) == [(0, day("2026-01-02")), (0, day("2026-01-03"))]
    assert project.version(DAYS) == 2


def test_a_run_without_a_partition_key_is_refused_and_does_not_take_the_whole_table_for_its_slice(
    project: Project,
) -> None:
    """Dagster tells the IO manager of no partitions in such a run, as if the asset had none."""

    @dataset_asset(DAYS, partitions_def=DAILY)
    def days(spark: DeltaSparkResource) -> DataFrame:
        return spark.spark_session.createDataFrame([(1, day("2026-01-09"))], "n BIGINT, day DATE")

    project.run_range("2026-01-02", "2026-01-03", days_asset({"2026-01-02": 2, "2026-01-03": 1}))
    before = project.rows(DAYS)
    with refused(PartitionKeyError) as caught:
        project.run(days)
    assert caught.value.dataset == "feed/days"
    assert project.rows(DAYS) == before
    assert project.version(DAYS) == 1


@pytest.mark.case("P-EMPTY-RESULT")
def test_a_partition_whose_result_is_now_empty_is_emptied_and_only_it(project: Project) -> None:
    project.run_range("2026-01-02", "2026-01-03", days_asset({"2026-01-02": 2, "2026-01-03": 2}))
    result = project.run(days_asset({}), partition_key="2026-01-02")
    assert {row[1] for row in project.rows(DAYS)} == {day("2026-01-03")}
    assert materializations(result, DAYS)["2026-01-02"]["dagster/partition_row_count"] == 0


@pytest.mark.exhaustive
def test_emptying_an_empty_partition_makes_no_commit_and_says_so(project: Project) -> None:
    project.run(days_asset({"2026-01-02": 1}), partition_key="2026-01-02")
    metadata = materializations(project.run(days_asset({}), partition_key="2026-01-09"), DAYS)["2026-01-09"]
    assert (metadata["delta/committed"], metadata["delta/operation"]) == (False, "no commit")
    assert metadata["delta/version"] == project.version(DAYS) == 1


@pytest.mark.both_modes
@pytest.mark.case("P-STRAY-ROWS")
def test_rows_of_another_day_fail_the_step_with_their_values_and_write_nothing(project: Project) -> None:
    project.run(days_asset({"2026-01-02": 1}), partition_key="2026-01-02")
    with refused(StrayRowsError) as caught:
        project.run(days_asset({"2026-01-02": 1}, stray="2026-01-03"), partition_key="2026-01-02")
    assert caught.value.counts == {"day = 2026-01-03": 1}
    assert project.version(DAYS) == 1


@pytest.mark.exhaustive
@pytest.mark.case("P-STRAY-ROWS")
def test_an_append_refuses_rows_of_another_day_as_a_replace_does(project: Project) -> None:
    dataset = Dataset(name="feed/appended", schema=DAYS.schema, partition_by=("day",), write=Append())
    project.run(days_asset({"2026-01-02": 1}, dataset), partition_key="2026-01-02")
    with refused(StrayRowsError):
        project.run(days_asset({"2026-01-02": 1}, dataset, stray="2026-01-03"), partition_key="2026-01-02")
    assert project.rows(dataset) == [(0, day("2026-01-02"))]


@pytest.mark.case("D-LAZY-APPEND")
def test_an_append_adds_and_counts_the_rows_of_this_write_only(project: Project) -> None:
    dataset = Dataset(name="feed/appended", schema=DAYS.schema, partition_by=("day",), write=Append())
    for _ in range(2):
        result = project.run(days_asset({"2026-01-02": 2}, dataset), partition_key="2026-01-02")
    assert len(project.rows(dataset)) == 4
    assert materializations(result, dataset)["2026-01-02"]["dagster/partition_row_count"] == 2


def test_a_source_written_in_the_run_is_read_at_the_version_of_that_commit(project: Project) -> None:
    result = project.run_range("2026-01-02", "2026-01-03", days_asset({"2026-01-02": 3, "2026-01-03": 2}), total)
    assert project.rows(TOTAL) == [(0 + 1 + 2 + 0 + 1,)]
    metadata = materializations(result, TOTAL)[None]
    assert metadata["delta/sources"] == {"feed/days": 1}
    assert metadata["dagster/row_count"] == 1


def test_a_foreign_commit_between_two_steps_does_not_change_what_the_second_reads(project: Project) -> None:
    """The run has written version 1; somebody empties the table before the next step looks."""
    days = days_asset({"2026-01-02": 3})

    @dataset_asset(Dataset(name="intruder", schema=TOTAL.schema, reads=("feed/days",)))
    def intruder(spark: DeltaSparkResource) -> DataFrame:
        session = spark.spark_session
        session.sql(f"DELETE FROM delta.`{DAYS.location(project.root)}`").collect()
        return session.createDataFrame([(1,)], "n BIGINT")

    late = Dataset(name="late", schema=TOTAL.schema, reads=("feed/days", "intruder"))

    @dataset_asset(late)
    def after(days: DataFrame) -> DataFrame:
        return days.groupBy().count().withColumnRenamed("count", "n")

    result = project.run(days, intruder, after, partition_key="2026-01-02")
    assert project.version(DAYS) == 2
    assert project.rows(late) == [(3,)]
    assert materializations(result, late)[None]["delta/sources"] == {"feed/days": 1}


def test_a_source_that_was_never_written_is_named(project: Project) -> None:
    with refused(TableNotFoundError) as caught:
        project.run(days_asset({}), total, selection=[total])
    assert caught.value.dataset == "feed/days"


@pytest.mark.exhaustive
def test_a_table_that_no_asset_writes_is_read_as_any_other(project: Project) -> None:
    fed = Dataset(name="fed", schema=TOTAL.schema)
    session = project.spark.spark_session
    session.sql(f"CREATE TABLE delta.`{fed.location(project.root)}` USING delta AS SELECT 7L AS n").collect()
    reader = Dataset(name="reader", schema=TOTAL.schema, reads=("fed",))

    @dataset_asset(reader)
    def read_it(fed: DataFrame) -> DataFrame:
        return fed

    materialized = project.run(read_it, dataset_spec(fed), selection=[read_it])
    assert project.rows(reader) == [(7,)]
    assert materializations(materialized, reader)[None]["delta/sources"] == {"fed": 0}


@pytest.mark.exhaustive
def test_a_value_is_loaded_outside_a_run_at_the_newest_version(project: Project) -> None:
    project.run_range("2026-01-02", "2026-01-03", days_asset({"2026-01-02": 3, "2026-01-03": 2}), total)
    built = Definitions(assets=[total, days_asset({})], resources=project.resources())
    assert built.load_asset_value("total", instance=project.instance).collect()[0]["n"] == 0 + 1 + 2 + 0 + 1


@pytest.mark.case("D-NONE-OUTPUT")
def test_nothing_returned_is_a_clear_error_and_no_table(project: Project) -> None:
    @dataset_asset(TOTAL)
    def nothing(spark: DeltaSparkResource):
        return None

    with refused(FrameMismatchError) as caught:
        project.run(nothing)
    assert "None" in caught.value.differences[0]
    assert table_state_with_sizes(project.spark.spark_session, TOTAL.at(project.root)) is None


@pytest.mark.case("D-NONE-OUTPUT")
def test_an_asset_that_stores_its_own_rows_is_left_alone(project: Project) -> None:
    @dataset_asset(TOTAL)
    def own(spark: DeltaSparkResource) -> None:
        pass

    assert project.run(own).success


def test_the_commit_carries_the_run_the_asset_and_the_partition(project: Project) -> None:
    import json

    result = project.run(days_asset({"2026-01-02": 1}), partition_key="2026-01-02")
    history = project.spark.spark_session.sql(f"DESCRIBE HISTORY delta.`{DAYS.location(project.root)}` LIMIT 1")
    note = json.loads(history.collect()[0]["userMetadata"])
    assert (note["run_id"], note["asset"]) == (result.run_id, "feed/days")
    assert note["partitions"] == "day = 2026-01-02"
    assert note["schema_fingerprint"] == DAYS.fingerprint
    assert note["mark"]["writer"].startswith("feed/days/")


def test_a_run_is_kept_in_the_instance_with_its_version(project: Project) -> None:
    project.run(days_asset({"2026-01-02": 1}), partition_key="2026-01-02")
    instance: DagsterInstance = project.instance
    event = instance.get_latest_materialization_event(days_asset({}).key)
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["delta/version"].value == 1
