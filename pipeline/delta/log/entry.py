"""One entry of a Delta log, parsed strictly, and the error of a damaged one.

Here belong the form of an entry (Delta protocol, "Delta Log Entries") and the check of its actions against its own
metrics, which shows a missing part. Delta reads an empty entry as one without actions, and one that was cut between two
lines as a complete one. `integrity` checks the sequence of entries.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pipeline.errors import DamagedTableError

Action = dict[str, Any]

# The fields of an action that are read, and their types (Delta protocol, "Actions"). Other fields, and actions of other
# kinds, may occur.
_REQUIRED: Mapping[str, Mapping[str, type]] = {
    "add": {"path": str, "size": int},
    "remove": {"path": str},
    "cdc": {"path": str},
    "metaData": {"id": str, "schemaString": str},
    "protocol": {"minReaderVersion": int, "minWriterVersion": int},
    "txn": {"appId": str, "version": int},
    "domainMetadata": {"domain": str, "configuration": str},
}
_OPTIONAL: Mapping[str, Mapping[str, type]] = {
    "add": {"partitionValues": dict, "deletionVector": dict, "stats": str, "dataChange": bool},
    "remove": {"partitionValues": dict, "deletionVector": dict, "size": int, "dataChange": bool},
    "cdc": {"partitionValues": dict, "size": int},
    "metaData": {"partitionColumns": list, "configuration": dict},
    "protocol": {"readerFeatures": list, "writerFeatures": list},
}
_TYPES = {kind: {**names, **_OPTIONAL.get(kind, {})} for kind, names in _REQUIRED.items()}
_OPTIONAL_TEXT = (str, type(None))
_OPTIONAL_INT = (int, type(None))
_VECTOR: Mapping[str, tuple[type, ...]] = {
    "storageType": (str,), "pathOrInlineDv": (str,), "cardinality": _OPTIONAL_INT, "offset": _OPTIONAL_INT,
    "sizeInBytes": _OPTIONAL_INT,
}  # fmt: skip
# Other engines may write any value into commitInfo: a field of another type counts as absent.
_INFO: Mapping[str, type] = {
    "operation": str, "operationParameters": dict, "operationMetrics": dict, "userMetadata": str, "engineInfo": str,
    "timestamp": int, "inCommitTimestamp": int, "readVersion": int, "txnId": str,
}  # fmt: skip
_ONCE = ("commitInfo", "metaData", "protocol")
# The actions of files: an entry can have many, and they don't describe the table.
MANY = ("add", "remove", "cdc")
_KIND_LENGTH = 16
# Delta on Spark ends each line with a newline; delta-rs does not end the last one.
_ENDS_LINES = "Apache-Spark"
# The kind of actions that an operation metric counts. `numFiles` is not among them: Delta counts a file there even if
# it is empty and not in the commit. For such commits the number of rows is checked.
_COUNTED: Mapping[str, tuple[str, ...]] = {
    "numAddedFiles": ("add",),
    "numRemovedFiles": ("remove",),
    "numAddedChangeFiles": ("cdc",),
    "numTargetFilesAdded": ("add",),
    "numTargetFilesRemoved": ("remove",),
    "numTargetChangeFilesAdded": ("cdc",),
    "num_added_files": ("add", "cdc"),  # delta-rs counts the change files of a DELETE and an UPDATE too
    "num_removed_files": ("remove",),
}
_COUNTING_ENGINES = ("Apache-Spark", "delta-rs")
# The characters of base85 in the order of the protocol, and in that of Python.
_DIGITS = "0123456789"
_LOWER, _UPPER = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BASE85 = str.maketrans(
    f"{_DIGITS}{_LOWER}{_UPPER}.-:+=^!/*?&<>()[]{{}}@%$#", f"{_DIGITS}{_UPPER}{_LOWER}!#$%&()*+-;<=>?@^_`{{|}}~"
)
_PYTHONS_BASE85 = {python: protocol for protocol, python in _BASE85.items()}
_UUID_CHARACTERS = 20
_WRITES = frozenset({"WRITE", "CREATE TABLE AS SELECT", "REPLACE TABLE AS SELECT", "CREATE OR REPLACE TABLE AS SELECT"})


def damaged_file(file: str, reason: str) -> DamagedTableError:
    """The error for a damaged file of a log or a table. It names the table's folder until a caller sets the dataset."""
    location = file.rpartition("/_delta_log/")[0] or file
    return DamagedTableError(
        dataset=location.rstrip("/").rpartition("/")[2], location=location, file=file, reason=reason
    )


@contextmanager
def of_dataset(name: str) -> Iterator[None]:
    """Set the dataset's name in a DamagedTableError of the block."""
    try:
        yield
    except DamagedTableError as error:
        error.dataset = name
        raise


