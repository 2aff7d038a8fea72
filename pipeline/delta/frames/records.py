"""Single values of a record, converted to the declared type of their column, or the reason why that is impossible.

Here belong plain Python values, from JSON or a caller's code. `arrow` converts columns in Arrow: there one type is
known for all values, here each value has its own type.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
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
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from pipeline.dataset.schema import is_string
from pipeline.delta import sql
from pipeline.errors.listing import listed

Reader = Callable[[Any], Any]
_BITS: tuple[tuple[type[DataType], int], ...] = ((ByteType, 8), (ShortType, 16), (IntegerType, 32), (LongType, 64))
_SHOWN = 40
# The greatest depth of nested lists and mappings, far below that at which Python, Arrow or Spark would fail.
MAX_DEPTH = 64
_CONTAINERS = (Mapping, list, tuple)
# More digits than any declared decimal has.
_EXACT = decimal.Context(prec=80, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
_LARGEST_FLOAT = 3.4028235677973366e38  # from here on a 32-bit float would be infinite
_DATE_LENGTH = len("2026-01-31")


class Unfit(ValueError):  # noqa: N818  never reaches a user: its text becomes the reason of a dead letter
    """A value that its column can't hold."""


def as_mapping(value: Any) -> Mapping[str, Any] | None:
    """A record's fields by name, without copying their values. If the value is not a record, None."""
    if isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def size_of(value: Any, limit: int | None = None) -> int:
    """An estimate of a value's bytes in a file, from lengths alone; no value is copied.

    Values deeper than `MAX_DEPTH` are not counted. Counting stops when the limit is exceeded.
    """
    size, level = 0, [value]
    for _ in range(MAX_DEPTH + 1):
        next_level: list[Any] = []
        for part in level:
            if isinstance(part, str | bytes | bytearray):
                size += len(part)
                continue
            size += 8
            next_level.extend(_parts(part))
            if limit is not None and size > limit:
                return size
        level = next_level
    return size


def is_deep(value: Any) -> bool:
    """Whether lists and mappings are nested deeper than `MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        # By identity, so that a list that contains itself twice does not fill the memory.
        next_level = {id(part): part for outer in level for part in _parts(outer) if isinstance(part, _CONTAINERS)}
        if not next_level:
            return False
        level = list(next_level.values())
    return True


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


class _Shown(reprlib.Repr):
    """A bounded `repr` that never fails for any value."""

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to convert integers with very many digits to text.
        return f"an integer of {x.bit_length()} bits" if x.bit_length() > 1 << 10 else super().repr_int(x, level)


_SHORT = _Shown()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 1 << 9


def shown_value(value: Any) -> str:
    """A value's text for a reason: its bounded `repr`."""
    return _SHORT.repr(value)


def shown_name(name: Any) -> str:
    """A field's name for a reason, bounded as values are."""
    return name[: 1 << 9] if isinstance(name, str) else shown_value(name)


def coercer(declared: DataType, *, allow_nan: bool) -> Reader:
    """A function that converts a value that is not None into one that Arrow accepts for the type, or raises `Unfit`."""
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
    text = shown_value(value)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    mismatch = f"got {type(value).__name__} {text}, declared {sql.type_name(declared)}"
    return Unfit(f"{mismatch}: {why}" if why else mismatch)


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
    largest = math.inf if isinstance(declared, DoubleType) else _LARGEST_FLOAT

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise _refused(value, declared)
        try:
            number = float(value)
        except OverflowError as error:
            raise _refused(value, declared, "it is out of range") from error
        except ValueError as error:  # a signaling NaN
            raise _refused(value, declared, "it is not a number") from error
        if not abs(number) < largest and Decimal(value).is_finite():
            raise _refused(value, declared, "it is out of range")
        if not allow_nan and not math.isfinite(number):
            raise _refused(value, declared, "it is not a finite number")
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
            raise _refused(value, declared, "it is not a finite number")
        _, digits, exponent = number.as_tuple()
        # Not `normalize`, which rounds to the 28 digits of Python's context.
        trailing = len(digits) - len("".join(map(str, digits)).rstrip("0"))
        fraction_digits = -int(exponent) - trailing
        integer_digits = len(digits) + int(exponent)
        if number and (fraction_digits > declared.scale or integer_digits > declared.precision - declared.scale):
            raise _refused(value, declared, "digits would be lost")
        # At the declared scale: Arrow does not accept a large exponent, as of 0E+999999999.
        return number.quantize(Decimal(1).scaleb(-declared.scale), context=_EXACT)

    return read


