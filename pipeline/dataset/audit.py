"""When the expectations of a dataset are judged, and the contradictions between that and the rest of its declaration.

Here belongs the choice between an audit before the commit and checks after it. The audit itself belongs to
`pipeline.delta.write`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from pipeline.dataset.expectations import Expect, Expectation, RowCount, expectation_name
from pipeline.dataset.write_mode import History, WriteMode

Audit = Literal["after", "before"]


def audit_problems(
    audit: Audit, mode: WriteMode, expectations: Sequence[Expectation], row_count: RowCount | None, *, change_feed: bool
) -> Iterator[str]:
    """Messages about an audit that could refuse nothing, and about rows of a write that can't be found after it."""
    if audit not in get_args(Audit):
        yield f"audit {audit!r} is neither after nor before"
    declared: tuple[Expectation | RowCount, ...] = (*expectations, *(() if row_count is None else (row_count,)))
    if audit == "before" and isinstance(mode, History):
        yield "audit='before': the spans that a History makes are known only after its statement; declare audit='after'"
    elif audit == "before" and not any(one.blocking for one in declared):
        yield "audit='before' refuses no write: declare blocking=True for an expectation or for row_count"
    for one in expectations:
        of_write = isinstance(one, Expect) and one.over == "write"
        if of_write and audit == "after" and not change_feed:
            problem = "after a write its rows are found in the change feed; declare change_feed, or audit='before'"
            yield f"expectation {expectation_name(one)}: {problem}"
