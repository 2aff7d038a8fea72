"""Whether a data file is what a commit has added: its size, its Parquet footer, and on request every page of it.

Here belongs the look at one file, and at the deletion vector of one. Which files a table is made of is `replay`'s.
"""

from __future__ import annotations

import base64
import uuid
import zlib
from collections.abc import Mapping
from typing import Any

from pipeline.delta.log.entry import statistics
from pipeline.delta.log.snapshot import first_line

_MAGIC = b"PAR1"
_ENCRYPTED = b"PARE"
# As far as Delta keeps the beginning of a text in its statistics.
_WHOLE_TEXT = 32
# The signs of base85 as the protocol has them, and as Python has them.
_DIGITS = "0123456789"
_LOWER, _UPPER = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SIGNS = str.maketrans(
    f"{_DIGITS}{_LOWER}{_UPPER}.-:+=^!/*?&<>()[]{{}}@%$#", f"{_DIGITS}{_UPPER}{_LOWER}!#$%&()*+-;<=>?@^_`{{|}}~"
)
_UUID_SIGNS = 20
# Before a vector its size, and after it its checksum, each so many bytes.
_NUMBER = 4
# What pyarrow raises of bytes that are no Parquet, its own errors among them.
_UNREADABLE = (OSError, ValueError, NotImplementedError, MemoryError)


def problem_of(system: Any, path: str, size: int, added: Mapping[str, Any], *, deep: bool) -> str | None:
    """What is wrong with a file of a table; None where nothing is.

    Args:
        size: in bytes, as it is on disk.
        added: the action that has added it.
        deep: read every page, so that its checksums are compared, and compare its values with the statistics.
    """
    committed = added.get("size")
    if committed is not None and size != committed:
        return f"it has {size} bytes, and {committed} were committed"
    try:
        return _problem_of_parquet(system, path, size, statistics(added), deep=deep)
    except _UNREADABLE as error:
        return f"it can't be read as Parquet ({first_line(error)})"


def _problem_of_parquet(system: Any, path: str, size: int, said: Mapping[str, Any], *, deep: bool) -> str | None:
    import pyarrow.parquet as pq

    with system.open_input_file(path) as source:
        start = source.read(len(_MAGIC))
        source.seek(max(size - len(_MAGIC), 0))
        end = source.read(len(_MAGIC))
        if end == _ENCRYPTED:
            return None
        if (start, end) != (_MAGIC, _MAGIC):
            return "it does not begin and end as Parquet does"
        file = pq.ParquetFile(source, page_checksum_verification=True)
        rows = said.get("numRecords")
        if rows is not None and rows != file.metadata.num_rows:
            return f"it has {file.metadata.num_rows} rows, and {rows} were committed"
        return _problem_of_values(file.read(), said) if deep else None


def _problem_of_values(table: Any, said: Mapping[str, Any]) -> str | None:
    """In what the values differ from the statistics that were committed; None where they don't."""
    table.validate(full=True)
    if said.get("tightBounds") is False:  # of a file with deleted rows the statistics may be wider
        return None
    for column in table.column_names:
        values = table.column(column)
        nulls = (said.get("nullCount") or {}).get(column)
        if isinstance(nulls, int) and nulls != values.null_count:
            return f"column {column} has {values.null_count} NULLs, and {nulls} were committed"
        least, greatest = (_comparable((said.get(name) or {}).get(column)) for name in ("minValues", "maxValues"))
        there = _ends(values)
        if there is not None and None not in (least, greatest) and there != (least, greatest):
            return f"column {column} has {there[0]!r} to {there[1]!r}, and {least!r} to {greatest!r} were committed"
    return None


def _comparable(value: object) -> object:
    """A value of the statistics that can be compared as it is; None for any other."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return None if isinstance(value, str) and len(value) >= _WHOLE_TEXT else value


def _ends(values: Any) -> tuple[object, object] | None:
    """The least and the greatest value of a column of whole numbers or texts; None of any other, or without values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_integer(values.type) or pa.types.is_string(values.type)) or values.null_count == len(values):
        return None
    ends = pc.min_max(values).as_py()
    return ends["min"], ends["max"]


def vector_file(vector: Mapping[str, Any]) -> str | None:
    """Where a deletion vector lies, below the table or as a full path; None of one that stands in the log itself."""
    text = str(vector["pathOrInlineDv"])
    if vector["storageType"] == "p":
        return text
    if vector["storageType"] != "u":
        return None
    folder, name = text[:-_UUID_SIGNS], uuid.UUID(bytes=base64.b85decode(text[-_UUID_SIGNS:].translate(_SIGNS)))
    return f"{folder}/deletion_vector_{name}.bin" if folder else f"deletion_vector_{name}.bin"


def problem_of_vector(system: Any, path: str, vector: Mapping[str, Any]) -> str | None:
    """What is wrong with a deletion vector's part of its file (Delta protocol, "Deletion Vector File Storage Format").

    Raises:
        FileNotFoundError: there is no such file.
    """
    size = int(vector["sizeInBytes"])
    with system.open_input_file(path) as source:
        source.seek(int(vector.get("offset") or 0))
        content: bytes = source.read(size + 2 * _NUMBER)
    if len(content) < size + 2 * _NUMBER:
        return "it ends before the deletion vector does"
    body, checksum = content[_NUMBER:-_NUMBER], int.from_bytes(content[-_NUMBER:], "big")
    is_whole = int.from_bytes(content[:_NUMBER], "big") == size and zlib.crc32(body) == checksum
    return None if is_whole else "the deletion vector in it has another size or checksum"