def _plain(declared: DataType) -> Reader:
    """The reader of a type without parts whose values are checked by their Python type, such as times and text."""
    if isinstance(declared, TimestampType):
        return lambda value: _instant(value, declared)
    if isinstance(declared, TimestampNTZType):
        return lambda value: _local_time(value, declared)
    if isinstance(declared, DateType):
        return lambda value: _date(value, declared)
    kinds: dict[type[DataType], tuple[type, ...]] = {BooleanType: (bool,), BinaryType: (bytes, bytearray)}
    accepted: tuple[type, ...] = (str,) if is_string(declared) else kinds.get(type(declared), ())
    max_length = declared.length if isinstance(declared, CharType | VarcharType) else None

    def read(value: Any) -> Any:
        if not isinstance(value, accepted):
            raise _refused(value, declared)
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                raise _refused(value, declared, "half of a surrogate pair is not text") from error
        if max_length is not None and value[max_length:].strip(" "):  # Spark only cuts off spaces
            raise _refused(value, declared, f"it has {len(value)} characters")
        return value

    return read


def _time(value: Any, declared: DataType) -> dt.datetime:
    if isinstance(value, str) and len(value) > _DATE_LENGTH:
        try:
            # Python 3.10 does not parse a Z.
            value = dt.datetime.fromisoformat(value[:-1] + "+00:00" if value[-1] in "Zz" else value)
        except ValueError as error:
            raise _refused(value, declared, "it is not a time such as 2026-01-31T12:00:00Z") from error
    if not isinstance(value, dt.datetime):
        raise _refused(value, declared)
    if getattr(value, "nanosecond", 0):
        raise _refused(value, declared, "nanoseconds would be lost")
    return value


def _instant(value: Any, declared: DataType) -> dt.datetime:
    time = _time(value, declared)
    if time.tzinfo is None:
        raise _refused(value, declared, "it has no zone; expected a time such as 2026-01-31T12:00:00Z")
    try:
        return time.astimezone(dt.timezone.utc)
    except OverflowError as error:
        raise _refused(value, declared, "it is outside the years 1 to 9999") from error


def _local_time(value: Any, declared: DataType) -> dt.datetime:
    time = _time(value, declared)
    if time.tzinfo is not None:
        raise _refused(value, declared, "it has a zone, but the column's type has none")
    return time


def _date(value: Any, declared: DataType) -> dt.date:
    if isinstance(value, str):
        try:
            return dt.date.fromisoformat(value)
        except ValueError as error:
            raise _refused(value, declared, "it is not a date such as 2026-01-31") from error
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        raise _refused(value, declared)
    return value


def _within(path: str, read: Reader, value: Any) -> Any:
    try:
        return None if value is None else read(value)
    except Unfit as error:
        raise Unfit(f"{path}: {error}") from error


def _array(declared: ArrayType, allow_nan: bool) -> Reader:
    element = coercer(declared.elementType, allow_nan=allow_nan)

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _refused(value, declared)
        return [_within(f"element {number}", element, inner) for number, inner in enumerate(value)]

    return read


def _map(declared: MapType, allow_nan: bool) -> Reader:
    key, item = (coercer(part, allow_nan=allow_nan) for part in (declared.keyType, declared.valueType))

    def read(value: Any) -> Any:
        # Arrow returns a map as a list of pairs.
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(pairs, list) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):  # noqa: PLR2004
            raise _refused(value, declared)
        if any(name is None for name, _ in pairs):
            raise _refused(value, declared, "a key is NULL")
        read_pairs = [(key(name), _within(f"key {shown_value(name)}", item, inner)) for name, inner in pairs]
        if len({repr(name) for name, _ in read_pairs}) < len(read_pairs):
            raise _refused(value, declared, "it has the same key twice")
        return read_pairs

    return read


def _struct(declared: StructType, allow_nan: bool) -> Reader:
    readers = {field.name: coercer(field.dataType, allow_nan=allow_nan) for field in declared.fields}
    required = {field.name for field in declared.fields if not field.nullable}

    def read(value: Any) -> Any:
        record = as_mapping(value)
        if record is None:
            raise _refused(value, declared)
        unknown = [shown_name(name) for name in record if name not in readers]
        if unknown:
            raise Unfit(f"fields {listed(unknown)} are not declared")
        row = {name: _within(str(name), readers[name], record.get(name)) for name in readers}
        for name in required:
            if row[name] is None:
                raise Unfit(f"{name}: NULL, declared NOT NULL")
        return row

    return read
