"""What `doctor` finds of writers that no longer run: journals, checkpoints of streams and staged frames. No Spark."""

from __future__ import annotations

import datetime as dt
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pipeline.cli import main
from pipeline.dataset import Dataset, Registry
from pipeline.delta.inspect.doctor import Finding
from pipeline.delta.log.snapshot import table_facts
from pipeline.delta.sink.journal import Journal
from pipeline.delta.sink.left_behind import (
    journals_left_behind,
    lost_checkpoints,
    staging_left_behind,
    streams_left_behind,
)
from pipeline.delta.stream.query_log import checkpoint_beside, name_beside
from pipeline.settings import Settings, SparkSettings
from pipeline_tests.unit.aged_table import SCHEMA, AgedTable

DATASETS = (Dataset(name="rows", schema=SCHEMA), Dataset(name="never", schema=SCHEMA))
WRITER = "loader@one"


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        project=tmp_path, root=str(tmp_path), landing=str(tmp_path), spark=SparkSettings(remote="sc://127.0.0.1:1")
    )


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """The open journal of a sink into `rows`."""
    opened = Journal(tmp_path / "_staging" / "sinks" / "rows" / WRITER, "rows", WRITER)
    opened.open()
    yield opened
    opened.close()


def of_journals(settings: Settings) -> dict[str, list[str]]:
    found = journals_left_behind(Registry(DATASETS), settings, settings.root)
    assert all(one.kind == "journal left behind" and one.serious for findings in found.values() for one in findings)
    return {name: [one.detail.partition("open; ")[2] for one in findings] for name, findings in found.items()}


# --- journals ---------------------------------------------------------------------------------------------------------


def test_rows_in_a_journal_that_no_process_has_open_are_found_and_counted(settings: Settings, journal: Journal) -> None:
    assert of_journals(settings) == {}
    journal.append(numbers(1, 2, 3))
    journal.append_all([numbers(4), numbers(5)])
    assert of_journals(settings) == {}, "the sink runs"
    journal.close()
    assert of_journals(settings) == {"rows": ["5 acknowledged rows in 3 files are not in the table"]}
    journal.open()
    assert journal.backlog == (5, 3), "the next sink has the same rows, and was not kept out"


def test_a_batch_counts_until_the_log_has_its_commit(settings: Settings, journal: Journal, tmp_path: Path) -> None:
    table = AgedTable(tmp_path)
    table.append(0, days=1)
    journal.append(numbers(1, 2))
    journal.append(numbers(3))
    batch = journal.begin(1, rows=2)
    assert batch is not None
    journal.close()
    assert of_journals(settings) == {"rows": ["3 acknowledged rows in 2 files are not in the table"]}
    table.append(1, 2, days=0, note={"mark": {"writer": WRITER, "epoch": 1, "token": "t"}, "run_id": "of another"})
    assert of_journals(settings) == {"rows": ["3 acknowledged rows in 2 files are not in the table"]}
    table.append(1, 2, days=0, note={"mark": {"writer": WRITER, "epoch": 1, "token": "t"}, "run_id": batch.token})
    assert of_journals(settings) == {"rows": ["1 acknowledged rows in 1 files are not in the table"]}


def test_a_journal_whose_batches_have_ended_is_not_found(settings: Settings, journal: Journal) -> None:
    journal.append(numbers(1))
    batch = journal.begin(1, rows=1)
    assert batch is not None
    kept = journal.folder.parent / "kept"
    shutil.copytree(journal.folder, kept)
    journal.end(batch)
    for path in kept.glob("segment-*"):  # as if the process was killed before it removed them
        shutil.copy(path, journal.folder)
    shutil.rmtree(kept)
    journal.close()
    assert of_journals(settings) == {}


def test_rows_that_a_batch_refused_and_those_given_up_are_not_counted(settings: Settings, journal: Journal) -> None:
    given_up = journal.append(numbers(9, 9))
    journal.append(numbers(1, 2))
    given_up.path.rename(given_up.path.with_name(f"{given_up.path.name}.given-up"))
    journal.close()
    journal.open()
    batch = journal.begin(1, rows=2)
    assert batch is not None
    journal.replace(batch, numbers(1))
    journal.close()
    assert of_journals(settings) == {"rows": ["1 acknowledged rows in 1 files are not in the table"]}


