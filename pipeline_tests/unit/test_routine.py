"""When a step of a table's routine maintenance is due, what it leaves alone, and its records; logs are delta-rs's."""

from __future__ import annotations

import datetime as dt
import importlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.cli import main
from pipeline.dataset import Changelog, Dataset, MaintenancePolicy, Merge, TableRef, Tombstones
from pipeline.dataset.policy import TARGET_FILE_BYTES
from pipeline.delta.inspect.maintenance_record import MaintenanceRecord, write_maintenance_record
from pipeline.delta.inspect.manifest import full_manifest, manifest, runs
from pipeline.delta.maintain.checkpoint import Checkpoints
from pipeline.delta.maintain.routine import Maintained, maintain_table
from pipeline.delta.maintain.sizes import files_to_join, table_sizes
from pipeline.delta.table.open_table import require_table
from pipeline.errors import CursorUnreadableError, DeclarationError, RecordError, TableNotFoundError
from pipeline_tests.unit.aged_table import NOW, SCHEMA, AgedTable

OLD, YOUNG = 40.0, 1.0
WITHOUT_VACUUM = MaintenancePolicy(vacuum=False)


class SparkStartedError(Exception):
    """A step asked for a session."""


def no_spark() -> SparkSession:
    raise SparkStartedError


def maintained(table: AgedTable, *consumers: AgedTable, apply: bool = False) -> Maintained:
    """The maintenance of a table by which no session may be opened."""
    with Checkpoints(no_spark) as checkpoints:
        return maintain_table(
            table.ref, checkpoints, consumers=[one.ref for one in consumers], apply=apply, run_id="run", now=NOW
        )


# --- idle -------------------------------------------------------------------------------------------------------------


def test_a_table_that_needs_nothing_gets_no_commit_and_starts_no_spark(tmp_path: Path) -> None:
    table = AgedTable(tmp_path)
    for number in range(4):
        table.append(number, days=YOUNG)
    before = table.names()
    done = maintained(table, apply=True)
    assert (done.is_idle, done.waits, table.names()) == (True, (), before)
    sizes = done.sizes
    assert (sizes.version, sizes.files, sizes.log_entries, sizes.oldest_readable) == (3, 4, 4, 0)
    assert sizes.bytes == sum(path.stat().st_size for path in Path(table.location).glob("*.parquet"))


def test_a_table_that_was_never_written_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        maintained(AgedTable(tmp_path))


# --- when a step is due -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "is_due"),
    [
        ("overwrite 20", True),
        ("append 20", True),
        ("append 3", False),
        ("overwrite 20, vacuum 10", False),
        ("overwrite 20, append 15, vacuum 10", True),
        ("overwrite 20, vacuum 10, append 9", True),
        ("overwrite 20, vacuum 10, append 3", False),
        ("overwrite 20, vacuum 10, set 9", False),
        ("overwrite 20, append 19, vacuum 10, optimize 9", True),
        ("overwrite 20, vacuum 10, stopped 10", True),
        ("overwrite 20, vacuum 10, failed 10", True),
    ],
)
def test_a_vacuum_is_due_if_a_commit_since_the_last_one_may_have_left_files_that_are_old_now(
    tmp_path: Path, steps: str, is_due: bool
) -> None:
    """With a week of retention. What was younger than that at the last vacuum may be old now."""
    table = AgedTable(tmp_path, maintenance=MaintenancePolicy(clean_log=False))
    for step in steps.split(", "):
        name, days = step.split()
        if name == "append":
            table.append(1, days=float(days))
        elif name == "overwrite":
            table.append(2, days=float(days))
            table.append(1, days=float(days), mode="overwrite")
        elif name == "optimize":
            table.change(lambda delta: delta.optimize.compact(), days=float(days))
        elif name == "stopped":
            (table.log / f"{table.newest:020d}.json").unlink()
        elif name == "failed":
            table.edit(table.newest, commitInfo={"operationParameters": {"status": "FAILED"}})
        elif name == "set":
            table.set("any", "value", days=float(days))
        else:
            table.vacuum(days=float(days))
    if is_due:
        with pytest.raises(SparkStartedError):
            maintained(table)
    else:
        assert maintained(table).is_idle


