"""The partition columns in the names of folders (`day=2026-01-31`): their types and their values. No Spark.

Here belong the reading of the names, the inference of a type from all values, and the parsing of a value. A type is
inferred only if every text is the one that the value of this type would have, so that no text changes.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegerType,
    IntegralType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.dataset.schema import casefolded, is_string
from pipeline.delta import sql
from pipeline.delta.sql.constraints import NULL_FOLDER
from pipeline.errors.listing import listed

# A folder's column and its text. None is NULL.
FolderValue = tuple[str, str | None]
_INTEGER = re.compile(r"[+-]?[0-9]+")
# Python's own parsers take more: `1_000`, other digits, weeks, and fractions that they cut off.
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NO_NUMBER = frozenset({"nan", "inf", "infinity"})
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(_DATE.pattern + r"([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?")
_INT_RANGE, _LONG_RANGE = range(-(2**31), 2**31), range(-(2**63), 2**63)
# An escape of a character beyond ASCII, which Spark decodes byte by byte and so to other characters.
_WIDE_ESCAPE = re.compile(r"%[89A-Fa-f][0-9A-Fa-f]")


@dataclass(frozen=True, kw_only=True)
class FolderColumn:
    """A partition column in the names of folders.

    `declared`: the declaration has the column, and so its type. `stored`: the files have it too. `guess` is the type
    that a reader which guesses would give the values although their texts would change; empty if there is none.
    """

    name: str
    data_type: DataType
    declared: bool
    stored: bool = False
    guess: str = ""


def folder_values(path: str) -> tuple[FolderValue, ...]:
    """The columns and texts in the folders of a file's path, outermost first.

    Raises:
        ValueError: a folder is no `column=value`, or its name is not UTF-8.
    """
    values = []
    for folder in path.split("/")[:-1]:
        name, equals, text = folder.partition("=")
        if not equals or not name:
            raise ValueError(f"{path}: the folder {folder!r} is not of the form column=value")
        if not text:
            raise ValueError(f"{path}: the folder {folder!r} has an empty value, which a table can't keep")
        try:
            name, decoded = unquote(name, errors="strict"), unquote(text, errors="strict")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: the name of the folder {folder!r} is not UTF-8") from error
        values.append((name, None if text == NULL_FOLDER else decoded))
    return tuple(values)


def is_decoded_otherwise_by_spark(path: str) -> bool:
    """Whether Spark reads other characters in the names of the folders: it decodes each byte of an escape by itself."""
    return _WIDE_ESCAPE.search(path.rpartition("/")[0]) is not None


def expected_columns(found: Sequence[tuple[str, ...]], declared: Sequence[str]) -> tuple[str, ...]:
    """The partition columns that every file should have: the declared ones if a file has them, else the most frequent.

    Args:
        found: the columns of each file.
    """
    folded = [casefolded(name) for name in declared]
    fitting = [columns for columns in found if declared and [casefolded(name) for name in columns] == folded]
    counted = Counter(fitting or found).most_common(1)
    return counted[0][0] if counted else ()


def folder_columns(
    names: Sequence[str], texts: Mapping[str, Iterable[str | None]], declared: Mapping[str, DataType],
    stored: Mapping[str, DataType],
) -> tuple[FolderColumn, ...]:  # fmt: skip
    """The columns with their types: the declared one, else that of the files, else one from all of the texts.

    Args:
        texts: by column, the texts of all files.
        declared: the declared types by casefolded name.
        stored: the types in the files by casefolded name.
    """
    columns = []
    for name in names:
        key, present = casefolded(name), sorted({text for text in texts[name] if text is not None})
        given = declared.get(key, stored.get(key))
        data_type, guess = (given, "") if given is not None else _inferred(present)
        columns.append(
            FolderColumn(
                name=name, data_type=data_type, declared=key in declared, stored=key in stored, guess=guess
            )
        )  # fmt: skip
    return tuple(columns)


def _inferred(texts: Sequence[str]) -> tuple[DataType, str]:
    """The type of the texts, and the type that another reader would guess."""
    if texts and all(_INTEGER.fullmatch(text) and str(int(text)) == text for text in texts):
        numbers = [int(text) for text in texts]
        if all(number in _INT_RANGE for number in numbers):
            return IntegerType(), ""
        if all(number in _LONG_RANGE for number in numbers):
            return LongType(), ""
    if texts and all(_is_date(text) for text in texts):
        return DateType(), ""
    return StringType(), _guessed(texts)


def _is_date(text: str) -> bool:
    with suppress(ValueError):
        return bool(_DATE.fullmatch(text)) and dt.date.fromisoformat(text).isoformat() == text
    return False


def _guessed(texts: Sequence[str]) -> str:
    """The type that all texts can be parsed as, with the first text that would change. If there is none, empty."""
    for data_type in (LongType(), DecimalType(38, 18)):
        with suppress(ValueError):
            changed = [text for text in texts if str(parsed(text, data_type)) != text]
            if changed:
                return f"{'BIGINT' if isinstance(data_type, LongType) else 'a number'}, but {changed[0]!r} would change"
    return ""


def parsed(text: str, data_type: DataType) -> Any:
    """The value of a partition column's text. A time without a zone is in UTC.

    Raises:
        ValueError: the text is no value of the type.
    """
    if is_string(data_type):
        return text
    for kind, parse in _PARSERS:
        if isinstance(data_type, kind):
            value = parse(text)
            sql.literal(value, data_type)  # raises if the type can't store the value
            return value
    raise ValueError(f"folders can't have values of type {data_type.simpleString()}")


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{text!r} is no integer")
    return int(text)


def _decimal(text: str) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is no number")
    return Decimal(text)


def _float(text: str) -> float:
    if text.lower().lstrip("+-") in _NO_NUMBER:
        return float(text)
    value = float(_decimal(text))
    if math.isinf(value):
        raise ValueError(f"{text!r} is out of range")
    return value


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _date(text: str) -> dt.date:
    if not _DATE.fullmatch(text):
        raise ValueError(f"{text!r} is no date as in 2026-01-31")
    return dt.date.fromisoformat(text)


def _time(text: str) -> dt.datetime:
    if not _TIME.fullmatch(text):
        raise ValueError(f"{text!r} is no time as in 2026-01-31 10:00:00")
    whole, dot, rest = text.removesuffix("Z").partition(".")
    fraction, zone = (rest[:6], rest[6:]) if dot else ("", "")
    if not dot or (fraction.isdigit() and not zone):  # Python 3.10 takes three or six digits
        value = dt.datetime.fromisoformat(f"{whole}.{fraction.ljust(6, '0')}" if dot else whole)
    else:
        value = dt.datetime.fromisoformat(text)
    return value.replace(tzinfo=dt.timezone.utc) if text.endswith("Z") else value


def _instant(text: str) -> dt.datetime:
    value = _time(text)
    return value if value.tzinfo is not None else value.replace(tzinfo=dt.timezone.utc)


def _without_zone(text: str) -> dt.datetime:
    value = _time(text)
    if value.tzinfo is not None:
        raise ValueError(f"{text!r} has a zone")
    return value


_PARSERS: tuple[tuple[type[DataType], Callable[[str], Any]], ...] = (
    (IntegralType, _integer),
    (DecimalType, _decimal),
    (FractionalType, _float),
    (BooleanType, _boolean),
    (DateType, _date),
    (TimestampType, _instant),
    (TimestampNTZType, _without_zone),
)


def value_problems(column: FolderColumn, texts: Iterable[str | None]) -> list[str]:
    """A message about the texts that are no values of the column's type; empty if all are."""
    wrong = []
    for text in sorted({text for text in texts if text is not None}):
        try:
            parsed(text, column.data_type)
        except ValueError:
            wrong.append(repr(text))
    kind = column.data_type.simpleString()
    return [f"partition column {column.name}: no values of type {kind}: {listed(wrong)}"] if wrong else []


