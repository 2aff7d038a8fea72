"""Writers in processes of their own: what they write, the process itself, and a handle on it.

Run as `python -m pipeline_tests.children.writers JOB`. A child tells on its output that it is ready, waits for a line,
and then tells of every batch when it begins and what became of it. What a batch holds depends on its kind, its writer
and its epoch alone, so that a test knows every right end without asking Spark.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, Merge, Replace
from pipeline.delta.log.commits import commit_note
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.spark.connect import embedded_environment
from pipeline.delta.spark.session import open_session
from pipeline.delta.sql.slices import Slice, of_values
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import PipelineError
from pipeline_tests.children import child_settings
from pipeline_tests.delta.sample import actions_of, frame_of, versions_of

ROW = StructType(
    [
        StructField("part", StringType()), StructField("k", StringType()), StructField("at", LongType()),
        StructField("v", StringType()),
    ]
)  # fmt: skip
# Batches of the merges meet in these keys, three at a time.
SHARED_KEYS = 7
# Every so many merges of the counters one stays in the partition of its writer.
ALONE_EVERY = 3
PARTS = 3
Row = tuple[str, str, int, str]


def _dataset(name: str, **declaration: Any) -> Dataset:
    return Dataset(name=name, schema=ROW, partition_by=("part",), **declaration)


DATASETS = {
    dataset.name: dataset
    for dataset in (
        _dataset("append", write=Append()),
        _dataset("merge", write=Merge(), keys=("k",)),
        _dataset("replace", write=Replace()),
        _dataset("counters", write=Merge(order_by="at"), keys=("part", "k")),
    )
}


def rows_of_batch(kind: str, writer: int, epoch: int) -> list[Row]:
    """The rows of one batch. Orders are greater in later epochs and never the same for two writers."""
    at, said, own = epoch * 100 + writer, f"{writer}.{epoch}", f"own-{writer}"
    if kind == "append":
        return [(f"p{epoch % PARTS}", f"{said}.{n}", at, said) for n in range(3)]
    if kind == "replace":
        return [(f"p{epoch % PARTS}", f"{n}", at, said) for n in range(1 + epoch % 4)]
    shared = [f"{(epoch + n) % SHARED_KEYS}" for n in range(3)]
    if kind == "merge":
        return [(f"p{int(key) % PARTS}", key, at, said) for key in shared] + [("p0", f"new-{said}", at, said)]
    alone = [(own, key, at, said) for key in ("a", f"b{epoch}")]
    # The row of a key that nobody else has shows a lost update even where a later order would hide it.
    together = [("shared", key, at, said) for key in (*shared, f"new-{said}")]
    return alone if is_alone(epoch) else alone + together


def is_alone(epoch: int) -> bool:
    """Whether this merge of the counters touches no partition that others touch."""
    return epoch % ALONE_EVERY == 0


def rows_after(kind: str, batches: Iterable[list[Row]]) -> list[Row]:
    """The table after these batches, one after the other."""
    rows: list[Row] = []
    for batch in batches:
        if kind == "append":
            rows += batch
        elif kind == "replace":
            rows = [row for row in rows if row[0] != batch[0][0]] + batch
        else:
            there = {row[:2]: row for row in rows}
            newer = {r[:2]: r for r in batch if kind == "merge" or r[:2] not in there or r[2] > there[r[:2]][2]}
            rows = list((there | newer).values())
    return sorted(rows)


def slice_of_batch(kind: str, epoch: int) -> Slice | None:
    return of_values("part", [f"p{epoch % PARTS}"]) if kind == "replace" else None


def write_batch(spark: SparkSession, root: str, kind: str, writer: int, epoch: int) -> WriteResult:
    """Write a batch under its writer and epoch."""
    dataset = DATASETS[kind]
    return write(
        frame_of(spark, dataset, rows_of_batch(kind, writer, epoch)), table=dataset.at(root),
        note=CommitNote(mark=Mark(writer=f"writer-{writer}", epoch=epoch)), within=slice_of_batch(kind, epoch),
    )  # fmt: skip


def marks_of(kind: str, root: str) -> dict[int, dict[str, Any]]:
    """By version, the mark of each commit that wrote rows, from its file in the log."""
    marks = {}
    for version in versions_of(DATASETS[kind], root):
        actions = actions_of(DATASETS[kind], root, version)
        info: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
        if any("add" in action or "remove" in action for action in actions):
            marks[version] = (commit_note(info.get("userMetadata")) or {})["mark"]
    return marks


# --- the handle -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Job:
    """Batches by kind, from the first epoch to the last; of several kinds in threads if `together`.

    A batch that fails is written again, up to `repeats` times.
    """

    root: str
    writer: int
    work: tuple[tuple[str, int, int], ...]
    remote: str | None
    cache: str
    conf: tuple[tuple[str, str], ...] = ()
    together: bool = False
    repeats: int = 0


@dataclass
class Child:
    """A child process and what it has told so far; with its JVM, where it has one, it is one process group."""

    job: Job
    told: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(asdict(self.job))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env=embedded_environment(),
        )  # fmt: skip
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def next(self, seconds: float = 300) -> dict[str, Any] | None:
        """What it tells next; None once it has ended."""
        line = self._lines.get(timeout=seconds)
        if not line:
            return None
        self.told.append(json.loads(line))
        return self.told[-1]

    def start(self) -> None:
        """Wait until it is ready, and let it begin."""
        assert self.next() == {"event": "ready"}
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End it and its JVM at once, wherever they are, and read what it had still told."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        while self.next() is not None:
            pass

    def finish(self, seconds: float = 300) -> int:
        """Read to its end, with so much patience between two lines; its exit status."""
        while self.next(seconds) is not None:
            pass
        return self.process.wait(60)

    def done(self, kind: str) -> list[dict[str, Any]]:
        """What became of its batches of a kind."""
        return [line for line in self.told if line["event"] == "done" and line["kind"] == kind]

    def close(self) -> None:
        """End what is left of it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


# --- the child --------------------------------------------------------------------------------------------------------


def main(job: Job) -> None:
    spark = open_session(child_settings(job.root, job.cache, job.conf, job.remote))
    told = threading.Lock()

    def tell(**line: Any) -> None:
        with told:
            print(json.dumps(line), flush=True)

    def written(kind: str, epoch: int, repeats: int) -> WriteResult:
        try:
            return write_batch(spark, job.root, kind, job.writer, epoch)
        except PipelineError as error:
            if not repeats:
                raise
            tell(event="failed", kind=kind, epoch=epoch, error=type(error).__name__)
        return written(kind, epoch, repeats - 1)

    def work(kind: str, first: int, last: int) -> None:
        for epoch in range(first, last + 1):
            tell(event="begin", kind=kind, epoch=epoch)
            result = written(kind, epoch, job.repeats)
            tell(
                event="done", kind=kind, epoch=epoch, version=result.version, skipped=result.skipped,
                committed=result.committed, attempt=result.mark.attempt, token=result.mark.token,
            )  # fmt: skip

    tell(event="ready")
    sys.stdin.readline()
    with ThreadPoolExecutor(len(job.work) if job.together else 1) as pool:
        for done in [pool.submit(work, *part) for part in job.work]:
            done.result()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    main(Job(**given | {"work": tuple(map(tuple, given["work"])), "conf": tuple(map(tuple, given["conf"]))}))
