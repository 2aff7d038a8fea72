"""One entry of a Delta log, read strictly: what an entry must be, and the error where it is not.

Here belong the form of an entry (Delta protocol, "Delta Log Entries") and what it says of itself, by which a missing
part shows. Delta takes an empty entry for one without actions, and one that was cut between two lines for a whole one.
How entries follow each other is `integrity`'s.
"""

from __future__ import annotations

import json
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
_VECTOR: Mapping[str, tuple[type, ...]] = {
    "storageType": (str,), "pathOrInlineDv": (str,), "cardinality": (int, type(None)), "offset": (int, type(None)),
}  # fmt: skip
# Anybody may write anything into the commit information: a field of another type counts as absent.
_INFO: Mapping[str, type] = {
    "operation": str, "operationParameters": dict, "operationMetrics": dict, "userMetadata": str, "engineInfo": str,
    "timestamp": int, "inCommitTimestamp": int, "readVersion": int, "txnId": str,
}  # fmt: skip
_ONCE = ("commitInfo", "metaData", "protocol")
# Actions that can be many in one entry and say nothing about the table.
MANY = ("add", "remove", "cdc")
_KIND_LENGTH = 16
# Delta on Spark ends each line; delta-rs does not end the last one.
_ENDS_LINES = "Apache-Spark"
# By operation metric the actions that it counts. Delta counts a file in `numFiles` even if it turns out empty and is
# left out of the commit, so for those it is the rows that tell.
_COUNTED: Mapping[str, str] = {
    "numAddedFiles": "add",
    "numRemovedFiles": "remove",
    "numAddedChangeFiles": "cdc",
    "numTargetFilesAdded": "add",
    "numTargetFilesRemoved": "remove",
    "numTargetChangeFilesAdded": "cdc",
    "num_added_files": "add",
    "num_removed_files": "remove",
}
_COUNTING_ENGINES = ("Apache-Spark", "delta-rs")
_WRITES = frozenset({"WRITE", "CREATE TABLE AS SELECT", "REPLACE TABLE AS SELECT", "CREATE OR REPLACE TABLE AS SELECT"})


def damaged_file(file: str, reason: str) -> DamagedTableError:
    """The error that names a file of a log or a table; the dataset is named by its folder until a caller knows it."""
    location = file.rpartition("/_delta_log/")[0] or file
    return DamagedTableError(
        dataset=location.rstrip("/").rpartition("/")[2], location=location, file=file, reason=reason
    )


@contextmanager
def of_dataset(name: str) -> Iterator[None]:
    """Damage that shows inside is that of a dataset's table."""
    try:
        yield
    except DamagedTableError as error:
        error.dataset = name
        raise


def actions_of(file: str, content: bytes) -> list[Action]:
    """The actions of an entry.

    Raises:
        DamagedTableError: it is empty, cut off, no JSON, or holds less than it says of itself.
    """
    actions = [_action(file, number, line) for number, line in _lines(file, content)]
    problem = _contradiction(actions, is_closed=content.endswith(b"\n"))
    if problem is not None:
        raise damaged_file(file, problem)
    return actions


def table_actions_of(file: str, content: bytes) -> list[Action]:
    """The actions of an entry but those of `MANY`, whose lines are passed over unparsed.

    Raises:
        DamagedTableError: it is empty, cut off or no JSON.
    """
    few = []
    for number, line in _lines(file, content):
        is_one_of_many = any(f'"{kind}"' in line[:_KIND_LENGTH] for kind in MANY) and line.rstrip().endswith("}")
        if not is_one_of_many:
            few.append(_action(file, number, line))
    return few


