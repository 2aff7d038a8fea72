"""The write-ahead copies of a sink: whole or not there, of one process at a time, and replayed as they were begun."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.delta.journal import Journal, Segment, tables
from pipeline.errors import JournalError, SinkRunningError
from pipeline_tests.children.receiver import SOURCE, Child

EVERYTHING = 1_000_000


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


@contextmanager
def opened(folder: Path) -> Iterator[Journal]:
    journal = Journal(folder, "updates", "test")
    journal.open()
    try:
        yield journal
    finally:
        journal.close()


def ids(segments: tuple[Segment, ...]) -> list[int]:
    return tables(segments).column("id").to_pylist() if segments else []  # type: ignore[no-any-return]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"lock", "committed.json"}


def killed(folder: Path, to: Path) -> Path:
    """The folder as a process would leave it that is killed at this moment."""
    shutil.copytree(folder, to)
    return to


def test_what_was_appended_is_there_for_the_next_process_in_its_order(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.append(rows(3, 1), {"file": 10})
        journal.append(rows(2), {"file": 20, "other": 1})
        assert (journal.backlog, journal.newest) == ((3, 2), 2)
    with opened(tmp_path) as journal:
        assert ids(journal.loose) == [3, 1, 2]
        assert journal.unfinished is None
        assert journal.positions == {"file": 20, "other": 1}
        assert journal.append(rows(4)).number == 3


def test_a_batch_is_replayed_as_it_was_begun_whatever_came_after_it(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as journal:
        for number in (1, 2, 3):
            journal.append(rows(number))
        begun = journal.begin(7, rows=2)
        assert begun is not None
        assert ids(begun.segments) == [1, 2]
        journal.append(rows(4))
        left = killed(tmp_path / "one", tmp_path / "left")
    with opened(left) as journal:
        again = journal.unfinished
        assert again is not None
        assert (again.epoch, again.token, ids(again.segments)) == (7, begun.token, [1, 2])
        assert ids(journal.loose) == [3, 4]
        assert (journal.last_epoch, journal.backlog) == (7, (4, 4))
        assert journal.holds(1)
        journal.end(again)
        assert not journal.holds(2)
        assert journal.holds(3)
        second = journal.begin(8, rows=EVERYTHING)
        assert second is not None
        journal.end(second)
    assert files(left) == set()
    with opened(left) as journal:
        assert (journal.last_epoch, journal.newest, journal.unfinished, journal.loose) == (8, 4, None, ())


def test_one_batch_at_a_time_and_none_of_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        assert journal.begin(1, rows=EVERYTHING) is None
        journal.append(rows(1, 2, 3))
        assert journal.begin(1, rows=1) is not None, "one segment always"
        with pytest.raises(JournalError, match="epoch 1 has not ended"):
            journal.begin(2, rows=1)


def test_segments_of_another_shape_are_another_batch(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.append(rows(1))
        journal.append(pa.table({"id": ["one"]}))
        journal.append(rows(2))
        batches = []
        while (batch := journal.begin(len(batches) + 1, rows=EVERYTHING)) is not None:
            batches.append(ids(batch.segments))
            journal.end(batch)
    assert batches == [[1], ["one"], [2]]


def test_a_kill_between_the_commit_and_the_end_of_its_files_brings_no_row_back(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as journal:
        journal.append(rows(1), {"file": 5})
        batch = journal.begin(1, rows=EVERYTHING)
        assert batch is not None
        before = killed(tmp_path / "one", tmp_path / "before")
        journal.end(batch)
    # The end is one file; what it names may still be there.
    shutil.copy(tmp_path / "one" / "committed.json", before)
    assert len(files(before)) == 2
    with opened(before) as journal:
        assert (journal.unfinished, journal.loose, journal.last_epoch) == (None, (), 1)
        assert (journal.positions, journal.append(rows(2)).number) == ({"file": 5}, 2)


def test_other_rows_of_a_batch_take_the_place_of_all_of_its_segments(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as journal:
        journal.append(rows(1))
        journal.append(rows(2))
        batch = journal.begin(4, rows=EVERYTHING)
        assert batch is not None
        journal.append(rows(3))
        before = killed(tmp_path / "one", tmp_path / "before")
        good = journal.replace(batch, rows(2))
        again = journal.replace(good, rows(2))
        assert (again.epoch, again.token, ids(again.segments)) == (4, batch.token, [2])
        left = killed(tmp_path / "one", tmp_path / "left")
    # Killed after the batch was written anew and before its segments went: they are no rows of their own.
    for path in before.glob("segment-*"):
        shutil.copy(path, left)
    for folder, held in ((left, [2]), (before, [1, 2])):
        with opened(folder) as journal:
            assert journal.unfinished is not None
            assert (ids(journal.unfinished.segments), ids(journal.loose)) == (held, [3])


def test_a_copy_that_was_never_acknowledged_is_swept_away(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        whole = journal.append(rows(1)).path
    (tmp_path / "segment-00000000000000000002.parquet.tmp").write_bytes(whole.read_bytes()[:20])
    (tmp_path / "good-00000000000000000001-abc.parquet").write_bytes(whole.read_bytes()[:20])
    with opened(tmp_path) as journal:
        assert ids(journal.loose) == [1]
    assert files(tmp_path) == {whole.name}


@pytest.mark.parametrize("damage", ["cut off", "empty", "a page"])
def test_an_acknowledged_copy_that_is_damaged_is_told_by_name_and_nothing_starts(tmp_path: Path, damage: str) -> None:
    with opened(tmp_path) as journal:
        path = journal.append(rows(*random.Random(1).sample(range(1 << 40), 5_000))).path
    content = bytearray(path.read_bytes())
    if damage == "a page":
        content[5_000] ^= 0xFF
    path.write_bytes(content[: {"cut off": len(content) // 2, "empty": 0}.get(damage, len(content))])
    with pytest.raises(JournalError) as caught:
        Journal(tmp_path, "updates", "test").open()
    assert caught.value.path == str(path)
    path.unlink()
    with opened(tmp_path) as journal:  # the lock was let go
        assert journal.loose == ()


def test_a_batch_whose_segments_are_gone_or_that_is_no_json_is_told_by_name(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        segment = journal.append(rows(1))
        journal.begin(1, rows=EVERYTHING)
    segment.path.unlink()
    with pytest.raises(JournalError, match=f"of its files {segment.path.name} are missing"):
        Journal(tmp_path, "updates", "test").open()
    (batch,) = tmp_path.glob("batch-*")
    batch.write_text("{", encoding="utf-8")
    with pytest.raises(JournalError) as caught:
        Journal(tmp_path, "updates", "test").open()
    assert caught.value.path == str(batch)


def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError):
        Journal(tmp_path / "file" / "journal", "updates", "test").open()


def test_a_second_process_is_refused_while_the_first_one_lives_and_not_after_it_was_killed(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    with Child(tmp_path) as child:
        with pytest.raises(SinkRunningError) as caught:
            Journal(folder, "updates", "test").open()
        assert (caught.value.writer, caught.value.folder) == ("test", str(folder))
        child.kill()
        with opened(folder):
            pass


def test_processes_that_are_killed_lose_and_double_nothing_that_they_have_acknowledged(tmp_path: Path) -> None:
    rng, told, first = random.Random(8), list[int](), 1
    for _ in range(4):
        with Child(tmp_path, first) as child:
            child.wait_for(rng.randrange(1, 400))
            child.kill()
        told += child.told
        with opened(tmp_path / "journal") as journal:
            kept = ids(journal.loose)
            first = journal.positions[SOURCE] + 1
        assert sorted(set(kept)) == sorted(kept) == list(range(1, first)), "the position is that of the rows"
        assert set(told) <= set(kept)


def test_what_the_files_say_is_no_secret(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.append(rows(1))
        batch = journal.begin(1, rows=EVERYTHING)
        assert batch is not None
        journal.end(batch)
    document = json.loads((tmp_path / "committed.json").read_text(encoding="utf-8"))
    assert (document["epoch"], document["token"], document["next_segment"]) == (1, batch.token, 2)
