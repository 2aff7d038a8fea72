"""Whether a data file is as its commit added it: its size, its Parquet footer, and on request every page.

Here belongs the check of one file and of its deletion vector. `replay` determines the files of a table.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from pipeline.delta.log.checkpoints import first_line
from pipeline.delta.log.entry import statistics
from pipeline.delta.storage.access import StoreError, kept_store_errors

_MAGIC = b"PAR1"
_ENCRYPTED = b"PARE"
# Delta truncates texts in statistics to so many characters.
_TRUNCATED_LENGTH = 32
# A vector is stored after its size and before its checksum, of this many bytes each.
_NUMBER_BYTES = 4
# Errors of pyarrow, or of the system, for bytes that are not Parquet.
_UNREADABLE = (OSError, ValueError, NotImplementedError, MemoryError)


def problem_of(system: Any, path: str, size: int, added: Mapping[str, Any], *, deep: bool) -> str | None:
    """What is wrong with a file of a table. If nothing is, None.

    Args:
        size: the file's size on disk, in bytes.
        added: the action that added the file.
        deep: read every page, which verifies its checksum, and compare the values with the statistics.
    """
    committed = added.get("size")
    if committed is not None and size != committed:
        return f"it has {size} bytes, but {committed} were committed"
    try:
        with kept_store_errors():
            return _problem_of_parquet(system, path, size, statistics(added), deep=deep)
    except StoreError:  # the store refuses, which is no damage
        raise
    except _UNREADABLE as error:
        return f"it can't be read as Parquet ({first_line(error)})"


def _problem_of_parquet(system: Any, path: str, size: int, stats: Mapping[str, Any], *, deep: bool) -> str | None:
    import pyarrow.parquet as pq

    with system.open_input_file(path) as source:
        start = source.read(len(_MAGIC))
        source.seek(max(size - len(_MAGIC), 0))
        end = source.read(len(_MAGIC))
        if end == _ENCRYPTED:
            return None
        if (start, end) != (_MAGIC, _MAGIC):
            return "it does not begin and end with Parquet's magic bytes"
        file = pq.ParquetFile(source, page_checksum_verification=True)
        rows = stats.get("numRecords")
        if rows is not None and rows != file.metadata.num_rows:
            return f"it has {file.metadata.num_rows} rows, but {rows} were committed"
        return _problem_of_values(file.read(), stats) if deep else None


def _problem_of_values(table: Any, stats: Mapping[str, Any]) -> str | None:
    """How the values differ from the committed statistics. If they don't, None."""
    table.validate(full=True)
    if stats.get("tightBounds") is False:  # the statistics of a file with deleted rows may be wider
        return None
    for column in table.column_names:
        values = table.column(column)
        nulls = (stats.get("nullCount") or {}).get(column)
        if isinstance(nulls, int) and nulls != values.null_count:
            return f"column {column} has {values.null_count} NULLs, but {nulls} were committed"
        least, greatest = (_comparable((stats.get(name) or {}).get(column)) for name in ("minValues", "maxValues"))
        actual = _min_max(values)
        if actual is not None and None not in (least, greatest) and actual != (least, greatest):
            return f"column {column} has {actual[0]!r} to {actual[1]!r}, but {least!r} to {greatest!r} were committed"
    return None


def _comparable(value: object) -> object:
    """A value of the statistics that can be compared directly. For any other value, None."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return None if isinstance(value, str) and len(value) >= _TRUNCATED_LENGTH else value


def _min_max(values: Any) -> tuple[object, object] | None:
    """The least and the greatest value of a column of integers or texts. For another type, or without values, None."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_integer(values.type) or pa.types.is_string(values.type)) or values.null_count == len(values):
        return None
    limits = pc.min_max(values).as_py()
    return limits["min"], limits["max"]


def problem_of_vector(system: Any, path: str, vector: Mapping[str, Any]) -> str | None:
    """Why a deletion vector can't be read (Delta protocol, "Deletion Vector File Storage Format"); None if it can be.

    Raises:
        FileNotFoundError: there is no such file.
    """
    size = vector.get("sizeInBytes")
    if size is None:
        return "the log does not have its size"
    with system.open_input_file(path) as source:
        source.seek(vector.get("offset") or 0)
        content: bytes = source.read(size + 2 * _NUMBER_BYTES)
    if len(content) < size + 2 * _NUMBER_BYTES:
        return "it ends before the deletion vector does"
    body, checksum = content[_NUMBER_BYTES:-_NUMBER_BYTES], int.from_bytes(content[-_NUMBER_BYTES:], "big")
    is_sound = int.from_bytes(content[:_NUMBER_BYTES], "big") == size and zlib.crc32(body) == checksum
    return None if is_sound else "the deletion vector in it has another size or checksum"
