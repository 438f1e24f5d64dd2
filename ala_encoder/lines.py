"""Lines of text files, read by one rule everywhere, with a count of whatever was not plain text.

For: running text, tables and vocabularies of users, plain or `.gz`. Not for: what a line means.

- Only LF ends a line; one CR before it is stripped. U+2028, U+0085, form feeds, a lone CR are text.
- U+FEFF at the start of a line is a byte-order mark, wherever `cat` left it, and is stripped;
  elsewhere it is text.
- NUL is dropped; a file full of it is UTF-16 or binary, and refused. A lone surrogate (only JSON
  escapes can bring one) is dropped.
- A line that is not UTF-8, or longer than 16 MiB, is a bad row: an error, or skipped and counted.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ala_encoder.errors import UserError, reason
from ala_encoder.settings.base import BadRowPolicy, NonNegativeInt

MAX_LINE = 1 << 24
"""Longest line in bytes."""
_HEAD = 4096
SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass
class Reading:
    """The policy for bad rows, and what was met over any number of files."""

    on_bad_row: BadRowPolicy = "error"
    lines: NonNegativeInt = 0
    carriage_returns: NonNegativeInt = 0
    byte_order_marks: NonNegativeInt = 0
    nulls: NonNegativeInt = 0
    surrogates: NonNegativeInt = 0
    skipped: NonNegativeInt = 0
    first_skipped: str | None = None

    def refuse(self, place: str, why: str) -> None:
        """Raise UserError `place: why`, or count the row as skipped, by the policy."""
        if self.on_bad_row == "error":
            raise UserError(f"{place}: {why}")
        self.skipped += 1
        self.first_skipped = self.first_skipped or f"{place}: {why}"

    def strip(self, line: str) -> str:
        """Return a line without one CR at its end and a byte-order mark at its start, and clean."""
        if line.endswith("\r"):
            line = line[:-1]
            self.carriage_returns += 1
        if line.startswith("\ufeff"):
            line = line[1:]
            self.byte_order_marks += 1
        return self.clean(line)

    def clean(self, text: str) -> str:
        """Return text without NUL and lone surrogates, counting them."""
        if "\0" in text:
            self.nulls += text.count("\0")
            text = text.replace("\0", "")
        if not text.isascii():
            text, count = SURROGATES.subn("", text)
            self.surrogates += count
        return text

    def notes(self) -> list[str]:
        """Return a sentence for the user on each thing that was met."""
        said = (
            (self.carriage_returns, "lines ended in CR LF; the CR was stripped"),
            (self.byte_order_marks, "byte-order marks at the start of a line were stripped"),
            (self.nulls, "NUL characters were dropped"),
            (self.surrogates, "lone surrogates were dropped"),
            (self.skipped, f"bad rows were skipped, the first: {self.first_skipped}"),
        )
        return [f"{count:,} {what}" for count, what in said if count]


class Stream(Protocol):
    """Bytes that are read line by line."""

    def readline(self, size: int, /) -> bytes: ...


def read_lines(
    path: Path, reading: Reading, stream: Stream | None = None
) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its end) of a UTF-8 file, plain or `.gz`.

    stream: read in place of the file; the path is its name in messages.

    Raises UserError, naming file and line, for a bad line (by the policy), and under either policy
    for a file that cannot be read or looks like UTF-16 or binary.
    """
    number = 0
    try:
        with _open(path) if stream is None else nullcontext(stream) as opened:
            while raw := opened.readline(MAX_LINE + 1):
                number += 1
                if number == 1 and raw[:_HEAD].count(0) * 4 > len(raw[:_HEAD]):
                    raise UserError(f"{path}: looks like UTF-16 or a binary file; save it as UTF-8")
                if len(raw) > MAX_LINE and not raw.endswith(b"\n"):
                    _skip_rest(opened)
                    reading.refuse(f"{path}:{number}", f"a line of more than {MAX_LINE:,} bytes")
                    continue
                text = _text(raw, f"{path}:{number}", reading)
                if text is not None:
                    reading.lines += 1
                    yield number, text
    except (OSError, EOFError, zlib.error) as error:
        where = f"{path}: cannot be read" + (f" after line {number}" if number else "")
        raise UserError(f"{where}: {reason(error)}") from None


def _open(path: Path) -> AbstractContextManager[Stream]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _skip_rest(stream: Stream) -> None:
    while (part := stream.readline(MAX_LINE)) and not part.endswith(b"\n"):
        pass


def _text(raw: bytes, place: str, reading: Reading) -> str | None:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        found = raw[error.start : error.end].hex(" ")
        reading.refuse(place, f"not UTF-8 (bytes {found} at byte {error.start} of the line)")
        return None
    return reading.strip(text.removesuffix("\n"))
