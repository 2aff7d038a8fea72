"""Reading: always one version, pinned by number or by time, with its columns, its files, and nothing more."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, TableRef
from pipeline.delta import sql
from pipeline.delta.log.mark import clone_session, release_session
from pipeline.delta.read.version import Read, ReadOptions, read
from pipeline.delta.sql import slices
from pipeline.delta.write.result import WriteResult
from pipeline.errors import FilesNotFoundError, FrameMismatchError, TableNotFoundError, VersionNotFoundError
from pipeline_tests.delta.sample import APPENDED, REPLACED, day, files_of, ordered, put, rows_of, versions_of
from pipeline_tests.tiers import first_in_both_modes, first_is_quick

case = pytest.mark.case

MILLISECOND = dt.timedelta(milliseconds=1)
UTC = dt.timezone.utc


@dataclass
class Told:
    """A table with a known past: what each version holds, and the commit that made it."""

    root: str
    location: str
    rows: dict[int, list[tuple[Any, ...]]]
    commits: dict[int, WriteResult]


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """Three versions of rows; no test of this module adds another."""
    root = str(tmp_path_factory.mktemp("told"))
    first = [(day(1), 1, "a"), (day(2), 2, "b"), (day(3), 3, "c"), (None, 4, None)]
    changed = [(day(2), 20, "B"), (day(2), 21, "B")]
    more = [(day(1), 5, "e")]
    commits = {
        1: put(spark, REPLACED, root, first),
        2: put(spark, REPLACED, root, changed, slices.of_values("day", [day(2)])),
        3: put(spark, APPENDED, root, more),
    }
    second = [row for row in first if row[0] != day(2)] + changed
    rows = {0: [], 1: first, 2: second, 3: second + more}
    yield Told(root, REPLACED.location(root), {v: ordered(r) for v, r in rows.items()}, commits)
    assert versions_of(REPLACED, root) == [0, 1, 2, 3]


def ask(spark: SparkSession, told: Told, **options: Any) -> Read:
    return read(spark, TableRef(REPLACED, told.location), ReadOptions(**options))


def collected(found: Read) -> list[tuple[Any, ...]]:
    return ordered(tuple(row) for row in found.frame.collect())


@pytest.mark.both_modes
def test_a_read_is_of_the_newest_version_unless_a_version_is_pinned(spark: SparkSession, told: Told) -> None:
    newest = ask(spark, told)
    assert (newest.version, newest.files_asked, newest.files_in_version) == (3, None, None)
    assert collected(newest) == told.rows[3]
    for version in (0, 2):
        pinned = ask(spark, told, version=version)
        assert pinned.version == version
        assert collected(pinned) == told.rows[version]


@pytest.mark.both_modes
def test_a_frame_does_not_change_when_somebody_commits_afterwards(spark: SparkSession, root: str) -> None:
    put(spark, APPENDED, root, [(day(1), 1, "a")])
    held = read(spark, APPENDED.at(root))
    put(spark, APPENDED, root, [(day(1), 2, "b")])

    assert held.version == 1
    assert collected(held) == [(day(1), 1, "a")]
    assert collected(read(spark, APPENDED.at(root))) == [(day(1), 1, "a"), (day(1), 2, "b")]


def committed(told: Told, version: int) -> dt.datetime:
    """When a commit became visible: Delta goes by its file's time, in milliseconds."""
    path = Path(told.location) / "_delta_log" / f"{version:020d}.json"
    return dt.datetime.fromtimestamp(path.stat().st_mtime_ns // 10**6 / 1000, tz=UTC)


@case("X-TIME-BOUNDARY")
@pytest.mark.parametrize("zone", first_is_quick(first_in_both_modes(["Asia/Tokyo", "UTC"])))
def test_a_time_picks_the_newest_version_at_or_before_it_whatever_the_sessions_zone(
    spark: SparkSession, told: Told, zone: str
) -> None:
    t0, t1, t2, t3 = (committed(told, version) for version in range(4))
    assert t0 < t1 < t2 < t3
    session = clone_session(spark)
    session.conf.set("spark.sql.session.timeZone", zone)
    try:
        for instant, version in [
            (t0, 0),
            (t1 - MILLISECOND, 0),
            (t1, 1),
            (t2 - MILLISECOND, 1),
            (t2, 2),
            (t2 + MILLISECOND, 2),
            (t3, 3),
            # After the last commit the newest version is meant: what is known of that time is what stands now.
            (t3 + MILLISECOND, 3),
            (t3 + dt.timedelta(days=1), 3),
            # The zone that the caller thinks in does not matter either.
            (t2.astimezone(zoneinfo.ZoneInfo("America/New_York")), 2),
        ]:
            assert (
                read(session, TableRef(REPLACED, told.location), ReadOptions(timestamp=instant)).version == version
            ), instant
        with pytest.raises(VersionNotFoundError) as caught:
            read(session, TableRef(REPLACED, told.location), ReadOptions(timestamp=t0 - MILLISECOND))
    finally:
        release_session(session)
    assert caught.value.dataset == "days"
    assert (t0 - MILLISECOND).isoformat() in caught.value.asked
    assert str(t0) in caught.value.available


def test_the_time_that_a_write_reports_is_the_time_of_its_version(spark: SparkSession, told: Told) -> None:
    """Whoever pins what the metadata of a run says must get the rows of that run, and not those before it."""
    for version, commit in told.commits.items():
        assert ask(spark, told, timestamp=commit.timestamp).version == version
    assert collected(ask(spark, told, timestamp=told.commits[2].timestamp)) == told.rows[2]


@case("X-TIME-BOUNDARY")
def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        ReadOptions(timestamp=dt.datetime(2026, 1, 1))
    with pytest.raises(ValueError, match="not both"):
        ReadOptions(timestamp=dt.datetime(2026, 1, 1, tzinfo=UTC), version=1)


@pytest.mark.both_modes
def test_columns_are_given_in_the_order_asked_and_unknown_ones_are_named(spark: SparkSession, told: Told) -> None:
    found = ask(spark, told, columns=("text", "id"))
    assert found.frame.columns == ["text", "id"]
    assert collected(found) == ordered((text, number) for _, number, text in told.rows[3])

    with pytest.raises(FrameMismatchError) as caught:
        ask(spark, told, columns=("id", "nope", "text; DROP", "day"))
    assert caught.value.dataset == "days"
    assert [d.split(":")[0] for d in caught.value.differences] == ["column nope", "column text; DROP"]


def test_the_file_column_names_the_file_of_each_row(spark: SparkSession, told: Told) -> None:
    found = ask(spark, told, columns=("id",), file_column="came from")

    assert found.frame.columns == ["id", "came from"]
    paths = {row["id"]: row["came from"] for row in found.frame.collect()}
    assert sorted(paths) == [1, 3, 4, 5, 20, 21]
    below = {number: path.split("/days/", maxsplit=1)[1] for number, path in paths.items()}
    assert set(below.values()) == files_of(REPLACED, told.root)
    assert below[20].startswith("day=2026-01-02/")
    assert below[4].startswith("day=__HIVE_DEFAULT_PARTITION__/")
    assert below[1] != below[5]


@pytest.mark.both_modes
def test_a_file_list_gives_the_rows_of_those_files_and_counts_them(spark: SparkSession, told: Told) -> None:
    named = {row.id: row.file for row in ask(spark, told, file_column="file").frame.collect()}
    below = named[4].split("/days/", maxsplit=1)[1]

    # One by its URI, one by its path below the table, one twice.
    found = ask(spark, told, columns=("id",), files=(named[3], below, named[3]))

    assert collected(found) == [(3,), (4,)]
    assert (found.files_asked, found.files_in_version) == (2, len(files_of(REPLACED, told.root)))
    nothing = ask(spark, told, files=())
    assert (nothing.files_asked, collected(nothing)) == (0, [])


def test_a_file_list_reads_only_the_partitions_that_it_lies_in(classic: SparkSession, told: Told) -> None:
    """The filter by path alone opens every file of the table."""
    named = {row.id: row.file for row in ask(classic, told, file_column="file").frame.collect()}

    frame = ask(classic, told, files=(named[3],)).frame

    plan = frame._jdf.queryExecution().executedPlan().toString()
    (filters,) = [line for line in plan.splitlines() if "PartitionFilters" in line]
    inside = filters.split("PartitionFilters: [")[1].split("]")[0]
    assert "day" in inside
    assert "2026-01-03" in inside or str((day(3) - dt.date(1970, 1, 1)).days) in inside
    rows = [row.asDict() for row in frame.collect()]
    assert [row["id"] for row in rows] == [3]
    scan = _scan(frame)
    assert scan.metrics().get("numPartitions").get().value() == 1
    assert scan.metrics().get("numFiles").get().value() == 1


def _scan(frame: Any) -> Any:
    """The file scan of a plan that was executed."""
    pending = [frame._jdf.queryExecution().executedPlan()]
    while pending:
        node = pending.pop()
        if node.getClass().getSimpleName() == "FileSourceScanExec":
            return node
        children = node.children()
        pending += [children.apply(i) for i in range(children.size())]
    raise AssertionError("no scan in the plan")


def test_files_that_the_version_does_not_hold_are_named(spark: SparkSession, told: Told) -> None:
    first = ask(spark, told, version=1, file_column="file").frame
    of_first = {row.id: row.file for row in first.collect()}
    there = of_first[1]
    replaced = of_first[2]

    with pytest.raises(FilesNotFoundError) as caught:
        ask(spark, told, files=(there, replaced, "day=2026-01-01/nope.parquet"))

    assert caught.value.version == 3
    assert caught.value.missing == (replaced, "day=2026-01-01/nope.parquet")
    assert collected(ask(spark, told, version=1, columns=("id",), files=(replaced,))) == [(2,)]


VALUES = ("A/A", "B B", "a%b", "a%2Fb", "a:c", "x=y", "a+b", "a?b", "a#b", "é", "日本", "a\\b", "it's", "plus+", "[a]")


@case("P-SPECIAL-VALUES")
def test_a_file_list_finds_files_in_folders_with_escaped_names(classic: SparkSession, root: str) -> None:
    dataset = Dataset(
        name="named",
        schema=StructType(
            [StructField("n", LongType()), StructField("value", StringType()), StructField("part", LongType())]
        ),
        partition_by=("value", "part"),
        write=Append(),
    )
    put(classic, dataset, root, [(n, value, n % 2) for n, value in enumerate(VALUES)])
    location = dataset.location(root)
    named = {
        row.n: row.file
        for row in read(classic, TableRef(dataset, location), ReadOptions(file_column="file")).frame.collect()
    }
    assert len(set(named.values())) == len(VALUES)

    chosen = range(0, len(VALUES), 2)
    found = read(
        classic, TableRef(dataset, location), ReadOptions(columns=("n",), files=tuple(named[n] for n in chosen))
    )
    assert sorted(row.n for row in found.frame.collect()) == list(chosen)
    (last,) = read(classic, TableRef(dataset, location), ReadOptions(files=(named[11],))).frame.collect()
    assert last.value == VALUES[11]


def test_within_restricts_a_read_to_its_slice(spark: SparkSession, told: Told) -> None:
    within = slices.of_values("day", [day(2), None])

    found = read(spark, TableRef(REPLACED, told.location), ReadOptions(columns=("id",)), within=within)

    assert collected(found) == [(20,), (21,), (4,)]


@pytest.mark.parametrize("version", first_in_both_modes([4, 2**31 - 1, -1]))
def test_a_version_that_was_never_written_is_not_found_and_the_range_is_named(
    spark: SparkSession, told: Told, version: int
) -> None:
    with pytest.raises(VersionNotFoundError) as caught:
        ask(spark, told, version=version)

    assert (caught.value.dataset, caught.value.location) == ("days", told.location)
    assert caught.value.asked == f"version {version}"
    assert caught.value.available == "0 to 3"


@pytest.mark.both_modes
def test_a_version_whose_log_is_gone_is_not_found(spark: SparkSession, root: str) -> None:
    """Log clean-up takes the oldest commits away; the checkpoint keeps the newer versions whole."""
    for n in range(3):
        put(spark, APPENDED, root, [(day(1), n, "a")])
    deltalake.DeltaTable(APPENDED.location(root)).create_checkpoint()
    log = Path(APPENDED.location(root)) / "_delta_log"
    for version in (0, 1):
        (log / f"{version:020d}.json").unlink()
        (log / f"{version:020d}.crc").unlink(missing_ok=True)
        (log / f".{version:020d}.json.crc").unlink(missing_ok=True)
        (log / f".{version:020d}.crc.crc").unlink(missing_ok=True)

    with pytest.raises(VersionNotFoundError) as caught:
        read(spark, APPENDED.at(root), ReadOptions(version=1))

    assert caught.value.asked == "version 1"
    assert collected(read(spark, APPENDED.at(root))) == rows_of(APPENDED, root)


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "an empty log"])
@pytest.mark.parametrize(
    "options",
    first_in_both_modes([ReadOptions(), ReadOptions(version=0), ReadOptions(files=())]),
    ids=["newest", "pinned", "files"],
)
def test_a_table_that_was_never_written_is_not_found(
    spark: SparkSession, root: str, there: str, options: ReadOptions
) -> None:
    location = APPENDED.location(root)
    if there != "nothing":
        (Path(location) / ("_delta_log" if there == "an empty log" else "")).mkdir(parents=True)

    with pytest.raises(TableNotFoundError) as caught:
        read(spark, TableRef(APPENDED, location), options)

    assert (caught.value.dataset, caught.value.location) == ("days", location)


def test_a_location_with_spaces_and_quotes_is_read_as_it_is_written(classic: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "a b'c`d%20é#")
    put(classic, APPENDED, root, [(day(1), 1, "a")])

    whole = read(classic, APPENDED.at(root), ReadOptions(file_column="file")).frame
    named = [row.file for row in whole.collect()]
    found = read(classic, APPENDED.at(root), ReadOptions(files=tuple(named)))

    # By Spark alone: delta-rs decodes what looks escaped in a path, and finds no table.
    assert collected(found) == [(day(1), 1, "a")]
    assert whole.count() == 1
    assert classic.sql(f"DESCRIBE DETAIL {sql.path_table(APPENDED.location(root))}").collect()[0].numFiles == 1
