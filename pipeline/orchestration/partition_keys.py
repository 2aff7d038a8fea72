"""The unique text of a value as a partition key.

Here belongs the conversion of a static or dynamic key to a value of a column's type. The columns of an asset's keys
and the keys of time windows belong to `partitions`.
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
    """The function from a static or dynamic key to a value. It raises ValueError if the key spells no value."""
    if is_string(data_type):
        return str
    if isinstance(data_type, DecimalType):
        return partial(decimal_of, scale=data_type.scale)
    return next((parse for cls, parse in _PARSERS if isinstance(data_type, cls)), None)


# A value has only one spelling: '1' and '01' would be two keys that overwrite each other's rows.
def _spelled(key: str, value: Any, spelling: str) -> Any:
    if spelling != key:
        raise ValueError(key)
    return value


def _integer(key: str) -> int:
    return _spelled(key, int(key), str(int(key)))  # type: ignore[no-any-return]


def decimal_of(key: str, scale: int) -> Decimal:
    """A decimal with at most as many places as its column has. Two keys with one value are refused later."""
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
