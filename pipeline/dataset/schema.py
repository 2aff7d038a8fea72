"""A schema as a value: its fingerprint, its fields at every depth, and Delta's rules for column names.

Here belongs what follows from a schema alone. The other fields of a dataset belong to `declaration`.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

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
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
)

from pipeline.errors.argument_types import is_text

# Delta protocol, "Change Data Files": names that the change feed adds; a data column of that name makes it unreadable.
RESERVED_COLUMNS = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})
# Parquet's rule, which Delta enforces unless column mapping is on.
REFUSED_CHARACTERS = frozenset(" ,;{}()\n\t=")

# Spark's widest decimal.
_MOST_DIGITS = 38
# The digits that the values of an integral type may need.
_INTEGRAL_DIGITS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
# The types that Delta 4.4.0 stores, and whose values every write mode can compare, read and write.
_SUPPORTED: dict[str, type[DataType]] = {
    "string (of the default collation)": StringType, "char": CharType, "varchar": VarcharType, "binary": BinaryType,
    "boolean": BooleanType, "tinyint": ByteType, "smallint": ShortType, "int": IntegerType, "bigint": LongType,
    "float": FloatType, "double": DoubleType, "decimal": DecimalType, "date": DateType, "timestamp": TimestampType,
    "timestamp_ntz": TimestampNTZType, "array": ArrayType, "map": MapType, "struct": StructType,
    "variant": VariantType,
}  # fmt: skip


def schema_fingerprint(schema: StructType, partition_by: tuple[str, ...]) -> str:
    """SHA-256 over the canonical form of a schema: names, types, nullability, nesting, order, partition columns.

    Comments and other field metadata are ignored. `char` and `varchar` count as string, as they are stored. So the
    declaration and the schema string in any engine's log have the same fingerprint (Delta protocol, "Schema
    Serialization Format").
    """
    canonical = {"partition_by": list(partition_by), "schema": _canonical(schema)}
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _canonical(data_type: DataType) -> Any:
    if isinstance(data_type, StructType):
        return [[f.name, _canonical(f.dataType), f.nullable] for f in data_type.fields]
    if isinstance(data_type, ArrayType):
        return {"array": _canonical(data_type.elementType), "contains_null": data_type.containsNull}
    if isinstance(data_type, MapType):
        return {
            "map": [_canonical(data_type.keyType), _canonical(data_type.valueType)],
            "contains_null": data_type.valueContainsNull,
        }
    if isinstance(data_type, CharType | VarcharType):
        return "string"
    return data_type.simpleString()


def walk(schema: StructType) -> Iterator[tuple[str, StructField]]:
    """Every field with its dotted path, parents first; array elements and map entries as `element`, `key`, `value`."""
    return ((".".join(path), field) for path, field in walk_paths(schema))


def walk_paths(schema: StructType) -> Iterator[tuple[tuple[str, ...], StructField]]:
    """As `walk`, with each path as its parts: a name may contain a dot."""
    for field in schema.fields:
        yield from _walk((field.name,), field)


def _walk(path: tuple[str, ...], field: StructField) -> Iterator[tuple[tuple[str, ...], StructField]]:
    yield path, field
    inner = field.dataType
    if isinstance(inner, StructType):
        for child in inner.fields:
            yield from _walk((*path, child.name), child)
    elif isinstance(inner, ArrayType):
        yield from _walk((*path, "element"), StructField("element", inner.elementType, inner.containsNull))
    elif isinstance(inner, MapType):
        yield from _walk((*path, "key"), StructField("key", inner.keyType, False))
        yield from _walk((*path, "value"), StructField("value", inner.valueType, inner.valueContainsNull))


@lru_cache(maxsize=4096)
def casefolded(name: str) -> str:
    """The form of a name that Spark compares: equal for names that Java's `equalsIgnoreCase` calls equal.

    This is Spark's `CaseInsensitiveResolution`. Each character is converted to upper case and then to lower case, so
    that a dotless i equals an i, and a final sigma equals any sigma. A character whose upper case would be several
    characters, such as a sharp s, stays unchanged.
    """
    return "".join(map(_folded_character, name))


def _folded_character(character: str) -> str:
    upper = next((u for u in (character.upper(), character.title()) if len(u) == 1), character)
    return "i" if upper == "\u0130" else upper.lower()  # Python's lower case of U+0130 has two characters


def case_duplicates(schema: StructType) -> list[tuple[str, ...]]:
    """Groups of top-level names that differ by case only, which Spark can't tell apart."""
    return same_names(schema.names)


