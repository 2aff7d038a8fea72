"""The note of a commit as JSON: what it has is read again, what is empty is left out, and older notes are read."""

from __future__ import annotations

import json

from pipeline.delta.log.mark import CommitNote, Mark

MARK = Mark(writer="writer", epoch=0)


def test_a_note_is_read_as_it_was_written() -> None:
    note = CommitNote(
        mark=MARK, run_id="run", asset="lab/mean", sources={"readings": 3}, code_version="7",
        order={"keys": ("id", "day"), "order_by": ("at",)},
    )  # fmt: skip
    assert CommitNote.from_document(json.loads(json.dumps(note.document()))) == note


def test_what_is_empty_is_not_in_a_note() -> None:
    assert sorted(CommitNote(mark=MARK).document()) == ["asset", "mark", "partitions", "run_id", "sources"]


def test_a_note_of_an_earlier_version_is_read() -> None:
    note = {"mark": vars(MARK), "run_id": "run", "asset": "a", "partitions": None, "sources": {}}
    read = CommitNote.from_document(note)
    assert (read.run_id, read.code_version, read.order) == ("run", None, {})
