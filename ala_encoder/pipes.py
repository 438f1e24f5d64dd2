"""Text into and out of a pipeline that works line by line: pipes as they come, files, .gz.

For: `translate` and `generate`. Not for: what a line is (`lines`), cutting into chunks (`streams`).
"""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ala_encoder.errors import UserError, reason
from ala_encoder.files import write_aside
from ala_encoder.lines import Reading, read_lines
from ala_encoder.streams import Arriving, Line, chunks

Chunk = tuple[str, list[Line]]
"""The name of a text, and lines of it."""

Put = Callable[[bytes], object]
"""Takes text that is ready."""


def incoming(paths: Sequence[Path], reading: Reading) -> Iterator[Chunk]:
    """Yield the lines of the files, or without one of standard input, as they come.

    Raises UserError for what cannot be read.
    """
    for path in paths or (None,):
        if path is not None and path.suffix == ".gz":
            yield from ((str(path), chunk) for chunk in chunks(read_lines(path, reading)))
            continue
        name = path or Path("stdin")
        try:
            file = open(0 if path is None else path, "rb", buffering=0, closefd=path is not None)  # noqa: SIM115
        except OSError as error:
            raise UserError(f"{name}: cannot be read: {reason(error)}") from None
        with file:
            stream = Arriving(file.fileno())
            lines = read_lines(name, reading, stream)
            yield from ((str(name), chunk) for chunk in chunks(lines, stream.is_ready))


def outgoing(path: Path | None, work: Callable[[Put], None]) -> None:
    """Let `work` put text into a file, aside and renamed, or without one on standard output.

    Raises UserError for what cannot be written.
    """
    if path is None:
        _to_stdout(work)
    else:
        _to_file(path, work)


def _to_stdout(work: Callable[[Put], None]) -> None:
    """Write at once whatever is there; whoever reads may stop, as `head` does."""

    def put(text: bytes) -> None:
        try:
            if sys.stdout is None:
                raise OSError("it is closed")
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UserError(f"standard output: cannot be written: {reason(error)}") from None

    with suppress(BrokenPipeError):
        work(put)
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _to_file(path: Path, work: Callable[[Put], None]) -> None:
    def write(aside: Path) -> None:
        with (gzip.open if path.suffix == ".gz" else open)(aside, "wb") as file:
            work(file.write)

    write_aside(path, write)
