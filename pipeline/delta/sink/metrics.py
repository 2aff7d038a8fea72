"""The numbers of a sink since its start.

Here belong the counters and the value that is returned. Nothing is measured here: the other parts report to it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

# The number of newest flushes whose times are kept for the percentiles: an hour at three seconds each.
KEPT = 1_200
_MEDIAN, _HIGH = 0.5, 0.95


@dataclass(frozen=True, kw_only=True)
class SinkMetrics:
    """The numbers of a sink at one moment.

    `rows_submitted` counts submitted rows, `rows_acknowledged` rows on disk, and `rows_committed` rows in the table,
    rows of an earlier process included. `buffered_rows` wait in memory, `backlog_rows` on disk. A flush is a commit.
    The percentiles are those of the durations of the newest 1 200 flushes, None if there was none.
    """

    rows_submitted: int = 0
    rows_acknowledged: int = 0
    rows_committed: int = 0
    bytes_acknowledged: int = 0
    flushes: int = 0
    replays: int = 0
    flush_seconds_p50: float | None = None
    flush_seconds_p95: float | None = None
    buffered_rows: int = 0
    backlog_rows: int = 0
    backlog_segments: int = 0
    dead_letters: int = 0
    first_version: int | None = None
    last_version: int | None = None

    @property
    def line(self) -> str:
        """All numbers in one line of a log."""
        p50, p95 = (None if s is None else round(s, 3) for s in (self.flush_seconds_p50, self.flush_seconds_p95))
        return (
            f"rows={self.rows_committed} acknowledged={self.rows_acknowledged} bytes={self.bytes_acknowledged} "
            f"flushes={self.flushes} replays={self.replays} flush_p50={p50} flush_p95={p95} "
            f"buffered={self.buffered_rows} backlog={self.backlog_rows} dead_letters={self.dead_letters} "
            f"versions={self.first_version}..{self.last_version}"
        )


class SinkCounters:
    """The counters of one sink. Any thread may add to them."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._submitted = self._acknowledged = self._committed = self._bytes = self._letters = self._replays = 0
        self._flushes = 0
        self._seconds: deque[float] = deque(maxlen=KEPT)
        self._versions: tuple[int | None, int | None] = (None, None)

    def submitted(self, rows: int) -> None:
        """Count submitted rows."""
        with self._guard:
            self._submitted += rows

    def acknowledged(self, rows: int, size_bytes: int) -> None:
        """Count rows that are on disk."""
        with self._guard:
            self._acknowledged += rows
            self._bytes += size_bytes

    def refused(self, letters: int) -> None:
        """Count dead letters."""
        with self._guard:
            self._letters += letters

    def committed(self, rows: int, seconds: float, version: int, *, replay: bool) -> None:
        """Count a finished flush. `version` is the version that holds its rows."""
        with self._guard:
            self._committed += rows
            self._flushes += 1
            self._replays += replay
            self._seconds.append(seconds)
            first, _ = self._versions
            self._versions = (version if first is None else first, version)

    def read(self, *, buffered_rows: int, backlog: tuple[int, int]) -> SinkMetrics:
        """The current numbers."""
        with self._guard:
            seconds = sorted(self._seconds)
            return SinkMetrics(
                rows_submitted=self._submitted,
                rows_acknowledged=self._acknowledged,
                rows_committed=self._committed,
                bytes_acknowledged=self._bytes,
                flushes=self._flushes,
                replays=self._replays,
                flush_seconds_p50=_percentile(seconds, _MEDIAN),
                flush_seconds_p95=_percentile(seconds, _HIGH),
                buffered_rows=buffered_rows,
                backlog_rows=backlog[0],
                backlog_segments=backlog[1],
                dead_letters=self._letters,
                first_version=self._versions[0],
                last_version=self._versions[1],
            )


def _percentile(ascending: Sequence[float], share: float) -> float | None:
    """The least value that is not less than that share of the values. If there are none, None."""
    if not ascending:
        return None
    return ascending[max(0, -int(-share * len(ascending) // 1) - 1)]