@dataclass(frozen=True, kw_only=True)
class SourceFolders:
    """The columns in the folders of a source, and the texts of each file that has just these columns.

    `problems` are messages about the other files.
    """

    names: tuple[str, ...]
    texts: Mapping[str, tuple[str | None, ...]]
    problems: tuple[str, ...]

    def of(self, position: int) -> list[str | None]:
        """The texts of one column."""
        return [texts[position] for texts in self.texts.values()]

    def columns(
        self, declared: StructType | None, stored: Mapping[str, DataType] = MappingProxyType({})
    ) -> tuple[FolderColumn, ...]:
        """The columns with their types. Those of the files (`stored`, by casefolded name) come after declared ones."""
        types = {} if declared is None else {casefolded(field.name): field.dataType for field in declared.fields}
        by_name = {name: self.of(position) for position, name in enumerate(self.names)}
        return folder_columns(self.names, by_name, types, stored)

    def has(self, path: str, name: str, value: Any, data_type: DataType) -> bool:
        """Whether the folders of a file have a value, None for NULL, in a column. False if their text is no value."""
        names = [casefolded(each) for each in self.names]
        texts = self.texts.get(path)
        if texts is None or casefolded(name) not in names:
            return False
        text = texts[names.index(casefolded(name))]
        if text is None or value is None:
            return text is value
        try:
            return bool(parsed(text, data_type) == value)
        except ValueError:
            return False


def source_folders(paths: Iterable[str], declared: Sequence[str]) -> SourceFolders:
    """The columns in the folders of all files. A file with other columns than expected is a problem."""
    values: dict[str, tuple[FolderValue, ...]] = {}
    problems = []
    for path in paths:
        try:
            values[path] = folder_values(path)
        except ValueError as error:
            problems.append(str(error))
    found = {path: tuple(name for name, _ in row) for path, row in values.items()}
    names = expected_columns(list(found.values()), declared)
    for path, own in found.items():
        if own != names:
            columns = f"{listed(own) or 'no columns'}, expected {listed(names) or 'none'}"
            problems.append(f"{path}: its folders have {columns}")
    texts = {path: tuple(text for _, text in row) for path, row in values.items() if found[path] == names}
    return SourceFolders(names=names, texts=texts, problems=tuple(problems))