def same_names(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Groups of names that are equal to Spark, or to Delta's search for duplicates, which compares lower case."""
    groups: list[tuple[str, ...]] = []
    for fold in (casefolded, str.lower):
        by_fold: dict[str, list[str]] = defaultdict(list)
        for name in names:
            by_fold[fold(name)].append(name)
        repeated = (tuple(group) for group in by_fold.values() if len(group) > 1)
        groups += [group for group in repeated if not any(set(group) <= set(other) for other in groups)]
    return groups


def free_name(wanted: str, taken: Iterable[str]) -> str:
    """A column name that none of `taken` equals: `wanted`, with as many leading underscores as needed."""
    folded_names = {casefolded(name) for name in taken}
    while casefolded(wanted) in folded_names:
        wanted = f"_{wanted}"
    return wanted


def column_problems(schema: StructType, *, maps_columns: bool = False) -> Iterator[str]:
    """Messages about columns that no Delta table can have; with column mapping a name may have any character."""
    for group in case_duplicates(schema):
        yield f"columns {', '.join(group)} differ by case only"
    yield from _dotted_problems(schema)
    for path, field in walk(schema):
        yield from _argument_problems(path, field)
        if casefolded(field.name) in RESERVED_COLUMNS:
            yield f"column {path!r} has a name that the change feed adds itself"
        if not field.name or (REFUSED_CHARACTERS & set(field.name) and not maps_columns):
            yield f"column {path!r} has a character that Parquet refuses (space , ; {{ }} ( ) = tab newline)"
        if isinstance(field.dataType, NullType):
            yield f"column {path!r} has type void"
        elif not _is_supported(field.dataType):
            yield f"column {path!r} has type {field.dataType.simpleString()}; supported are {', '.join(_SUPPORTED)}"
        yield from _size_problems(path, field.dataType)
        if isinstance(field.dataType, StructType) and not field.dataType.fields:
            yield f"column {path!r} is a struct without fields"
        if isinstance(field.dataType, StructType):
            yield from (
                f"in {path!r}: columns {', '.join(g)} differ by case only" for g in case_duplicates(field.dataType)
            )
        if isinstance(field.dataType, ArrayType | MapType) and holds_not_null(field.dataType):
            container = "an array" if isinstance(field.dataType, ArrayType) else "a map"
            yield f"column {path!r}: NOT NULL inside {container} can't be enforced by Delta"


def _dotted_problems(schema: StructType) -> Iterator[str]:
    inside = {casefolded(".".join(path)) for path, _ in walk_paths(schema) if len(path) > 1}
    for name in schema.names:
        if casefolded(name) in inside:
            yield f"column {name!r} has the dotted name of a field inside another column"


def _size_problems(path: str, data_type: DataType) -> Iterator[str]:
    """What a type of Spark's Python takes as its size, and no column can have."""
    kind = data_type.simpleString()
    if isinstance(data_type, DecimalType):
        if not (1 <= data_type.precision <= _MOST_DIGITS and 0 <= data_type.scale <= data_type.precision):
            yield f"column {path!r} has type {kind}; its precision is 1 to {_MOST_DIGITS}, its scale 0 to that"
    elif isinstance(data_type, CharType | VarcharType) and data_type.length < 1:
        yield f"column {path!r} has type {kind}; its length is at least 1"


def _is_supported(data_type: DataType) -> bool:
    if type(data_type) is StringType:
        return bool(data_type.collation == StringType().collation)
    return type(data_type) in _SUPPORTED.values()


def partition_problems(schema: StructType, partition_by: Sequence[str]) -> Iterator[str]:
    """Messages about partition columns whose values Delta can't store as text in its log."""
    for field in schema.fields:
        if field.name not in partition_by:
            continue
        kind = field.dataType.simpleString()
        if isinstance(field.dataType, StructType | ArrayType | MapType):
            yield f"partition column {field.name!r} has the nested type {kind}"
        elif isinstance(field.dataType, VariantType):
            yield f"partition column {field.name!r} has type {kind}, which no table is partitioned by"
        elif isinstance(field.dataType, BinaryType):
            yield f"partition column {field.name!r} has type {kind}; Delta keeps such values as text"
        elif isinstance(field.dataType, CharType):
            yield f"partition column {field.name!r} has type {kind}, which Spark pads; declare string or varchar"


def _argument_problems(path: str, field: StructField) -> Iterator[str]:
    """What Spark takes of a field unseen, and neither it nor Dagster can use later."""
    if not is_text(field.name):
        yield f"column {path!r}: half of a surrogate pair stands alone in its name"
    nullable: object = field.nullable
    if not isinstance(nullable, bool):
        yield f"column {path!r}: nullable is {nullable!r}, expected True or False"
    comment = (field.metadata or {}).get("comment")
    if comment is not None and not isinstance(comment, str):
        yield f"column {path!r}: its comment is {comment!r}, expected a text"
    elif comment is not None and not is_text(comment):
        yield f"column {path!r}: half of a surrogate pair stands alone in its comment"


def holds_not_null(data_type: DataType) -> bool:
    """Whether a type contains a NOT NULL part at any depth; map keys, which are never NULL, don't count themselves."""
    if isinstance(data_type, ArrayType):
        return not data_type.containsNull or holds_not_null(data_type.elementType)
    if isinstance(data_type, MapType):
        inner = (data_type.keyType, data_type.valueType)
        return not data_type.valueContainsNull or any(holds_not_null(part) for part in inner)
    if isinstance(data_type, StructType):
        return any(not field.nullable or holds_not_null(field.dataType) for field in data_type.fields)
    return False


def is_string(data_type: DataType) -> bool:
    """Whether Delta stores the type as a string: string, char and varchar."""
    return isinstance(data_type, StringType | CharType | VarcharType)


def widens(narrow: DataType, wide: DataType, decimal_digits: Mapping[type[DataType], int] = _INTEGRAL_DIGITS) -> bool:
    """Whether every value of the narrow type is a value of the other, wider type.

    Args:
        decimal_digits: the integer digits that a decimal must have to be wider than an integral type.
    """
    given, digits = type(narrow), _INTEGRAL_DIGITS
    if given in digits and type(wide) in digits:
        return digits[given] < digits[type(wide)]
    if isinstance(narrow, FloatType) and isinstance(wide, DoubleType):
        return True
    if not isinstance(wide, DecimalType):
        return False
    integer_digits = wide.precision - wide.scale
    if isinstance(narrow, DecimalType):
        return narrow.scale <= wide.scale and narrow.precision - narrow.scale <= integer_digits
    return given in decimal_digits and decimal_digits[given] <= integer_digits