def test_an_append_of_several_segments_counts_although_they_are_not_renamed_yet(
    settings: Settings, journal: Journal
) -> None:
    segments = journal.append_all([numbers(1), numbers(2, 3)])
    for segment in segments:
        segment.path.rename(f"{segment.path}.tmp")
    names = [segment.path.name for segment in segments]
    (journal.folder / "together.json").write_text(json.dumps({"segments": names}), encoding="utf-8")
    journal.close()
    assert of_journals(settings) == {"rows": ["3 acknowledged rows in 2 files are not in the table"]}


def test_a_damaged_journal_is_found_with_its_file(settings: Settings, journal: Journal) -> None:
    segment = journal.append(numbers(1))
    segment.path.write_bytes(b"no parquet")
    journal.close()
    (detail,) = of_journals(settings)["rows"]
    assert detail.startswith(f"its rows can't be counted: {segment.path}: ")


def test_the_remedy_starts_a_sink_of_the_same_writer_that_ends_at_once(settings: Settings, tmp_path: Path) -> None:
    """For a dataset that is no longer declared it must be declared first."""
    for name in ("rows", "in+gone"):
        left = Journal(tmp_path / "_staging" / "sinks" / name / WRITER, name, WRITER)
        left.open()
        left.append(numbers(1))
        left.close()
    found = journals_left_behind(Registry(DATASETS), settings, settings.root)
    command = "pipeline sink run {} --from - --writer loader@one < /dev/null"
    assert {name: one.remedy for name, (one,) in found.items()} == {
        "rows": command.format("rows"),
        "in/gone": "Declare the dataset in/gone again. Then: " + command.format("in/gone"),
    }


# --- streams ----------------------------------------------------------------------------------------------------------


def checkpoint(folder: Path, query: str) -> Path:
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": query}), encoding="utf-8")
    return folder


def wrote(table: AgedTable, folder: Path, query: str, epoch: int) -> int:
    """A commit of a stream's batch."""
    writer, name = f"stream/{query}", name_beside(str(folder), table.location)
    note = {"mark": {"writer": writer, "epoch": epoch, "token": "t"}, "stream": {"checkpoint": name, "content": "c"}}
    return table.append(epoch, days=1, note=note, epoch=(f"pipeline/0/{writer}", epoch))


def test_a_stream_whose_checkpoint_is_gone_is_found_with_the_version_before_its_first_batch(tmp_path: Path) -> None:
    table = AgedTable(tmp_path)
    assert lost_checkpoints(table.ref) == ()
    table.append(7, days=1)
    folder = checkpoint(tmp_path / "_streams" / "rows" / "id", "q1")
    versions = [wrote(table, folder, "q1", epoch) for epoch in range(2)]
    table.append(8, days=1)
    assert (versions, lost_checkpoints(table.ref)) == ([1, 2], ())
    saved = folder.rename(tmp_path / "saved")
    (found,) = lost_checkpoints(table.ref)
    assert found == Finding(
        kind="stream left behind", path=str(folder), serious=False,
        detail="the checkpoint of the stream that wrote batch 1 in version 2 does not exist any more",
        remedy="If that stream is to run again, put a copy of the checkpoint back; or, to read all its input again, "
        "pipeline restore rows --version 0 --apply goes back to before its first batch.",
    )  # fmt: skip
    saved.rename(folder)
    assert lost_checkpoints(table.ref) == ()
    (folder / "metadata").write_text(json.dumps({"id": "q2"}), encoding="utf-8")
    assert [one.path for one in lost_checkpoints(table.ref)] == [str(folder)], "another query has the folder"


def test_batches_that_a_restore_has_undone_need_no_checkpoint(tmp_path: Path) -> None:
    table = AgedTable(tmp_path)
    table.append(7, days=1)
    wrote(table, tmp_path / "_streams" / "rows" / "id", "q1", 0)
    assert len(lost_checkpoints(table.ref)) == 1
    table.table.restore(0)
    assert lost_checkpoints(table.ref) == ()


@pytest.mark.parametrize(
    ("folder", "location"),
    [
        ("/root/_streams/rows/id", "/root/rows"), ("s3://bucket/a/_streams/in/rows/id", "s3://bucket/a/in/rows"),
        ("/elsewhere/checkpoint", "/root/rows"), ("/local/checkpoint", "s3://bucket/rows"),
    ],
)  # fmt: skip
def test_the_place_of_a_checkpoint_follows_from_its_name_in_a_commit(folder: str, location: str) -> None:
    from pipeline.delta.storage.options import use_accounts

    use_accounts(SparkSettings())
    assert checkpoint_beside(name_beside(folder, location), location) == folder


