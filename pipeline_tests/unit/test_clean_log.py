"""What a clean-up of a log removes, what it keeps and for whom, on logs of delta-rs and without Spark."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.delta.log.mark import MIGRATION, MIGRATION_WRITER
from pipeline.delta.maintain.clean_log import CleanLogPlan, clean_log, plan_clean_log
from pipeline.delta.maintain.log_needs import LogNeed
from pipeline.delta.read.cursors import effective_cursors
from pipeline.delta.read.verdict import verdict_on
from pipeline.delta.table.open_table import require_table
from pipeline.errors import DamagedTableError, PlanOutdatedError, TableNotFoundError
from pipeline_tests.remedies import follows, refused
from pipeline_tests.unit.aged_table import NOW, AgedTable, aged, forget_logs, replays

OLD, YOUNG = 40.0, 1.0


def planned(table: AgedTable, *consumers: AgedTable, **options: Any) -> CleanLogPlan:
    return plan_clean_log(table.ref, consumers=[consumer.ref for consumer in consumers], now=NOW, **options)


def cleaned(table: AgedTable, *consumers: AgedTable, **options: Any) -> CleanLogPlan:
    """The plan of a clean-up that was applied."""
    plan = planned(table, *consumers, **options)
    before = table.names()
    clean_log(plan, table.write_checkpoint)
    written = {f"{plan.checkpoint:020d}.checkpoint.parquet"} if plan.checkpoint is not None else set()
    assert before - table.names() == {*plan.files}, "what is applied is the plan"
    assert table.names() - before <= written
    forget_logs()
    return plan


def needs(plan: CleanLogPlan) -> list[tuple[str, str, int]]:
    return [(need.by, need.name, need.version) for need in plan.needed]


# --- the cut ----------------------------------------------------------------------------------------------------------


def test_entries_past_the_retention_are_removed_and_every_kept_version_is_as_before(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD] * 6 + [YOUNG] * 3)
    table.checkpoint(4, days=OLD)
    plan = planned(table)
    assert (plan.oldest, plan.kept_from, plan.readable_from, plan.version, plan.checkpoint) == (0, 4, 4, 8, None)
    assert plan.files == tuple(f"{number:020d}.json" for number in range(4))
    assert plan.bytes == sum((table.log / name).stat().st_size for name in plan.files)
    assert plan.cut == dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)
    assert table.entries() == [*range(9)], "a plan changes nothing"

    assert cleaned(table) == plan
    assert table.entries() == [4, 5, 6, 7, 8]
    assert {version: table.rows(version) for version in table.entries()} == {
        version: [*range(version + 1)] for version in table.entries()
    }
    again = planned(table)
    assert (again.files, again.oldest, again.kept_from) == ((), 4, 4)


def test_a_log_without_old_entries_is_left_as_it_is(tmp_path: Path) -> None:
    table = aged(tmp_path, [29, 20, YOUNG])
    table.checkpoint()
    assert cleaned(table).files == ()
    assert table.entries() == [0, 1, 2]


@pytest.mark.parametrize(("hours", "kept_from"), [(-1, 2), (1, 1)], ids=["before midnight", "after midnight"])
def test_the_cut_is_at_midnight_and_keeps_the_version_that_is_current_then(
    tmp_path: Path, hours: int, kept_from: int
) -> None:
    """With thirty days of retention and noon as the present, the midnight is thirty and a half days ago."""
    table = aged(tmp_path, [OLD, OLD, 30.5 - hours / 24, 10])
    for version in (1, 2, 3):
        table.checkpoint(version)
    assert cleaned(table).kept_from == kept_from


@pytest.mark.parametrize(
    ("properties", "kept_from"),
    [
        ({"delta.logRetentionDuration": "interval 2 days"}, 3),
        (
            {"delta.logRetentionDuration": "interval 2 days", "delta.deletedFileRetentionDuration": "interval 12 days"},
            1,
        ),
        ({"delta.logRetentionDuration": "interval 100 days"}, 0),
    ],
    ids=["of the log", "of the files", "long"],
)
def test_the_retention_is_that_of_the_table_and_at_least_the_declared_one_of_its_files(
    tmp_path: Path, properties: dict[str, str], kept_from: int
) -> None:
    table = aged(tmp_path, [20, 15, 10, 5, YOUNG], properties=properties)
    for version in range(5):
        table.checkpoint(version)
    assert cleaned(table).kept_from == kept_from


def test_a_copied_table_keeps_its_entries_by_the_time_of_the_copy(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD] * 4)
    table.checkpoint()
    table.edit(0, metaData={"configuration": {"delta.enableInCommitTimestamps": "true"}})
    for version in range(4):
        committed = NOW - dt.timedelta(days=OLD) + dt.timedelta(seconds=version)
        table.edit(version, commitInfo={"inCommitTimestamp": int(committed.timestamp() * 1000)})
    table.checkpoint()
    assert planned(table).kept_from == 3
    for path in table.log.glob("*.json"):
        os.utime(path, (NOW.timestamp(),) * 2)
    assert planned(table).files == ()


def test_entries_whose_files_have_no_modification_time_are_kept(tmp_path: Path) -> None:
    """Some copies of a folder lose these times, which are of the year 1970 then."""
    table = aged(tmp_path, [OLD] * 4)
    table.checkpoint()
    for path in table.log.glob("*.json"):
        os.utime(path, (0, 0))
    assert planned(table).files == ()


def test_a_retention_of_more_years_than_there_are_keeps_every_entry(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD] * 4, properties={"delta.logRetentionDuration": "interval 99999999999 days"})
    table.checkpoint()
    assert planned(table).files == ()


def test_a_young_in_commit_timestamp_keeps_an_entry_whose_file_is_old(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD] * 4)
    table.edit(0, metaData={"configuration": {"delta.enableInCommitTimestamps": "true"}})
    for version, days in enumerate([50, 45, 20, 10]):
        table.edit(version, commitInfo={"inCommitTimestamp": int((NOW - dt.timedelta(days=days)).timestamp() * 1000)})
    for version in (1, 3):
        table.checkpoint(version)
    assert cleaned(table).kept_from == 1


# --- the checkpoint ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_written_first_where_the_log_has_none(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD] * 3 + [YOUNG])
    plan = cleaned(table)
    assert (plan.checkpoint, plan.kept_from, len(plan.files)) == (2, 2, 2)
    assert table.names() == {f"{2:020d}.checkpoint.parquet", f"{2:020d}.json", f"{3:020d}.json"}
    assert (table.rows(2), table.rows(3)) == ([0, 1, 2], [0, 1, 2, 3])


def test_a_checkpoint_is_written_where_the_newest_is_an_interval_behind(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD] * 9 + [YOUNG], properties={"delta.checkpointInterval": "4"})
    table.checkpoint(4, pointed=False)
    assert (planned(table).checkpoint, planned(table).kept_from) == (8, 8)
    table.checkpoint(5, pointed=False)
    assert (planned(table).checkpoint, planned(table).kept_from) == (None, 5)


def test_nothing_is_removed_where_the_checkpoint_was_not_written(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD] * 3 + [YOUNG])
    before = table.names()
    with pytest.raises(PlanOutdatedError, match="no complete checkpoint of version 2"):
        clean_log(planned(table), lambda version: None)
    assert table.names() == before


def test_the_checkpoint_that_the_pointer_names_is_kept(tmp_path: Path) -> None:
    """Some readers open no other checkpoint than that."""
    table = aged(tmp_path, [OLD] * 4)
    table.checkpoint(1)
    table.checkpoint(3, pointed=False)
    plan = cleaned(table)
    assert (plan.kept_from, needs(plan)) == (1, [("pointer", "_last_checkpoint", 1)])


# --- the files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2])
def test_a_part_of_another_checkpoint_of_a_version_hides_the_complete_one_not(tmp_path: Path, parts: int) -> None:
    """As many files as the other checkpoint has parts are no complete checkpoint either."""
    table = aged(tmp_path, [OLD] * 5 + [YOUNG])
    table.checkpoint(2)
    table.checkpoint(4)
    left = [table.log / f"{4:020d}.checkpoint.{part:010d}.{parts + 1:010d}.parquet" for part in range(1, parts + 1)]
    for path in left:
        path.write_bytes(b"cut off")
    table.age(OLD)
    assert (planned(table).kept_from, planned(table).checkpoint) == (4, None)
    cleaned(table)
    assert table.rows() == [0, 1, 2, 3, 4, 5]
    assert all(path.exists() for path in left)


def test_all_files_of_a_removed_version_go_and_no_others(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD] * 5 + [YOUNG])
    table.checkpoint(1)
    table.checkpoint(4)
    beside = [f"{3:020d}.crc", f".{3:020d}.json.crc", f"{2:020d}.checkpoint.{1:010d}.{2:010d}.parquet"]
    compacted = [f"{0:020d}.{3:020d}.compacted.json", f"{5:020d}.{5:020d}.compacted.json"]
    kept = [f"{4:020d}.crc", f".{4:020d}.json.crc", f".{0:020d}.json.1-2.tmp", "notes.txt", "_staged_commits/other"]
    for name in (*beside, *compacted, *kept):
        (table.log / name).parent.mkdir(exist_ok=True)
        (table.log / name).write_text("{}", encoding="utf-8")
    table.age(OLD)

    plan = cleaned(table)
    entries = [f"{number:020d}.json" for number in range(4)]
    assert {*plan.files} == {*entries, *beside, compacted[0], f"{1:020d}.checkpoint.parquet"}
    order = [name for name in plan.files if name.startswith(f"{1:020d}") or name in beside[:2] or name == entries[3]]
    assert order == [entries[1], f"{1:020d}.checkpoint.parquet", entries[3], beside[1], beside[0]]
    assert table.rows(4) == [0, 1, 2, 3, 4]


def test_a_young_compaction_stays_since_a_reader_may_have_listed_it(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD] * 4)
    table.checkpoint(3)
    young = table.log / f"{0:020d}.{2:020d}.compacted.json"
    young.write_text("{}", encoding="utf-8")
    table.age(YOUNG)
    assert young.name not in cleaned(table).files


def v2_checkpoint(table: AgedTable, version: int, *sidecars: str) -> None:
    """Turn the classic checkpoint of a version into one whose files are in sidecars (Delta protocol, "V2 Spec")."""
    folder = table.log / "_sidecars"
    folder.mkdir(exist_ok=True)
    classic = table.log / f"{version:020d}.checkpoint.parquet"
    shutil.copy(classic, folder / sidecars[0])
    classic.unlink()
    lines: list[dict[str, Any]] = [{"checkpointMetadata": {"version": version}}]
    for number in range(version + 1):
        for line in (table.log / f"{number:020d}.json").read_text(encoding="utf-8").splitlines():
            lines += [action for action in [json.loads(line)] if "protocol" in action or "metaData" in action]
    sizes = {path: (folder / path).stat().st_size for path in sidecars}
    lines += [{"sidecar": {"path": p, "sizeInBytes": size, "modificationTime": 1}} for p, size in sizes.items()]
    top = table.log / f"{version:020d}.checkpoint.00000000-0000-4000-8000-{version:012d}.json"
    top.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def test_a_sidecar_goes_with_the_last_checkpoint_that_names_it_and_a_young_one_stays(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD] * 5 + [YOUNG])
    for version in (1, 2, 4):
        table.checkpoint(version, pointed=False)
    v2_checkpoint(table, 1, "gone.parquet")
    v2_checkpoint(table, 2, "shared.parquet")
    v2_checkpoint(table, 4, "kept.parquet", "shared.parquet")
    table.age(OLD)
    young = table.log / "_sidecars" / "of a checkpoint that is being written.parquet"
    young.write_bytes(b"")
    table.age(YOUNG)

    plan = cleaned(table)
    assert plan.kept_from == 4
    assert [name for name in plan.files if name.startswith("_sidecars")] == ["_sidecars/gone.parquet"]
    assert plan.files[-1] == "_sidecars/gone.parquet", "after the checkpoint that names it"


def test_the_sidecars_of_each_checkpoint_of_a_version_are_kept(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD] * 5 + [YOUNG])
    table.checkpoint(4, pointed=False)
    v2_checkpoint(table, 4, "one.parquet")
    (first,) = table.log.glob(f"{4:020d}.checkpoint.*.json")
    second = table.log / f"{4:020d}.checkpoint.ffffffff-0000-4000-8000-000000000000.json"
    second.write_text(first.read_text(encoding="utf-8").replace("one.parquet", "two.parquet"), encoding="utf-8")
    shutil.copy(table.log / "_sidecars" / "one.parquet", table.log / "_sidecars" / "two.parquet")
    table.age(OLD)
    assert cleaned(table).kept_from == 4
    assert {name for name in table.names() if name.startswith("_sidecars")} == {
        "_sidecars/one.parquet", "_sidecars/two.parquet",
    }  # fmt: skip


def test_a_plan_is_refused_if_a_checkpoint_names_a_sidecar_of_it_meanwhile(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD] * 5 + [YOUNG])
    for version in (1, 4):
        table.checkpoint(version, pointed=False)
    v2_checkpoint(table, 1, "shared.parquet")
    table.age(OLD)
    plan = planned(table)
    assert "_sidecars/shared.parquet" in plan.files
    table.checkpoint(5, pointed=False)
    v2_checkpoint(table, 5, "shared.parquet")
    before = table.names()
    with pytest.raises(PlanOutdatedError, match="sidecar"):
        clean_log(plan, table.write_checkpoint)
    assert table.names() == before


@pytest.mark.parametrize("written", [False, True], ids=["by a checkpoint of the log", "by a written one"])
def test_a_clean_up_that_is_stopped_anywhere_leaves_a_readable_table_and_is_finished_by_the_next(
    tmp_path: Path, written: bool
) -> None:
    table = aged(tmp_path, [OLD] * 5 + [YOUNG] * 2)
    table.checkpoint(2, pointed=False)
    if not written:
        table.checkpoint(4, pointed=False)
    (table.log / f"{1:020d}.crc").write_text("{}", encoding="utf-8")
    table.age(OLD)
    whole = planned(table)
    for stopped in range(len(whole.files) + 1):
        shutil.copytree(table.location, tmp_path / str(stopped) / "rows")
        copy = AgedTable(tmp_path / str(stopped))
        plan = planned(copy)
        assert plan.files == whole.files
        if plan.checkpoint is not None:
            copy.write_checkpoint(plan.checkpoint)
        for name in plan.files[:stopped]:
            (copy.log / name).unlink()
        assert copy.rows() == [*range(7)]
        assert [copy.rows(version) for version in range(plan.kept_from, 7)] == [
            [*range(version + 1)] for version in range(plan.kept_from, 7)
        ]
        assert planned(copy).kept_from == plan.kept_from
        cleaned(copy)
        assert copy.entries() == [*range(plan.kept_from, 7)]


# --- what needs old entries -------------------------------------------------------------------------------------------


def verdict(source: AgedTable, consumer: AgedTable) -> str:
    """What the next run of a consumer reads of a source."""
    in_force = effective_cursors(None, require_table(None, consumer.ref))
    found = verdict_on(None, source.ref, in_force.sources.get(source.ref.name), in_force.missing)
    return f"{found} {found.window}"


def test_the_entries_from_a_consumers_cursor_on_are_kept_unless_it_is_forced(tmp_path: Path) -> None:
    source, consumer = aged(tmp_path, [OLD] * 8), AgedTable(tmp_path, "consumer")
    for version in (2, 3, 6, 7):
        source.checkpoint(version)
    consumer.consume(source, 4, days=OLD)
    before = verdict(source, consumer)
    assert before == "changes (5, 7)"
    plan = cleaned(source, consumer)
    assert (plan.kept_from, needs(plan)) == (3, [("consumer", "consumer", 4)])
    assert verdict(source, consumer) == before
    assert cleaned(source, consumer, force=True).kept_from == 7
    assert verdict(source, consumer).startswith("full snapshot")


def test_a_consumer_that_never_ran_keeps_every_entry(tmp_path: Path) -> None:
    source, consumer = aged(tmp_path, [OLD] * 4), AgedTable(tmp_path, "consumer")
    source.checkpoint()
    plan = planned(source, consumer)
    assert (plan.files, needs(plan)) == ((), [("consumer", "consumer", 0)])


def test_the_entries_with_the_tables_own_cursors_are_kept(tmp_path: Path) -> None:
    source, consumer = aged(tmp_path, [OLD] * 3), AgedTable(tmp_path, "consumer")
    consumer.append(0, days=OLD)
    consumer.append(0, days=OLD)
    consumer.consume(source, 1, days=OLD, read_at=1)
    for _ in range(3):
        consumer.append(0, days=OLD)
    for version in (1, 2, 4, 5):
        consumer.checkpoint(version)
    before = verdict(source, consumer)
    assert before == "changes (2, 2)"
    plan = cleaned(consumer)
    assert (plan.kept_from, needs(plan)) == (2, [("cursors", "consumer", 2)])
    assert verdict(source, consumer) == before


def test_the_entries_between_the_reading_of_cursors_and_their_commit_are_kept_too(tmp_path: Path) -> None:
    source, consumer = aged(tmp_path, [OLD] * 3), AgedTable(tmp_path, "consumer")
    for _ in range(4):
        consumer.append(0, days=OLD)
    consumer.consume(source, 1, days=OLD, read_at=0)
    consumer.append(0, days=OLD)
    for version in (1, 3, 5):
        consumer.checkpoint(version)
    before = verdict(source, consumer)
    plan = cleaned(consumer)
    assert (plan.kept_from, needs(plan)) == (1, [("cursors", "consumer", 1)])
    assert verdict(source, consumer) == before == "changes (2, 2)"


def test_the_cursors_of_a_version_that_can_be_restored_are_kept(tmp_path: Path) -> None:
    source, consumer = aged(tmp_path, [OLD] * 4), AgedTable(tmp_path, "consumer")
    consumer.append(0, days=OLD)
    consumer.consume(source, 1, days=OLD, read_at=0)
    for _ in range(3):
        consumer.append(0, days=OLD)
    consumer.consume(source, 3, days=YOUNG, read_at=4)
    for version in (1, 4, 5):
        consumer.checkpoint(version)
    plan = cleaned(consumer)
    assert (plan.kept_from, needs(plan)) == (1, [("cursors", "consumer", 1)])
    consumer.restore(4, days=YOUNG)
    assert verdict(source, consumer) == "changes (2, 3)"


def restored(tmp_path: Path, properties: dict[str, str] | None = None) -> AgedTable:
    """A table to which a writer has written epochs 1 to 5, and whose version 2 was restored; all of it is old."""
    table = AgedTable(tmp_path)
    table.append(0, days=OLD, properties=properties)
    for epoch in range(1, 6):
        table.append(epoch, days=OLD, epoch=("pipeline/0/writer", epoch))
    table.restore(2, days=OLD)
    for number in (7, 8):
        table.append(number, days=OLD)
    for version in (1, 2, 5, 6, 8):
        table.checkpoint(version)
    return table


def test_a_repeat_from_before_a_restore_is_recognised_after_a_clean_up(tmp_path: Path) -> None:
    table = restored(tmp_path)
    before = replays(table, "writer", range(1, 7))
    assert before == ["in the table"] * 2 + ["written pipeline/6/writer"] * 4
    plan = cleaned(table)
    assert (plan.kept_from, needs(plan)) == (2, [("restore", "6", 2)])
    assert replays(table, "writer", range(1, 7)) == before


def test_a_restore_is_kept_until_a_property_records_it_even_if_identifiers_are_forgotten(tmp_path: Path) -> None:
    table = restored(tmp_path, {"delta.setTransactionRetentionDuration": "interval 3 days"})
    plan = planned(table)
    assert (plan.kept_from, needs(plan)) == (6, [("restore", "6", 6)])
    table.set("pipeline.incarnation", "6", days=OLD)
    assert planned(table).kept_from == 8


def test_a_restore_of_a_table_without_identifiers_keeps_only_its_own_entry(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD] * 4)
    table.restore(1, days=OLD)
    for number in (7, 8):
        table.append(number, days=OLD)
    for version in (3, 4, 6):
        table.checkpoint(version)
    assert (planned(table).kept_from, needs(planned(table))) == (4, [("restore", "4", 4)])


def test_a_repeat_is_recognised_by_the_identifier_that_the_checkpoint_has(tmp_path: Path) -> None:
    table = AgedTable(tmp_path)
    for epoch in range(1, 6):
        table.append(epoch, days=OLD, epoch=("pipeline/0/writer", epoch))
    table.checkpoint(4)
    before = replays(table, "writer", range(1, 7))
    assert before == ["skipped pipeline/0/writer"] * 5 + ["written pipeline/0/writer"]
    assert cleaned(table).kept_from == 4
    assert replays(table, "writer", range(1, 7)) == before


def test_the_newest_batch_of_each_stream_and_the_newest_change_of_rows_are_kept(tmp_path: Path) -> None:
    table = AgedTable(tmp_path)

    def batch(stream: str) -> int:
        note = {"mark": {"writer": stream, "epoch": 1}, "stream": {"checkpoint": stream, "content": None}}
        return table.append(0, days=OLD, note=note)

    table.append(0, days=OLD)
    assert [batch("one"), batch("two"), batch("one")] == [1, 2, 3]
    table.append(0, days=OLD)
    for value in ("a", "b"):
        table.set("any", value, days=OLD)
    for version in range(7):
        table.checkpoint(version)
    plan = cleaned(table)
    assert (plan.kept_from, needs(plan)) == (2, [("stream", "two", 2), ("stream", "one", 3), ("rows", "WRITE", 4)])


def test_a_migration_is_kept_until_the_table_names_its_record(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD])

    def migrate(token: str) -> int:
        return table.append(0, days=OLD, note={"mark": {"writer": MIGRATION_WRITER, "epoch": 1, "token": token}})

    assert [migrate("a" * 32), table.set(MIGRATION, "a" * 32, days=OLD), migrate("b" * 32)] == [1, 2, 3]
    table.append(0, days=OLD)
    table.set("any", "a", days=OLD)
    for version in range(6):
        table.checkpoint(version)
    plan = cleaned(table)
    assert (plan.kept_from, needs(plan)) == (3, [("migration", "b" * 32, 3), ("rows", "WRITE", 4)])
    table.set(MIGRATION, "b" * 32, days=OLD)
    table.checkpoint(6)
    assert needs(planned(table)) == [("rows", "WRITE", 4)]


def test_a_migration_that_a_restore_has_undone_is_not_kept(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD])
    table.append(0, days=OLD, note={"mark": {"writer": MIGRATION_WRITER, "epoch": 1, "token": "a" * 32}})
    table.restore(0, days=OLD)
    table.append(0, days=OLD)
    table.checkpoint(3)
    assert "migration" not in {need.by for need in planned(table).needed}


@pytest.mark.parametrize(
    ("changed", "need"),
    [
        ({"metaData": {"configuration": {"delta.enableExpiredLogCleanup": "false"}}},
         ("property", "delta.enableExpiredLogCleanup", 0)),
        ({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["catalogManaged"],
                       "writerFeatures": ["catalogManaged"]}}, ("feature", "catalogManaged", 0)),
        ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["unheardOf"]}},
         ("feature", "unheardOf", 0)),
    ],
    ids=["a property", "a catalog", "an unknown feature"],
)  # fmt: skip
def test_a_table_may_keep_every_entry(tmp_path: Path, changed: dict[str, Any], need: tuple[str, str, int]) -> None:
    table = aged(tmp_path, [OLD] * 4)
    table.edit(0, **changed)
    table.checkpoint(3) if "metaData" in changed else None
    plan = planned(table, force=True)
    assert (plan.files, needs(plan)) == ((), [need])


@pytest.mark.parametrize(
    ("before", "kept_from", "checkpoint"), [(6, 0, None), (4, 5, 5), (3, 3, None)], ids=["beyond", "between", "behind"]
)
def test_a_protected_history_is_removed_in_one_step_or_not_at_all(
    tmp_path: Path, before: int, kept_from: int, checkpoint: int | None
) -> None:
    """Its checkpoints hide entries from readers that lack their features (Delta's RFC, "Checkpoint Protection")."""
    table = aged(tmp_path, [OLD] * 6 + [YOUNG] * 2)
    table.checkpoint(3, pointed=False)
    features = ["checkpointProtection", "changeDataFeed"]
    table.edit(
        0, protocol={"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features},
        metaData={"configuration": {"delta.requireCheckpointProtectionBeforeVersion": str(before)}},
    )  # fmt: skip
    (table.log / f"{3:020d}.checkpoint.parquet").unlink()
    table.checkpoint(3, pointed=False)
    plan = planned(table)
    assert (plan.kept_from, plan.checkpoint) == (kept_from, checkpoint)
    assert needs(plan) == ([("feature", "checkpointProtection", 0)] if kept_from == 0 else [])


def test_the_commit_by_which_a_first_load_is_identified_is_kept(tmp_path: Path) -> None:
    """It is the newest one of certain operations; other operations may change rows after it."""
    table = aged(tmp_path, [OLD] * 6)
    for version in (3, 4):
        table.edit(version, commitInfo={"operation": "CONVERT"})
    table.edit(5, commitInfo={"operation": "SET TBLPROPERTIES"})
    for version in range(6):
        table.checkpoint(version)
    plan = planned(table)
    assert (plan.kept_from, needs(plan)) == (2, [("rows", "WRITE", 2), ("rows", "CONVERT", 4)])


def test_a_need_says_what_it_is_and_from_which_version_on() -> None:
    assert str(LogNeed(by="consumer", name="copy", version=7)) == (
        "copy has read to version 7 and needs the changes since"
    )
    assert str(LogNeed(by="restore", name="9", version=7)) == (
        "since the restore in version 9, repeated writes are recognised by version 7"
    )


# --- data files -------------------------------------------------------------------------------------------------------


def test_the_plan_promises_only_versions_whose_files_a_vacuum_has_left(tmp_path: Path) -> None:
    table = aged(tmp_path, [OLD] * 3 + [YOUNG] * 3)
    table.append(9, days=YOUNG, mode="overwrite")
    table.checkpoint(2)
    assert (planned(table).kept_from, planned(table).readable_from) == (2, 2)
    table.vacuum(days=YOUNG)
    plan = cleaned(table)
    assert (plan.kept_from, plan.readable_from, plan.version) == (2, 6, 8)
    assert [table.rows(version) for version in (6, 7, 8)] == [[9]] * 3


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["a gap", "a cut entry", "a cut checkpoint", "a checkpoint of another table"])
def test_nothing_is_removed_where_what_would_be_left_is_damaged(tmp_path: Path, damage: str) -> None:
    table = aged(tmp_path, [OLD] * 5 + [YOUNG] * 4)
    table.checkpoint(3)
    table.checkpoint(7)
    entry, first = table.log / f"{6:020d}.json", table.log / f"{3:020d}.checkpoint.parquet"
    if damage == "a gap":
        entry.unlink()
    elif damage == "a cut entry":
        entry.write_bytes(entry.read_bytes()[:-40])
    elif damage == "a cut checkpoint":
        first.write_bytes(first.read_bytes()[:-40])
    else:
        other = aged(tmp_path / "other", [OLD] * 4)
        other.checkpoint(3)
        shutil.copy(other.log / first.name, first)
    before = table.names()
    with pytest.raises(DamagedTableError) as caught:
        planned(table)
    assert (caught.value.dataset, caught.value.file) == ("rows", str(first if "checkpoint" in damage else entry))
    assert table.names() == before


def test_a_table_that_was_never_written_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        planned(AgedTable(tmp_path))


@follows(PlanOutdatedError)
@pytest.mark.parametrize("replaced", ["by another table", "by an older copy"])
def test_a_plan_of_a_table_that_was_replaced_since_removes_nothing_and_a_new_plan_does(
    tmp_path: Path, replaced: str
) -> None:
    table = aged(tmp_path, [OLD] * 5)
    table.checkpoint(4)
    plan = planned(table)
    if replaced == "by another table":
        shutil.rmtree(table.location)
        for _ in range(6):
            table.append(0, days=OLD)
    else:
        for path in [*table.log.glob(f"{4:020d}.*"), table.log / "_last_checkpoint"]:
            path.unlink()
    before = table.names()
    error = refused(
        PlanOutdatedError, lambda: clean_log(plan, table.write_checkpoint), "pipeline maintain clean-log rows"
    )
    assert ("another table" in error.reason) is (replaced == "by another table")
    assert table.names() == before
    assert cleaned(table).files


def test_a_plan_of_a_table_that_was_restored_since_removes_nothing(tmp_path: Path) -> None:
    """Repeated writes are recognised by the version that the restore has brought back."""
    table = AgedTable(tmp_path)
    for epoch in range(1, 6):
        table.append(epoch, days=OLD, epoch=("pipeline/0/writer", epoch))
    table.checkpoint(4)
    plan = planned(table)
    assert plan.files
    table.restore(1, days=YOUNG)
    before, answers = table.names(), replays(table, "writer", range(1, 6))
    with pytest.raises(PlanOutdatedError, match="version 5 is a restore"):
        clean_log(plan, table.write_checkpoint)
    assert table.names() == before
    cleaned(table)
    assert replays(table, "writer", range(1, 6)) == answers
