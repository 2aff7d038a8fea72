"""The entries of a log in order: whether one is a copy of another, and whether each fits the entries before it.

Here belong the facts of an entry and of a checksum file, the check of one against the other, and the checks of an entry
against other entries over a full log. `entry` checks a single entry. `integrity` has the checks before each read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pipeline.delta.log.entry import Action, info_of

# The operations whose checksum follows from their actions. Some other operations add a file again that the table has.
COUNTED_OPERATIONS = frozenset(
    {
        "ADD COLUMNS", "ADD CONSTRAINT", "CHANGE COLUMN", "CREATE TABLE", "CREATE TABLE AS SELECT", "DELETE",
        "DROP COLUMNS", "DROP CONSTRAINT", "MERGE", "OPTIMIZE", "SET TBLPROPERTIES", "STREAMING UPDATE", "TRUNCATE",
        "UNSET TBLPROPERTIES", "UPDATE", "WRITE",
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EntryFacts:
    """The facts of an entry that checks compare. `files_gained` is the number of added files minus removed ones."""

    digest: bytes
    operation: str | None
    commit_id: str | None
    in_commit_milliseconds: int | None
    files_gained: int
    bytes_gained: int
    has_files: bool
    metadata: str | None
    protocol: str | None


@dataclass(frozen=True, kw_only=True)
class Checksum:
    """The state of the table at a version from its checksum file (Delta protocol, "Version Checksum File")."""

    commit_id: str | None
    files: int
    bytes: int
    metadata: str
    protocol: str


def entry_facts(actions: Sequence[Action], content: bytes) -> EntryFacts:
    """The facts of an entry, from its actions and content."""
    info = info_of(actions)
    added = [action["add"] for action in actions if action.get("add")]
    removed = [action["remove"] for action in actions if action.get("remove")]
    return EntryFacts(
        digest=hashlib.sha256(content).digest(),
        operation=info.get("operation"),
        commit_id=info.get("txnId"),
        in_commit_milliseconds=info.get("inCommitTimestamp"),
        files_gained=len(added) - len(removed),
        bytes_gained=sum(file["size"] for file in added) - sum(file.get("size") or 0 for file in removed),
        has_files=bool(added or removed or any(action.get("cdc") or action.get("txn") for action in actions)),
        metadata=_text_of("metaData", actions),
        protocol=_text_of("protocol", actions),
    )


def _text_of(kind: str, actions: Sequence[Action]) -> str | None:
    action = next((action[kind] for action in actions if action.get(kind)), None)
    return None if action is None else json.dumps(action, sort_keys=True)


def checksum_in(content: bytes) -> Checksum | None:
    """The content of a checksum file. If it can't be parsed, None; Delta ignores it then too."""
    try:
        state = json.loads(content)
        return Checksum(
            commit_id=state.get("txnId"), files=int(state["numFiles"]), bytes=int(state["tableSizeBytes"]),
            metadata=json.dumps(state.get("metadata"), sort_keys=True),
            protocol=json.dumps(state.get("protocol"), sort_keys=True),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def contradictions(
    facts: EntryFacts, checksum: Checksum | None, before: Checksum | None, *, is_first: bool
) -> str | None:
    """How an entry contradicts its checksum. If it does not, or there is no checksum, None."""
    if checksum is None:
        return None
    if facts.commit_id and checksum.commit_id and facts.commit_id != checksum.commit_id:
        return "it is that of another commit, according to its checksum"
    if before is None and not is_first:
        return None
    files, size = (0, 0) if before is None else (before.files, before.bytes)
    if facts.operation in COUNTED_OPERATIONS or facts.operation is None:
        gained, gained_bytes = checksum.files - files, checksum.bytes - size
        if (gained, gained_bytes) != (facts.files_gained, facts.bytes_gained):
            return (
                f"its commit changed the table by {gained} files and {gained_bytes} bytes, according to its checksum, "
                f"but its actions by {facts.files_gained} files and {facts.bytes_gained} bytes"
            )
    if before is not None and checksum.metadata != before.metadata and facts.metadata is None:
        return "its commit changed the table's metadata, according to its checksum, but it has no such action"
    if before is not None and checksum.protocol != before.protocol and facts.protocol is None:
        return "its commit changed the table's protocol, according to its checksum, but it has no such action"
    return None


@dataclass
class Chain:
    """The facts of the entries checked so far, the oldest first."""

    _by_digest: dict[bytes, int] = field(default_factory=dict)
    _by_commit_id: dict[str, int] = field(default_factory=dict)
    _newest: tuple[int, int] | None = None
    _before: tuple[int, Checksum | None] = (-1, None)
    _without_info: list[int] = field(default_factory=list)
    _any_info: bool = False
    contradicted: bool = False
    """Whether the checksum files contradict the last entry: it or one of them is wrong."""

    def problem(self, number: int, actions: Sequence[Action], content: bytes, checksum: Checksum | None) -> str | None:
        """What is wrong with the next entry, given those before. If nothing is, None."""
        facts = entry_facts(actions, content)
        before = self._before[1] if self._before[0] == number - 1 else None
        problem = self._copied(number, facts)
        is_copy = problem is not None
        if problem is None:
            problem = contradictions(facts, checksum, before, is_first=number == 0)
        self.contradicted = not is_copy and problem is not None
        self._before = number, None if self.contradicted else checksum  # a wrong one would accuse the next entry too
        if info_of(actions):
            self._any_info = True
        else:
            self._without_info.append(number)
        return problem

    def without_info(self) -> tuple[int, ...]:
        """The entries without commitInfo. If no entry has one, empty."""
        return tuple(self._without_info) if self._any_info else ()

    def _copied(self, number: int, facts: EntryFacts) -> str | None:
        problem = None
        twin = self._by_digest.setdefault(facts.digest, number)
        if facts.has_files and twin != number:
            problem = f"it is the same as the entry of version {twin}"
        if facts.commit_id is not None:
            twin = self._by_commit_id.setdefault(facts.commit_id, number)
            if problem is None and twin != number:
                problem = f"it is the commit of version {twin}, according to its txnId"
        timestamp = facts.in_commit_milliseconds
        if timestamp is not None:
            if problem is None and self._newest is not None and timestamp <= self._newest[1]:
                problem = f"its inCommitTimestamp is not after that of version {self._newest[0]}"
            self._newest = number, timestamp
        return problem


def misfit(actions: Sequence[Action], live: Mapping[str, Any]) -> str | None:
    """The problem if an entry removes a file that the table does not have, or adds one that it has. Else None."""
    if info_of(actions).get("operation", "") not in COUNTED_OPERATIONS:
        return None
    removed = {unquote(action["remove"]["path"]) for action in actions if action.get("remove")}
    unknown = sorted(removed - set(live))
    if unknown:
        return f"it removes a file that no earlier entry has added: {unknown[0]}"
    added = {unquote(action["add"]["path"]) for action in actions if action.get("add")}
    duplicates = sorted((added & set(live)) - removed)
    return f"it adds a file that an earlier entry has added: {duplicates[0]}" if duplicates else None
