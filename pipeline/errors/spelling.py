"""Names that were meant, and names that look alike: near misses, and how names that differ unseen are shown.

Here belongs what is known from the names alone. Which names there are is said where they are.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable

# How many near misses a person is told.
MOST = 3
# Letters of other scripts that look like Latin ones, in lower case; accents and widths are folded by Unicode itself.
_LOOKS_LIKE = str.maketrans("авекмнорстухіјѕԁԛԝαεικνορτυχ", "abekmhopctyxijsdqwaeiknoptux")


def near(asked: str, known: Iterable[str], most: int = MOST) -> tuple[str, ...]:
    """Those of the known names that were probably meant: look-alikes, and then what is spelt alike in any case."""
    names = tuple(dict.fromkeys(known))
    alike = [name for name in names if _look(name) == _look(asked)]
    by_folded = {name.casefold(): name for name in names}
    spelt = [by_folded[name] for name in difflib.get_close_matches(asked.casefold(), by_folded, n=most)]
    return tuple(dict.fromkeys((*alike, *spelt)))[:most]


def did_you_mean(asked: str, known: Iterable[str], most: int = MOST) -> str:
    """A question that names the near misses; empty where there are none."""
    found = near(asked, known, most)
    shown = distinguishable((asked, *found))
    return f"Did you mean {' or '.join(map(shown, found))}?" if found else ""


def distinguishable(names: Iterable[str]) -> Callable[[str], str]:
    """How each of these names is shown: with its code points where another of them looks like it."""
    looks = Counter(map(_look, dict.fromkeys(names)))
    return lambda name: name if looks[_look(name)] < 2 or name.isascii() else escaped(name)  # noqa: PLR2004  two alike


def escaped(name: str) -> str:
    """A name in ASCII alone: what is none is shown by its code point."""
    return ascii(name)[1:-1]


def _look(name: str) -> str:
    """What a name looks like: without accents, widths, case, spaces of any kind and what is not seen at all."""
    parts = unicodedata.normalize("NFKD", name).casefold().translate(_LOOKS_LIKE)
    return "".join(char for char in parts if unicodedata.category(char)[0] not in "MZC")
