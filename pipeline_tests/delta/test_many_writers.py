"""Many writers at once, each a process of its own: the table is that of some order, and none of them has to give up."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import SparkSession

from pipeline.delta.table.open_table import open_or_create
from pipeline.settings import SparkSettings
from pipeline_tests.children.writers import (
    DATASETS,
    Child,
    Job,
    is_alone,
    marks_of,
    rows_after,
    rows_of_batch,
)
from pipeline_tests.conftest import brief_conf
from pipeline_tests.delta.sample import rows_of, versions_of

WRITERS = range(4)


def run_writers(
    root: str, remote: str | None, settings: SparkSettings, work: dict[str, int], patience_seconds: float = 300
) -> list[Child]:
    """Four children that begin together and write so many batches of each kind, one kind after the other."""
    parts = tuple((kind, 1, batches) for kind, batches in work.items())
    jobs = [
        Job(root=root, writer=n, work=parts, remote=remote, cache=str(settings.cache), conf=brief_conf(settings))
        for n in WRITERS
    ]
    children = [Child(job) for job in jobs]
    try:
        for child in children:
            child.start()
        assert [child.finish(patience_seconds) for child in children] == [0] * len(children)
    finally:
        for child in children:
            child.close()
    return children


def assert_as_if_one_after_the_other(root: str, children: list[Child], work: dict[str, int]) -> None:
    for kind, batches in work.items():
        # By epoch, then by writer: every order gives the same table, since no two rows of a key have the same place.
        order = [(writer, epoch) for epoch in range(1, batches + 1) for writer in WRITERS]
        assert rows_of(DATASETS[kind], root) == rows_after(kind, [rows_of_batch(kind, w, e) for w, e in order])
        marks = marks_of(kind, root)
        assert Counter((m["writer"], m["epoch"]) for m in marks.values()) == {(f"writer-{w}", e): 1 for w, e in order}
        assert versions_of(DATASETS[kind], root) == list(range(len(order) + 1))
        for child in children:
            told = child.done(kind)
            assert [line["epoch"] for line in told] == list(range(1, batches + 1))
            for line in told:
                mark = marks[line["version"]]
                assert (mark["token"], mark["attempt"]) == (line["token"], line["attempt"])
        attempts = Counter(line["attempt"] for child in children for line in child.done(kind))
        print(f"{kind}: {len(order)} batches, by attempts {dict(sorted(attempts.items()))}")


def assert_alone_means_at_once(children: list[Child]) -> None:
    alone = [line["attempt"] for child in children for line in child.done("counters") if is_alone(line["epoch"])]
    assert set(alone) == {1}


@pytest.mark.exhaustive
def test_four_clients_that_merge_and_append_lose_and_double_nothing(
    classic: SparkSession, remote_url: str, root: str, spark_settings: SparkSettings
) -> None:
    work = {"counters": 3, "append": 1}
    for kind in work:
        open_or_create(classic, DATASETS[kind].at(root))
    children = run_writers(root, remote_url, spark_settings, work)
    assert_as_if_one_after_the_other(root, children, work)
    assert_alone_means_at_once(children)


@pytest.mark.exhaustive
def test_four_jvms_that_merge_and_append_lose_and_double_nothing(
    root: str, spark_settings: SparkSettings, soak: int
) -> None:
    """The first of them also makes the tables."""
    work = {"counters": 6 * soak, "append": 6 * soak}
    # A batch may lose against the others time and again: its retry policy decides when that is enough.
    children = run_writers(root, None, spark_settings, work, patience_seconds=3600)
    assert_as_if_one_after_the_other(root, children, work)
    assert_alone_means_at_once(children)
