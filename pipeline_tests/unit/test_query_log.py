"""What a batch of a streaming query is made of, from its checkpoint as Spark writes it."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.delta.stream.query_log import batch_content, name_beside, query_id


def put(checkpoint: Path, name: str, *lines: object) -> None:
    path = checkpoint / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")


def plan(checkpoint: Path, number: int, *offsets: object, at: int = 1) -> None:
    put(checkpoint, f"offsets/{number}", "v1", {"batchTimestampMs": at}, *offsets)


def file(name: str, batch: int) -> dict[str, object]:
    return {"path": f"file:///in/{name}", "timestamp": 1, "batchId": batch}


def content(checkpoint: Path, number: int) -> str | None:
    return batch_content(str(checkpoint), number)


def test_a_batch_of_files_is_known_by_the_files_and_not_by_when_it_was_planned(tmp_path: Path) -> None:
    plan(tmp_path, 0, {"logOffset": 0})
    plan(tmp_path, 1, {"logOffset": 1})
    put(tmp_path, "sources/0/0", "v1", file("a", 0))
    put(tmp_path, "sources/0/1", "v1", file("b", 1))
    first, second = content(tmp_path, 0), content(tmp_path, 1)
    assert None not in (first, second)
    assert first != second
    plan(tmp_path, 1, {"logOffset": 1}, at=2)
    assert content(tmp_path, 1) == second
    put(tmp_path, "sources/0/1", "v1", file("b", 1), file("c", 1))
    assert content(tmp_path, 1) != second
    assert content(tmp_path, 2) is None


def test_files_that_spark_has_put_together_are_found_and_files_that_are_gone_are_another_batch(tmp_path: Path) -> None:
    for number in range(3):
        plan(tmp_path, number, {"logOffset": number})
        put(tmp_path, f"sources/0/{number}", "v1", file(f"{number}", number))
    before = [content(tmp_path, number) for number in range(3)]
    for number in range(3):
        (tmp_path / f"sources/0/{number}").unlink()
    put(tmp_path, "sources/0/2.compact", "v1", *(file(f"{number}", number) for number in range(3)))
    assert [content(tmp_path, number) for number in range(3)] == before
    (tmp_path / "sources/0/2.compact").unlink()
    assert not set(before) & {content(tmp_path, number) for number in range(3)}


def test_files_that_were_found_while_no_batch_was_planned_belong_to_the_next_one(tmp_path: Path) -> None:
    plan(tmp_path, 0, {"logOffset": 0})
    plan(tmp_path, 1, {"logOffset": 2})
    for number in range(3):
        put(tmp_path, f"sources/0/{number}", "v1", file(f"{number}", number))
    whole = content(tmp_path, 1)
    put(tmp_path, "sources/0/1", "v1", file("other", 1))
    assert content(tmp_path, 1) != whole


def test_other_sources_are_known_by_their_offsets_however_spark_writes_them(tmp_path: Path) -> None:
    plan(tmp_path, 0, {"topic": {"0": 5}}, "-")
    plan(tmp_path, 1, {"topic": {"0": 9}}, {"reservoirVersion": 3})
    one, other = content(tmp_path, 0), content(tmp_path, 1)
    assert one != other
    plan(tmp_path, 1, {"topic": {"0": 10}}, {"reservoirVersion": 3})
    assert content(tmp_path, 1) not in (one, other)
    for named in ('updates:{"logOffset":0}', json.dumps({"updates": '{"logOffset":0}'})):
        plan(tmp_path, 0, named)
        put(tmp_path, "sources/updates/0", "v1", file("a", 0))
        found = content(tmp_path, 0)
        put(tmp_path, "sources/updates/0", "v1", file("b", 0))
        assert content(tmp_path, 0) != found


def test_a_checkpoint_has_an_id_and_a_name_that_move_with_it(tmp_path: Path) -> None:
    assert query_id(str(tmp_path / "nothing")) is None
    put(tmp_path, "metadata", {"id": "one"})
    assert query_id(str(tmp_path)) == "one"
    assert name_beside("/a/streams/x/", "/a/x") == name_beside("file:///b/streams/x", "file:/b/x") == "../streams/x"
