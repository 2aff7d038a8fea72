"""The entries of a log in order: whether one is a copy of another, and whether each fits the entries before it.

Here belong checks of an entry against other entries, or against the table before it, over a full log. `entry` checks a
single entry. `integrity` has the checks that run before each read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pipeline.delta.log.entry import Action, info_of
from pipeline.delta.log.integrity import COUNTED_OPERATIONS, Checksum, EntryFacts, contradictions, entry_facts


@dataclass
class Chain:
    """The facts of the entries checked so far, the oldest first."""

    _by_digest: dict[bytes, int] = field(default_factory=dict)
    _by_commit_id: dict[str, int] = field(default_factory=dict)
    _newest: tuple[int, int] | None = None
    _before: tuple[int, Checksum | None] = (-1, None)
    _without_info: list[int] = field(default_factory=list)
    _any_info: bool = False
    contradicted: set[int] = field(default_factory=set)
    """The entries that their checksum files contradict: one of both is wrong."""

    def problem(self, number: int, actions: Sequence[Action], content: bytes, checksum: Checksum | None) -> str | None:
        """What is wrong with the next entry, given those before. If nothing is, None."""
        facts = entry_facts(actions, content)
        before = self._before[1] if self._before[0] == number - 1 else None
        problem = self._copied(number, facts)
        if problem is None:
            problem = contradictions(facts, checksum, before, is_first=number == 0)
            if problem is not None:
                self.contradicted.add(number)
        self._before = number, checksum
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
