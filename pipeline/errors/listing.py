"""Lists in messages, metadata, records and commits: numbers as ranges, and never more than a few of anything.

Here belongs how many are named, and how. Which things are named is said where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

# How many a person reads; a message names no more of anything.
NAMED = 20
# The most characters of one of them.
LONGEST = 1_000


def bounded(values: Iterable[object], most: int = NAMED) -> list[str]:
    """The first of these as texts, and how many more there are; whole numbers as ranges, in ascending order."""
    found = list(values)
    if found and all(isinstance(value, int) and not isinstance(value, bool) for value in found):
        numbers = sorted({value for value in found if isinstance(value, int)})
        return _cut(list(_ranges(numbers)), most)
    return _cut([(cut(str(value)), 1) for value in found], most)


def listed(values: Iterable[object], most: int = NAMED, separator: str = ", ") -> str:
    """The same in one line."""
    told = bounded(values, most)
    return separator.join([*told[:most], *(rest if separator == ", " else rest[len("and ") :] for rest in told[most:])])


def cut(text: str, most: int = LONGEST) -> str:
    """A text that is no longer than that, with a mark where its end is missing."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _cut(told: list[tuple[str, int]], most: int) -> list[str]:
    """Texts that each stand for a number of things."""
    if len(told) <= most:
        return [text for text, _ in told]
    return [*(text for text, _ in told[:most]), f"and {sum(count for _, count in told[most:])} more"]


def _ranges(numbers: list[int]) -> Iterator[tuple[str, int]]:
    start = 0
    for place in range(1, len(numbers) + 1):
        if place < len(numbers) and numbers[place] == numbers[place - 1] + 1:
            continue
        run = numbers[start:place]
        if len(run) == 2:  # noqa: PLR2004  two are no shorter as a range
            yield from ((str(number), 1) for number in run)
        else:
            yield (str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}"), len(run)
        start = place
