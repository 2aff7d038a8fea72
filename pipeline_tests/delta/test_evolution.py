"""The schema policy: what a write changes by itself, what is refused, and that rows read back right either way."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any

import deltalake
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
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
)

from pipeline.dataset import Append, Check, Dataset, Features, Merge, Replace, SchemaPolicy, TableRef
from pipeline.delta.read.verdict import Reason, VerdictKind, verdict_on
from pipeline.delta.read.version import read
from pipeline.delta.table.open_table import conform, plan_of, require_table, shape_differences
from pipeline.delta.write.write import write
from pipeline.errors import NullViolationError, TableMismatchError
from pipeline.orchestration.metadata import write_metadata
from pipeline_tests.delta.sample import frame_of, note, placed, put, rows_of, versions_of
from pipeline_tests.delta.test_changes import cursor

case = pytest.mark.case
MAPPED = Features(column_mapping="name")


def fields(**types: DataType) -> StructType:
    return StructType([StructField(name, data_type) for name, data_type in types.items()])


def rows(session: SparkSession, dataset: Dataset, root: str) -> list[tuple[Any, ...]]:
    found = session.read.format("delta").load(dataset.location(root))
    return sorted((tuple(row) for row in found.collect()), key=str)


@pytest.mark.exhaustive
def test_after_a_rename_and_a_drop_a_new_column_of_the_old_name_has_none_of_the_old_values(
    classic: SparkSession, root: str
) -> None:
    old = Dataset(
        name="t", schema=fields(id=LongType(), qty=LongType(), s=fields(x=LongType())), write=Append(), features=MAPPED
    )
    placed(classic, old, root, [(1, 10, (5,))])
    renames = (("qty", "amount"), ("s.x", "y"))
    renamed = replace(
        old, schema=fields(id=LongType(), amount=LongType(), s=fields(y=LongType())),
        schema_policy=SchemaPolicy(mode="evolve", renames=renames),
    )  # fmt: skip
    result = put(classic, renamed, root, [(2, 20, (6,))])
    assert result.fingerprint_before == old.fingerprint
    assert result.schema_fingerprint == renamed.fingerprint
    assert result.schema_changes == (
        "column qty: renamed to amount, values kept",
        "column s.x: renamed to y, values kept",
    )
    assert rows(classic, renamed, root) == [(1, 10, (5,)), (2, 20, (6,))]
    metadata = write_metadata(renamed, result, {})
    assert metadata["delta/schema_fingerprint_before"] == old.fingerprint
    assert metadata["delta/schema_changes"].value == list(result.schema_changes)
    assert "delta/schema_changes" not in write_metadata(renamed, put(classic, renamed, root, []), {})

    dropped = replace(
        old, schema=fields(id=LongType(), s=fields(z=LongType())),
        schema_policy=SchemaPolicy(mode="evolve", drops=("amount", "s.y")),
    )  # fmt: skip
    with pytest.raises(TableMismatchError):  # a drop is nothing that a write does by itself
        put(classic, dropped, root, [(3, (7,))])
    conform(classic, dropped.at(root))
    assert rows(classic, dropped, root) == [(1, (None,)), (2, (None,))]

    again = replace(
        old, schema=fields(id=LongType(), qty=LongType(), s=fields(x=LongType(), z=LongType())),
        schema_policy=SchemaPolicy(mode="add columns"),
    )  # fmt: skip
    put(classic, again, root, [(4, 40, (8, 9))])
    assert rows(classic, again, root) == [
        (1, None, (None, None)),
        (2, None, (None, None)),
        (4, 40, (8, 9)),
    ]


def test_an_undeclared_rename_is_never_guessed(classic: SparkSession, root: str) -> None:
    old = Dataset(name="t", schema=fields(id=LongType(), qty=LongType()), write=Append(), features=MAPPED)
    placed(classic, old, root, [(1, 10)])
    new = replace(old, schema=fields(id=LongType(), amount=LongType()), schema_policy=SchemaPolicy(mode="evolve"))
    with pytest.raises(TableMismatchError) as caught:
        put(classic, new, root, [(2, 20)])
    assert "column qty: the table has it, the declaration does not" in caught.value.differences
    with pytest.raises(TableMismatchError):
        conform(classic, new.at(root))
    assert versions_of(old, root) == [0, 1]


def test_a_rename_or_a_drop_and_a_new_column_of_that_name_make_a_consumer_read_everything_anew(
    classic: SparkSession, root: str
) -> None:
    source = Dataset(name="source", schema=fields(id=LongType(), a=LongType()), write=Append(), features=MAPPED)
    placed(classic, source, root, [(1, 10)])
    before = cursor(source, root, 1)
    location = source.location(root)
    renamed = replace(
        source, schema=fields(id=LongType(), b=LongType()), schema_policy=SchemaPolicy(renames=(("a", "b"),))
    )
    conform(classic, TableRef(renamed, location))
    verdict = verdict_on(classic, TableRef(renamed, location), before)
    assert (verdict.kind, verdict.reason) == (VerdictKind.FULL, Reason.SCHEMA_CHANGED)

    at_rename = cursor(source, root, versions_of(source, root)[-1])
    dropped = replace(source, schema=fields(id=LongType()), schema_policy=SchemaPolicy(drops=("b",)))
    conform(classic, TableRef(dropped, location))
    back = replace(source, schema=fields(id=LongType(), b=LongType()), schema_policy=SchemaPolicy(mode="add columns"))
    put(classic, back, root, [(2, 20)])
    # The names and types are those of before, and the values of the rows that were there are not.
    verdict = verdict_on(classic, TableRef(back, location), at_rename)
    assert (verdict.kind, verdict.reason) == (VerdictKind.FULL, Reason.SCHEMA_CHANGED)


def test_the_partitions_of_a_renamed_column_are_counted_under_their_values(classic: SparkSession, root: str) -> None:
    old = Dataset(
        name="t", schema=fields(day=DateType(), id=LongType()), write=Replace(), partition_by=("day",), features=MAPPED
    )
    placed(classic, old, root, [(dt.date(2026, 1, 1), 1)])
    new = replace(
        old, schema=fields(date=DateType(), id=LongType()), partition_by=("date",),
        schema_policy=SchemaPolicy(mode="evolve", renames=(("day", "date"),)),
    )  # fmt: skip
    result = put(classic, new, root, [(dt.date(2026, 1, 2), 2), (dt.date(2026, 1, 3), 3)])
    assert result.rows_by_partition == {("2026-01-02",): 1, ("2026-01-03",): 1}


@case("S-BAD-CHARS")
@pytest.mark.exhaustive
def test_names_that_parquet_refuses_are_written_and_read_where_columns_are_mapped(
    classic: SparkSession, root: str
) -> None:
    schema = StructType(
        [
            StructField("Sales Order", LongType()),
            StructField("a;b", fields(**{"x=y": LongType()})),
            StructField("d", DateType()),
        ]
    )
    dataset = Dataset(name="t", schema=schema, write=Merge(), keys=("Sales Order",), features=MAPPED)
    day = dt.date(2026, 1, 1)
    placed(classic, dataset, root, [(1, (2,), day), (3, None, None)])
    put(classic, dataset, root, [(3, (4,), day)])
    found = read(classic, dataset.at(root)).frame
    assert found.schema.names == schema.names
    assert sorted(map(tuple, found.collect())) == [(1, (2,), day), (3, (4,), day)]


@case("S-INT-WIDEN")
def test_a_wider_type_is_taken_by_the_table_where_widening_is_declared(classic: SparkSession, root: str) -> None:
    narrow = Dataset(name="t", schema=fields(n=IntegerType()), write=Append(), features=Features(type_widening=True))
    put(classic, narrow, root, [(7,)])
    wide = replace(narrow, schema=fields(n=LongType()))
    for mode in ("exact", "add columns"):
        with pytest.raises(TableMismatchError):
            put(classic, replace(wide, schema_policy=SchemaPolicy(mode=mode)), root, [(2**31,)])
    assert versions_of(narrow, root) == [0, 1]
    result = put(classic, replace(wide, schema_policy=SchemaPolicy(mode="widen types")), root, [(2**31,)])
    assert rows(classic, wide, root) == [(2**31,), (7,)]
    assert result.schema_changes == ("column n: int -> bigint",)


@pytest.mark.exhaustive
@case("M-NULL-STRUCT")
@case("M-MAP-STRUCT")
def test_a_merge_into_evolved_structs_arrays_and_maps_keeps_null_structs_null(classic: SparkSession, root: str) -> None:
    narrow = fields(a=LongType(), b=LongType())
    wide = fields(a=LongType(), b=LongType(), c=LongType())
    old = Dataset(
        name="t", write=Merge(), keys=("id",),
        schema=fields(id=LongType(), s=narrow, m=MapType(StringType(), narrow), l=ArrayType(narrow)),
    )  # fmt: skip
    placed(classic, old, root, [(1, (1, 2), {"k": (1, 2)}, [(1, 2)]), (2, None, {"k": None}, [None])])
    new = replace(
        old, schema=fields(id=LongType(), s=wide, m=MapType(StringType(), wide), l=ArrayType(wide), new=StringType()),
        schema_policy=SchemaPolicy(mode="add columns"),
    )  # fmt: skip
    put(classic, new, root, [(2, None, {"k": None}, [None], "x"), (3, None, {"q": (7, 8, 9)}, [(4, 5, 6)], "y")])
    assert rows(classic, new, root) == [
        (1, (1, 2, None), {"k": (1, 2, None)}, [(1, 2, None)], None),
        (2, None, {"k": None}, [None], "x"),
        (3, None, {"q": (7, 8, 9)}, [(4, 5, 6)], "y"),
    ]


@case("P-LAYOUT-MISMATCH")
def test_only_a_replacement_of_the_whole_table_overwrites_schema_and_layout_and_it_keeps_the_tables_id(
    classic: SparkSession, root: str
) -> None:
    old = Dataset(
        name="t", schema=fields(a=LongType(), b=LongType(), c=StringType()), partition_by=("a",), write=Replace()
    )
    first = put(classic, old, root, [(1, 2, "x")])
    schema = StructType(
        [
            StructField("b", LongType(), False),
            StructField("a", StringType(), True, {"comment": "a"}),
            StructField("d", DateType()),
        ]
    )
    new = replace(
        old, schema=schema, partition_by=("b",), schema_policy=SchemaPolicy(mode="overwrite"),
        checks=(Check("positive", "b > 0"),),
    )  # fmt: skip
    with pytest.raises(TableMismatchError):
        put(classic, replace(new, write=Append()), root, [(1, "a", None)])
    with pytest.raises(NullViolationError):
        put(classic, new, root, [(None, "a", None)])
    assert versions_of(old, root) == [0, 1]
    result = put(classic, new, root, [(3, "three", dt.date(2026, 1, 1)), (4, None, None)])
    assert result.table_id == first.table_id
    assert (result.version, result.rows_written) == (2, 2)
    assert result.rows_by_partition == {("3",): 1, ("4",): 1}
    assert result.fingerprint_before == old.fingerprint
    assert any("partition columns" in change for change in result.schema_changes)
    assert rows_of(new, root) == [(3, "three", dt.date(2026, 1, 1)), (4, None, None)]
    state = require_table(classic, new.at(root))
    assert state.partition_by == ("b",)
    assert state.schema["a"].metadata["comment"] == "a"
    assert shape_differences(new, state) == []
    with pytest.raises(NullViolationError):
        put(classic, new, root, [(None, "a", None)])


# --- random pairs of schemas ------------------------------------------------------------------------------------------

ATOMS = (
    ShortType(),
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    DecimalType(12, 2),
    StringType(),
    DateType(),
)
NAMES = ("a", "b", "c", "d")
MODES = ("exact", "add columns", "widen types", "evolve")


def types() -> st.SearchStrategy[DataType]:
    atoms = st.sampled_from(ATOMS)
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.builds(ArrayType, inner),
            st.builds(lambda value: MapType(StringType(), value), inner),
            st.builds(
                lambda parts: StructType([StructField(name, part) for name, part in parts.items()]),
                st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3),
            ),
        ),
        max_leaves=4,
    )


WIDER: dict[type[DataType], tuple[DataType, ...]] = {
    ShortType: (IntegerType(), LongType(), DecimalType(14, 2)), IntegerType: (LongType(), DecimalType(12, 0)),
    LongType: (DecimalType(20, 0), DecimalType(25, 3)), FloatType: (DoubleType(),),
    DecimalType: (DecimalType(14, 2), DecimalType(16, 4)),
}  # fmt: skip


@st.composite
def changed(draw: st.DrawFn, data_type: DataType, kinds: set[str]) -> DataType:
    """A type made from another by changes that are told in `kinds`."""
    if isinstance(data_type, StructType):
        parts = []
        for item in data_type.fields:
            if len(data_type.fields) > 1 and draw(st.integers(0, 19)) == 19:
                kinds.add("drop")
                continue
            parts.append(StructField(item.name, draw(changed(item.dataType, kinds)), item.nullable))
        if not parts:
            parts = list(data_type.fields)
            kinds.discard("drop")
        free = [name for name in (*NAMES, "e") if name not in data_type.names]
        if free and draw(st.integers(0, 3)) == 3:
            kinds.add("add")
            place = draw(st.integers(0, len(parts)))
            parts.insert(place, StructField(free[0], draw(types())))
        return StructType(parts)
    if isinstance(data_type, ArrayType):
        return ArrayType(draw(changed(data_type.elementType, kinds)))
    if isinstance(data_type, MapType):
        return MapType(data_type.keyType, draw(changed(data_type.valueType, kinds)))
    chosen = draw(st.integers(0, 19))
    if chosen > 13 and type(data_type) in WIDER:
        kinds.add("widen")
        return draw(st.sampled_from(WIDER[type(data_type)]))
    if chosen == 13:
        other = StringType() if not isinstance(data_type, StringType) else LongType()
        kinds.add("other type")
        return other
    return data_type


@st.composite
def pairs(draw: st.DrawFn) -> tuple[StructType, StructType, frozenset[str], str]:
    old = StructType(
        [
            StructField(name, part)
            for name, part in draw(st.dictionaries(st.sampled_from(NAMES), types(), min_size=1, max_size=3)).items()
        ]
    )
    old = StructType([StructField("id", LongType(), draw(st.booleans())), *old.fields])
    kinds: set[str] = set()
    new = draw(changed(StructType(old.fields[1:]), kinds))
    assert isinstance(new, StructType)
    key = old.fields[0]
    if not key.nullable and draw(st.booleans()):
        kinds.add("relax")
        key = StructField("id", LongType())
    return old, StructType([key, *new.fields]), frozenset(kinds), draw(st.sampled_from(("evolve", "evolve", *MODES)))


# The written rules: what each mode settles by itself; "drop" (undeclared) and "other type" nobody does.
RULES = {
    "exact": frozenset(),
    "add columns": frozenset({"add"}),
    "widen types": frozenset({"widen"}),
    "evolve": frozenset({"add", "widen", "relax"}),
}


def value(data_type: DataType, number: int) -> Any:
    """A value of the type that a number stands for; every third is NULL."""
    if number % 3 == 2:
        return None
    if isinstance(data_type, StructType):
        return tuple(value(f.dataType, number + at) for at, f in enumerate(data_type.fields))
    if isinstance(data_type, ArrayType):
        return [value(data_type.elementType, number + 1), value(data_type.elementType, number)]
    if isinstance(data_type, MapType):
        return {"k": value(data_type.valueType, number)}
    if isinstance(data_type, StringType):
        return f"t{number}"
    if isinstance(data_type, DateType):
        return dt.date(2026, 1, 1 + number)
    if isinstance(data_type, DecimalType):
        return Decimal(number).quantize(Decimal(1).scaleb(-data_type.scale))
    return number + 0.5 if isinstance(data_type, FloatType | DoubleType) else number


def carried(old: DataType, new: DataType, found: Any) -> Any:
    """What an old value is under the new type."""
    if found is None:
        return None
    if isinstance(old, StructType) and isinstance(new, StructType):
        by_name = dict(zip(old.names, found, strict=True))
        types_ = {f.name: f.dataType for f in old.fields}
        return tuple(
            carried(types_[f.name], f.dataType, by_name[f.name]) if f.name in by_name else None for f in new.fields
        )
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return [carried(old.elementType, new.elementType, item) for item in found]
    if isinstance(old, MapType) and isinstance(new, MapType):
        return {key: carried(old.valueType, new.valueType, item) for key, item in found.items()}
    return Decimal(str(found)) if isinstance(new, DecimalType) else found


def plain(found: Any) -> Any:
    """Rows, lists and maps of any reader as tuples, lists and dictionaries."""
    if isinstance(found, dict):
        return {key: plain(item) for key, item in found.items()}
    if isinstance(found, list):
        return [plain(item) for item in found]
    return tuple(map(plain, found)) if isinstance(found, tuple) else found


def by_type(data_type: DataType, found: Any) -> Any:
    """What Arrow gives for a value, as Spark gives it: a row is a tuple, a map a dictionary."""
    if found is None:
        return None
    if isinstance(data_type, StructType):
        return tuple(by_type(f.dataType, found[f.name]) for f in data_type.fields)
    if isinstance(data_type, ArrayType):
        return [by_type(data_type.elementType, item) for item in found]
    if isinstance(data_type, MapType):
        entries = [(e["key"], e["value"]) if isinstance(e, dict) else e for e in found]
        return {key: by_type(data_type.valueType, item) for key, item in entries}
    return found


def check_pair(session: SparkSession, root: str, pair: tuple[StructType, StructType, frozenset[str], str]) -> str:
    """Write under the old schema, then under the new one; what came of it."""
    old, new, kinds, mode = pair
    features = Features(type_widening=True) if "widen" in kinds else Features()
    dataset = Dataset(name="pair", schema=old, write=Append(), change_feed=False, features=features)
    one, two = tuple(value(f.dataType, 1) for f in old.fields), tuple(value(f.dataType, 3) for f in new.fields)
    write(frame_of(session, dataset, [one]), table=dataset.at(root), note=note())
    wanted = replace(dataset, schema=new, schema_policy=SchemaPolicy(mode=mode))
    verdict = kinds <= RULES[mode]
    state = require_table(session, dataset.at(root))
    found = plan_of(session, TableRef(wanted, dataset.location(root)))
    assert found.is_automatic is verdict
    assert bool(shape_differences(wanted, state)) is bool(kinds) is found.differs
    if not verdict:
        with pytest.raises(TableMismatchError):
            put(session, wanted, root, [two])
        assert versions_of(dataset, root) == [0, 1]
        return "refused"
    put(session, wanted, root, [two])
    assert not plan_of(session, TableRef(wanted, dataset.location(root))).differs
    expected = sorted([carried(old, new, one), two], key=str)
    seen = session.read.format("delta").load(dataset.location(root)).collect()
    assert sorted((plain(tuple(row)) for row in seen), key=str) == expected
    if "widen" not in kinds:  # these read no table with that feature
        location = dataset.location(root)
        opened = deltalake.DeltaTable(location)
        in_pandas = pa.Table.from_pandas(opened.to_pandas(types_mapper=pd.ArrowDtype), preserve_index=False)
        for table in (opened.to_pyarrow_table(), in_pandas, pl.read_delta(location).to_arrow()):
            assert sorted((by_type(new, row) for row in table.to_pylist()), key=str) == expected
    return "changed" if kinds else "same"


@pytest.mark.exhaustive
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(pair=pairs())
def test_random_pairs_of_schemas_are_settled_or_refused_as_the_rules_say(
    classic: SparkSession, tmp_path_factory: pytest.TempPathFactory, pair: Any
) -> None:
    check_pair(classic, str(tmp_path_factory.mktemp("pair")), pair)


@pytest.mark.exhaustive
def test_more_random_pairs_of_schemas(
    classic: SparkSession, tmp_path_factory: pytest.TempPathFactory, soak: int
) -> None:
    counts: dict[tuple[str, str], int] = {}

    @seed(20)
    @settings(max_examples=80 * soak, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(pair=pairs())
    def run(pair: Any) -> None:
        came = check_pair(classic, str(tmp_path_factory.mktemp("pair")), pair)
        counts[came, pair[3]] = counts.get((came, pair[3]), 0) + 1

    run()
    print(counts)
    assert sum(counts.values()) >= 80 * soak