def test_a_policy_leaves_steps_out(tmp_path: Path) -> None:
    nothing = MaintenancePolicy(checkpoint=False, small_file_ratio=None, vacuum=False, clean_log=False)
    table = AgedTable(tmp_path, maintenance=nothing)
    for number in range(12):
        table.append(number, days=OLD)
    table.checkpoint(11, days=OLD)
    for number in range(12):
        table.append(number, days=OLD)
    assert maintained(table, apply=True).is_idle
    everything = AgedTable(tmp_path, maintenance=WITHOUT_VACUUM)
    plan = maintained(everything)
    assert (plan.checkpoint, plan.files_joined, plan.log_files_removed) == (23, 24, 11)


def test_a_checkpoint_is_due_after_as_many_commits_as_delta_itself_leaves(tmp_path: Path) -> None:
    table = AgedTable(tmp_path, maintenance=MaintenancePolicy(small_file_ratio=None))
    for number in range(9):
        table.append(number, days=YOUNG)
    assert maintained(table).checkpoint is None
    table.append(9, days=YOUNG)
    assert maintained(table).checkpoint == 9
    with pytest.raises(SparkStartedError):
        maintained(table, apply=True)
    table.checkpoint(3)
    assert maintained(table).checkpoint is None


def test_small_files_are_joined_if_they_are_many_and_a_large_share(tmp_path: Path) -> None:
    table = AgedTable(tmp_path, maintenance=MaintenancePolicy(checkpoint=False, small_file_ratio=0.5))
    for number in range(7):
        table.append(number, days=YOUNG)
    few = maintained(table)
    assert (few.files_joined, few.sizes.joinable, few.sizes.small_file_ratio) == (0, 7, 1.0)
    table.append(7, days=YOUNG)
    assert maintained(table).files_joined == 8
    with pytest.raises(SparkStartedError):
        maintained(table, apply=True)
    size = min(path.stat().st_size for path in Path(table.location).glob("*.parquet"))
    table.set(TARGET_FILE_BYTES, str(size), days=YOUNG)
    large = maintained(table)
    assert (large.files_joined, large.sizes.small_file_ratio) == (0, 0.0)


