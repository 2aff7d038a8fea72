"""What the fingerprint of a schema depends on, and what it does not."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
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
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from pipeline.dataset import Dataset
from pipeline.dataset.schema import schema_fingerprint

ATOMS: tuple[DataType, ...] = (
    BinaryType(),
    BooleanType(),
    ByteType(),
    CharType(3),
    DateType(),
    DecimalType(10, 2),
    DecimalType(38, 0),
    DoubleType(),
    FloatType(),
    IntegerType(),
    LongType(),
    ShortType(),
    StringType(),
    TimestampNTZType(),
    TimestampType(),
    VarcharType(7),
)
METADATA = st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers(-9, 9), max_size=2)
NAMES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=4) | st.sampled_from(["a", "A", "á"])


def structs(types: st.SearchStrategy[DataType]) -> st.SearchStrategy[StructType]:
    """Structs of one to three fields with different names, comments included."""
    field = st.builds(StructField, NAMES, types, st.booleans(), METADATA)
    return st.lists(field, min_size=1, max_size=3, unique_by=lambda f: f.name).map(StructType)


TYPES = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: (
        structs(inner) | st.builds(ArrayType, inner, st.booleans()) | st.builds(MapType, inner, inner, st.booleans())
    ),
    max_leaves=5,
)
SCHEMAS = structs(TYPES)


def fingerprint(schema: StructType, *partition_by: str) -> str:
    return schema_fingerprint(schema, partition_by)


def rebuilt(data_type: DataType, change: Callable[[DataType], DataType]) -> DataType:
    """The type with `change` done to every part of it, innermost first."""
    if isinstance(data_type, StructType):
        fields = [StructField(f.name, rebuilt(f.dataType, change), f.nullable, f.metadata) for f in data_type.fields]
        return change(StructType(fields))
    if isinstance(data_type, ArrayType):
        return change(ArrayType(rebuilt(data_type.elementType, change), data_type.containsNull))
    if isinstance(data_type, MapType):
        key, value = rebuilt(data_type.keyType, change), rebuilt(data_type.valueType, change)
        return change(MapType(key, value, data_type.valueContainsNull))
    return change(data_type)


def without_metadata(data_type: DataType) -> DataType:
    if isinstance(data_type, StructType):
        return StructType([StructField(f.name, f.dataType, f.nullable) for f in data_type.fields])
    return data_type


def stored(data_type: DataType) -> DataType:
    return StringType() if isinstance(data_type, CharType | VarcharType) else data_type


def single_changes(data_type: DataType) -> Iterator[tuple[str, DataType]]:
    """Every type that differs from this one in one respect, with the name of the respect."""
    if isinstance(data_type, StructType):
        yield from changes_in_struct(data_type)
    elif isinstance(data_type, ArrayType):
        yield "element nullability", ArrayType(data_type.elementType, not data_type.containsNull)
        for what, element in single_changes(data_type.elementType):
            yield f"element {what}", ArrayType(element, data_type.containsNull)
        yield "array or not", data_type.elementType
    elif isinstance(data_type, MapType):
        key, value, nulls = data_type.keyType, data_type.valueType, data_type.valueContainsNull
        yield "value nullability", MapType(key, value, not nulls)
        for what, other in single_changes(key):
            yield f"key {what}", MapType(other, value, nulls)
        for what, other in single_changes(value):
            yield f"value {what}", MapType(key, other, nulls)
    else:
        yield "type", LongType() if isinstance(data_type, BooleanType) else BooleanType()
    if not isinstance(data_type, ArrayType):
        yield "array or not", ArrayType(data_type)


def changes_in_struct(struct: StructType) -> Iterator[tuple[str, DataType]]:
    fields = list(struct.fields)

    def with_field(i: int, *replacement: StructField) -> StructType:
        return StructType([*fields[:i], *replacement, *fields[i + 1 :]])

    for i, f in enumerate(fields):
        yield "rename", with_field(i, StructField(f"{f.name}-longer", f.dataType, f.nullable))
        yield "nullability", with_field(i, StructField(f.name, f.dataType, not f.nullable))
        yield "field added", with_field(i, f, StructField("a-new-one", LongType()))
        for what, other in single_changes(f.dataType):
            yield f"{f.name!r} {what}", with_field(i, StructField(f.name, other, f.nullable))
        if len(fields) > 1:
            yield "field dropped", with_field(i)
        if i:
            yield "order", StructType([*fields[: i - 1], f, fields[i - 1], *fields[i + 1 :]])


quick = settings(max_examples=60)


@quick
@given(SCHEMAS)
def test_a_round_trip_through_the_schema_string_keeps_the_fingerprint(schema: StructType) -> None:
    assert fingerprint(StructType.fromJson(json.loads(schema.json()))) == fingerprint(schema)


@quick
@given(SCHEMAS)
def test_comments_and_other_metadata_do_not_count_at_any_depth(schema: StructType) -> None:
    assert fingerprint(rebuilt(schema, without_metadata)) == fingerprint(schema)  # type: ignore[arg-type]


@quick
@given(SCHEMAS)
def test_char_and_varchar_count_as_the_string_they_are_stored_as_at_any_depth(schema: StructType) -> None:
    assert fingerprint(rebuilt(schema, stored)) == fingerprint(schema)  # type: ignore[arg-type]


@quick
@given(SCHEMAS)
def test_every_single_change_at_any_depth_gives_another_fingerprint(schema: StructType) -> None:
    before = fingerprint(schema)
    unseen = [what for what, changed in single_changes(schema) if fingerprint(changed) == before]  # type: ignore[arg-type]
    assert unseen == []


@quick
@given(SCHEMAS, SCHEMAS)
def test_two_schemas_share_a_fingerprint_only_where_they_are_stored_alike(one: StructType, other: StructType) -> None:
    def as_stored(schema: StructType) -> DataType:
        return rebuilt(rebuilt(schema, without_metadata), stored)

    assert (fingerprint(one) == fingerprint(other)) == (as_stored(one) == as_stored(other))


@quick
@given(SCHEMAS, st.lists(NAMES, min_size=2, max_size=3, unique=True))
def test_partition_columns_and_their_order_count(schema: StructType, columns: list[str]) -> None:
    prefixes = [columns[:n] for n in range(len(columns) + 1)]
    values = [fingerprint(schema, *names) for names in (*prefixes, columns[::-1])]
    assert len(set(values)) == len(values)


@pytest.mark.parametrize("other", [DecimalType(11, 2), DecimalType(10, 3)])
def test_precision_and_scale_of_a_decimal_count(other: DecimalType) -> None:
    of = {t: fingerprint(StructType([StructField("a", t)])) for t in (DecimalType(10, 2), other)}
    assert of[DecimalType(10, 2)] != of[other]


def test_a_timestamp_with_and_one_without_a_zone_are_two_types() -> None:
    with_zone, without = StructField("a", TimestampType()), StructField("a", TimestampNTZType())
    assert fingerprint(StructType([with_zone])) != fingerprint(StructType([without]))


def test_a_struct_and_its_fields_side_by_side_are_two_schemas() -> None:
    x, y = StructField("x", LongType()), StructField("y", LongType())
    nested = StructType([StructField("s", StructType([x, y]))])
    assert fingerprint(nested) != fingerprint(StructType([StructField("s", StructType([x])), y]))


NESTED = StructType(
    [
        StructField("day", DateType(), False, {"comment": "the day"}),
        StructField("größe", DecimalType(12, 3)),
        StructField("at", TimestampType(), False),
        StructField("code", VarcharType(4)),
        StructField(
            "place",
            StructType(
                [StructField("name", StringType(), False), StructField("spots", ArrayType(DoubleType(), False))]
            ),
            False,
        ),
        StructField("counts", MapType(StringType(), StructType([StructField("n", LongType())]), True)),
    ]
)


def test_the_canonical_form_has_not_changed() -> None:
    """Fingerprints stand in the commits of tables that exist: another canonical form makes all of them look changed."""
    assert fingerprint(NESTED, "day") == "aae19c89b676a08826ae9fdd9b0a5cfe4af5fd75756b384eb091ace7418f2846"


def test_a_dataset_has_the_fingerprint_of_its_schema_and_partition_columns() -> None:
    schema = StructType([StructField("day", DateType()), StructField("code", CharType(4))])
    dataset = Dataset(name="a", schema=schema, partition_by=("day",))
    assert dataset.fingerprint == fingerprint(schema, "day")


STORED = StructType(
    [
        StructField("day", DateType(), False),
        StructField("code", VarcharType(8)),
        StructField("number", IntegerType(), False),
        StructField("small", ShortType()),
        StructField("tiny", ByteType()),
        StructField("long", LongType()),
        StructField("ratio", DoubleType()),
        StructField("share", FloatType()),
        StructField("good", BooleanType()),
        StructField("raw", BinaryType()),
        StructField("price", DecimalType(12, 3)),
        StructField("at", TimestampType(), False),
        StructField("local", TimestampNTZType()),
        StructField(
            "place",
            StructType([StructField("name", StringType(), False), StructField("zone", DateType())]),
            False,
        ),
        StructField("spots", ArrayType(StructType([StructField("x", DoubleType())]))),
        StructField("exact", ArrayType(LongType(), False), False),
        StructField("counts", MapType(StringType(), DecimalType(5, 0))),
        StructField("full", MapType(StringType(), LongType(), False)),
    ]
)


def arrow_type(data_type: DataType) -> pa.DataType:
    """The Arrow type that delta-rs stores as this Spark type."""
    atoms: dict[type[DataType], pa.DataType] = {
        DateType: pa.date32(),
        IntegerType: pa.int32(),
        ShortType: pa.int16(),
        ByteType: pa.int8(),
        LongType: pa.int64(),
        DoubleType: pa.float64(),
        FloatType: pa.float32(),
        BooleanType: pa.bool_(),
        BinaryType: pa.binary(),
        StringType: pa.string(),
        VarcharType: pa.string(),
        TimestampType: pa.timestamp("us", "UTC"),
        TimestampNTZType: pa.timestamp("us"),
    }
    if isinstance(data_type, DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if isinstance(data_type, StructType):
        return pa.struct(arrow_fields(data_type))
    if isinstance(data_type, ArrayType):
        return pa.list_(pa.field("element", arrow_type(data_type.elementType), data_type.containsNull))
    if isinstance(data_type, MapType):
        value = pa.field("value", arrow_type(data_type.valueType), data_type.valueContainsNull)
        return pa.map_(pa.field("key", arrow_type(data_type.keyType), nullable=False), value)
    return atoms[type(data_type)]


def arrow_fields(struct: StructType) -> list[pa.Field]:
    return [pa.field(f.name, arrow_type(f.dataType), f.nullable) for f in struct.fields]


def logged_metadata(table: Path) -> dict[str, Any]:
    """The `metaData` action of the first commit."""
    first = table / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in first.read_text(encoding="utf-8").splitlines()]
    return next(action["metaData"] for action in actions if "metaData" in action)


@pytest.mark.parametrize("partition_by", [(), ("day",), ("code", "day")], ids="+".join)
def test_the_schema_string_that_delta_rs_logs_gives_the_declared_fingerprint(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    rows = pa.schema(arrow_fields(STORED)).empty_table()
    write_deltalake(tmp_path / "table", rows, partition_by=list(partition_by))
    logged = logged_metadata(tmp_path / "table")
    schema = StructType.fromJson(json.loads(logged["schemaString"]))
    declared = schema_fingerprint(STORED, partition_by)
    assert schema_fingerprint(schema, tuple(logged["partitionColumns"])) == declared
