"""Conflicts: each is known for what it is, the loser looks at the table anew, and the end is that of some order."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.errors import UnknownException
from pyspark.errors.exceptions import captured, connect
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that everybody knows it by
from pyspark.sql.types import StringType

from pipeline.dataset import Dataset, Merge, Replace, WriteMode
from pipeline.delta import sql
from pipeline.delta.log.commits import commit_note
from pipeline.delta.log.mark import clone_session, release_session
from pipeline.delta.log.retry import NO_RETRY, RetryPolicy
from pipeline.delta.spark.failures import CONFLICT_CLASSES, failure_of
from pipeline.delta.spark.jars import jar_path
from pipeline.delta.sql.slices import Slice, of_values
from pipeline.delta.storage.published_jars import DELTA_JARS
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import CommitConflictError
from pipeline.settings import SparkSettings
from pipeline_tests.conflicts import delta_exception_modules
from pipeline_tests.delta.sample import (
    APPENDED,
    REPLACED,
    actions_of,
    commit_info,
    day,
    days,
    frame_of,
    note,
    ordered,
    placed,
    put,
    rows_of,
    versions_of,
)
from pipeline_tests.tiers import first_is_quick

case = pytest.mark.case

UPSERTED = days(Merge(), keys=("id",))
WAIT_SECONDS = 120


# --- what a conflict looks like ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def delta_exceptions() -> tuple[list[ModuleType], Callable[..., Any]]:
    return delta_exception_modules()


def test_every_exception_of_delta_s_modules_is_a_conflict(
    classic: SparkSession, delta_exceptions: tuple[list[ModuleType], Callable[..., Any]]
) -> None:
    """Those of the classic module have no condition: their class is all there is."""
    for module, arguments in zip(delta_exceptions[0], [("met another", "stack trace"), ("met another",)], strict=True):
        classes = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
        assert {cls.__name__ for cls in classes} == CONFLICT_CLASSES
        for cls in classes:
            assert failure_of(cls(*arguments)).is_conflict, cls


def test_no_conflict_class_of_the_jar_is_forgotten(spark_settings: SparkSettings) -> None:
    coordinate = next(name for name in DELTA_JARS if ":delta-spark_" in name)
    with zipfile.ZipFile(jar_path(coordinate, spark_settings.cache)) as jar:
        names = [Path(name) for name in jar.namelist()]
    folder = Path("io/delta/exceptions")
    found = {path.stem for path in names if path.parent == folder and path.suffix == ".class" and "$" not in path.stem}
    assert found == CONFLICT_CLASSES


@pytest.mark.parametrize("condition", ["DELTA_CONCURRENT_APPEND", "DELTA_CONCURRENT_APPEND.WITH_PARTITION_HINT",
                                       "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED"])  # fmt: skip
def test_a_conflict_whose_class_nobody_knows_is_told_by_its_condition(condition: str) -> None:
    """As it comes over Connect where nobody has imported Delta's exceptions."""
    assert failure_of(UnknownException("met another", errorClass=condition)).is_conflict


@pytest.mark.parametrize("condition", ["DELTA_DUPLICATE_ACTIONS_FOUND", "DELTA_DELETION_VECTOR_MISSING_NUM_RECORDS"])
def test_an_error_that_only_shares_its_sql_state_with_conflicts_is_none(condition: str) -> None:
    """Trying again would meet it again, fifty times."""
    error = connect.SparkConnectGrpcException("broken", errorClass=condition, sql_state="2D521")
    assert (failure_of(error).sql_states, failure_of(error).is_conflict) == (("2D521",), False)


# --- races ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gate:
    """A place in a frame at which its rows wait: the write that evaluates them has looked at the table by then."""

    entered: Path
    opened: Path

    def frame(self, session: SparkSession, dataset: Dataset, rows: list[tuple[Any, ...]]) -> DataFrame:
        entered, opened, seconds = str(self.entered), str(self.opened), WAIT_SECONDS

        def passes(text):  # Spark would take hints for those of another kind of function
            Path(entered).touch()
            deadline = time.monotonic() + seconds
            while not Path(opened).exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(opened)
                time.sleep(0.01)
            return text

        # In one task, so that two writes that wait leave none of the driver's two cores without a place.
        frame = frame_of(session, dataset, rows).coalesce(1)
        return frame.withColumn("text", F.udf(passes, StringType())(F.col("text")))


