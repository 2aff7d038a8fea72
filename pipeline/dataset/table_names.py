"""The name of a table in a catalog: its parts, and the name that the setting `catalog` gives to a dataset.

Here belongs the form of such names. No catalog is asked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pipeline.errors import SettingsError

# A part is a word, or any text between backquotes, in which a doubled backquote is one.
_PART = r"[A-Za-z0-9_]+|`(?:[^`]|``)+`"
_NAME = re.compile(rf"(?:{_PART})(?:\.(?:{_PART}))*")
_WORD = re.compile(r"[A-Za-z0-9_]+")
_MOST_PARTS = 3
_FORM = "words of letters, digits and '_' with dots between them; any other word between backquotes"
# Spark reads a name with a path as the files at that path. Without dots the parts of a name can be joined by them.
_NOT_IN_PARTS = re.compile(r"[./]")
# The schema of a dataset whose name has one part: Spark's own first schema, and that of most catalogs.
DEFAULT_SCHEMA = "default"


def name_parts(name: str) -> tuple[str, ...]:
    """The parts of a valid name, without backquotes."""
    return tuple(part[1:-1].replace("``", "`") if part[0] == "`" else part for part in re.findall(_PART, name))


def name_problems(name: str, most: int = _MOST_PARTS) -> Iterator[str]:
    """Why a text is no name of up to `most` parts."""
    if not _NAME.fullmatch(name):
        yield f"expected {_FORM}"
        return
    parts = name_parts(name)
    if len(parts) > most:
        yield f"it has {len(parts)} parts, and at most {most} are possible"
    for part in parts:
        if _NOT_IN_PARTS.search(part) or not part.isprintable() or part != part.strip():
            yield f"part {part!r} has a dot, a slash, a control character or a space at an end"


def joined(parts: Iterable[str]) -> str:
    """A name from its parts, those that are no words between backquotes."""
    return ".".join(part if _WORD.fullmatch(part) else f"`{part.replace('`', '``')}`" for part in parts)


def with_suffix(name: str, suffix: str) -> str:
    """The name of another table in the same schema."""
    *schema, table = name_parts(name)
    return joined((*schema, f"{table}{suffix}"))


def mapped_name(catalog: str, dataset_name: str) -> str:
    """The name that a dataset gets below the setting `catalog`.

    Below a catalog, the first part of the dataset's name is the schema, and the others, joined by `_`, are the table. A
    name of one part is a table in the schema `default`. Below a schema, all parts are the table. Each character that is
    no letter, digit or `_` becomes `_`.

    Raises:
        SettingsError: `catalog` is neither a catalog nor a catalog and a schema.
    """
    problems = tuple(name_problems(catalog, most=2))
    if problems:
        expected = f"the name of a catalog, or of a catalog and a schema: {_FORM}"
        raise SettingsError(setting="catalog", problem=f"got {catalog!r}: {'; '.join(problems)}", expected=expected)
    above = name_parts(catalog)
    parts = [re.sub(r"[^A-Za-z0-9_]", "_", part) for part in dataset_name.split("/")]
    if len(above) == 1:
        above = (*above, parts.pop(0) if len(parts) > 1 else DEFAULT_SCHEMA)
    return joined((*above, "_".join(parts)))