def info_of(actions: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The commit information of an entry. If it has none, which the protocol allows, empty."""
    info: object = next((action["commitInfo"] for action in actions if action.get("commitInfo")), {})
    if not isinstance(info, dict):
        return {}
    misfits = [name for name, kind in _INFO.items() if info.get(name) is not None and type(info[name]) is not kind]
    return {name: value for name, value in info.items() if name not in misfits} if misfits else info


def _lines(file: str, content: bytes) -> list[tuple[int, str]]:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged_file(file, f"it is no UTF-8 text from byte {error.start} on") from error
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise damaged_file(file, "it is empty")
    return lines


def _action(file: str, number: int, line: str) -> Action:
    try:
        action = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise damaged_file(file, f"line {number} is cut off or no JSON ({error})") from error
    if not isinstance(action, dict) or all(value is None for value in action.values()):
        raise damaged_file(file, f"line {number} is no action")
    for kind, names in _REQUIRED.items():
        value = action.get(kind)
        if not value:
            continue
        missing = [name for name in names if not isinstance(value, dict) or value.get(name) is None]
        if missing:
            raise damaged_file(file, f"line {number} lacks {', '.join(missing)} of its {kind}")
        typed = {**names, **_OPTIONAL.get(kind, {})}
        misfits = [name for name, of in typed.items() if value.get(name) is not None and type(value[name]) is not of]
        misfits = misfits or list(_misfits_inside(value))
        if misfits:
            raise damaged_file(
                file, f"line {number} has a value of another type for {', '.join(misfits)} of its {kind}"
            )
    if action.get("metaData"):
        _refuse_schema(file, number, action["metaData"]["schemaString"])
    return action


def _misfits_inside(value: Mapping[str, Any]) -> Iterator[str]:
    """The fields of an action whose parts have other types than the protocol says."""
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
        raise damaged_file(file, f"line {number} holds a schema that is no JSON ({error})") from error
    if not isinstance(schema, dict) or not isinstance(schema.get("fields"), list):
        raise damaged_file(file, f"line {number} holds a schema without fields")
    for field in schema["fields"]:
        if not _has_types(field, {"name": (str,), "metadata": (dict, type(None))}):
            raise damaged_file(file, f"line {number} holds a schema with a field that is none")


def _contradiction(actions: Sequence[Action], *, is_closed: bool) -> str | None:
    """What an entry says of itself and does not hold; None where all is there as far as it says."""
    for kind in _ONCE:
        if sum(bool(action.get(kind)) for action in actions) > 1:
            return f"it holds {kind} more than once"
    info = info_of(actions)
    engine = str(info.get("engineInfo") or "")
    if engine.startswith(_ENDS_LINES) and not is_closed:
        return "its last line has no end"
    metrics = info.get("operationMetrics") or {}
    if not engine.startswith(_COUNTING_ENGINES):
        return None
    for metric, kind in _COUNTED.items():
        said, there = as_count(metrics.get(metric)), sum(bool(action.get(kind)) for action in actions)
        if said is not None and said > there:
            return f"its commit has {said} actions {kind!r} ({metric}), and {there} are there"
    rows, said = _rows(actions), as_count(metrics.get("numOutputRows"))
    if info.get("operation") in _WRITES and rows is not None and said is not None and said > rows:
        return f"its commit has {said} rows (numOutputRows), and the files that it adds have {rows}"
    return None


def _rows(actions: Sequence[Action]) -> int | None:
    """The rows of the files that an entry adds; None where a file carries no statistics."""
    total = 0
    for action in actions:
        if action.get("add"):
            count = statistics(action["add"]).get("numRecords")
            if not isinstance(count, int):
                return None
            total += count
    return total


def statistics(added: Mapping[str, Any]) -> Mapping[str, Any]:
    """The statistics of a file that an entry adds; empty where it has none that can be read."""
    try:
        found = json.loads(added.get("stats") or "{}")
    except (TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def as_count(value: object) -> int | None:
    """A count in a log, as a number or as text. If it is neither, None."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else None


# --- our note in a commit ---------------------------------------------------------------------------------------------

_OPTIONAL_TEXT = (str, type(None))
_OPTIONAL_INT = (int, type(None))
_MARK: Mapping[str, tuple[type, ...]] = {
    "writer": _OPTIONAL_TEXT, "epoch": _OPTIONAL_INT, "attempt": _OPTIONAL_INT, "token": _OPTIONAL_TEXT,
}  # fmt: skip
_TEXTS = ("run_id", "asset", "partitions", "schema_fingerprint")


def note_in(user_metadata: object, format_number: int) -> dict[str, Any] | None:
    """Our note in the user metadata of a commit. If somebody else wrote it, None.

    Anybody may write user metadata. A note with a field of another type than ours is somebody else's. A field may be
    absent, but an epoch has a writer.
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


def _is_map(value: object, of: type) -> bool:
    return isinstance(value, dict) and all(type(item) is of for item in value.values())
