"""Declared against observed: the plan, the same steps applied, and nothing left to do."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql.types import DateType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from pipeline.cli import conform as command
from pipeline.dataset import Append, Check, Dataset, Features, Merge, SchemaPolicy, StoragePolicy, TableRef
from pipeline.delta.log.replay import replay
from pipeline.delta.log.snapshot import checkpoints
from pipeline.delta.maintain.maintain import optimize
from pipeline.delta.table.open_table import (
    TableState,
    conform,
    open_or_create,
    plan_in_log,
    plan_of,
    require_table,
    state_from_log,
    table_state_with_sizes,
)
from pipeline.delta.table.plan import plan
from pipeline.delta.write.write import write
from pipeline.errors import (
    CheckViolationError,
    ConformError,
    DeclarationError,
    ExistingRowsError,
    ExpressionError,
    NullViolationError,
    TableMismatchError,
)
from pipeline.settings import SparkSettings
from pipeline_tests.children import conforming
from pipeline_tests.conftest import brief_conf
from pipeline_tests.delta.sample import commit_info, files_of, frame_in, note, put, rows_of, versions_of
from pipeline_tests.tiers import first_is_quick

ROWS = StructType([StructField("id", LongType()), StructField("text", StringType())])
PLAIN = Dataset(name="plain", schema=ROWS, write=Append())

# What is declared one after the other, with the feature that the protocol then has or the property, as observed.
FEATURES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"row_tracking": True}, "rowTracking"),
    ({"deletion_vectors": True}, "deletionVectors"),
    ({"in_commit_timestamps": True}, "inCommitTimestamp"),
    ({"type_widening": True}, "typeWidening"),
    ({"v2_checkpoints": True}, "v2Checkpoint"),
    ({"column_mapping": "name"}, "columnMapping"),
    ({"cluster_by": ("id",)}, "clustering"),
    ({"defaults": (("text", "'none'"),)}, "allowColumnDefaults"),
    ({"others": ("vacuumProtocolCheck",)}, "vacuumProtocolCheck"),
)
STORAGE: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"codec": "zstd"}, "pipeline.storage.codec", "zstd"),
    ({"dictionary_encoding": False}, "parquet.enable.dictionary", "false"),
    ({"statistics_columns": ("id",)}, "delta.dataSkippingStatsColumns", "id"),
    ({"target_file_bytes": 1_000_000}, "pipeline.storage.targetFileBytes", "1000000"),
    ({"auto_compact": True}, "delta.autoOptimize.autoCompact", "true"),
    ({"optimized_write": True}, "delta.autoOptimize.optimizeWrite", "true"),
    ({"log_retention_hours": 2000}, "delta.logRetentionDuration", "interval 2000 hours"),
    ({"deleted_file_retention_hours": 1000}, "delta.deletedFileRetentionDuration", "interval 1000 hours"),
    ({"transaction_retention_hours": 500}, "delta.setTransactionRetentionDuration", "interval 500 hours"),
    ({"checkpoint_interval_commits": 20}, "delta.checkpointInterval", "20"),
)


def conformed(session: SparkSession, dataset: Dataset, root: str) -> TableState:
    """Plan and apply; what was planned is what was done, and a second plan is empty."""
    location = dataset.location(root)
    planned = plan_of(session, TableRef(dataset, location))
    assert planned.steps
    assert planned.problems == ()
    done = conform(session, TableRef(dataset, location))
    assert done.steps == tuple(map(str, planned.steps))
    assert not plan_of(session, TableRef(dataset, location)).differs
    state = require_table(session, TableRef(dataset, location))
    assert not set(state.features) - set(planned.features) - {name for step in planned.steps for name in step.gains}
    return state


@pytest.mark.exhaustive
@pytest.mark.parametrize("at_once", [len(FEATURES), 1], ids=["all at once", "one by one"])
def test_each_feature_and_property_is_planned_applied_observed_and_then_no_longer_planned(
    classic: SparkSession, root: str, at_once: int
) -> None:
    dataset = PLAIN
    put(classic, dataset, root, [(1, "a"), (2, "b")])
    for start in range(0, len(FEATURES), at_once):
        for said, _ in FEATURES[start : start + at_once]:
            dataset = replace(dataset, features=replace(dataset.features, **said))
        state = conformed(classic, dataset, root)
        assert {feature for _, feature in FEATURES[: start + at_once]} <= set(state.features)
        assert state == require_table(classic, dataset.at(root))
    assert state.cluster_by == ("id",)
    for policy, _, _ in STORAGE:
        dataset = replace(dataset, storage=replace(dataset.storage, **policy))
    state = conformed(classic, dataset, root)
    assert {name: state.properties[name] for _, name, _ in STORAGE} == {name: value for _, name, value in STORAGE}
    dataset = replace(dataset, properties=(("owner.team", "us"),), checks=(Check("positive", "id > 0"),))
    state = conformed(classic, dataset, root)
    assert (state.properties["owner.team"], state.properties["delta.constraints.positive"]) == ("us", "id > 0")

    # What the log's files say is what Delta says.
    detail = classic.sql(f"DESCRIBE DETAIL delta.`{dataset.location(root)}`").collect()[0]
    assert tuple(detail["clusteringColumns"]) == state.cluster_by
    assert set(detail["tableFeatures"]) == set(state.features)
    put(classic, dataset, root, [(3, "c")])
    found = classic.read.format("delta").load(dataset.location(root))
    assert sorted(map(tuple, found.collect())) == [(1, "a"), (2, "b"), (3, "c")]

    # A frame may leave out what has a default; a step is undone by declaring otherwise.
    frame = frame_in(classic, StructType([StructField("id", LongType())]), [(4,)])
    write(frame, table=dataset.at(root), note=note())
    assert (4, "none") in map(tuple, found.sparkSession.read.format("delta").load(dataset.location(root)).collect())
    less = replace(dataset, storage=StoragePolicy(), checks=(), features=replace(dataset.features, cluster_by=()))
    state = conformed(classic, less, root)
    assert not [name for name in state.properties if name.startswith(("pipeline.storage.", "delta.constraints."))]
    assert state.cluster_by == ()
    # The log's V2 checkpoint is read by whoever replays the log without Spark.
    log = Path(dataset.location(root)) / "_delta_log"
    assert checkpoints(dataset.location(root))
    for path in log.glob(f"{0:020d}.json"):
        path.unlink()
    replayed = replay(dataset.location(root))
    assert replayed is not None
    assert (len(replayed.files), replayed.faults) == (len(files_in_log(classic, dataset, root)), ())


PLANNED = Dataset(
    name="planned", write=Append(), partition_by=("day",), change_feed=False,
    schema=StructType(
        [
            StructField("day", DateType()), StructField("id", LongType(), False), StructField("text", StringType()),
            StructField("small", IntegerType()),
        ]
    ),
    checks=(Check("positive", "id > 0"),), properties=(("owner.team", "us"),),
    features=Features(type_widening=True, deletion_vectors=True, column_mapping="name"),
)  # fmt: skip
FIELDS = PLANNED.schema.fields


def with_fields(*fields: StructField, **said: Any) -> Dataset:
    return replace(PLANNED, schema=StructType(list(fields)), **said)


# By what differs, the kinds of the steps, or the words that a problem begins with.
OTHERWISE: dict[str, tuple[Dataset, list[str], list[str]]] = {
    "nothing": (PLANNED, [], []),
    "a new column": (with_fields(*FIELDS, StructField("more", LongType())), ["add column"], []),
    "a column that is not declared": (with_fields(*FIELDS[:3]), [], ["column small"]),
    "a dropped column": (
        with_fields(*FIELDS[:3], schema_policy=SchemaPolicy(drops=("small",))), ["drop column"], [],
    ),
    "a wider type": (with_fields(*FIELDS[:3], StructField("small", LongType())), ["widen column"], []),
    "a narrower type": (
        with_fields(FIELDS[0], StructField("id", IntegerType(), False), *FIELDS[2:]), [], ["column id"],
    ),
    "NULL allowed": (with_fields(FIELDS[0], StructField("id", LongType()), *FIELDS[2:]), ["relax not null"], []),
    "NULL refused": (
        with_fields(*FIELDS[:2], StructField("text", StringType(), False), FIELDS[3]), ["set not null"], [],
    ),
    "another constraint": (replace(PLANNED, checks=(Check("positive", "id > 1"),)), ["drop check", "add check"], []),
    "no constraint": (replace(PLANNED, checks=()), ["drop check"], []),
    "another property": (replace(PLANNED, properties=(("owner.team", "them"),)), ["set property"], []),
    "another layout": (replace(PLANNED, partition_by=()), [], ["partition columns"]),
    "another order": (with_fields(*FIELDS[:2], FIELDS[3], FIELDS[2]), ["move column"], []),
    "another feature": (
        replace(PLANNED, features=replace(PLANNED.features, row_tracking=True)), ["set property"], [],
    ),
    "a feature less": (
        replace(PLANNED, features=replace(PLANNED.features, deletion_vectors=False)), ["set property", "drop feature"],
        [],
    ),
}  # fmt: skip


def test_the_plan_from_the_log_is_that_from_what_spark_observes_and_asks_spark_only_about_new_sql(
    classic: SparkSession, root: str
) -> None:
    location = PLANNED.location(root)
    open_or_create(classic, TableRef(PLANNED, location))
    seen = table_state_with_sizes(classic, TableRef(PLANNED, location))
    assert seen is not None
    for what, (dataset, kinds, problems) in OTHERWISE.items():
        wanted = plan(dataset, seen)
        assert [step.kind for step in wanted.steps] == kinds, what
        assert [problem.partition(":")[0] for problem in wanted.problems] == problems, what
        asks = bool({"add check", "drop column"} & set(kinds))
        assert plan_in_log(TableRef(dataset, location)) == (None if asks else wanted), what
        assert plan_of(classic, TableRef(dataset, location)) == wanted, what


def files_in_log(session: SparkSession, dataset: Dataset, root: str) -> list[str]:
    """The live data files as Spark sees them."""
    return session.read.format("delta").load(dataset.location(root)).inputFiles()


def test_a_table_is_created_with_every_feature_and_policy_in_one_commit(classic: SparkSession, root: str) -> None:
    said: dict[str, Any] = {}
    for features, _ in FEATURES:
        said |= features
    policy: dict[str, Any] = {}
    for storage, _, _ in STORAGE:
        policy |= storage
    dataset = Dataset(
        name="all", schema=ROWS, write=Append(), features=Features(**said), storage=StoragePolicy(**policy),
        checks=(Check("positive", "id > 0"),),
    )  # fmt: skip
    state = open_or_create(classic, dataset.at(root))
    assert versions_of(dataset, root) == [0]
    assert not plan_of(classic, dataset.at(root)).differs
    assert {feature for _, feature in FEATURES} <= set(state.features)
    assert state.cluster_by == ("id",)


def test_a_generated_partition_column_is_computed_where_a_frame_leaves_it_out(classic: SparkSession, root: str) -> None:
    schema = StructType([StructField("at", TimestampType()), StructField("seen_date", DateType())])
    dataset = Dataset(
        name="seen", schema=schema, write=Append(), partition_by=("seen_date",),
        features=Features(generated=(("seen_date", "CAST(at AS DATE)"),)),
    )  # fmt: skip
    at = dt.datetime(2026, 1, 2, 3, tzinfo=dt.timezone.utc)
    frame = classic.sql("SELECT TIMESTAMP'2026-01-02 03:00:00Z' AS at")
    write(frame, table=dataset.at(root), note=note())
    assert rows_of(dataset, root) == [(at, dt.date(2026, 1, 2))]
    assert not plan_of(classic, dataset.at(root)).differs
    other = replace(dataset, features=Features(generated=(("seen_date", "DATE'2026-01-01'"),)))
    with pytest.raises(TableMismatchError) as caught:
        conform(classic, other.at(root))
    assert "generated" in caught.value.differences[0]


def switched_off(session: SparkSession, root: str, *names: str) -> set[str]:
    """Declare features off that a table has; the features that it has then."""
    dataset = replace(
        PLAIN, features=Features(**{name: "name" if name == "column_mapping" else True for name in names})
    )
    put(session, dataset, root, [(1, "a")])
    off = Features(**{name: "none" if name == "column_mapping" else False for name in names})
    state = conformed(session, replace(PLAIN, features=off), root)
    assert rows_of(PLAIN, root) == [(1, "a")]
    return set(state.features)


@pytest.mark.exhaustive
def test_a_feature_that_is_switched_off_leaves_the_protocol(classic: SparkSession, root: str) -> None:
    features = switched_off(classic, root, "in_commit_timestamps", "type_widening")
    assert not {"inCommitTimestamp", "typeWidening"} & features


@pytest.mark.exhaustive
def test_every_feature_that_has_a_switch_leaves_the_protocol(classic: SparkSession, root: str) -> None:
    """Delta makes checkpoints that protect the history for each of them, which takes its time."""
    names = ("row_tracking", "deletion_vectors", "column_mapping", "v2_checkpoints")
    features = switched_off(classic, root, *names)
    assert not {"rowTracking", "deletionVectors", "columnMapping", "v2Checkpoint"} & features


def test_what_rows_that_are_there_break_is_counted_and_shown_and_nothing_is_changed(
    classic: SparkSession, root: str
) -> None:
    put(classic, PLAIN, root, [(1, "a"), (-2, "b"), (-3, None)])
    tightened = StructType([ROWS["id"], StructField("text", StringType(), False)])
    dataset = replace(
        PLAIN, schema=tightened, checks=(Check("positive", "id > 0"), Check("small", "id < 10")),
        properties=(("owner.team", "us"),),
    )  # fmt: skip
    before = versions_of(PLAIN, root)

    with pytest.raises(ExistingRowsError) as caught:
        conform(classic, dataset.at(root))

    assert caught.value.counts == {"positive": 2, "not_null_text": 1}
    assert {json.loads(row)["id"] for row in caught.value.examples} == {-2, -3}
    assert versions_of(PLAIN, root) == before
    assert not [name for name in require_table(classic, PLAIN.at(root)).properties if name == "owner.team"]

    classic.sql(f"DELETE FROM delta.`{PLAIN.location(root)}` WHERE id < 0").collect()
    state = conformed(classic, dataset, root)
    assert state.schema["text"].nullable
    with pytest.raises(NullViolationError):  # held by a check, and told as what it is
        put(classic, dataset, root, [(5, None)])
    relaxed = replace(dataset, schema=ROWS, schema_policy=SchemaPolicy(mode="evolve"))
    put(classic, relaxed, root, [(5, None)])
    assert rows_of(PLAIN, root) == [(1, "a"), (5, None)]


@pytest.mark.exhaustive
def test_constraints_whose_names_delta_writes_otherwise_settle_and_are_enforced(
    classic: SparkSession, root: str
) -> None:
    def schema(*, nullable: bool) -> StructType:
        inner = StructType([StructField("b", LongType(), nullable)])
        names = ("DayNo", "a_b", "c.d")
        return StructType([StructField("a", inner), *(StructField(name, LongType(), nullable) for name in names)])

    loose = Dataset(
        name="named", schema=schema(nullable=True), write=Append(), features=Features(column_mapping="name")
    )
    put(classic, loose, root, [({"b": 1}, 1, 1, 1)])
    checks = (Check("Positive", "DayNo>0 AND length('a  b')=4"),)
    strict = replace(loose, schema=schema(nullable=False), checks=checks)
    conformed(classic, strict, root)
    assert plan_of(classic, strict.at(root)).steps == ()
    location = strict.location(root)
    for row in (({"b": None}, 2, 2, 2), ({"b": 2}, None, 2, 2), ({"b": 2}, 2, None, 2), ({"b": 2}, 2, 2, None)):
        with pytest.raises(NullViolationError):
            write(frame_in(classic, loose.schema, [row]), table=TableRef(strict, location), note=note())
    with pytest.raises(CheckViolationError):
        write(frame_in(classic, loose.schema, [({"b": 2}, -2, 2, 2)]), table=TableRef(strict, location), note=note())
    write(frame_in(classic, loose.schema, [({"b": 2}, 2, 2, 2)]), table=TableRef(strict, location), note=note())
    conformed(classic, loose, root)
    assert plan_of(classic, loose.at(root)).steps == ()
    put(classic, loose, root, [({"b": None}, None, None, None)])


@pytest.mark.parametrize("condition", ["id >", "nothing_of_that_name > 0", "id"], ids=["syntax", "column", "type"])
def test_a_check_that_can_not_be_used_is_named_before_anything_is_created_or_changed(
    classic: SparkSession, root: str, condition: str
) -> None:
    bad = replace(PLAIN, checks=(Check("bad", condition),), properties=(("owner.team", "us"),))
    with pytest.raises(DeclarationError) as caught:
        put(classic, bad, root, [(1, "a")])
    assert caught.value.problems[0].startswith(f"check bad: {condition!r}")
    assert not Path(bad.location(root)).exists()
    put(classic, PLAIN, root, [(1, "a")])
    with pytest.raises(DeclarationError):
        plan_of(classic, bad.at(root))
    with pytest.raises(DeclarationError):
        conform(classic, bad.at(root))
    assert versions_of(PLAIN, root) == [0, 1]


def test_a_default_that_can_not_be_used_is_named_before_anything_is_changed(classic: SparkSession, root: str) -> None:
    put(classic, PLAIN, root, [(1, "a")])
    bad = replace(PLAIN, features=Features(defaults=(("text", "nothing_of_that_name"),), deletion_vectors=True))
    with pytest.raises(ExpressionError) as caught:
        conform(classic, bad.at(root))
    assert (caught.value.part, caught.value.expression) == ("default of 'text'", "nothing_of_that_name")
    assert versions_of(PLAIN, root) == [0, 1]


def test_a_step_that_delta_refuses_is_told_with_the_step(classic: SparkSession, root: str) -> None:
    put(classic, PLAIN, root, [(1, "a")])
    bad = replace(PLAIN, properties=(("delta.checkpointInterval", "often"),))
    with pytest.raises(ConformError) as caught:
        conform(classic, bad.at(root))
    assert "delta.checkpointInterval" in caught.value.step


@pytest.mark.parametrize("jvm", first_is_quick(["the same", "another"]))
def test_two_processes_that_apply_at_once_end_with_one_table_as_declared(
    classic: SparkSession, spark_settings: SparkSettings, remote_url: str, root: str, jvm: str
) -> None:
    put(classic, PLAIN, root, [(1, "a")])
    ((_, options),) = brief_conf(spark_settings)
    remote = remote_url if jvm == "the same" else ""
    child = subprocess.Popen(
        [sys.executable, "-m", conforming.__name__, root, str(spark_settings.cache), options, remote],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        child.stdin.write("now\n")
        child.stdin.flush()
        ours = conform(classic, conforming.RACED.at(root))
        assert child.stdout.readline() == "False\n"
        child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 0
    assert not plan_of(classic, conforming.RACED.at(root)).differs
    assert ours.after.schema.names == conforming.RACED.schema.names
    found = classic.read.format("delta").load(conforming.RACED.location(root)).collect()
    assert list(map(tuple, found)) == [(1, "a", None, None)]


def codecs(dataset: Dataset, root: str) -> set[tuple[str, bool]]:
    """By live data file, the codec of its columns and whether one has a dictionary."""
    found = set()
    for name in files_of(dataset, root):
        metadata = pq.ParquetFile(Path(dataset.location(root)) / name).metadata
        columns = [metadata.row_group(0).column(at) for at in range(metadata.num_columns)]
        found |= {(column.compression, column.has_dictionary_page) for column in columns}
    return found


@pytest.mark.exhaustive
def test_codec_and_dictionary_hold_through_append_merge_and_optimize(classic: SparkSession, root: str) -> None:
    dataset = Dataset(
        name="packed", schema=ROWS, write=Append(), keys=("id",), change_feed=False,
        storage=StoragePolicy(codec="gzip", dictionary_encoding=False, target_file_bytes=100_000_000),
    )  # fmt: skip
    location = dataset.location(root)
    for start in (0, 10, 20):
        put(classic, dataset, root, [(number, "same") for number in range(start, start + 5)])
    assert codecs(dataset, root) == {("GZIP", False)}
    put(classic, replace(dataset, write=Merge()), root, [(1, "merged"), (99, "new")])
    assert codecs(dataset, root) == {("GZIP", False)}
    files = files_of(dataset, root)

    done = optimize(classic, TableRef(dataset, location), note())

    assert (done.files_added, done.files_removed) == (1, len(files))
    assert codecs(dataset, root) == {("GZIP", False)}
    assert commit_info(dataset, root, done.version)["operation"] == "OPTIMIZE"
    assert len(rows_of(dataset, root)) == 16
    again = optimize(classic, TableRef(dataset, location), note())
    assert (again.files_added, again.version) == (0, done.version)


def test_opening_a_table_that_needs_nothing_runs_no_spark_job_and_commits_nothing(
    classic: SparkSession, root: str
) -> None:
    dataset = replace(PLAIN, features=Features(column_mapping="name"), checks=(Check("positive", "id > 0"),))
    put(classic, dataset, root, [(1, "a")])
    tracker = classic.sparkContext.statusTracker()
    classic.sparkContext.setJobGroup("opening", "opening")
    try:
        state = open_or_create(classic, dataset.at(root))
        assert list(tracker.getJobIdsForGroup("opening")) == []
    finally:
        classic.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert state == state_from_log(dataset.location(root))
    assert versions_of(dataset, root) == [0, 1]


def test_the_command_shows_the_plan_applies_it_and_says_by_its_status_whether_tables_differ(
    classic: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(classic, PLAIN, root, [(1, "a")])
    monkeypatch.setenv("PIPELINE_DATASETS", "pipeline_tests.projects.conform_datasets:datasets")
    monkeypatch.setenv("PIPELINE_ROOT", root)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setattr(command, "open_project_session", lambda _: classic)

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(command.conform, list(arguments))

    shown = run("plan")
    assert shown.exit_code == command.DIFFERS, shown.output
    assert "set property: property delta.enableDeletionVectors: not set -> true" in shown.output
    assert "raises the protocol: deletionVectors" in shown.output
    assert "no longer read by deltalake 1.6 as pyarrow or pandas" in shown.output
    assert "never: no table yet" in shown.output
    (document,) = json.loads(run("plan", "plain", "--json").stdout)
    (step,) = document["steps"]
    assert (step["step"], step["gains"], step["raises_protocol"]) == ("set property", ["deletionVectors"], True)
    assert step["statement"].startswith("ALTER TABLE")
    assert versions_of(PLAIN, root) == [0, 1]

    applied = run("apply", "plain")
    assert applied.exit_code == 0, applied.output
    assert "property delta.enableDeletionVectors: not set -> true" in applied.output
    assert run("plan").exit_code == 0
    assert versions_of(PLAIN, root) == [0, 1, 2]
