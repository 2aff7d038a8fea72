"""The manifest of an export: a JSON document with its source and its files, written when all of them are complete.

Its file is `_SUCCESS`, the name of Hadoop's marker of a complete folder. Readers of folders skip files with a name that
begins with `_`. A folder without the file is not complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

SUCCESS = "_SUCCESS"
# The file of an export that has begun in a folder.
BEGUN = "_exporting.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """A file of an export, by its path below the folder. `rows` is None if the format does not count them."""

    path: str
    size: int
    rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The version of a table that was exported, and the files.

    `entry` is the identity of the version's commit. `fingerprint` and `schema` are those of the exported columns,
    `partition_by` are the columns whose values are in the names of folders. `rows_by_folder` are the rows of each
    folder; without such columns the folder is the top, with an empty name. `history`: a copy of a table has its earlier
    versions.
    """

    dataset: str
    table_id: str
    version: int
    entry: str | None
    format: str
    columns: tuple[str, ...]
    where: str | None
    partition_by: tuple[str, ...]
    fingerprint: str
    schema: Mapping[str, Any]
    rows: int
    rows_by_folder: Mapping[str, int]
    files: tuple[ExportedFile, ...]
    history: bool = False

    def document(self) -> dict[str, Any]:
        """The manifest in JSON's types."""
        return {"export": FORMAT} | asdict(self) | {"rows_by_folder": dict(self.rows_by_folder)}

    @property
    def content(self) -> bytes:
        """The manifest as it is written."""
        return json.dumps(self.document(), indent=1, ensure_ascii=False).encode()

    def has_selection_of(self, other: Manifest) -> bool:
        """Whether both have the same dataset, format, columns and condition."""
        selections = [
            (m.dataset, m.format, m.columns, m.where, m.partition_by, m.fingerprint) for m in (self, other)
        ]  # fmt: skip
        return selections[0] == selections[1]


def manifest_of(document: object) -> Manifest | None:
    """The manifest in a JSON document. If it is not one of ours, None."""
    if not isinstance(document, dict) or document.get("export") != FORMAT:
        return None
    values = {name: value for name, value in document.items() if name != "export"}
    try:
        values["files"] = tuple(ExportedFile(**file) for file in values["files"])
        values |= {name: tuple(values[name]) for name in ("columns", "partition_by")}
        return Manifest(**values)
    except (TypeError, KeyError):
        return None


@dataclass(frozen=True, kw_only=True)
class Begun:
    """An export that has begun to change a folder.

    `previous` is the manifest of the complete export before it; None if there was none. `folders` are the folders of
    the partitions that it changes; None for all.
    """

    token: str
    previous: Manifest | None = None
    folders: tuple[str, ...] | None = None

    @property
    def content(self) -> bytes:
        """The document as it is written."""
        previous = None if self.previous is None else self.previous.document()
        folders = None if self.folders is None else list(self.folders)
        return json.dumps({"export": FORMAT, "token": self.token, "previous": previous, "folders": folders}).encode()


def parse_manifest(content: bytes) -> Manifest | None:
    """The manifest in a file. If the file is not one of ours, None."""
    return manifest_of(_parsed(content))


def parse_begun(content: bytes) -> Begun | None:
    """The export that a file says has begun. If the file is not one of ours, None."""
    document = _parsed(content)
    if not isinstance(document, dict) or document.get("export") != FORMAT:
        return None
    token, folders = document.get("token"), document.get("folders")
    if not isinstance(token, str) or not isinstance(folders, list | None):
        return None
    previous = manifest_of(document.get("previous"))
    return Begun(token=token, previous=previous, folders=None if folders is None else tuple(folders))


def _parsed(content: bytes) -> object:
    try:
        document: object = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document
