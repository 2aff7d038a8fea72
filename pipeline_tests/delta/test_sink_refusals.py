"""No row stops a sink: what Delta can't take is a dead letter, and the rows beside it are stored once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as searched
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Check, Dataset, Features
from pipeline.delta.log.epochs import epochs
from pipeline.delta.sink.journal import Journal
from pipeline.delta.sink.sink import DeltaSink, SinkSettings, sink_folders
from pipeline.delta.table import durable
from pipeline.settings import Settings
from pipeline_tests.delta.sample import rows_of
from pipeline_tests.delta.test_sink import BY_HAND, PATIENCE, letters, table
from pipeline_tests.unit.test_hostile_records import FITTING_LINES, HOSTILE_LINES, LINES, WIDE, parsed

RATIOS = Dataset(
    name="ratios",
    write=Append(),
    schema=StructType(
        [
            StructField("n", LongType(), False), StructField("a", LongType()), StructField("b", LongType()),
            StructField("text", StringType()), StructField("number", IntegerType()),
        ]
    ),
    features=Features(generated=(("number", "CAST(text AS INT)"),)),
    checks=(Check("ratio", "a / b >= 1"), Check("small", "n < 1000")),
)  # fmt: skip
GOOD = {"a": 4, "b": 2, "text": "7"}
BAD = {3: {"b": 0}, 8: {"text": "seven"}, 9: {"text": "9" * 40}, 12: {"a": 1}, 1_000: {}}
REASONS = {3: "[DIVIDE_BY_ZERO", 8: "[CAST_INVALID_INPUT", 9: "[CAST_", 12: "check ratio is broken",
           1_000: "check small is broken"}  # fmt: skip
NUMBERS = (*range(20), 1_000)
STORED = [n for n in NUMBERS if n not in BAD]


def records() -> Iterator[dict[str, Any]]:
    for number in NUMBERS:
        yield {"n": number} | GOOD | BAD.get(number, {})


def reasons(sink: DeltaSink, settings: Settings) -> dict[int, str]:
    found = letters(sink, settings)
    assert len({letter["record"]["n"] for letter in found}) == len(found), "each once"
    return {letter["record"]["n"]: letter["reason"] for letter in found}


def assert_all_told(found: dict[int, str]) -> None:
    assert sorted(found) == sorted(REASONS)
    assert {n: reason[: len(REASONS[n])] for n, reason in found.items()} == REASONS


@pytest.mark.case("K-ONE-BAD-ROW")
def test_a_row_for_which_a_check_or_a_computed_column_fails_is_a_dead_letter_and_the_others_are_stored_once(
    classic: SparkSession, settings: Settings
) -> None:
    with DeltaSink(RATIOS, "test", settings, BY_HAND) as sink:
        for record in records():
            sink.submit(record)
        sink.flush(PATIENCE)
    assert sorted(row[0] for row in rows_of(RATIOS, settings.root)) == STORED
    assert_all_told(reasons(sink, settings))
    assert [e.epoch for e in epochs(RATIOS.location(settings.root))] == [1]


def commits_in(folder: Path) -> list[Path]:
    return list(folder.glob("_delta_log/*.json"))


@contextmanager
def snapshots(of: Path, to: Path) -> Iterator[list[Path]]:
    """A copy of a folder after every change of a name in it."""
    found: list[Path] = []

    def seen(act: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any, **named: Any) -> None:
            act(*arguments, **named)
            found.append(Path(shutil.copytree(of, to / str(len(found)))))

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", seen(os.replace))
        yield found


@pytest.mark.exhaustive
def test_a_batch_that_is_cut_is_written_once_wherever_the_process_is_killed(
    classic: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    journal, dead = tmp_path / "journal", tmp_path / "letters"
    options = replace(BY_HAND, journal=journal, dead_letters=dead)
    with snapshots(tmp_path, tmp_path.parent / "left") as states, DeltaSink(RATIOS, "test", settings, options) as sink:
        for record in records():
            sink.submit(record)
        sink.flush(PATIENCE)
    table_of = Path(RATIOS.location(settings.root))
    committed = Path(shutil.copytree(table_of, tmp_path.parent / "committed"))
    checked = 0
    # Rows are given up twice, those that raise before those that break a check; the commit comes after both.
    kept = [{path.name: path.read_bytes() for path in state.glob("journal/*/*/good-*.parquet")} for state in states]
    last = next(files for files in reversed(kept) if files)
    for state, files in zip(states, kept, strict=True):
        if not list(state.glob("journal/*/*/batch-*.json")):
            continue
        then = state / table_of.relative_to(tmp_path)
        # Between a commit and the journal's word of it nothing is given a name, so that moment is made here.
        unsaid = files == last and len(commits_in(then)) < len(commits_in(committed))
        for table_left in (then, committed) if unsaid else (then,):
            shutil.rmtree(table_of, ignore_errors=True)
            if table_left.exists():
                shutil.copytree(table_left, table_of)
            left = Path(shutil.copytree(state, tmp_path.parent / f"run {checked}"))
            own = replace(BY_HAND, journal=left / "journal", dead_letters=left / "letters")
            with DeltaSink(RATIOS, "test", settings, own) as again:
                again.flush(PATIENCE)
            assert sorted(row[0] for row in rows_of(RATIOS, settings.root)) == STORED
            assert_all_told(reasons(again, settings))
            checked += 1
    print(f"killed at {checked} places")
    assert checked > 3


def test_a_segment_goes_when_its_commit_is_synced_and_not_before(
    classic: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, held = list[Path](), list[int]()
    real = durable._sync

    def sync(path: Path) -> bool:
        journal, _ = sink_folders(RATIOS, "test", settings, BY_HAND)
        held.append(len(list(journal.glob("segment-*.parquet"))))
        synced.extend([path] if path.is_file() else [])
        return real(path)

    monkeypatch.setattr(durable, "_sync", sync)
    with DeltaSink(RATIOS, "test", settings, BY_HAND) as sink:
        for number in (1, 2):
            sink.submit({"n": number} | GOOD)
            sink.flush(PATIENCE)
    folder = Path(RATIOS.location(settings.root))
    assert set(held) == {1}
    assert len(set(synced)) == len(synced), "each once"
    assert set(synced) == {*folder.glob("_delta_log/*.json"), *folder.glob("*.parquet")}
    with_journal = Journal(sink_folders(RATIOS, "test", settings, BY_HAND)[0], "ratios", "test")
    with_journal.open()
    assert with_journal.synced_version == 2
    with_journal.close()


def searched_lines(count: int) -> list[bytes]:
    found: list[bytes] = []

    @seed(8)
    @searched(max_examples=count, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(lines=st.lists(LINES, min_size=1, max_size=4))
    def gather(lines: list[bytes]) -> None:
        found.extend(lines)

    gather()
    return found


@pytest.mark.exhaustive
def test_any_lines_are_rows_of_a_real_table_or_dead_letters(classic: SparkSession, settings: Settings) -> None:
    corpus = [content for content, *_ in (*HOSTILE_LINES.values(), *FITTING_LINES.values())]
    lines = [*corpus, *searched_lines(600)]
    found = [record for record in parsed(WIDE, *lines) if record is not None]
    with DeltaSink(WIDE, "test", settings, SinkSettings(flush_seconds=600, compact_after=0)) as sink:
        receipts = [sink.submit(record) for record in found]
        sink.flush(PATIENCE)
    stored = len(table(WIDE, settings.root))
    refused = sum(receipt.result().refused for receipt in receipts)
    told = letters(sink, settings)
    print(f"{len(lines)} lines, {stored} rows, {len(told)} dead letters, of these {refused} at the intake")
    assert stored + len(told) == len(found)
    assert all(letter["reason"] for letter in told)
    json.dumps(told)
