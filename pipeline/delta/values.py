"""Values of a record, one at a time, as a dataset's column declares them, or the reason why not.

Here belongs what a plain Python value, as JSON or a caller's code has it, may stand for. Whole columns in Arrow are
`arrow`'s: there a type is known before the values are, here each value has its own.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.dataset import is_string
from pipeline.delta import sql
from pipeline.listing import listed

Reader = Callable[[Any], Any]
_BITS: tuple[tuple[type[DataType], int], ...] = ((ByteType, 8), (ShortType, 16), (IntegerType, 32), (LongType, 64))
_SHOWN = 40
_DATE_LENGTH = len("2026-01-31")


class Unfit(ValueError):  # noqa: N818  never leaves this package: a reason on its way to a dead letter
    """A value that its column can't hold."""


def as_mapping(value: Any) -> Mapping[str, Any] | None:
    """A record's fields by name; None for what is no record. The fields' own values are not copied."""
    if isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def size_of(value: Any) -> int:
    """About how many bytes a value takes in a file; lengths are asked for, nothing is copied."""
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    return 8


def reader(declared: DataType, *, allow_nan: bool) -> Reader:
    """What turns a value that is not None into one that Arrow takes for the declared type, or raises `Unfit`."""
    if isinstance(declared, StructType):
        return _struct(declared, allow_nan)
    if isinstance(declared, ArrayType):
        return _array(declared, allow_nan)
    if isinstance(declared, MapType):
        return _map(declared, allow_nan)
    if isinstance(declared, DoubleType | FloatType):
        return _float(declared, allow_nan)
    if isinstance(declared, DecimalType):
        return _decimal(declared)
    for kind, bits in _BITS:
        if isinstance(declared, kind):
            return _integer(declared, bits)
    return _plain(declared)


def _refused(value: Any, declared: DataType, why: str = "") -> Unfit:
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    said = f"got {type(value).__name__} {shown}, declared {sql.type_name(declared)}"
    return Unfit(f"{said}: {why}" if why else said)


def _integer(declared: DataType, bits: int) -> Reader:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _refused(value, declared)
        if not low <= value <= high:
            raise _refused(value, declared, "it is out of range")
        return value

    return read


def _float(declared: DataType, allow_nan: bool) -> Reader:
    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise _refused(value, declared)
        try:
            number = float(value)
        except OverflowError as error:
            raise _refused(value, declared, "it is out of range") from error
        if not allow_nan and not math.isfinite(number):
            raise _refused(value, declared, "it is no number")
        if isinstance(value, int) and int(number) != value:
            raise _refused(value, declared, "digits would be lost")
        return number

    return read


def _decimal(declared: DecimalType) -> Reader:
    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
            raise _refused(value, declared)
        try:
            number = Decimal(value)
        except ArithmeticError as error:
            raise _refused(value, declared) from error
        if not number.is_finite():
            raise _refused(value, declared, "it is no number")
        _, digits, exponent = number.as_tuple()
        # Not `normalize`, which rounds to the 28 digits of Python's context.
        trailing = len(digits) - len("".join(map(str, digits)).rstrip("0"))
        places = -int(exponent) - trailing
        whole = len(digits) + int(exponent)
        if number and (places > declared.scale or whole > declared.precision - declared.scale):
            raise _refused(value, declared, "digits would be lost")
        return number

    return read


def _plain(declared: DataType) -> Reader:
    """A type without parts whose values are checked by kind alone, times among them."""
    if isinstance(declared, TimestampType):
        return lambda value: _instant(value, declared)
    if isinstance(declared, TimestampNTZType):
        return lambda value: _local_time(value, declared)
    if isinstance(declared, DateType):
        return lambda value: _date(value, declared)
    kinds: dict[type[DataType], tuple[type, ...]] = {BooleanType: (bool,), BinaryType: (bytes, bytearray)}
    taken: tuple[type, ...] = (str,) if is_string(declared) else kinds.get(type(declared), ())

    def read(value: Any) -> Any:
        if not isinstance(value, taken):
            raise _refused(value, declared)
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                raise _refused(value, declared, "half of a surrogate pair is no text") from error
        return value

    return read


def _time(value: Any, declared: DataType) -> dt.datetime:
    if isinstance(value, str) and len(value) > _DATE_LENGTH:
        try:
            # Python 3.10 does not read the Z.
            value = dt.datetime.fromisoformat(value[:-1] + "+00:00" if value[-1] in "Zz" else value)
        except ValueError as error:
            raise _refused(value, declared, "no time as in 2026-01-31T12:00:00Z") from error
    if not isinstance(value, dt.datetime):
        raise _refused(value, declared)
    if getattr(value, "nanosecond", 0):
        raise _refused(value, declared, "nanoseconds would be lost")
    return value


def _instant(value: Any, declared: DataType) -> dt.datetime:
    found = _time(value, declared)
    if found.tzinfo is None:
        raise _refused(value, declared, "it has no zone")
    try:
        return found.astimezone(dt.timezone.utc)
    except OverflowError as error:
        raise _refused(value, declared, "outside the years 1 to 9999") from error


def _local_time(value: Any, declared: DataType) -> dt.datetime:
    found = _time(value, declared)
    if found.tzinfo is not None:
        raise _refused(value, declared, "it has a zone")
    return found


def _date(value: Any, declared: DataType) -> dt.date:
    if isinstance(value, str):
        try:
            return dt.date.fromisoformat(value)
        except ValueError as error:
            raise _refused(value, declared, "no date as in 2026-01-31") from error
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        raise _refused(value, declared)
    return value


def _within(path: str, read: Reader, value: Any) -> Any:
    try:
        return None if value is None else read(value)
    except Unfit as error:
        raise Unfit(f"{path}: {error}") from error


def _array(declared: ArrayType, allow_nan: bool) -> Reader:
    element = reader(declared.elementType, allow_nan=allow_nan)

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _refused(value, declared)
        return [_within(f"element {number}", element, inner) for number, inner in enumerate(value)]

    return read


def _map(declared: MapType, allow_nan: bool) -> Reader:
    key, item = (reader(part, allow_nan=allow_nan) for part in (declared.keyType, declared.valueType))

    def read(value: Any) -> Any:
        # Arrow hands a map out as a list of pairs.
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(pairs, list) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):  # noqa: PLR2004
            raise _refused(value, declared)
        if any(name is None for name, _ in pairs):
            raise _refused(value, declared, "a key is NULL")
        read_pairs = [(key(name), _within(f"key {name!r}", item, inner)) for name, inner in pairs]
        if len({repr(name) for name, _ in read_pairs}) < len(read_pairs):
            raise _refused(value, declared, "a key stands twice")
        return read_pairs

    return read


def _struct(declared: StructType, allow_nan: bool) -> Reader:
    readers = {field.name: reader(field.dataType, allow_nan=allow_nan) for field in declared.fields}
    required = {field.name for field in declared.fields if not field.nullable}

    def read(value: Any) -> Any:
        found = as_mapping(value)
        if found is None:
            raise _refused(value, declared)
        unknown = [str(name) for name in found if name not in readers]
        if unknown:
            raise Unfit(f"fields {listed(unknown)} are not declared")
        row = {name: _within(str(name), readers[name], found.get(name)) for name in readers}
        for name in required:
            if row[name] is None:
                raise Unfit(f"{name}: NULL, declared NOT NULL")
        return row

    return read
