"""What `doctor` finds besides damage, and the repair of logs: logs are delta-rs's, and no Spark is started."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli import main
from pipeline.dataset import Dataset, Features
from pipeline.delta.inspect.doctor import examine
from pipeline.delta.log.commits import CREATION_SECONDS
from pipeline.delta.maintain.health import health_findings
from pipeline.delta.maintain.repair import RepairPlan, plan_repair, repair
from pipeline.errors import StorageError
from pipeline_tests.unit.aged_table import NOW, SCHEMA, AgedTable

OLD, YOUNG = 40.0, 1.0


def found(table: AgedTable, *consumers: AgedTable) -> list[tuple[str, str]]:
    """The kinds and details of the findings."""
    findings = health_findings(
        "rows", table.location, declared=table.ref.dataset, consumers=[one.ref for one in consumers], now=NOW
    )
    assert not any(finding.serious for finding in findings)
    return [(finding.kind, finding.detail) for finding in findings]


def made(folder: Path, days: float = YOUNG, **properties: str) -> AgedTable:
    """A table of three rows with a checkpoint of its second version."""
    table = AgedTable(folder)
    for number in range(3):
        table.append(number, days=days, properties=properties)
    table.checkpoint(1, days=days)
    return table


# --- findings ---------------------------------------------------------------------------------------------------------


def test_a_table_that_is_well_has_no_findings_and_shows_from_where_it_can_be_read(tmp_path: Path) -> None:
    table = made(tmp_path)
    assert found(table) == []
    assert examine("rows", table.location).readable_from == 0
    table.append(9, days=YOUNG, mode="overwrite")
    table.vacuum(days=YOUNG)
    assert examine("rows", table.location).readable_from == 3


@pytest.mark.parametrize(
    ("properties", "detail"),
    [
        ({"delta.logRetentionDuration": "interval 2 days", "delta.deletedFileRetentionDuration": "interval 3 days"},
         "delta.logRetentionDuration is less than delta.deletedFileRetentionDuration: versions lose their log before "
         "their files"),
        ({"delta.logRetentionDuration": "interval 2 days", "delta.enableExpiredLogCleanup": "false"},
         "delta.logRetentionDuration is set, but delta.enableExpiredLogCleanup is false: the log is never cleaned"),
    ],
    ids=["log and files", "no clean-up"],
)  # fmt: skip
def test_settings_that_contradict_each_other_are_named(tmp_path: Path, properties: dict[str, str], detail: str) -> None:
    assert found(made(tmp_path, **properties)) == [("contradictory settings", detail)]


def test_a_consumer_that_may_soon_lose_changes_is_named_with_its_version_and_their_age(tmp_path: Path) -> None:
    """Files are kept for a week, so that half of it counts."""
    table, consumer = made(tmp_path, days=5.5), AgedTable(tmp_path, "copy")
    assert found(table, consumer) == [
        ("lagging consumer", "copy has read to version 0 of 2; the oldest commit after it is 5 days old")
    ]
    consumer.consume(table, 2, days=YOUNG)
    assert found(table, consumer) == []
    table.append(3, days=YOUNG)
    assert found(table, consumer) == [], "a commit of yesterday is no reason"


def test_a_consumer_that_has_not_read_a_change_whose_file_is_missing_is_named(tmp_path: Path) -> None:
    table, consumer = AgedTable(tmp_path), AgedTable(tmp_path, "copy")
    table.append(1, 2, 3, days=YOUNG)
    consumer.consume(table, 0, days=YOUNG)
    table.change(lambda opened: opened.delete("n = 2"), days=YOUNG)
    assert found(table, consumer) == []
    for path in Path(table.location).glob("_change_data/*.parquet"):
        path.unlink()
    detail = "copy has read to version 0, and files with later changes are missing"
    assert found(table, consumer) == [("unread changes", detail)]
    consumer.consume(table, 1, days=YOUNG)
    assert found(table, consumer) == []


def test_features_that_are_not_declared_and_exclude_readers_are_named_with_them(tmp_path: Path) -> None:
    table = made(tmp_path)
    features = ["columnMapping", "deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    table.checkpoint(2)
    for path in table.log.glob("*checkpoint*"):
        path.unlink()
    table.edit(0, protocol=protocol)
    ((kind, detail),) = found(table)
    assert kind == "readers excluded"
    assert detail.startswith("columnMapping, deletionVectors: not read by ")
    assert "polars 2.1" in detail
    assert "Trino" not in detail
    table.ref = replace(table.ref, dataset=replace(table.ref.dataset, features=Features(deletion_vectors=True)))
    ((_, detail),) = found(table)
    assert detail.startswith("columnMapping: not read by ")
    wanted = Features(deletion_vectors=True, column_mapping="name")
    table.ref = replace(table.ref, dataset=replace(table.ref.dataset, features=wanted))
    assert found(table) == [], "the declaration brings both"


def test_many_small_files_are_counted(tmp_path: Path) -> None:
    table = AgedTable(tmp_path)
    for number in range(8):
        table.append(number, days=YOUNG)
    assert found(table) == [("small files", "8 of 8 files are small and could be joined")]


# --- what a repair removes --------------------------------------------------------------------------------------------


def pointer(table: AgedTable) -> Path:
    return table.log / "_last_checkpoint"


def no_json(table: AgedTable) -> list[str]:
    pointer(table).write_text('{"version":', encoding="utf-8")
    return ["_last_checkpoint"]


def no_such_checkpoint(table: AgedTable) -> list[str]:
    pointer(table).write_text('{"version":2,"size":1}', encoding="utf-8")
    return ["_last_checkpoint"]


def a_part_is_missing(table: AgedTable) -> list[str]:
    name = f"{2:020d}.checkpoint.{1:010d}.{2:010d}.parquet"
    (table.log / name).write_bytes(b"x")
    return [name]


def a_wrong_checksum(table: AgedTable) -> list[str]:
    name = f"{2:020d}.crc"
    (table.log / name).write_text('{"numFiles":', encoding="utf-8")
    return [name]


SKIPPED = (no_json, no_such_checkpoint, a_part_is_missing, a_wrong_checksum)


def repaired(table: AgedTable, *, checkpoint: int | None = None) -> RepairPlan:
    """The plan of a repair that was made; what it removes is exactly its steps."""
    plan = plan_repair("rows", table.location, now=NOW)
    assert plan == plan_repair("rows", table.location, now=NOW), "a plan changes nothing"
    before, written = table.names(), list[int]()
    repair(plan, written.append)
    assert {f"_delta_log/{name}" for name in before - table.names()} == {step.path for step in plan.steps}
    assert written == ([] if checkpoint is None else [checkpoint])
    return plan


@pytest.mark.parametrize("damage", SKIPPED, ids=lambda damage: damage.__name__.replace("_", " "))
def test_what_readers_skip_is_found_and_removed(tmp_path: Path, damage: Callable[[AgedTable], list[str]]) -> None:
    table = made(tmp_path)
    names = damage(table)
    table.age(YOUNG + 1)
    assert len(found(table)) == 1
    plan = repaired(table)
    assert [step.path for step in plan.steps] == [f"_delta_log/{name}" for name in names]
    assert (found(table), plan_repair("rows", table.location, now=NOW).steps) == ([], ())
    assert table.rows() == [0, 1, 2]


def test_a_part_that_another_process_may_be_writing_is_left(tmp_path: Path) -> None:
    table = made(tmp_path)
    a_part_is_missing(table)
    table.age(0.5)
    assert (len(found(table)), repaired(table).steps) == (1, ())


@pytest.mark.parametrize("content", [b"no parquet", b""], ids=["garbage", "empty"])
def test_a_damaged_checkpoint_whose_state_the_entries_have_is_removed_with_its_pointer_and_written_again(
    tmp_path: Path, content: bytes
) -> None:
    table = made(tmp_path)
    (table.log / f"{1:020d}.checkpoint.parquet").write_bytes(content)
    (table.log / f".{1:020d}.checkpoint.parquet.crc").write_bytes(b"of Hadoop")
    assert not examine("rows", table.location).healthy
    plan = repaired(table, checkpoint=2)
    checkpoint = f"{1:020d}.checkpoint.parquet"
    assert [Path(step.path).name for step in plan.steps] == ["_last_checkpoint", checkpoint, f".{checkpoint}.crc"]
    assert examine("rows", table.location).healthy
    assert table.rows() == [0, 1, 2]


def test_a_part_of_another_checkpoint_of_a_version_is_removed_and_the_complete_one_is_kept(tmp_path: Path) -> None:
    """A process was killed while it wrote parts of a version that has a checkpoint of one file."""
    table = made(tmp_path)
    part = table.log / f"{1:020d}.checkpoint.{1:010d}.{3:010d}.parquet"
    part.write_bytes(b"x")
    (table.log / f"{0:020d}.json").unlink()
    table.age(YOUNG + 1)
    assert examine("rows", table.location).healthy
    assert [step.path for step in repaired(table).steps] == [f"_delta_log/{part.name}"]
    assert table.rows() == [0, 1, 2]


def test_a_damaged_checkpoint_without_its_entries_is_left_for_a_backup(tmp_path: Path) -> None:
    table = made(tmp_path)
    (table.log / f"{1:020d}.checkpoint.parquet").write_bytes(b"no parquet")
    (table.log / f"{0:020d}.json").unlink()
    assert repaired(table).steps == ()
    assert not examine("rows", table.location).healthy


def test_an_empty_log_of_a_killed_first_write_is_removed_and_any_other_is_left(tmp_path: Path) -> None:
    log = tmp_path / "rows" / "_delta_log"
    (log / "_staged_commits").mkdir(parents=True)
    location, before = str(log.parent), (time.time() - CREATION_SECONDS - 1,) * 2
    assert plan_repair("rows", location).steps == (), "the first write may still run"
    part = log / f".{0:020d}.json.0a1b2c3d-0000-4000-8000-000000000000.tmp"
    part.write_text("{}", encoding="utf-8")
    os.utime(log, before)
    assert plan_repair("rows", location).steps == (), "its commit may be written now"
    os.utime(part, before)
    (log / "other").write_text("x", encoding="utf-8")
    os.utime(log, before)
    assert plan_repair("rows", location).steps == ()
    (log / "other").unlink()
    os.utime(log, before)
    plan = plan_repair("rows", location)
    assert [step.path for step in plan.steps] == ["_delta_log"]
    repair(plan, lambda version: pytest.fail(f"a checkpoint of {version}"))
    assert not log.exists()


def test_an_empty_log_is_left_while_a_first_write_adds_files(tmp_path: Path) -> None:
    log = tmp_path / "rows" / "_delta_log"
    log.mkdir(parents=True)
    os.utime(log, (time.time() - CREATION_SECONDS - 1,) * 2)
    data = log.parent / "day=1" / "part-0.parquet"
    data.parent.mkdir()
    data.write_bytes(b"x")
    assert plan_repair("rows", str(log.parent)).steps == ()
    os.utime(data, (time.time() - 2 * 3_600,) * 2)
    assert [step.path for step in plan_repair("rows", str(log.parent)).steps] == ["_delta_log"]


def test_the_repair_of_an_empty_log_that_got_a_commit_meanwhile_is_refused(tmp_path: Path) -> None:
    table = AgedTable(tmp_path)
    table.log.mkdir(parents=True)
    os.utime(table.log, (time.time() - CREATION_SECONDS - 1,) * 2)
    plan = plan_repair("rows", table.location)
    assert len(plan.steps) == 1
    table.append(1, days=YOUNG)
    with pytest.raises(StorageError, match="another process"):
        repair(plan, lambda version: pytest.fail(f"a checkpoint of {version}"))
    assert table.rows() == [1]


# --- the command line -------------------------------------------------------------------------------------------------

DATASETS = (Dataset(name="rows", schema=SCHEMA), Dataset(name="never", schema=SCHEMA))


def test_the_doctor_names_the_repair_and_makes_it_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {
        "PIPELINE_ROOT": str(tmp_path), "PIPELINE_DATASETS": f"{__name__}:DATASETS", "JAVA_HOME": "/nowhere",
        "SPARK_REMOTE": "sc://127.0.0.1:1",
    }  # fmt: skip
    table = made(tmp_path)
    no_json(table)

    def run(*arguments: str, status: int = 0) -> str:
        result = CliRunner().invoke(main, ["doctor", *arguments], env=environment, catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result.stdout

    shown = run("rows").splitlines()
    assert shown[2].split()[:4] == ["rows", "2", "0", "3"]
    assert shown[-1] == "  -> pipeline doctor rows --repair --apply removes it."
    assert run("--repair").splitlines() == [
        "rows: to remove: _delta_log/_last_checkpoint: it can't be parsed", "Nothing was removed; --apply removes.",
    ]  # fmt: skip
    assert pointer(table).exists()
    (plan, never) = json.loads(run("--repair", "--apply", "--json"))
    assert ([step["path"] for step in plan["steps"]], never["steps"]) == (["_delta_log/_last_checkpoint"], [])
    assert not pointer(table).exists()
    assert run("--repair", "rows").splitlines() == ["There is nothing to repair."]
    assert "--apply needs --repair" in CliRunner().invoke(main, ["doctor", "--apply"], env=environment).output


def test_a_table_that_can_not_be_read_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"PIPELINE_ROOT": str(tmp_path), "PIPELINE_DATASETS": f"{__name__}:LOOPED", "JAVA_HOME": "/nowhere"}
    no_json(made(tmp_path))
    loop = tmp_path / "looped"
    loop.symlink_to(loop)
    shown = CliRunner().invoke(main, ["doctor"], env=environment)
    assert (shown.exit_code, "wrong pointer" in shown.stdout, "looped" in shown.stderr) == (1, True, True)
    mended = CliRunner().invoke(main, ["doctor", "--repair", "--apply"], env=environment)
    assert (mended.exit_code, "removed: _delta_log/_last_checkpoint" in mended.stdout) == (1, True)


LOOPED = (Dataset(name="looped", schema=SCHEMA), Dataset(name="rows", schema=SCHEMA))