@pytest.fixture
def gates(tmp_path: Path) -> tuple[Gate, Gate]:
    """Two gates, each of which opens when rows have come to the other."""
    one, two = tmp_path / "one", tmp_path / "two"
    return Gate(one, two), Gate(two, one)


@contextmanager
def two_sessions(spark: SparkSession) -> Iterator[tuple[SparkSession, SparkSession]]:
    clones = clone_session(spark), clone_session(spark)
    try:
        yield clones
    finally:
        for clone in clones:
            release_session(clone)


def write_both(
    spark: SparkSession, gates: tuple[Gate, Gate], dataset: Dataset, root: str,
    writes: list[tuple[list[tuple[Any, ...]], Slice | None]],
) -> list[WriteResult]:  # fmt: skip
    """Two writes, neither of which commits before both have looked at the table."""

    def run(session: SparkSession, gate: Gate, rows: list[tuple[Any, ...]], within: Slice | None) -> WriteResult:
        frame = gate.frame(session, dataset, rows)
        return write(frame, table=dataset.at(root), note=note(), within=within)

    with two_sessions(spark) as sessions, ThreadPoolExecutor(2) as pool:
        pending = [pool.submit(run, *part) for part in
                   zip(sessions, gates, *zip(*writes, strict=True), strict=True)]  # fmt: skip
        return [future.result(2 * WAIT_SECONDS) for future in pending]


def attempt_in_log(dataset: Dataset, root: str, version: int) -> int:
    mark = (commit_note(commit_info(dataset, root, version)["userMetadata"]) or {})["mark"]
    return int(mark["attempt"])


@case("T-SAME-PARTITION")
def test_two_merges_into_one_partition_end_as_one_after_the_other(
    spark: SparkSession, root: str, gates: tuple[Gate, Gate]
) -> None:
    """A retry that held on to what it had seen would lose or double the row of the key that both write."""
    placed(spark, UPSERTED, root, [(day(1), n, "before") for n in range(1, 11)])
    texts = ("A", "B")
    writes = [([(day(1), n, text) for n in ids], None) for text, ids in zip(texts, ((1, 2, 3), (3, 4, 5)), strict=True)]
    results = write_both(spark, gates, UPSERTED, root, writes)
    versions = [result.version for result in results]
    assert (sorted(versions), versions_of(UPSERTED, root)) == ([2, 3], [0, 1, 2, 3])
    last = versions.index(3)
    assert (results[1 - last].mark.attempt, results[last].mark.attempt) == (1, 2)
    assert [attempt_in_log(UPSERTED, root, version) for version in (2, 3)] == [1, 2]
    expected = {1: "A", 2: "A", 3: texts[last], 4: "B", 5: "B"}
    assert rows_of(UPSERTED, root) == ordered((day(1), n, expected.get(n, "before")) for n in range(1, 11))


@case("T-SAME-PARTITION")
@pytest.mark.parametrize("mode", first_is_quick([Merge(), Replace()]), ids=["merge", "replace"])
@pytest.mark.exhaustive
def test_writes_to_two_partitions_don_t_meet(
    classic: SparkSession, root: str, gates: tuple[Gate, Gate], mode: WriteMode
) -> None:
    """Since the partition stands in the statement as a literal."""
    dataset = days(mode, keys=("day", "id"))
    placed(classic, days(Merge(), keys=("day", "id")), root, [(day(n), n, "before") for n in (1, 2, 3)])
    writes = [([(day(n), n, "after")], of_values("day", [day(n)])) for n in (1, 2)]
    results = write_both(classic, gates, dataset, root, writes)
    assert sorted(result.version for result in results) == [2, 3]
    assert [result.mark.attempt for result in results] == [1, 1]
    assert [attempt_in_log(dataset, root, version) for version in (2, 3)] == [1, 1]
    assert rows_of(dataset, root) == [(day(1), 1, "after"), (day(2), 2, "after"), (day(3), 3, "before")]


