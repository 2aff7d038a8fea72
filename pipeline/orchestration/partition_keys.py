"""The one spelling of a value as a partition key.

Here belongs how a static or dynamic key becomes a value of a column's type. What the keys of an asset stand for, and
those of time windows, is `partitions`'.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.dataset.schema import is_string

_PLAIN_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")


def parser_of(data_type: DataType) -> Callable[[str], Any] | None:
    """How a static or dynamic key becomes a value; raises ValueError for a key that spells none."""
    if is_string(data_type):
        return str
    if isinstance(data_type, DecimalType):
        return partial(decimal_of, scale=data_type.scale)
    return next((parse for cls, parse in _PARSERS if isinstance(data_type, cls)), None)


# A value has one spelling: '1' and '01' would be two keys that overwrite each other's rows.
def _spelled(key: str, value: Any, spelling: str) -> Any:
    if spelling != key:
        raise ValueError(key)
    return value


def _integer(key: str) -> int:
    return _spelled(key, int(key), str(int(key)))  # type: ignore[no-any-return]


def decimal_of(key: str, scale: int) -> Decimal:
    """A decimal with as many zeros behind it as its column has places; keys of one value are refused later."""
    is_negative_zero = key.startswith("-") and not key.strip("-0.")
    if not _PLAIN_DECIMAL.fullmatch(key) or len(key.partition(".")[2]) > scale or is_negative_zero:
        raise ValueError(key)
    return Decimal(key)


def _day(key: str) -> dt.date:
    value = dt.date.fromisoformat(key)
    return _spelled(key, value, value.isoformat())  # type: ignore[no-any-return]


def _local_instant(key: str) -> dt.datetime:
    value = dt.datetime.fromisoformat(key)
    return _spelled(key, value, value.isoformat(sep=" "))  # type: ignore[no-any-return]


def _instant(key: str) -> dt.datetime:
    value = _local_instant(key)
    if value.tzinfo is not None:
        raise ValueError(key)
    return value.replace(tzinfo=dt.timezone.utc)


_PARSERS: tuple[tuple[type[DataType], Callable[[str], Any]], ...] = (
    (IntegralType, _integer),
    (DateType, _day),
    (TimestampType, _instant),
    (TimestampNTZType, _local_instant),
    (BooleanType, {"true": True, "false": False}.__getitem__),
)