def actions_of(file: str, content: bytes) -> list[Action]:
    """The actions of an entry.

    Raises:
        DamagedTableError: it is empty, cut off or not JSON, or it has fewer actions than its own metrics count.
    """
    actions = [_action(file, number, line) for number, line in _lines(file, content)]
    problem = _contradiction(actions, is_closed=content.endswith(b"\n"))
    if problem is not None:
        raise damaged_file(file, problem)
    return actions


def table_actions_of(file: str, content: bytes) -> list[Action]:
    """The actions of an entry without those of `MANY`, whose lines are not parsed.

    Raises:
        DamagedTableError: it is empty, cut off or not JSON.
    """
    few = []
    for number, line in _lines(file, content):
        is_one_of_many = any(f'"{kind}"' in line[:_KIND_LENGTH] for kind in MANY) and line.rstrip().endswith("}")
        if not is_one_of_many:
            few.append(_action(file, number, line))
    return few


def info_of(actions: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The commitInfo of an entry. If it has none, which the protocol allows, empty."""
    info: object = next((action["commitInfo"] for action in actions if action.get("commitInfo")), {})
    if not isinstance(info, dict):
        return {}
    misfits = _misfits(info, _INFO)
    return {name: value for name, value in info.items() if name not in misfits} if misfits else info


def _lines(file: str, content: bytes) -> list[tuple[int, str]]:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged_file(file, f"it is not UTF-8 text from byte {error.start} on") from error
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise damaged_file(file, "it is empty")
    return lines


def _action(file: str, number: int, line: str) -> Action:
    try:
        action = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise damaged_file(file, f"line {number} is cut off or not JSON ({error})") from error
    if not isinstance(action, dict) or all(value is None for value in action.values()):
        raise damaged_file(file, f"line {number} is not an action")
    for kind, names in _REQUIRED.items():
        value = action.get(kind)
        if not value:
            continue
        missing = [name for name in names if not isinstance(value, dict) or value.get(name) is None]
        if missing:
            raise damaged_file(file, f"line {number} lacks {', '.join(missing)} in its {kind} action")
        misfits = _misfits(value, _TYPES[kind]) or list(_misfits_inside(value))
        if misfits:
            raise damaged_file(
                file, f"line {number} has a value of another type for {', '.join(misfits)} in its {kind} action"
            )
    if action.get("metaData"):
        _refuse_schema(file, number, action["metaData"]["schemaString"])
    return action


def _misfits(value: Mapping[str, Any], types: Mapping[str, type]) -> list[str]:
    """The fields that are present with a value of another type."""
    return [name for name, of in types.items() if value.get(name) is not None and type(value[name]) is not of]


def _misfits_inside(value: Mapping[str, Any]) -> Iterator[str]:
    """The fields of an action whose parts have other types than in the protocol."""
    if any(not isinstance(column, str) for column in value.get("partitionColumns") or ()):
        yield "partitionColumns"
    for name in ("partitionValues", "configuration"):
        texts = value.get(name)
        if isinstance(texts, dict) and any(not isinstance(text, str | None) for text in texts.values()):
            yield name
    vector = value.get("deletionVector")
    if vector and not _has_types(vector, _VECTOR):
        yield "deletionVector"


def _refuse_schema(file: str, number: int, text: str) -> None:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged_file(file, f"line {number} has a schema that is not JSON ({error})") from error
    if not isinstance(schema, dict) or not isinstance(schema.get("fields"), list):
        raise damaged_file(file, f"line {number} has a schema without fields")
    for field in schema["fields"]:
        if not _has_types(field, {"name": (str,), "metadata": (dict, type(None))}):
            raise damaged_file(file, f"line {number} has a schema with an invalid field")


def _contradiction(actions: Sequence[Action], *, is_closed: bool) -> str | None:
    """What an entry's own commitInfo counts but its actions lack. If there is no contradiction, None."""
    for kind in _ONCE:
        if sum(bool(action.get(kind)) for action in actions) > 1:
            return f"it has {kind} more than once"
    info = info_of(actions)
    engine = str(info.get("engineInfo") or "")
    if engine.startswith(_ENDS_LINES) and not is_closed:
        return "its last line does not end with a newline"
    metrics = info.get("operationMetrics") or {}
    if not engine.startswith(_COUNTING_ENGINES):
        return None
    for metric, kinds in _COUNTED.items():
        counted = as_count(metrics.get(metric))
        if counted is None:
            continue
        present = sum(any(action.get(kind) for kind in kinds) for action in actions)
        if counted > present:
            return f"its commit has {counted} {' and '.join(kinds)} actions ({metric}), but the entry has {present}"
    counted = as_count(metrics.get("numOutputRows")) if info.get("operation") in _WRITES else None
    rows = None if counted is None else _rows(actions)
    if rows is not None and counted is not None and counted > rows:
        return f"its commit has {counted} rows (numOutputRows), but the files that it adds have {rows}"
    return None


def _rows(actions: Sequence[Action]) -> int | None:
    """The rows of the files that an entry adds. If a file has no statistics, None."""
    total = 0
    for action in actions:
        if action.get("add"):
            count = statistics(action["add"]).get("numRecords")
            if not isinstance(count, int):
                return None
            total += count
    return total


def statistics(added: Mapping[str, Any]) -> Mapping[str, Any]:
    """The statistics of a file that an entry adds. If it has none, or they can't be parsed, empty."""
    try:
        parsed = json.loads(added.get("stats") or "{}")
    except (TypeError, ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def as_count(value: object) -> int | None:
    """The value of a count in a log, which is a number or its digits as text. For any other value, None."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else None


def vector_file(vector: Mapping[str, Any]) -> str | None:
    """The file of a deletion vector, below the table or as a full path. If the log itself holds the vector, None.

    Raises:
        ValueError: the name is not written as the protocol says.
    """
    text = str(vector["pathOrInlineDv"])
    if vector["storageType"] == "p":
        return text
    if vector["storageType"] != "u":
        return None
    encoded = text[-_UUID_CHARACTERS:].translate(_BASE85)
    folder, name = text[:-_UUID_CHARACTERS], uuid.UUID(bytes=base64.b85decode(encoded))
    return f"{folder}/deletion_vector_{name}.bin" if folder else f"deletion_vector_{name}.bin"


def is_below_table(path: str) -> bool:
    """Whether a decoded path of the log is below the table. Any other one is a full path or URI."""
    return "://" not in path and not path.startswith("/")


def encoded_vector(name: uuid.UUID) -> str:
    """The name of a deletion vector's file below the table, as the log has it."""
    return base64.b85encode(name.bytes).decode().translate(_PYTHONS_BASE85)


# --- our note in a commit ---------------------------------------------------------------------------------------------

_MARK: Mapping[str, tuple[type, ...]] = {
    "writer": _OPTIONAL_TEXT, "epoch": _OPTIONAL_INT, "attempt": _OPTIONAL_INT, "token": _OPTIONAL_TEXT,
}  # fmt: skip
_TEXTS = ("run_id", "asset", "partitions", "schema_fingerprint")


def note_in(user_metadata: object, format_number: int) -> dict[str, Any] | None:
    """Our note in the user metadata of a commit. If the metadata is not ours, None.

    Every program may write user metadata. A note with a field of another type than ours is not ours. A field may be
    absent, but an epoch must have a writer.
    """
    if not isinstance(user_metadata, str) or not user_metadata:
        return None
    try:
        note = json.loads(user_metadata)
    except (ValueError, RecursionError):
        return None
    return note if isinstance(note, dict) and note.get("pipeline") == format_number and _is_note(note) else None


def _is_note(note: Mapping[str, Any]) -> bool:
    mark, cursors, stream = note.get("mark", {}), note.get("cursors"), note.get("stream")
    return (
        _has_types(mark, _MARK)
        and (mark.get("epoch") is None or mark.get("writer") is not None)
        and all(type(note.get(name)) in _OPTIONAL_TEXT for name in _TEXTS)
        and _is_list(note.get("partition_columns", []), str)
        and _is_map(note.get("sources", {}), int)
        and _is_map(note.get("runtime", {}), str)
        and (cursors is None or _are_cursors(cursors))
        and (stream is None or _has_types(stream, {"checkpoint": (str,), "content": _OPTIONAL_TEXT}))
    )


def _are_cursors(cursors: object) -> bool:
    cursor = {"table_id": (str,), "version": (int,), "entry": _OPTIONAL_TEXT}
    return (
        isinstance(cursors, dict)
        and _has_types(cursors, {"number": (int,), "read_at": (int,)})
        and isinstance(cursors.get("sources"), dict)
        and all(_has_types(source, cursor) and source.keys() <= cursor.keys() for source in cursors["sources"].values())
    )


def _has_types(value: object, types: Mapping[str, tuple[type, ...]]) -> bool:
    return isinstance(value, dict) and all(type(value.get(name)) in allowed for name, allowed in types.items())


def _is_list(value: object, of: type) -> bool:
    return isinstance(value, list) and all(type(item) is of for item in value)


def _is_map(value: object, of: type) -> bool:
    return isinstance(value, dict) and all(type(item) is of for item in value.values())