def write_around(
    spark: SparkSession, tmp_path: Path, dataset: Dataset, root: str, rows: list[tuple[Any, ...]],
    other: Callable[[], object], *, within: Slice | None = None, retry: RetryPolicy | None = None,
) -> WriteResult:  # fmt: skip
    """A write between whose look at the table and whose commit the other one happens."""
    gate = Gate(tmp_path / "entered", tmp_path / "opened")
    frame = gate.frame(spark, dataset, rows)

    def run() -> WriteResult:
        return write(frame, table=dataset.at(root), note=note(), within=within, retry=retry)

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(run)
        _wait_for(gate.entered, pending)
        other()
        gate.opened.touch()
        return pending.result(WAIT_SECONDS)


def _wait_for(path: Path, pending: Future[WriteResult]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not path.exists() and not pending.done() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.exists(), pending.exception() if pending.done() else "no row was asked for"


def test_a_replace_that_meets_an_append_to_its_partition_replaces_those_rows_too(
    classic: SparkSession, root: str, tmp_path: Path
) -> None:
    placed(classic, APPENDED, root, [(day(1), 1, "before"), (day(2), 2, "before")])
    result = write_around(
        classic, tmp_path, REPLACED, root, [(day(1), 3, "replaced")],
        lambda: put(classic, APPENDED, root, [(day(1), 4, "appended"), (day(2), 5, "appended")]),
        within=of_values("day", [day(1)]),
    )  # fmt: skip
    assert (result.version, result.mark.attempt, attempt_in_log(REPLACED, root, 3)) == (3, 2, 2)
    assert rows_of(REPLACED, root) == [(day(1), 3, "replaced"), (day(2), 2, "before"), (day(2), 5, "appended")]


@pytest.mark.exhaustive
def test_a_merge_that_meets_an_optimize_of_its_partition_is_made_again(
    classic: SparkSession, root: str, tmp_path: Path
) -> None:
    placed(classic, UPSERTED, root, [(day(1), 1, "before")])
    put(classic, UPSERTED, root, [(day(1), 2, "before")])
    optimize = f"OPTIMIZE {sql.path_table(UPSERTED.location(root))}"
    result = write_around(
        classic, tmp_path, UPSERTED, root, [(day(1), 1, "after")], lambda: classic.sql(optimize).collect()
    )
    assert commit_info(UPSERTED, root, 3)["operation"] == "OPTIMIZE"
    assert (result.version, result.operation, result.mark.attempt) == (4, "MERGE", 2)
    assert rows_of(UPSERTED, root) == [(day(1), 1, "after"), (day(1), 2, "before")]


@pytest.mark.parametrize("is_imported", first_is_quick([False, True]), ids=["as it comes", "where delta is imported"])
def test_without_a_further_attempt_a_conflict_is_told_and_nothing_is_committed(
    classic: SparkSession, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_imported: bool,
    delta_exceptions: tuple[list[ModuleType], Callable[..., Any]],
) -> None:  # fmt: skip
    if is_imported:
        monkeypatch.setattr(captured, "convert_exception", delta_exceptions[1])
    placed(classic, APPENDED, root, [(day(1), 1, "before")])
    with pytest.raises(CommitConflictError) as caught:
        write_around(
            classic, tmp_path, REPLACED, root, [(day(1), 3, "replaced")],
            lambda: put(classic, APPENDED, root, [(day(1), 2, "appended")]),
            within=of_values("day", [day(1)]), retry=NO_RETRY,
        )  # fmt: skip
    assert caught.value.condition.startswith("ConcurrentAppend" if is_imported else "DELTA_CONCURRENT_APPEND")
    assert versions_of(REPLACED, root) == [0, 1, 2]
    assert rows_of(REPLACED, root) == [(day(1), 1, "before"), (day(1), 2, "appended")]
    known = {action["add"]["path"] for v in range(3) for action in actions_of(REPLACED, root, v) if "add" in action}
    assert len(known) == 2
