"""One entry of a Delta log, parsed strictly, and the error of a damaged one.

Here belong the form of an entry (Delta protocol, "Delta Log Entries") and the check of its actions against its own
metrics, which shows a missing part. Delta reads an empty entry as one without actions, and one that was cut between two
lines as a complete one. `integrity` checks the sequence of entries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pipeline.errors import DamagedTableError

Action = dict[str, Any]

# The required fields of an action (Delta protocol, "Actions"). Other fields, and other kinds of actions, are allowed.
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "add": ("path", "size"),
    "remove": ("path",),
    "cdc": ("path",),
    "metaData": ("id", "schemaString"),
    "protocol": ("minReaderVersion", "minWriterVersion"),
    "txn": ("appId", "version"),
    "domainMetadata": ("domain",),
}
_ONCE = ("commitInfo", "metaData", "protocol")
# The actions of files: an entry can have many, and they don't describe the table.
MANY = ("add", "remove", "cdc")
_KIND_LENGTH = 16
# Delta on Spark ends each line with a newline; delta-rs does not end the last one.
_ENDS_LINES = "Apache-Spark"
# The kind of actions that an operation metric counts. `numFiles` is not among them: Delta counts a file there even if
# it is empty and not in the commit. For such commits the number of rows is checked.
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
    return next((action["commitInfo"] for action in actions if action.get("commitInfo")), {})


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
    except ValueError as error:
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
    if action.get("metaData"):
        _refuse_schema(file, number, action["metaData"]["schemaString"])
    return action


def _refuse_schema(file: str, number: int, text: str) -> None:
    try:
        schema = json.loads(text)
    except (TypeError, ValueError) as error:
        raise damaged_file(file, f"line {number} has a schema that is not JSON ({error})") from error
    if not isinstance(schema, dict) or not isinstance(schema.get("fields"), list):
        raise damaged_file(file, f"line {number} has a schema without fields")


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
    for metric, kind in _COUNTED.items():
        counted, present = _number(metrics.get(metric)), sum(bool(action.get(kind)) for action in actions)
        if counted is not None and counted > present:
            return f"its commit has {counted} {kind} actions ({metric}), but the entry has {present}"
    rows, counted = _rows(actions), _number(metrics.get("numOutputRows"))
    if info.get("operation") in _WRITES and rows is not None and counted is not None and counted > rows:
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
    except (TypeError, ValueError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _number(value: object) -> int | None:
    return int(str(value)) if str(value).isdigit() else None
