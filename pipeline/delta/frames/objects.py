"""Python objects in a column of pandas: values that Arrow's inference of a type would change.

Here belong the values themselves, at every depth. `arrow` checks what follows from an inferred type alone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

_PAIR = 2


def entries_of_dicts(value: Any, declared: DataType) -> Any:
    """The value with a list of entries for every dict that is declared a map; Arrow would infer a struct.

    An empty dict that is declared a struct gets a field, and an empty array of NumPy becomes a list: Arrow would infer
    a struct without fields, and the elements' type from the array.
    """
    if isinstance(declared, MapType) and isinstance(value, Mapping):
        return [_entry(key, item, declared) for key, item in value.items()]
    if isinstance(declared, MapType) and isinstance(value, list | tuple) and value and all(map(_is_pair, value)):
        return [_entry(key, item, declared) for key, item in value]
    if isinstance(declared, ArrayType) and hasattr(value, "dtype") and getattr(value, "size", None) == 0:
        return []
    if isinstance(declared, StructType) and isinstance(value, Mapping) and not value and declared.fields:
        return {declared.fields[0].name: None}
    if isinstance(declared, ArrayType) and _is_sequence(value):
        return [entries_of_dicts(element, declared.elementType) for element in value]
    if isinstance(declared, StructType) and isinstance(value, Mapping):
        types = {field.name.lower(): field.dataType for field in declared.fields}
        return {
            name: entries_of_dicts(inner, types[name.lower()]) if str(name).lower() in types else inner
            for name, inner in value.items()
        }
    return value


def _entry(key: Any, item: Any, declared: MapType) -> dict[str, Any]:
    return {"key": entries_of_dicts(key, declared.keyType), "value": entries_of_dicts(item, declared.valueType)}


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == _PAIR


def _is_sequence(value: Any) -> bool:
    """Whether Arrow takes the value for a list of objects: a list, a set, a view of a dict, or an array of NumPy."""
    is_of_python = isinstance(value, list | tuple | set | KeysView | ValuesView)
    return is_of_python or getattr(getattr(value, "dtype", None), "kind", "") == "O"


def refuse_loss(values: Iterable[Any], inferred: Any) -> None:
    """Refuse values of which Arrow's inference over Python objects silently drops a part, at every depth.

    Args:
        inferred: the Arrow type that was inferred from all the values together.

    Raises:
        ValueError: a value that the type can't hold unchanged.
    """
    from pyarrow import types

    if not (types.is_nested(inferred) or types.is_temporal(inferred)):
        return
    present = [value for value in values if value is not None]
    if types.is_struct(inferred):
        dicts = [value for value in present if isinstance(value, Mapping)]
        for field in inferred:
            refuse_loss((value.get(field.name) for value in dicts), field.type)
    elif types.is_map(inferred):
        pairs = [pair for value in present for pair in _pairs(value)]
        refuse_loss((key for key, _ in pairs), inferred.key_type)
        refuse_loss((item for _, item in pairs), inferred.item_type)
    elif types.is_nested(inferred):
        elements = (element for value in present if _is_sequence(value) for element in value)
        refuse_loss(elements, inferred.value_type)
    else:
        _refuse_lossy_times([value for value in present if not _is_missing(value)])


def _pairs(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, Mapping) else value
    return ((pair[0], pair[1]) for pair in pairs)


def _is_missing(value: Any) -> bool:
    """Whether the value is pandas' NaT, which is a datetime too."""
    return isinstance(value, dt.datetime | dt.timedelta) and value != value  # noqa: PLR0124  NaT is unequal to itself


def _refuse_lossy_times(present: list[Any]) -> None:
    times = [value for value in present if isinstance(value, dt.datetime)]
    if any(isinstance(value, dt.date) and not isinstance(value, dt.datetime) for value in present) and times:
        raise ValueError("dates and datetimes are mixed")
    if len({value.tzinfo is None for value in times}) > 1:
        raise ValueError("datetimes with and without a zone are mixed")
    if any(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0) for value in present):
        raise ValueError("nanoseconds would be lost")
