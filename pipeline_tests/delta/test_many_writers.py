"""Many writers at once, each a process of its own: the table is that of some order, and none of them has to give up."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from pipeline.delta.storage.options import use_confs
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
from pipeline_tests.object_stores import LOG_ENTRY, Bucket, Fault, FaultKind, served_bucket

KILLS = 2
FURTHER_SECONDS = 1.5


def jobs_of(
    writers: int, root: str, settings: SparkSettings, work: dict[str, int], remote: str | None = None,
    store: Mapping[str, str] | None = None,
) -> list[Job]:  # fmt: skip
    """A job for each writer, of so many batches of each kind; `store` are the confs of the root's store."""
    parts = tuple((kind, 1, batches) for kind, batches in work.items())
    conf = (*brief_conf(settings), *(store or {}).items())
    return [
        Job(root=root, writer=n, work=parts, remote=remote, cache=str(settings.cache), conf=conf)
        for n in range(writers)
    ]


def run_writers(jobs: list[Job], patience_seconds: float = 300) -> list[Child]:
    """Children that begin together and write their batches, one kind after the other."""
    children = [Child(job) for job in jobs]
    try:
        for child in children:
            child.start()
        assert [child.finish(patience_seconds) for child in children] == [0] * len(children)
    finally:
        for child in children:
            child.close()
    return children


def run_with_kills(job: Job, seed: int) -> Counter[str]:
    """Write the batches of a job in processes one after the other; all but the last are killed. Failures by type."""
    rng, work, told = random.Random(seed), job.work, []
    for number in range(KILLS + 1):
        child = Child(replace(job, work=work))
        try:
            child.start()
            if number == KILLS:
                assert child.finish(3600) == 0
            else:
                for _ in range(rng.randint(2, 7)):
                    assert child.next(3600) is not None
                time.sleep(rng.uniform(0, FURTHER_SECONDS))
                child.kill()
        finally:
            child.close()
        ended = {kind: max([0, *(line["epoch"] for line in child.done(kind))]) for kind, _, _ in work}
        work = tuple((kind, max(first, ended[kind] + 1), last) for kind, first, last in work)
        told += [line["error"] for line in child.told if line["event"] == "failed"]
    return Counter(told)


def assert_each_batch_is_there_once(
    root: str, writers: int, work: dict[str, int], options: Mapping[str, str] | None = None
) -> None:
    for kind, batches in work.items():
        # By epoch, then by writer: every order gives the same table, since no two rows of a key have the same place.
        order = [(writer, epoch) for epoch in range(1, batches + 1) for writer in range(writers)]
        expected = rows_after(kind, [rows_of_batch(kind, w, e) for w, e in order])
        assert rows_of(DATASETS[kind], root, options=options) == expected
        marks = marks_of(kind, root)
        assert Counter((m["writer"], m["epoch"]) for m in marks.values()) == {(f"writer-{w}", e): 1 for w, e in order}
        assert versions_of(DATASETS[kind], root) == list(range(len(order) + 1))


def assert_each_result_is_that_of_its_commit(root: str, children: list[Child], work: dict[str, int]) -> None:
    for kind, batches in work.items():
        marks = marks_of(kind, root)
        for child in children:
            told = child.done(kind)
            assert [line["epoch"] for line in told] == list(range(1, batches + 1))
            for line in told:
                mark = marks[line["version"]]
                assert (mark["token"], mark["attempt"]) == (line["token"], line["attempt"])
        attempts = Counter(line["attempt"] for child in children for line in child.done(kind))
        print(f"{kind}: {batches} batches of each, by attempts {dict(sorted(attempts.items()))}")


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
    children = run_writers(jobs_of(4, root, spark_settings, work, remote_url))
    assert_each_batch_is_there_once(root, 4, work)
    assert_each_result_is_that_of_its_commit(root, children, work)
    assert_alone_means_at_once(children)


@pytest.mark.exhaustive
def test_four_jvms_that_merge_and_append_lose_and_double_nothing(
    root: str, spark_settings: SparkSettings, soak: int
) -> None:
    """The first of them also makes the tables."""
    work = {"counters": 6 * soak, "append": 6 * soak}
    # A batch may lose against the others time and again: its retry policy decides when that is enough.
    children = run_writers(jobs_of(4, root, spark_settings, work), patience_seconds=3600)
    assert_each_batch_is_there_once(root, 4, work)
    assert_each_result_is_that_of_its_commit(root, children, work)
    assert_alone_means_at_once(children)


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    """An empty bucket, with its account in use."""
    with served_bucket() as served:
        use_confs(served.hadoop)
        yield served


@pytest.mark.exhaustive
def test_two_jvms_that_make_and_write_tables_in_a_bucket_lose_and_double_nothing(
    bucket: Bucket, spark_settings: SparkSettings, soak: int
) -> None:
    work, root = {"counters": 5 * soak, "append": 5 * soak}, f"{bucket.uri}/lake"
    children = run_writers(jobs_of(2, root, spark_settings, work, store=bucket.hadoop), patience_seconds=3600)
    assert_each_batch_is_there_once(root, 2, work, bucket.delta_rs)
    assert_each_result_is_that_of_its_commit(root, children, work)
    assert_alone_means_at_once(children)


@pytest.mark.exhaustive
def test_kills_and_slow_commits_with_lost_answers_lose_and_double_nothing_in_a_bucket(
    bucket: Bucket, spark_settings: SparkSettings, soak: int
) -> None:
    work, root = {"counters": 10 * soak, "append": 10 * soak}, f"{bucket.uri}/lake"
    lost = Fault(FaultKind.LOSE_ANSWER, "PUT", LOG_ENTRY, times=None, every=7)
    slow = Fault(FaultKind.DELAY, "PUT", LOG_ENTRY, times=None, seconds=0.4)
    bucket.faults[:] = [lost, slow]
    jobs = [
        replace(job, together=True, repeats=3) for job in jobs_of(2, root, spark_settings, work, store=bucket.hadoop)
    ]
    with ThreadPoolExecutor(len(jobs)) as pool:
        failures = sum(pool.map(run_with_kills, jobs, range(len(jobs))), Counter())
    assert_each_batch_is_there_once(root, 2, work, bucket.delta_rs)
    print(f"{lost.met} answers lost, {slow.met} puts delayed, failures {dict(failures)}")
    assert (lost.met > 0, slow.met > 0) == (True, True)
