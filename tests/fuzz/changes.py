"""What can be done to any file: to its bytes, its lines, its compression and its name."""

from __future__ import annotations

import contextlib
import gzip
import random
import re
import zlib
from collections.abc import Callable
from typing import Literal, NamedTuple

Files = dict[str, "bytes | None"]
"""What lies in a folder: name → content; None is a folder of that name."""
Certain = Literal["same", "row", "refused", "unknown"]
"""same: read as if unchanged; row: a bad row, told with its line or skipped; refused: UserError."""


class Change(NamedTuple):
    """One thing that can be done to a file, and what is certain when it is all that was done."""

    name: str
    apply: Callable[[random.Random, Files, str], None]
    certain: Certain = "unknown"


def on_bytes(work: Callable[[random.Random, bytes], bytes], certain: Certain = "unknown") -> Change:
    """Return a change of a file's bytes; of those inside, where the file is compressed."""

    def apply(rng: random.Random, files: Files, name: str) -> None:
        content = files.get(name)
        if content is None:
            return
        try:
            inside = gzip.decompress(content) if name.endswith(".gz") else None
        except (OSError, EOFError, ValueError, zlib.error):
            inside = None
        files[name] = (
            work(rng, content) if inside is None else gzip.compress(work(rng, inside), 1, mtime=0)
        )

    return Change(work.__name__, apply, certain)


def on_lines(
    work: Callable[[random.Random, list[bytes]], None], certain: Certain = "unknown"
) -> Change:
    """Return a change of a file's lines; one that lacks what is to be changed stays as it is."""

    def lines(rng: random.Random, content: bytes) -> bytes:
        found = content.split(b"\n")
        try:
            work(rng, found)
        except (IndexError, ValueError, RecursionError):
            return content
        return b"\n".join(found)

    lines.__name__ = work.__name__
    return on_bytes(lines, certain)


NASTY = (
    b"\0", b"\0" * 50, "\ufeff".encode(), b"\r", b"\r\n", b"\n", b"\xff", b"\xc3", b"\xed\xa0\x80",
    "\u2028".encode(), "\u0085".encode(), "\u202e".encode(), b"\x1b[2J\x07", b"\\ud800", b"\\u0000",
    b"\t", b'"', b"'", b"\\", b"%s{}{0}", b"NaN", b"-Infinity", b"1e999999", b"9" * 5000,
    b"[" * 20000, b'{"a":' * 5000, b"&a [*a, *a]", b"!!python/object/apply:os.getcwd []", b"#",
    b":", "e\u0301\u0327".encode() * 20, "\U0010ffff".encode(), b"../../../etc/passwd", b"-",
    b"<<: *a",
)  # fmt: skip


NUMBERS = (
    b"-1", b"0", b"1e308", b"1e999", b"NaN", b"null", b"true", b'"7"', b"1_0", b"0x10", b"1.5",
    b"9" * 19, b"9" * 400, b"[]", b"{}", b"", b"\xd9\xa3",
)  # fmt: skip


def insert(rng: random.Random, content: bytes) -> bytes:
    place = rng.randint(0, len(content))
    return content[:place] + rng.choice(NASTY) + content[place:]


def replace(rng: random.Random, content: bytes) -> bytes:
    start = rng.randint(0, len(content))
    return content[:start] + rng.choice(NASTY) + content[start + rng.randint(1, 40) :]


def truncate(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randint(0, max(0, len(content) - 3))]


def cut(rng: random.Random, content: bytes) -> bytes:
    start = rng.randint(0, len(content))
    return content[:start] + content[start + rng.randint(1, 200) :]


def flip(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 4, 64))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def zero(rng: random.Random, content: bytes) -> bytes:
    start = rng.randint(0, len(content))
    size = len(content[start : start + rng.choice((1, 16, 4096))])
    return content[:start] + bytes(size) + content[start + size :]


def twice(_: random.Random, content: bytes) -> bytes:
    return content[: 1 << 20] * 2


def noise(rng: random.Random, _: bytes) -> bytes:
    return rng.randbytes(rng.choice((1, 100, 10_000)))


def number(rng: random.Random, content: bytes) -> bytes:
    found = list(re.finditer(rb"-?\d+(\.\d+)?(e-?\d+)?", content))
    if not found:
        return content
    start, end = rng.choice(found).span()
    return content[:start] + rng.choice(NUMBERS) + content[end:]


