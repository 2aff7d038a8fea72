"""Lines of JSON: read within bounds, and each that is none is a dead letter that says where it was."""

from __future__ import annotations

import hashlib
import io
from decimal import Decimal
from typing import Any

import pytest

from pipeline.delta.sink.dead_letters import EXCERPT, DeadLetter
from pipeline.delta.sink.ndjson import Line, lines, parser, record_of
from pipeline_tests.unit.sink_sample import UPDATES

LIMIT = 1 << 20
PARSE = parser(UPDATES)


def read(content: bytes, limit: int = LIMIT) -> list[Any]:
    return [record_of(line, PARSE, limit, f"line {line.number}") for line in lines(io.BytesIO(content), limit)]


def test_lines_are_records_and_blank_ones_are_nothing() -> None:
    assert read(b'{"id": 1}\n\n  \r\n{"id": 2}\r\n{"id": 3}') == [{"id": 1}, None, None, {"id": 2}, {"id": 3}]


def test_numbers_with_a_point_are_exact_for_a_dataset_with_decimals() -> None:
    assert read(b'{"fee": 0.10}\n') == [{"fee": Decimal("0.10")}]


BAD = {
    b"\xff\xfe{}": "not UTF-8 at byte 0",
    b'{"a": "\xc3"}': "not UTF-8 at byte 7",
    b'{"id": 1': "not JSON: ",
    b"[1, 2]": "not a JSON object",
    b"17": "not a JSON object",
    b"[" * 200_000: "not JSON: ",
    b'{"id": ' + b"9" * 10_000 + b"}": "not JSON: ",
}


@pytest.mark.parametrize("content", BAD, ids=lambda content: content[:12].decode("latin-1"))
def test_a_line_that_is_no_record_is_a_dead_letter_and_the_next_is_read(content: bytes) -> None:
    before, letter, after = read(b'{"id": 1}\n' + content + b'\n{"id": 2}\n')
    assert (before, after) == ({"id": 1}, {"id": 2})
    assert isinstance(letter, DeadLetter)
    assert letter.reason.startswith(BAD[content])
    assert letter.source == "line 2"
    assert letter.record["bytes"] == len(content)


class Counting(io.BytesIO):
    """A stream that knows the longest piece that was asked of it."""

    longest = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        found = super().readline(size)
        self.longest = max(self.longest, len(found))
        return found


def test_of_a_line_of_100_mb_only_a_part_is_held_and_the_next_is_read() -> None:
    content = b'{"text": "' + b"x" * 100_000_000 + b'"}'
    stream = Counting(content + b'\n{"id": 2}\n')
    letter, after = (record_of(line, PARSE, LIMIT, "stdin") for line in lines(stream, LIMIT))
    assert after == {"id": 2}
    assert letter.reason == f"the line takes {len(content)} bytes, at most {LIMIT} are allowed"
    assert (len(letter.record["text"]), letter.record["bytes"]) == (EXCERPT, len(content))
    assert letter.record["sha256"] == hashlib.sha256(content).hexdigest()
    assert stream.longest <= LIMIT + 2


@pytest.mark.parametrize("limit", [8, 9, 10, 11])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_a_line_is_too_long_by_its_content_alone(limit: int, end: bytes) -> None:
    (found,) = read(b'{"id": 17}' + end, limit)
    assert isinstance(found, DeadLetter) == (limit < 10)


def test_places_are_those_of_the_bytes_after_each_line() -> None:
    content = b"a\r\n\nlonger than that\nb"
    found = list(lines(io.BytesIO(content), 5))
    assert [content[: line.end] for line in found] == [content[:3], content[:4], content[:21], content]
    assert [line.is_complete for line in found] == [True, True, True, False]
    assert found[3] == Line(number=4, content=b"b", size_bytes=1, end=22, is_complete=False)
