"""Opening and creating: one commit with everything declared, none for opening, none where no table may be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from pipeline.dataset import Append, Check, Dataset, Replace, TableRef
from pipeline.dataset.schema import schema_fingerprint
from pipeline.delta.log.mark import clone_session, release_session
from pipeline.delta.table import open_table
from pipeline.delta.table.open_table import open_or_create, shape_differences, table_state_with_sizes
from pipeline.delta.write.write import write
from pipeline.errors import NotADeltaTableError, StorageError, TableMismatchError
from pipeline.settings import SparkSettings
from pipeline_tests.conftest import brief_conf
from pipeline_tests.delta.sample import (
    APPENDED,
    actions_of,
    commit_info,
    day,
    frame_of,
    note,
    put,
    rows_of,
    versions_of,
)

case = pytest.mark.case

PLACE = StructType([StructField("lat", DoubleType()), StructField("lon", DoubleType(), False)])
# Every type that may be declared, once.
WIDE = StructType(
    [
        StructField("day", DateType(), False, {"comment": "the day's 'name'"}),
        StructField("id", LongType(), False),
        StructField("tiny", ByteType()),
        StructField("small", ShortType()),
        StructField("whole", IntegerType()),
        StructField("single", FloatType()),
        StructField("double", DoubleType()),
        StructField("price", DecimalType(18, 4)),
        StructField("flag", BooleanType()),
        StructField("raw", BinaryType()),
        StructField("at", TimestampType()),
        StructField("code", CharType(3)),
        StructField("label", VarcharType(9)),
        StructField("place", PLACE, True, {"comment": "where"}),
        StructField("tags", ArrayType(StringType())),
        StructField("by_name", MapType(StringType(), ArrayType(StructType([StructField("q`x", LongType())])))),
        StructField("region", StringType()),
    ]
)
EVERYTHING = Dataset(
    name="shop/orders",
    schema=WIDE,
    partition_by=("region", "day"),
    write=Append(),
    keys=("id",),
    checks=(Check("id_positive", "id > 0"), Check("flagged", "flag IS NULL OR flag")),
    properties=(("delta.logRetentionDuration", "interval 60 days"), ("owner.team", "it's \\ ours")),
    description="Orders, with \\ and 'quotes'",
)


@pytest.mark.both_modes
def test_the_table_is_created_on_the_first_write_with_every_declared_column_and_the_partition_column(
    spark: SparkSession, root: str
) -> None:
    location = APPENDED.location(root)
    assert not Path(location).exists()

    result = put(spark, APPENDED, root, [(day(1), 1, "a")])

    assert versions_of(APPENDED, root) == [0, 1]
    assert result.version == 1
    (metadata,) = [action["metaData"] for action in actions_of(APPENDED, root, 0) if "metaData" in action]
    assert metadata["id"] == result.table_id
    assert metadata["partitionColumns"] == ["day"]
    fields = json.loads(metadata["schemaString"])["fields"]
    assert [(f["name"], f["type"], f["nullable"]) for f in fields] == [
        ("day", "date", True),
        ("id", "long", False),
        ("text", "string", True),
    ]
    assert rows_of(APPENDED, root) == [(day(1), 1, "a")]
    assert [path.name for path in Path(location).glob("day=*")] == ["day=2026-01-01"]


def test_creation_is_one_commit_with_properties_checks_and_comments(spark: SparkSession, root: str) -> None:
    state = open_or_create(spark, EVERYTHING.at(root))

    assert state.version == 0
    assert versions_of(EVERYTHING, root) == [0]
    assert commit_info(EVERYTHING, root, 0)["operation"] == "CREATE TABLE"
    (metadata,) = [action["metaData"] for action in actions_of(EVERYTHING, root, 0) if "metaData" in action]
    assert metadata["description"] == EVERYTHING.description
    assert metadata["configuration"] == {
        "delta.constraints.id_positive": "id > 0",
        "delta.constraints.flagged": "flag IS NULL OR flag",
        "delta.enableChangeDataFeed": "true",
        "delta.logRetentionDuration": "interval 60 days",
        "owner.team": "it's \\ ours",
        "delta.setTransactionRetentionDuration": "interval 30 days",
    }
    fields = {field["name"]: field for field in json.loads(metadata["schemaString"])["fields"]}
    assert list(fields) == WIDE.names
    assert fields["day"]["metadata"]["comment"] == "the day's 'name'"
    assert fields["place"]["metadata"]["comment"] == "where"
    assert [f["nullable"] for f in fields["place"]["type"]["fields"]] == [True, False]
    assert state.partition_by == ("region", "day")
    assert {"changeDataFeed", "checkConstraints"} <= set(state.features)
    # What was made is what was declared, in Spark's words and in those of another engine's log reader.
    assert shape_differences(EVERYTHING, state) == []
    assert state.fingerprint == EVERYTHING.fingerprint
    seen = json.loads(deltalake.DeltaTable(EVERYTHING.location(root)).schema().to_json())
    assert schema_fingerprint(StructType.fromJson(seen), ("region", "day")) == EVERYTHING.fingerprint


def test_opening_a_table_twice_commits_nothing_and_leaves_the_version_at_0(spark: SparkSession, root: str) -> None:
    location = APPENDED.location(root)

    created = open_or_create(spark, TableRef(APPENDED, location))
    opened = [open_or_create(spark, TableRef(APPENDED, location)) for _ in range(2)]

    assert created.version == 0
    assert opened == [created, created]
    assert versions_of(APPENDED, root) == [0]


@pytest.fixture(scope="module")
def described(classic: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, str]:
    """A table partitioned by (region, day), and its root."""
    schema = StructType(
        [
            StructField("day", DateType()),
            StructField("region", StringType()),
            StructField("id", LongType(), False),
            StructField("place", PLACE),
        ]
    )
    dataset = Dataset(
        name="described",
        schema=schema,
        partition_by=("region", "day"),
        write=Append(),
        properties=(("delta.appendOnly", "false"),),
    )
    root = str(tmp_path_factory.mktemp("described"))
    open_or_create(classic, dataset.at(root))
    return dataset, root


def changed(dataset: Dataset, *fields: StructField) -> StructType:
    """The schema with those columns in place of the ones of the same name, new ones at the end."""
    new = {field.name: field for field in fields}
    kept = [new.pop(field.name, field) for field in dataset.schema.fields]
    return StructType([*kept, *new.values()])


def without(dataset: Dataset, column: str) -> StructType:
    return StructType([field for field in dataset.schema.fields if field.name != column])


def test_a_table_that_differs_from_its_declaration_is_described_difference_by_difference(
    classic: SparkSession, described: tuple[Dataset, str]
) -> None:
    dataset, root = described
    state = table_state_with_sizes(classic, dataset.at(root))
    assert state is not None
    assert shape_differences(dataset, state) == []

    def differences(**changes: object) -> list[str]:
        return shape_differences(replace(dataset, **changes), state)

    assert differences(partition_by=()) == ["partition columns: declared none, the table has (region, day)"]
    assert differences(partition_by=("day", "region")) == [
        "partition columns: declared (day, region), the table has (region, day)"
    ]
    assert differences(partition_by=("region",)) == [
        "partition columns: declared (region), the table has (region, day)"
    ]
    assert differences(schema=changed(dataset, StructField("extra", LongType(), False))) == [
        "column extra: declared `extra` bigint NOT NULL, the table lacks it"
    ]
    assert differences(schema=without(dataset, "id")) == ["column id: the table has it, the declaration does not"]
    assert differences(schema=changed(dataset, StructField("id", IntegerType(), False))) == [
        "column id: declared int NOT NULL, the table has bigint NOT NULL"
    ]
    assert differences(schema=changed(dataset, StructField("id", LongType()))) == [
        "column id: declared bigint, the table has bigint NOT NULL"
    ]
    assert differences(schema=StructType(dataset.schema.fields[::-1])) == [
        "column order: declared (place, id, region, day), the table has (day, region, id, place)"
    ]
    assert differences(properties=(("delta.appendOnly", "true"), ("team", "x"))) == [
        "property delta.appendOnly: declared 'true', the table has 'false'",
        "property team: declared 'x', the table has None",
    ]
    # A nested field: its order, its nullability and its type count.
    for inner in (PLACE.fields[::-1], [StructField("lat", DoubleType()), StructField("lon", DoubleType())]):
        (difference,) = differences(schema=changed(dataset, StructField("place", StructType(inner))))
        assert difference.startswith("column place: declared STRUCT<")
    # What the declaration does not speak of is no difference: further properties, comments.
    commented = StructField("region", StringType(), True, {"comment": "changed"})
    assert differences(schema=changed(dataset, commented), properties=()) == []


def test_a_mismatch_names_all_differences_at_once_and_commits_nothing(
    classic: SparkSession, described: tuple[Dataset, str]
) -> None:
    dataset, root = described
    other = replace(
        dataset,
        partition_by=("day",),
        schema=changed(dataset, StructField("id", IntegerType(), False), StructField("extra", StringType())),
        checks=(Check("positive", "id > 0"),),
    )

    with pytest.raises(TableMismatchError) as caught:
        open_or_create(classic, other.at(root))

    assert caught.value.dataset == "described"
    assert caught.value.version == 0
    assert caught.value.location == dataset.location(root)
    assert [d.split(":")[0] for d in caught.value.differences] == [
        "partition columns",
        "column id",
        "column extra",
        "property delta.constraints.positive",
    ]
    assert versions_of(dataset, root) == [0]


@case("P-LAYOUT-MISMATCH")
def test_a_write_under_other_partition_columns_is_refused_and_commits_nothing(classic: SparkSession, root: str) -> None:
    """Under another layout the values would land in other folders and be read back as NULL."""
    schema = StructType([StructField(name, LongType()) for name in ("a", "b", "c")])
    one = Dataset(name="one", schema=schema, partition_by=("a",), write=Append())
    two = replace(one, name="two", partition_by=("a", "b"))
    for dataset in (one, two):
        open_or_create(classic, dataset.at(root))

    for dataset, partition_by in [(one, ("b",)), (one, ()), (one, ("a", "b")), (two, ("b", "a"))]:
        for mode in (Append(), Replace()):
            with pytest.raises(TableMismatchError) as caught:
                put(classic, replace(dataset, partition_by=partition_by, write=mode), root, [(1, 2, 3)])
            (difference,) = caught.value.differences
            assert difference.startswith("partition columns: ")

    assert versions_of(one, root) == versions_of(two, root) == [0]


@pytest.mark.parametrize("folder", ["", "day=2026-01-01"])
def test_a_folder_of_parquet_files_without_a_log_is_neither_adopted_nor_changed(
    spark: SparkSession, root: str, folder: str
) -> None:
    location = Path(APPENDED.location(root))
    (location / folder).mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), location / folder / "part-0.parquet")
    before = sorted(location.rglob("*"))

    with pytest.raises(NotADeltaTableError) as caught:
        put(spark, APPENDED, root, [(day(1), 1, "a")])

    assert (caught.value.dataset, caught.value.location) == ("days", str(location))
    assert sorted(location.rglob("*")) == before


@pytest.mark.both_modes
def test_a_root_below_a_regular_file_is_a_storage_error(spark: SparkSession, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file", encoding="utf-8")
    root = str(blocked / "tables")

    with pytest.raises(StorageError) as caught:
        put(spark, APPENDED, root, [(day(1), 1, "a")])

    assert caught.value.location == APPENDED.location(root)
    assert caught.value.reason
    assert blocked.read_text(encoding="utf-8") == "a file"


@pytest.mark.parametrize("folder", ["", "_delta_log"], ids=["empty-folder", "empty-log"])
def test_an_empty_folder_is_no_table_and_becomes_one(spark: SparkSession, root: str, folder: str) -> None:
    location = APPENDED.location(root)
    (Path(location) / folder).mkdir(parents=True)

    assert table_state_with_sizes(spark, TableRef(APPENDED, location)) is None
    assert open_or_create(spark, TableRef(APPENDED, location)).version == 0
    assert versions_of(APPENDED, root) == [0]


@case("D-SWALLOWED-ERROR")
@pytest.mark.parametrize("damage", ["first commit gone", "first commit cut"])
def test_a_damaged_log_is_an_error_and_never_taken_for_no_table(spark: SparkSession, root: str, damage: str) -> None:
    """Taking it for 'no table yet' would put a new table over the old one's rows."""
    location = APPENDED.location(root)
    log = Path(location) / "_delta_log"
    log.mkdir(parents=True)
    commit = {"commitInfo": {"timestamp": 1, "operation": "WRITE", "operationParameters": {}}}
    name = f"{1 if damage == 'first commit gone' else 0:020d}.json"
    (log / name).write_text(json.dumps(commit) if damage == "first commit gone" else '{"protocol": {"minRe')
    before = {path: path.read_bytes() for path in log.iterdir()}

    with pytest.raises(StorageError) as caught:
        put(spark, APPENDED, root, [(day(1), 1, "a")])

    assert caught.value.location == location
    assert {path: path.read_bytes() for path in log.iterdir()} == before


