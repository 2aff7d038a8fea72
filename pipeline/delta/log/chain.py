"""The entries of a log in their order: whether one is in another's place, and whether each fits what came before.

Here belongs what two entries, or an entry and the table before it, say of each other. What one entry says of itself is
`entry`'s. Made for a look at a whole log; what is looked at before each read is `integrity`'s.
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
    """What is kept in mind of the entries that were looked at, the oldest first."""

    _by_digest: dict[bytes, int] = field(default_factory=dict)
    _by_commit_id: dict[str, int] = field(default_factory=dict)
    _newest: tuple[int, int] | None = None
    _before: tuple[int, Checksum | None] = (-1, None)
    _untold: list[int] = field(default_factory=list)
    _told: int = 0

    def problem(self, number: int, actions: Sequence[Action], content: bytes, checksum: Checksum | None) -> str | None:
        """What is wrong with the next entry, given those before; None where nothing is."""
        facts = entry_facts(actions, content)
        before = self._before[1] if self._before[0] == number - 1 else None
        problem = self._copied(number, facts) or contradictions(facts, checksum, before, is_first=number == 0)
        self._before = number, checksum
        if info_of(actions):
            self._told += 1
        else:
            self._untold.append(number)
        return problem

    def without_info(self) -> tuple[int, ...]:
        """Entries that don't say what their commit was, in a log in which others do."""
        return tuple(self._untold) if self._told else ()

    def _copied(self, number: int, facts: EntryFacts) -> str | None:
        problem = None
        twin = self._by_digest.setdefault(facts.digest, number)
        if facts.has_files and twin != number:
            problem = f"it is the same as the entry of version {twin}"
        if facts.commit_id is not None:
            twin = self._by_commit_id.setdefault(facts.commit_id, number)
            if problem is None and twin != number:
                problem = f"it is the commit of version {twin}, as its txnId says"
        moment = facts.in_commit_milliseconds
        if moment is not None:
            if problem is None and self._newest is not None and moment <= self._newest[1]:
                problem = f"its inCommitTimestamp is not after that of version {self._newest[0]}"
            self._newest = number, moment
        return problem


def misfit(actions: Sequence[Action], live: Mapping[str, Any]) -> str | None:
    """Whether an entry removes a file that the table is not made of, or adds one that it is; None where it fits."""
    if info_of(actions).get("operation", "") not in COUNTED_OPERATIONS:
        return None
    removed = {unquote(action["remove"]["path"]) for action in actions if action.get("remove")}
    strange = sorted(removed - set(live))
    if strange:
        return f"it removes a file that no entry before it has added: {strange[0]}"
    added = {unquote(action["add"]["path"]) for action in actions if action.get("add")}
    again = sorted((added & set(live)) - removed)
    return f"it adds a file that an entry before it has added: {again[0]}" if again else None
