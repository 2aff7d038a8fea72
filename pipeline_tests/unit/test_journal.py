"""The write-ahead copies of a sink: whole or not there, of one process at a time, and replayed as they were begun."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.delta.sink.journal import Journal
from pipeline.delta.sink.segments import Segment, table_of
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
    return table_of(segments).column("id").to_pylist() if segments else []  # type: ignore[no-any-return]


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
    (tmp_path / "good-00000000000000000001-0123abcd.parquet").write_bytes(whole.read_bytes()[:20])
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


# --- what lies there is data ------------------------------------------------------------------------------------------


def refused(folder: Path) -> JournalError:
    with pytest.raises(JournalError) as caught:
        Journal(folder, "updates", "test").open()
    return caught.value


def test_segments_of_one_read_are_all_there_or_none_is_wherever_it_was_killed(tmp_path: Path) -> None:
    other = pa.table({"id": pa.array([2], pa.int64()), "more": ["x"]})
    states = list[Path]()
    real = os.replace, os.unlink
    with opened(tmp_path / "one") as journal, pytest.MonkeyPatch.context() as patch:
        journal.append(rows(1), {"file": 1})

        def seen(act: Callable[..., None]) -> Callable[..., None]:
            def call(*arguments: Any, **named: Any) -> None:
                act(*arguments, **named)
                states.append(killed(tmp_path / "one", tmp_path / f"left {len(states)}"))

            return call

        for name, act in zip(("replace", "unlink"), real, strict=True):
            patch.setattr(os, name, seen(act))
        journal.append_all([other, rows(3)], {"file": 3})
    assert len(states) > 4
    for left in states:
        with opened(left) as journal:
            kept = [i for segment in journal.loose for i in ids((segment,))]
            assert (kept, journal.positions) in (([1], {"file": 1}), ([1, 2, 3], {"file": 3}))
            assert journal.append(rows(9)).number == len(journal.loose)
    assert files(states[-1]) == {path.name for path in states[-1].glob("segment-*.parquet")}


def test_a_segment_that_is_missing_from_the_middle_is_told_by_its_number(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        _, second, _ = (journal.append(rows(number)) for number in (1, 2, 3))
        journal.begin(1, rows=1)
    away = second.path.rename(tmp_path.parent / second.path.name)
    assert refused(tmp_path).reason == "segments 2 are missing"
    # As the remedy says: back under its name, or given up by name.
    shutil.copy(away, second.path)
    with opened(tmp_path) as journal:
        assert ids(journal.loose) == [2, 3]
    second.path.rename(f"{second.path}.given-up")
    with opened(tmp_path) as journal:
        assert (ids(journal.loose), journal.newest) == ([3], 3)


def test_the_newest_segments_are_missed_as_far_as_a_batch_knew_of_them(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        segments = [journal.append(rows(number)) for number in (1, 2, 3)]
        journal.begin(1, rows=1)
    segments[2].path.unlink()
    assert refused(tmp_path).reason == "segments 3 are missing"


def test_a_batch_goes_on_without_what_was_given_up_of_it_under_its_own_epoch(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        segments = [journal.append(rows(number)) for number in (1, 2, 3)]
        begun = journal.begin(7, rows=2)
        assert begun is not None
    segments[0].path.rename(f"{segments[0].path}.given-up")
    with opened(tmp_path) as journal:
        again = journal.unfinished
        assert again is not None
        assert (again.epoch, again.token, ids(again.segments)) == (7, begun.token, [2])
        assert ids(journal.loose) == [3]
    segments[1].path.rename(f"{segments[1].path}.given-up")
    with opened(tmp_path) as journal:
        assert (journal.unfinished, ids(journal.loose), journal.last_epoch) == (None, [3], 7)
    with opened(tmp_path) as journal:
        assert ids(journal.loose) == [3]


def test_a_segment_under_another_number_is_told_by_name(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        first = journal.append(rows(1)).path
    copy = first.with_name(first.name.replace("0001-", "0002-"))
    shutil.copy(first, copy)
    error = refused(tmp_path)
    assert (error.path, error.reason) == (str(copy), "it was written as segment 1")


def test_no_byte_of_a_segment_can_be_changed_unseen(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        path = journal.append(rows(*range(50))).path
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert refused(tmp_path).path == str(path)


def test_a_journal_without_digests_is_read(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        segments = [journal.append(rows(number), {"file": number}) for number in (1, 2)]
    for segment in segments:
        table = pq.read_table(segment.path)
        segment.path.unlink()
        path = tmp_path / f"segment-{segment.number:020d}.parquet"
        with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({b"pipeline.positions": json.dumps({"file": segment.number}).encode()})
    batch = {"epoch": 3, "token": "0" * 32, "segments": [f"segment-{1:020d}.parquet"], "replaces": [],
             "next_segment": 2}  # fmt: skip
    (tmp_path / f"batch-{3:020d}.json").write_text(json.dumps(batch))
    with opened(tmp_path) as journal:
        assert journal.unfinished is not None
        assert (ids(journal.unfinished.segments), ids(journal.loose)) == ([1], [2])
        assert (journal.positions, journal.append(rows(3)).number) == ({"file": 2}, 3)


CRAFTED: dict[str, dict[str, Any]] = {
    "a name elsewhere": {"segments": ["../x"]},
    "an absolute name": {"segments": ["/etc/x"]},
    "a replaced name elsewhere": {"replaces": ["../x"]},
    "the lock": {"segments": ["lock"]},
    "no list": {"segments": "segment"},
    "no text": {"segments": [1]},
    "no number": {"epoch": "1"},
    "a truth for a number": {"next_segment": True},
    "a number below": {"next_segment": 0},
    "a token that is a path": {"token": "../../../x"},
    "no positions": {"positions": {"file": "far"}},
}


@pytest.mark.parametrize("name", CRAFTED)
@pytest.mark.parametrize("file", ["committed.json", "batch-00000000000000000002.json", "together.json"])
def test_a_crafted_document_is_refused_and_no_file_is_removed(tmp_path: Path, name: str, file: str) -> None:
    outside = tmp_path / "x"
    outside.write_text("mine")
    folder = tmp_path / "journal"
    with opened(folder) as journal:
        journal.append(rows(1))
    usual = {"epoch": 2, "token": "0" * 32, "segments": [], "replaces": [], "positions": {}, "next_segment": 2}
    (folder / file).write_text(json.dumps(usual | CRAFTED[name]))
    before = {path.name for path in folder.iterdir()}
    assert refused(folder).path == str(folder / file)
    assert {path.name for path in folder.iterdir()} == before
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("content", ["[]", "17", "[" * 100_000, "\xff"])
def test_a_document_that_is_no_object_is_told_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "committed.json").write_text(content, encoding="latin-1")
    assert refused(tmp_path).path == str(tmp_path / "committed.json")


def test_a_lock_that_is_a_link_does_not_touch_what_it_points_to(tmp_path: Path) -> None:
    target, folder = tmp_path / "target", tmp_path / "journal"
    target.write_text("mine")
    folder.mkdir()
    (folder / "lock").symlink_to(target)
    assert refused(folder).path == str(folder / "lock")
    assert target.read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["lock", "committed.json", "batch-00000000000000000001.json", f"segment-{1:020d}.parquet", "together.json"]
)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_told_by_name_and_not_waited_for(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    assert refused(tmp_path).path == str(path)


def test_what_could_not_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with opened(tmp_path) as journal:
        journal.append(rows(1))
        before = files(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(JournalError, match="no space left"):
                journal.append_all([rows(2), pa.table({"id": ["x"]})])
        assert files(tmp_path) == before
        assert journal.append(rows(3)).number == 2