@pytest.mark.both_modes
@case("T-FIRST-WRITE-RACE")
def test_two_threads_that_create_at_once_make_one_table_and_both_append(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that there is no table before either creates it."""
    barrier = threading.Barrier(2, timeout=60)
    create = open_table._create

    def create_together(*arguments: object) -> object:
        barrier.wait()
        return create(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(open_table, "_create", create_together)
    clones = [clone_session(spark) for _ in range(2)]
    frames = [frame_of(clone, APPENDED, [(day(i + 1), i, "t")]) for i, clone in enumerate(clones)]

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda f: write(f, table=APPENDED.at(root), note=note()), frames, timeout=120))
    for clone in clones:
        release_session(clone)

    assert len({result.table_id for result in results}) == 1
    assert sorted(result.version for result in results) == [1, 2]
    assert versions_of(APPENDED, root) == [0, 1, 2]
    assert rows_of(APPENDED, root) == [(day(1), 0, "t"), (day(2), 1, "t")]


def test_a_table_that_another_process_is_about_to_create_is_waited_for(
    classic: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is there, with a first commit that has no name yet, and then that process is done."""
    location, looks = APPENDED.location(root), []
    log = Path(location) / "_delta_log"
    log.mkdir(parents=True)
    unnamed = log / ".00000000000000000000.json.11111111-2222-3333-4444-555555555555.tmp"
    unnamed.touch()
    look = open_table.has_log_folder

    def done_at_the_third_look(place: str) -> bool:
        looks.append(place)
        if len(looks) == 3:
            unnamed.unlink()
            monkeypatch.setattr(open_table, "has_log_folder", look)
            open_or_create(classic, TableRef(APPENDED, location))
        return look(place)

    monkeypatch.setattr(open_table, "has_log_folder", done_at_the_third_look)
    result = put(classic, APPENDED, root, [(day(1), 1, "t")])

    assert (result.version, versions_of(APPENDED, root), len(looks)) == (1, [0, 1], 3)


def test_what_a_process_has_left_that_was_killed_in_its_first_commit_is_removed(
    classic: SparkSession, root: str
) -> None:
    log = Path(APPENDED.location(root)) / "_delta_log"
    log.mkdir(parents=True)
    for name in (".00000000000000000000.json.{}.tmp", "..00000000000000000000.json.{}.tmp.crc"):
        left = log / name.format("11111111-2222-3333-4444-555555555555")
        left.touch()
        os.utime(left, (0, 0))

    assert put(classic, APPENDED, root, [(day(1), 1, "t")]).version == 1
    assert [path.name for path in log.iterdir() if path.name.endswith((".tmp", ".tmp.crc"))] == []


def test_a_folder_whose_log_never_gets_a_commit_is_a_storage_error_after_the_wait(
    classic: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Path(APPENDED.location(root)) / "_delta_log"
    log.mkdir(parents=True)
    (log / "_somebody_s").touch()
    monkeypatch.setattr(open_table, "CREATION_SECONDS", 0.5)

    with pytest.raises(StorageError):
        put(classic, APPENDED, root, [(day(1), 1, "t")])
    assert [path.name for path in log.iterdir()] == ["_somebody_s"]


@pytest.mark.exhaustive
@case("T-FIRST-WRITE-RACE")
def test_two_processes_that_create_at_once_make_one_table_and_both_append(
    classic: SparkSession, spark_settings: SparkSettings, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two JVMs share nothing but the folder; again both have seen that there is no table."""
    ((_, options),) = brief_conf(spark_settings)
    child = subprocess.Popen(
        [sys.executable, "-m", "pipeline_tests.children.creating", root, str(spark_settings.cache), options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    answers = []
    create = open_table._create

    def create_with_the_child(*arguments: object) -> object:
        answers.append(child.stdout.readline().strip())
        child.stdin.write("now\n")
        child.stdin.flush()
        return create(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(open_table, "_create", create_with_the_child)
    try:
        ours = put(classic, APPENDED, root, [(day(1), 1, "parent")])
        table_id, version = json.loads(child.stdout.readline())
        child.communicate(timeout=60)
    finally:
        child.kill()

    assert answers == ["no table yet"]
    assert child.returncode == 0
    assert table_id == ours.table_id
    assert sorted([version, ours.version]) == [1, 2]
    assert versions_of(APPENDED, root) == [0, 1, 2]
    assert [commit_info(APPENDED, root, v)["operation"] for v in range(3)] == ["CREATE TABLE", "WRITE", "WRITE"]
    assert rows_of(APPENDED, root) == [(day(1), 1, "parent"), (day(2), 2, "child")]


def test_the_fingerprint_of_a_table_that_another_engine_wrote_is_that_of_the_declaration(
    classic: SparkSession, root: str
) -> None:
    place = pa.struct([pa.field("lat", pa.float64()), pa.field("lon", pa.float64())])
    schema = pa.schema(
        [
            pa.field("day", pa.date32(), nullable=False),
            pa.field("at", pa.timestamp("us", tz="UTC")),
            pa.field("price", pa.decimal128(18, 4)),
            pa.field("stops", pa.list_(place)),
            pa.field("raw", pa.binary()),
        ]
    )
    point = StructType([StructField("lat", DoubleType()), StructField("lon", DoubleType())])
    declared = Dataset(
        name="foreign",
        schema=StructType(
            [
                StructField("day", DateType(), False),
                StructField("at", TimestampType()),
                StructField("price", DecimalType(18, 4)),
                StructField("stops", ArrayType(point)),
                StructField("raw", BinaryType()),
            ]
        ),
        partition_by=("day",),
        change_feed=False,
    )
    location = declared.location(root)
    deltalake.DeltaTable.create(location, schema=schema, partition_by=["day"])

    state = open_or_create(classic, TableRef(declared, location))

    assert state.version == 0
    assert state.fingerprint == declared.fingerprint