@pytest.mark.parametrize(("target", "joined"), [(5, (2, 2)), (6, (3, 2)), (30, (5,))])
def test_files_are_joined_as_many_as_fit_together(tmp_path: Path, target: int, joined: tuple[int, ...]) -> None:
    """Five files of about the same size `s`, by a target of so many halves of it: a file that fits nowhere stays."""
    table = AgedTable(tmp_path)
    for number in range(5):
        table.append(number, days=YOUNG)
    size = max(path.stat().st_size for path in Path(table.location).glob("*.parquet"))
    table.set(TARGET_FILE_BYTES, str(size * target // 2), days=YOUNG)
    state = require_table(None, table.ref)
    assert table_sizes(table.ref, state).joinable == sum(joined)
    limits = {"below_bytes": size * target // 4, "target_bytes": size * target // 2}
    assert files_to_join(table.ref, state, **limits) == joined


# --- what is made -----------------------------------------------------------------------------------------------------


def test_a_log_is_cleaned_without_spark_as_the_plan_says(tmp_path: Path) -> None:
    table = AgedTable(tmp_path, maintenance=WITHOUT_VACUUM)
    for number in range(5):
        table.append(number, days=OLD)
    table.append(5, days=YOUNG)
    table.checkpoint(4, days=OLD)
    plan = maintained(table)
    reclaimed = sum((table.log / f"{number:020d}.json").stat().st_size for number in range(4))
    assert (plan.log_files_removed, plan.bytes_reclaimed, plan.sizes.log_entries) == (4, reclaimed, 6)
    assert table.entries() == [*range(6)]

    done = maintained(table, apply=True)
    assert (done.log_files_removed, done.bytes_reclaimed, done.is_idle) == (4, reclaimed, False)
    assert (done.sizes.log_entries, done.sizes.oldest_readable, table.entries()) == (2, 4, [4, 5])
    assert maintained(table, apply=True).is_idle


# The package has a command of that name.
command = importlib.import_module("pipeline.cli.maintain")


class CheckpointsOfDeltaRs(Checkpoints):
    """Writes checkpoints by delta-rs, with the pointer to one of the newest version, as Delta on Spark does."""

    def write(self, location: str, keep: int | None, version: int | None = None) -> tuple[int, bool]:
        pointer = Path(location) / "_delta_log" / "_last_checkpoint"
        before = pointer.read_bytes()
        newest = deltalake.DeltaTable(location).version()
        deltalake.DeltaTable(location, version=version).create_checkpoint()
        if version not in (None, newest):
            pointer.write_bytes(before)
        return newest if version is None else version, True


def test_the_log_is_cleaned_as_the_dry_run_says_although_a_checkpoint_was_written_before(tmp_path: Path) -> None:
    """The new checkpoint takes the place of the one by which older entries were kept; the next maintenance has it."""
    policy = MaintenancePolicy(small_file_ratio=None, vacuum=False)
    table = AgedTable(tmp_path, maintenance=policy)
    for number in range(14):
        table.append(number, days=OLD)
    table.checkpoint(2, days=OLD)
    table.append(14, days=YOUNG)
    dry = maintained(table)
    assert (dry.checkpoint, dry.log_files_removed) == (14, 2)
    with CheckpointsOfDeltaRs(no_spark) as checkpoints:
        done = maintain_table(table.ref, checkpoints, apply=True, run_id="run", now=NOW)
        assert (done.checkpoint, done.log_files_removed, done.bytes_reclaimed) == (14, 2, dry.bytes_reclaimed)
        assert table.entries() == [*range(2, 15)]
        assert maintain_table(table.ref, checkpoints, apply=True, run_id="run", now=NOW).log_files_removed > 0
        assert table.entries() == [13, 14]
    assert table.rows() == [*range(15)]


def test_the_other_steps_are_made_and_recorded_if_the_log_can_not_be_cleaned(tmp_path: Path) -> None:
    policy = MaintenancePolicy(small_file_ratio=None, vacuum=False)
    table, consumer = AgedTable(tmp_path, maintenance=policy), AgedTable(tmp_path, "copy")
    for number in range(11):
        table.append(number, days=OLD)
    table.checkpoint(0, days=OLD)
    consumer.consume(table, 3, days=OLD)
    (consumer.log / f"{0:020d}.json").write_text("cut", encoding="utf-8")
    with pytest.raises(CursorUnreadableError):
        maintained(table, consumer)
    with CheckpointsOfDeltaRs(no_spark) as checkpoints:
        done = maintain_table(table.ref, checkpoints, consumers=[consumer.ref], apply=True, run_id="run", now=NOW)
        assert (done.checkpoint, type(done.failure)) == (10, CursorUnreadableError)
        assert done.record("run").checkpoint == 10
        assert done.record("run").waits == (f"a step failed: {done.failure.message()}",)
        assert done.document()["failure"] == done.failure.message()
        with pytest.raises(CursorUnreadableError):  # now no other step is due
            maintain_table(table.ref, checkpoints, consumers=[consumer.ref], apply=True, run_id="run", now=NOW)
    assert f"{10:020d}.checkpoint.parquet" in table.names()
    assert table.entries() == [*range(11)]


def test_what_a_consumer_needs_is_kept_and_said(tmp_path: Path) -> None:
    table, consumer = AgedTable(tmp_path, maintenance=WITHOUT_VACUUM), AgedTable(tmp_path, "copy")
    for number in range(5):
        table.append(number, days=OLD)
    table.checkpoint(4, days=OLD)
    done = maintained(table, consumer, apply=True)
    assert (done.is_idle, done.waits) == (True, ("copy has read to version 0 and needs the changes since",))


# --- tombstones -------------------------------------------------------------------------------------------------------


def test_tombstones_expire_once_their_day_ended_as_long_ago_as_they_are_kept(tmp_path: Path) -> None:
    """Each day has two; those of a History have no day, and are kept for good."""
    schema = StructType([StructField("n", LongType()), StructField("at", LongType())])
    log = Changelog(operation="op", sequence="at", tombstones=Tombstones(keep_hours=36))
    policy = MaintenancePolicy(checkpoint=False, small_file_ratio=None, vacuum=False, clean_log=False)
    dataset = Dataset(name="rows", schema=schema, keys=("n",), write=Merge(changelog=log), maintenance=policy)
    days = ["2026-03-28", "2026-03-29", "2026-03-30", "2026-03-31", "2030-01-01"]
    states = [None, "deletion", "truncation", *(f"{kind}-{day}" for day in days for kind in ("deletion", "truncation"))]
    rows = {"n": [*range(len(states))], "at": [0] * len(states), "_pipeline_state": states}
    table = dataset.at(str(tmp_path))
    deltalake.write_deltalake(table.location, pa.table(rows), partition_by=["_pipeline_state"])

    def expired(now: dt.datetime, of: TableRef = table, *, apply: bool = False) -> int | None:
        with Checkpoints(no_spark) as checkpoints:
            return maintain_table(of, checkpoints, apply=apply, run_id="run", now=now).tombstones_expired

    noon = NOW.replace(hour=12, minute=0)
    assert expired(noon) == 4
    assert expired(noon - dt.timedelta(seconds=1)) == 2
    with pytest.raises(SparkStartedError):
        expired(noon, apply=True)
    assert expired(noon - dt.timedelta(days=3), apply=True) == 0
    kept = replace(dataset, write=Merge(changelog=replace(log, tombstones=Tombstones(keep_hours=37))))
    assert expired(noon, kept.at(str(tmp_path))) == 2


# --- records ----------------------------------------------------------------------------------------------------------


def record(**changed: Any) -> MaintenanceRecord:
    fields: dict[str, Any] = {
        "name": "rows", "path": "/tables/rows", "run_id": "run-1", "recorded_at": "2026-01-02T03:04:05+00:00",
        "version": 7, "checkpoint": 6, "files_joined": 5, "tombstones_expired": 9, "files_vacuumed": 4,
        "log_files_removed": 3,
        "bytes_reclaimed": 2_000, "waits": ("copy waits",), "files": 1, "bytes": 10, "small_file_ratio": 0.25,
        "log_entries": 8, "oldest_readable_version": 2,
    }  # fmt: skip
    return MaintenanceRecord(**(fields | changed))


def test_a_record_is_read_as_it_was_written_and_is_of_its_run(tmp_path: Path) -> None:
    root = str(tmp_path)
    path = write_maintenance_record(record(), root=root)
    assert path == f"{root}/_records/run-1/rows@7-maintenance.json"
    write_maintenance_record(record(name="in/depth", run_id="run-2", checkpoint=None), root=root)
    assert full_manifest(root, "run-1").maintenance == (record(),)
    assert (full_manifest(root, "run-1").commits, manifest(root, "run-1")) == ((), [])
    assert [(run.run_id, run.records, run.rows_written, run.datasets) for run in runs(root)] == [
        ("run-1", 1, 0, ("rows",)), ("run-2", 1, 0, ("in/depth",)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({"record": 99}, "format 99"), ({"version": "7"}, "version is not"), ({"waits": None}, "damaged"),
     ({"surplus": 1}, "surplus")],
)  # fmt: skip
def test_a_damaged_record_hides_no_other(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    root = str(tmp_path)
    write_maintenance_record(record(name="whole"), root=root)
    path = Path(write_maintenance_record(record(), root=root))
    path.write_text(json.dumps(asdict(record()) | changed), encoding="utf-8")
    damaged: list[RecordError] = []
    assert full_manifest(root, "run-1", damaged=damaged.append).maintenance == (record(name="whole"),)
    (error,) = damaged
    assert (error.path, reason in error.reason) == (str(path), True)


# --- the command line -------------------------------------------------------------------------------------------------

ROWS = Dataset(name="rows", schema=SCHEMA, maintenance=WITHOUT_VACUUM)
DATASETS = (ROWS, Dataset(name="never", schema=SCHEMA))
FOLLOWED = (
    Dataset(name="rows", schema=SCHEMA, maintenance=MaintenancePolicy(small_file_ratio=None, vacuum=False)),
    Dataset(name="copy", schema=SCHEMA, reads=("rows",), reads_changes_of=("rows",)),
)


def test_the_command_shows_each_table_and_the_manifest_shows_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {
        "PIPELINE_ROOT": str(tmp_path), "PIPELINE_DATASETS": f"{__name__}:DATASETS", "JAVA_HOME": "/nowhere",
        "SPARK_REMOTE": "sc://127.0.0.1:1",
    }  # fmt: skip
    table = AgedTable(tmp_path)
    for number in range(4):
        table.append(number, days=3_000)
    table.checkpoint(3, days=3_000)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(main, list(arguments), env=environment, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    dry = run("maintain", "all").splitlines()
    assert dry[2].split() == ["rows", "3", "-", "0", "0", "0", "3", *dry[2].split()[7:9], "4", "100%", "4", "0"]
    assert dry[-1] == "Nothing was changed; --apply makes these steps."
    assert table.entries() == [0, 1, 2, 3]
    (done,) = json.loads(run("maintain", "all", "--apply", "--json"))
    assert (done["log_files_removed"], done["sizes"]["log_entries"], done["applied"]) == (3, 1, True)
    (listed,) = json.loads(run("manifest", "list", "--json"))
    (shown,) = json.loads(run("manifest", "show", listed["run_id"], "--json"))
    assert (shown["kind"], shown["name"], shown["log_files_removed"]) == ("maintenance", "rows", 3)
    shown_row = run("manifest", "show", listed["run_id"]).splitlines()[2].split()
    assert shown_row[:7] == ["rows", "3", "-", "0", "0", "0", "3"]
    assert json.loads(run("maintain", "all", "--apply", "--json"))[0]["log_files_removed"] == 0
    assert len(json.loads(run("manifest", "list", "--json"))) == 1, "an idle table gets no record"


def test_a_table_whose_later_step_fails_is_in_the_json_and_in_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {
        "PIPELINE_ROOT": str(tmp_path), "PIPELINE_DATASETS": f"{__name__}:FOLLOWED", "JAVA_HOME": "/nowhere",
        "SPARK_REMOTE": "sc://127.0.0.1:1",
    }  # fmt: skip
    monkeypatch.setattr(command, "Checkpoints", CheckpointsOfDeltaRs)
    table, consumer = AgedTable(tmp_path), AgedTable(tmp_path, "copy")
    for number in range(11):
        table.append(number, days=OLD)
    table.checkpoint(0, days=OLD)
    consumer.consume(table, 3, days=OLD)
    (consumer.log / f"{0:020d}.json").write_text("cut", encoding="utf-8")
    result = CliRunner().invoke(main, ["maintain", "all", "rows", "--apply", "--json"], env=environment)
    assert result.exit_code == 1
    (done,) = json.loads(result.stdout)
    assert done["checkpoint"] == 10
    assert done["failure"].startswith("The progress of 'copy' in dataset 'rows' is unknown")
    (listed,) = json.loads(CliRunner().invoke(main, ["manifest", "list", "--json"], env=environment).stdout)
    (shown,) = json.loads(
        CliRunner().invoke(main, ["manifest", "show", listed["run_id"], "--json"], env=environment).stdout
    )
    assert (shown["checkpoint"], shown["waits"]) == (10, [f"a step failed: {done['failure']}"])


# --- the declaration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"cron": "daily"}, "maintenance: 'daily' is no cron expression of five fields"),
        ({"small_file_ratio": 1.5}, "maintenance: small_file_ratio is not between 0 and 1"),
        ({"vacuum": "yes"}, "maintenance.vacuum: expected bool"),
    ],
)
def test_a_policy_with_an_invalid_value_is_refused(policy: dict[str, Any], problem: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Dataset(name="rows", schema=SCHEMA, maintenance=MaintenancePolicy(**policy))
    (found,) = caught.value.problems
    assert found.startswith(problem)
