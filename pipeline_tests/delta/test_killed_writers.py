"""Writers that are killed at any moment: what they had begun is there whole or not at all, and a replay adds nothing.

A child writes batches into three tables at once, is killed with its JVM, and the next one replays each batch that the
first was killed in under the same writer and epoch.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.delta.inspect.doctor import examine
from pipeline.settings import SparkSettings
from pipeline_tests.children.writers import (
    DATASETS,
    Child,
    Job,
    Row,
    marks_of,
    rows_after,
    rows_of_batch,
    write_batch,
)
from pipeline_tests.conftest import brief_conf
from pipeline_tests.delta.sample import actions_of, rows_of, versions_of

KINDS = ("append", "merge", "replace")
WRITER = 0
# At most so many batches more after each kind has written one, and so many seconds more after that.
FURTHER_BATCHES = 4
FURTHER_SECONDS = 1.5


def expected(kind: str, last: int) -> list[Row]:
    """The table after the batches up to the last, as a run without kills leaves it."""
    return rows_after(kind, [rows_of_batch(kind, WRITER, epoch) for epoch in range(1, last + 1)])


def data_files(kind: str, root: str) -> set[str]:
    """The data files on disk, below the table."""
    table = Path(DATASETS[kind].location(root))
    return {str(path.relative_to(table)) for path in table.rglob("*.parquet") if "_delta_log" not in path.parts}


def files_in_log(kind: str, root: str) -> set[str]:
    """The files that any commit speaks of."""
    actions = [a for v in versions_of(DATASETS[kind], root) for a in actions_of(DATASETS[kind], root, v)]
    return {action[name]["path"] for action in actions for name in ("add", "remove", "cdc") if name in action}


def kill_at_random(child: Child, root: str, rng: random.Random) -> None:
    """Kill the child after some batches of each kind: a while later, or as soon as a new data file is there."""
    waits_for_file, further = rng.random() < 0.5, rng.randrange(FURTHER_BATCHES)
    while not all(child.done(kind) for kind in KINDS) or further:
        line = child.next()
        assert line is not None, "the child ended by itself"
        further -= further > 0 and all(child.done(kind) for kind in KINDS)
    if waits_for_file:
        kind = rng.choice(KINDS)
        there, deadline = data_files(kind, root), time.monotonic() + 60
        while data_files(kind, root) == there and time.monotonic() < deadline:
            pass
    else:
        time.sleep(rng.uniform(0, FURTHER_SECONDS))
    child.kill()


def begun(child: Child, kind: str, first: int) -> int:
    """The epoch that the next child begins with: the one that was begun and not told as done."""
    return max([first, *(line["epoch"] + 1 for line in child.done(kind))])


def look_after_a_kill(root: str, next_epochs: dict[str, int], *, has_own_jvm: bool) -> int:
    """Each table is that of the batches before the one in flight, or of that one too; returns the number of orphans."""
    orphans = 0
    for kind, epoch in next_epochs.items():
        assert rows_of(DATASETS[kind], root) in (expected(kind, epoch - 1), expected(kind, epoch))
        if has_own_jvm:  # else the server may be at work still
            diagnosis = examine(DATASETS[kind].name, DATASETS[kind].location(root))
            unknown = data_files(kind, root) - files_in_log(kind, root)
            assert {finding.path for finding in diagnosis.findings if finding.kind == "orphan"} == unknown
            assert diagnosis.healthy
            orphans += len(unknown)
    return orphans


def run_with_kills(
    spark: SparkSession, root: str, seed: int, remotes: list[str | None], settings: SparkSettings
) -> tuple[dict[str, int], int]:
    """Kill one child for each address, None being a JVM of its own; then go on in this process. Epochs and orphans."""
    rng, epochs, orphans = random.Random(seed), dict.fromkeys(KINDS, 1), 0
    for number, remote in enumerate(remotes):
        work = tuple((kind, epoch, epoch + 10_000) for kind, epoch in epochs.items())
        child = Child(Job(root=root, writer=WRITER, work=work, remote=remote, cache=str(settings.cache),
                          conf=brief_conf(settings), together=True))  # fmt: skip
        try:
            child.start()
            kill_at_random(child, root, rng)
        finally:
            child.close()
        skipped = {line["kind"]: line["epoch"] for line in child.told if line.get("skipped")}
        assert all(epochs[kind] == epoch for kind, epoch in skipped.items()), "only a replay is skipped"
        epochs = {kind: begun(child, kind, epoch) for kind, epoch in epochs.items()}
        orphans = look_after_a_kill(root, epochs, has_own_jvm=remote is None)
        print(f"seed {seed} kill {number + 1}: next {epochs}, replays skipped {skipped}, orphans {orphans}")
    for kind, epoch in epochs.items():
        for replayed in (epoch, epoch + 1):
            write_batch(spark, root, kind, WRITER, replayed)
    return {kind: epoch + 1 for kind, epoch in epochs.items()}, orphans


def assert_as_without_kills(root: str, last: dict[str, int]) -> None:
    for kind, epoch in last.items():
        assert rows_of(DATASETS[kind], root) == expected(kind, epoch)
        commits = Counter(mark["epoch"] for mark in marks_of(kind, root).values())
        assert sorted(commits) == list(range(1, epoch + 1))
        # A replace that is made twice is the same as one; where it would not be, Delta refuses the second.
        assert kind == "replace" or set(commits.values()) == {1}


def test_a_client_and_a_jvm_that_are_killed_lose_and_double_nothing(
    classic: SparkSession, remote_url: str, root: str, spark_settings: SparkSettings
) -> None:
    last, _ = run_with_kills(classic, root, 11, [remote_url, None], spark_settings)
    assert_as_without_kills(root, last)


@pytest.mark.exhaustive
def test_jvms_that_are_killed_again_and_again_lose_and_double_nothing(
    classic: SparkSession, root: str, spark_settings: SparkSettings, soak: int
) -> None:
    last, orphans = run_with_kills(classic, root, 20, [None] * 6 * soak, spark_settings)
    assert_as_without_kills(root, last)
    assert orphans