def bulk(rng: random.Random, content: bytes) -> bytes:
    """Make one place very long: seldom megabytes."""
    unit = rng.choice((b"a", b"a ", b"\t", b"ab,", "é".encode(), b"\r", b"[", b"- ", b" ", b'"a",'))
    size = rng.choice((1_000, 70_000)) if rng.random() < 0.9 else 3 << 20
    place = rng.randint(0, len(content))
    return content[:place] + unit * (size // len(unit)) + content[place:]


def delete_line(rng: random.Random, lines: list[bytes]) -> None:
    del lines[rng.randrange(len(lines))]


def duplicate_line(rng: random.Random, lines: list[bytes]) -> None:
    lines.insert(rng.randint(0, len(lines)), rng.choice(lines))


def swap_lines(rng: random.Random, lines: list[bytes]) -> None:
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]


def indent_line(rng: random.Random, lines: list[bytes]) -> None:
    at = rng.randrange(len(lines))
    lines[at] = rng.choice((b" ", b"  ", b"\t", b"    ", b"\xc2\xa0")) + lines[at]


def empty(_: random.Random, files: Files, name: str) -> None:
    files[name] = b""


def folder(_: random.Random, files: Files, name: str) -> None:
    files[name] = None


def missing(_: random.Random, files: Files, name: str) -> None:
    files.pop(name, None)


EVERYWHERE = [
    *map(
        on_bytes, (insert, insert, replace, truncate, cut, flip, zero, twice, noise, number, bulk)
    ),
    *map(on_lines, (delete_line, duplicate_line, swap_lines, indent_line)),
]

# ---- lines of text


def crlf(_: random.Random, content: bytes) -> bytes:
    return content.replace(b"\n", b"\r\n")


def no_last_line_end(_: random.Random, content: bytes) -> bytes:
    return content.removesuffix(b"\n")


def byte_order_mark(_: random.Random, content: bytes) -> bytes:
    return "\ufeff".encode() + content


def byte_order_marks(rng: random.Random, lines: list[bytes]) -> None:
    for at in rng.sample(range(len(lines) - 1), 2):
        lines[at] = "\ufeff".encode() + lines[at]


def nulls(rng: random.Random, lines: list[bytes]) -> None:
    at = rng.randrange(len(lines) - 1)
    line = lines[at].decode()
    place = rng.randint(0, len(line))
    lines[at] = (line[:place] + "\0" + line[place:]).encode()


def not_utf8(rng: random.Random, lines: list[bytes]) -> None:
    at = plain(rng, lines)
    lines[at] += rng.choice(
        (b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xe6\x97", b"\xf4\x90\x80\x80")
    )


def plain(rng: random.Random, lines: list[bytes]) -> int:
    """Choose a line that is a row of its own: not the first, and no part of a quoted cell."""
    found = [
        at for at, line in enumerate(lines) if at and line.count(b'"') % 2 == 0 and line.strip()
    ]
    return rng.choice(found)


LINES = [
    on_bytes(crlf, "same"), on_bytes(no_last_line_end, "same"), on_bytes(byte_order_mark, "same"),
    on_lines(byte_order_marks, "same"), on_lines(nulls, "same"), on_lines(not_utf8, "row"),
    Change("folder", folder, "refused"), Change("missing", missing, "refused"),
]  # fmt: skip


# ---- compressed files


def gzip_bytes(work: Callable[[random.Random, bytes], bytes], certain: Certain) -> Change:
    """Return a change of a compressed file as it lies on disk; of no other file."""

    def apply(rng: random.Random, files: Files, name: str) -> None:
        content = files.get(name)
        if content and name.endswith(".gz"):
            with contextlib.suppress(OSError, EOFError, ValueError, zlib.error):  # spoilt already
                files[name] = work(rng, content)

    return Change(f"compressed {work.__name__}", apply, certain)


def half(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randint(1, len(content) - 1)]


def not_compressed(_: random.Random, content: bytes) -> bytes:
    return gzip.decompress(content)


def many_members(_: random.Random, content: bytes) -> bytes:
    inside = gzip.decompress(content)
    half = inside.index(b"\n", len(inside) // 2) + 1
    return gzip.compress(inside[:half], mtime=0) + gzip.compress(inside[half:], mtime=0)


def wrong_sum(_: random.Random, content: bytes) -> bytes:
    return content[:-8] + bytes(4) + content[-4:]


def small_for_much(_: random.Random, __: bytes) -> bytes:
    return gzip.compress(b"a" * (20 << 20), 1, mtime=0)
