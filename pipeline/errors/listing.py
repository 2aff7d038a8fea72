"""Lists in messages, metadata, records and commits: bounded, and numbers as ranges.

Here belong the bound and the form of a list. Which items a list has is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

# The most items that a message lists.
NAMED = 20
# The most characters of an item.
LONGEST = 1_000


def bounded(values: Iterable[object], most: int = NAMED) -> list[str]:
    """The first values as texts, and the number of the rest; integers as ranges, in ascending order."""
    items = list(values)
    if items and all(isinstance(value, int) and not isinstance(value, bool) for value in items):
        numbers = sorted({value for value in items if isinstance(value, int)})
        return _cut(list(_ranges(numbers)), most)
    return _cut([(cut(str(value)), 1) for value in items], most)


def listed(values: Iterable[object], most: int = NAMED, separator: str = ", ") -> str:
    """The same in one line."""
    texts = bounded(values, most)
    return separator.join(
        [*texts[:most], *(rest if separator == ", " else rest[len("and ") :] for rest in texts[most:])]
    )


def cut(text: str, most: int = LONGEST) -> str:
    """A text of at most that many characters. If its end is cut off, the last character is `…`."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _cut(counted: list[tuple[str, int]], most: int) -> list[str]:
    """The first texts, and the number of items in the rest; each text comes with its number of items."""
    if len(counted) <= most:
        return [text for text, _ in counted]
    return [*(text for text, _ in counted[:most]), f"and {sum(count for _, count in counted[most:])} more"]


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