def test_a_checkpoint_of_a_table_that_is_gone_or_was_made_again_is_found_and_the_remedy_removes_it(
    tmp_path: Path,
) -> None:
    table = AgedTable(tmp_path, "in/rows")
    table.append(1, days=1)
    facts = table_facts(table.location, 0)
    assert facts is not None
    top = tmp_path / "_streams"
    current = checkpoint(top / "in" / "rows" / facts.table_id, "q1")
    earlier = checkpoint(top / "in" / "rows" / "earlier", "q0")
    gone = checkpoint(top / "gone" / "some-id", "q2")
    found = streams_left_behind(str(tmp_path))
    assert {name: [(one.path, one.serious) for one in findings] for name, findings in found.items()} == {
        "in/rows": [(str(earlier), False)], "gone": [(str(gone), False)],
    }  # fmt: skip
    assert found["gone"][0].detail.endswith("its table does not exist any more")
    for findings in found.values():
        subprocess.run(shlex.split(findings[0].remedy), check=True)
    assert streams_left_behind(str(tmp_path)) == {}
    assert current.is_dir()


# --- staged frames ----------------------------------------------------------------------------------------------------


def staged(root: Path, name: str, hours: float, now: dt.datetime) -> Path:
    """A folder of a staged frame whose file and folder were last written so long ago."""
    folder = root / "_staging" / name
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"12345")
    for path in (folder / "part-0.parquet", folder):
        os.utime(path, (now.timestamp() - hours * 3600,) * 2)
    return folder


def test_a_staged_frame_is_found_after_a_day_and_the_remedy_removes_it(tmp_path: Path, journal: Journal) -> None:
    now = dt.datetime(2026, 3, 31, 12, tzinfo=dt.timezone.utc)
    old = staged(tmp_path, "a" * 32, 25, now)
    young = staged(tmp_path, "b" * 32, 23, now)
    written = staged(tmp_path, "c" * 32, 25, now)
    os.utime(written / "part-0.parquet", (now.timestamp(),) * 2)
    (found,) = staging_left_behind(str(tmp_path), now)
    assert (found.kind, found.path, found.serious) == ("staged frame", str(old), False)
    assert found.detail == "5 bytes that were staged for a write; last written at 2026-03-30 11:00Z"
    subprocess.run(shlex.split(found.remedy), check=True)
    assert staging_left_behind(str(tmp_path), now) == ()
    assert young.is_dir()
    assert journal.folder.is_dir()


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_doctor_shows_what_was_left_with_its_table_or_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: Journal
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {
        "PIPELINE_ROOT": str(tmp_path), "PIPELINE_DATASETS": f"{__name__}:DATASETS", "JAVA_HOME": "/nowhere",
        "SPARK_REMOTE": "sc://127.0.0.1:1",
    }  # fmt: skip

    def run(*arguments: str, status: int) -> list[dict[str, Any]]:
        result = CliRunner().invoke(main, ["doctor", *arguments, "--json"], env=environment, catch_exceptions=False)
        assert result.exit_code == status, result.output
        return list(json.loads(result.stdout))

    journal.append(numbers(1))
    journal.close()
    (found,) = run("rows", status=1)
    assert (found["dataset"], found["version"], found["healthy"]) == ("rows", None, False), "it has no table yet"
    AgedTable(tmp_path).append(1, days=1)
    checkpoint(tmp_path / "_streams" / "gone" / "some-id", "q2")
    staged(tmp_path, "a" * 32, 25, dt.datetime.now(dt.timezone.utc))
    assert [
        (one["dataset"], one["version"], one["healthy"], [finding["kind"] for finding in one["findings"]])
        for one in run(status=1)
    ] == [
        ("rows", 0, False, ["journal left behind"]), ("gone", None, True, ["stream left behind"]),
        ("_staging", None, True, ["staged frame"]),
    ]  # fmt: skip
    shown = CliRunner().invoke(main, ["doctor", "rows"], env=environment, catch_exceptions=False).stdout
    assert shown.splitlines()[-1] == "  -> pipeline sink run rows --from - --writer loader@one < /dev/null"
