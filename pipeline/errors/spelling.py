"""Near misses of a name, and names that look alike but differ.

Here belongs what the names alone show. Which names exist is the caller's.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable

# The most near misses that a message lists.
MOST = 3
# Letters of other scripts that look like Latin ones, in lower case; accents and widths are folded by Unicode itself.
_LOOKS_LIKE = str.maketrans("авекмнорстухіјѕԁԛԝαεικνορτυχ", "abekmhopctyxijsdqwaeiknoptux")


def near(asked: str, known: Iterable[str], most: int = MOST) -> tuple[str, ...]:
    """The known names that were probably meant: look-alikes first, then similar spellings in any case."""
    names = tuple(dict.fromkeys(known))
    alike = [name for name in names if _skeleton(name) == _skeleton(asked)]
    by_folded = {name.casefold(): name for name in names}
    similar = [by_folded[name] for name in difflib.get_close_matches(asked.casefold(), by_folded, n=most)]
    return tuple(dict.fromkeys((*alike, *similar)))[:most]


def did_you_mean(asked: str, known: Iterable[str], most: int = MOST) -> str:
    """A question that names the near misses. If there are none, an empty string."""
    meant = near(asked, known, most)
    shown = distinguishable((asked, *meant))
    return f"Did you mean {' or '.join(map(shown, meant))}?" if meant else ""


def distinguishable(names: Iterable[str]) -> Callable[[str], str]:
    """A function that gives the text for a name: if another of these names looks like it, with its code points."""
    looks = Counter(map(_skeleton, dict.fromkeys(names)))
    return lambda name: name if looks[_skeleton(name)] < 2 or name.isascii() else escaped(name)  # noqa: PLR2004  two alike


def escaped(name: str) -> str:
    """A name in ASCII: any other character is shown by its code point."""
    return ascii(name)[1:-1]


def _skeleton(name: str) -> str:
    """A text that look-alikes share: without accents, widths, case, spaces and invisible characters."""
    parts = unicodedata.normalize("NFKD", name).casefold().translate(_LOOKS_LIKE)
    return "".join(char for char in parts if unicodedata.category(char)[0] not in "MZC")
