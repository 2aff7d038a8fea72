"""The mapping between the types of Arrow and of Spark.

Here belongs what follows from a type alone; `arrow` converts values. pyarrow is imported in the functions that use it,
so that loading definitions does not wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from pipeline.dataset.schema import is_string, walk
from pipeline.errors import FrameMismatchError

# The digits that an integer of any width may have, unsigned ones included.
INTEGER_DIGITS = 20
# Spark's widest decimal.
_MOST_DIGITS = 38
# The type for an unsigned integer, by its width in bits.
_UNSIGNED: Mapping[int, DataType] = {
    8: ShortType(),
    16: IntegerType(),
    32: LongType(),
    64: DecimalType(INTEGER_DIGITS, 0),
}


def storage_type(data_type: DataType) -> DataType:
    """The type in a file: every part is nullable, `char` and `varchar` are strings, and fields have no comments."""
    if isinstance(data_type, StructType):
        return StructType([StructField(field.name, storage_type(field.dataType)) for field in data_type.fields])
    if isinstance(data_type, ArrayType):
        return ArrayType(storage_type(data_type.elementType))
    if isinstance(data_type, MapType):
        return MapType(storage_type(data_type.keyType), storage_type(data_type.valueType))
    return StringType() if is_string(data_type) else data_type


def arrow_type(data_type: DataType) -> Any:
    """The Arrow type of a local frame's column for a declared type: microseconds, and instants in UTC."""
    return to_arrow_type(storage_type(data_type), timezone="UTC")


def is_list(given: Any) -> bool:
    """Whether the Arrow type is a list of any kind."""
    from pyarrow import types

    kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    return any(kind(given) for kind in kinds)


def maps_as_lists(given: Any) -> Any:
    """The Arrow type with a list of (key, value) structs in place of each map, at every depth."""
    import pyarrow as pa

    if pa.types.is_map(given):
        key = pa.field("key", maps_as_lists(given.key_type), nullable=False)
        return pa.list_(pa.struct([key, pa.field("value", maps_as_lists(given.item_type))]))
    if is_list(given):
        return pa.list_(maps_as_lists(given.value_type))
    if pa.types.is_struct(given):
        return pa.struct([field.with_type(maps_as_lists(field.type)) for field in given])
    return given


def spark_schema(schema: Any, name: str) -> StructType:
    """The columns of an Arrow schema in Spark's types, all of them nullable.

    An unsigned integer becomes the narrowest type for all of its values, and a time without a zone a TIMESTAMP_NTZ.

    Raises:
        FrameMismatchError: with every column whose type Spark lacks.
    """
    fields, problems = [], []
    for field in schema:
        try:
            fields.append(StructField(field.name, _spark_type(field.type)))
        except PySparkTypeError:
            problems.append(f"column {field.name}: has type {field.type}, which Spark lacks")
    if problems:
        raise FrameMismatchError(dataset=name, differences=tuple(problems))
    return StructType(fields)


def _spark_type(given: Any) -> DataType:
    """The Spark type of an Arrow type. If there is none, raises PySparkTypeError."""
    from pyarrow import types

    if types.is_dictionary(given) or types.is_run_end_encoded(given):
        return _spark_type(given.value_type)
    if is_list(given):
        return ArrayType(_spark_type(given.value_type))
    if types.is_map(given):
        return MapType(_spark_type(given.key_type), _spark_type(given.item_type))
    if types.is_struct(given):
        return StructType([StructField(field.name, _spark_type(field.type)) for field in given])
    if types.is_decimal(given) and given.precision > _MOST_DIGITS:
        raise PySparkTypeError(
            errorClass="UNSUPPORTED_DATA_TYPE_FOR_ARROW_CONVERSION", messageParameters={"data_type": str(given)}
        )
    if types.is_unsigned_integer(given):
        return _UNSIGNED[given.bit_width]
    for is_kind, data_type in ((types.is_string_view, StringType()), (types.is_binary_view, BinaryType()),
                               (types.is_date, DateType()), (types.is_float16, FloatType())):  # fmt: skip
        if is_kind(given):
            return data_type
    return from_arrow_type(given)


def holds_variant(schema: StructType) -> bool:
    """Whether the schema has a variant at any depth. Spark 4.2's `toArrow` fails on a NULL one, and files shred it."""
    return any(isinstance(field.dataType, VariantType) for _, field in walk(schema))
