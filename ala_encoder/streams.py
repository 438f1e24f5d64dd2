"""Lines that arrive: those of a pipe as they come, those of a file in chunks.

For: answering a line before the next one is there. Not for: what a line is (`lines`).
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable, Iterator
from typing import final

from ala_encoder.lines import MAX_LINE

_AT_ONCE = 1 << 16
MAX_LINES = 2000
"""Most lines of a chunk,"""
MAX_LENGTH = 1 << 19
"""and where it ends by its characters."""


@final
class Arriving:
    """A file descriptor that is read line by line, and knows whether that would have to wait."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held = bytearray()
        self._has_ended = False

    def readline(self, size: int, /) -> bytes:
        """Return the next line with its LF, its first `size` bytes, or at the end b"".

        Waits for the line; raises OSError.
        """
        searched = 0
        while (end := self._held.find(b"\n", searched)) < 0 and len(self._held) < size:
            searched = len(self._held)
            if not self._read():
                break
        cut = min(size, end + 1 if end >= 0 else len(self._held))
        line = bytes(self._held[:cut])
        del self._held[:cut]
        return line

    def is_ready(self) -> bool:
        """Tell whether the next line, or the end, is there; of a file it always is."""
        searched = 0
        while self._held.find(b"\n", searched) < 0 and len(self._held) <= MAX_LINE:
            searched = len(self._held)
            if not self._has_ended and not select.select([self._descriptor], [], [], 0)[0]:
                return False
            if not self._read():
                break
        return True

    def _read(self) -> bool:
        """Return whether there was more; a terminal is not asked again after its end."""
        if not self._has_ended:
            data = os.read(self._descriptor, _AT_ONCE)
            self._held += data
            self._has_ended = not data
        return not self._has_ended


Line = tuple[int, str]


def chunks(
    lines: Iterable[Line], is_ready: Callable[[], bool] = lambda: True
) -> Iterator[list[Line]]:
    """Yield numbered lines in lists, each as long as `MAX_LINES` and `MAX_LENGTH` allow.

    is_ready: whether another line is there; where none is, a list ends, and nothing waits in it.
    """
    chunk: list[Line] = []
    length = 0
    for line in lines:
        chunk.append(line)
        length += len(line[1])
        if len(chunk) == MAX_LINES or length >= MAX_LENGTH or not is_ready():
            yield chunk
            chunk, length = [], 0
    if chunk:
        yield chunk
