"""A file of a known size whose parts are read by requests: the readable file that pyarrow expects.

Here belongs which parts are requested and kept. The requests are made by `object_stores`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

# The bytes of a request, if no more are asked for: a request takes longer than the reading of so many bytes.
WINDOW_BYTES = 2**20


@dataclass(frozen=True)
class _Part:
    """Bytes of a file from an offset on."""

    start: int
    content: bytes

    def holds(self, start: int, end: int) -> bool:
        return self.start <= start and end <= self.start + len(self.content)

    def cut(self, start: int, end: int) -> bytes:
        return self.content[start - self.start : end - self.start]


class RangedFile:
    """A file whose first bytes are known. The part that was requested last is kept too.

    Args:
        first: the first bytes of the file.
        size: of the file, in bytes.
        request: the bytes from an offset up to another one, which is not included.
    """

    def __init__(self, first: bytes, size: int, request: Callable[[int, int], bytes]) -> None:
        self._size, self._request = size, request
        self._first = self._last = _Part(0, first)
        self._position = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def read(self, size: int = -1) -> bytes:
        """So many bytes from the position on, fewer at the end of the file. With -1, all of them."""
        start = min(self._position, self._size)
        end = self._size if size < 0 else min(start + size, self._size)
        self._position = end
        kept = next((part for part in (self._first, self._last) if part.holds(start, end)), None)
        return (kept or self._requested(start, end)).cut(start, end)

    def _requested(self, start: int, end: int) -> _Part:
        """A part with these bytes. At the end of the file it begins earlier, since a footer is read backwards."""
        if end - start >= WINDOW_BYTES:  # it is not kept: a part may be as large as the file
            return _Part(start, self._request(start, end))
        start = max(min(start, self._size - WINDOW_BYTES), 0)
        self._last = _Part(start, self._request(start, min(start + WINDOW_BYTES, self._size)))
        return self._last

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, as `io.IOBase.seek` does, and return it."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(origin + offset, 0)
        return self._position

    def tell(self) -> int:
        """The position."""
        return self._position

    def close(self) -> None:
        """End its use."""
        self._closed = True

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def writable(self) -> bool:
        """No."""
        return False
