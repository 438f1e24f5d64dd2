"""Translate text, line by line: from standard input or files, to standard output or a file.

python -m pipelines.translate RUN_OR_EXPORT [search.beam_size=4] < TEXT > TRANSLATIONS
python -m pipelines.translate RUN_OR_EXPORT input=TEXT.gz output=TRANSLATIONS
Empty lines stay. With search.n_best above 1: rows of the line's number from 1, score and text.
"""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ala_encoder import ranks
from ala_encoder.command import leave, run
from ala_encoder.errors import UserError, reason
from ala_encoder.files import write_aside
from ala_encoder.settings.exports import find_export
from ala_encoder.settings.translate import TranslateRun

if TYPE_CHECKING:
    from ala_encoder.lines import Reading
    from ala_encoder.streams import Line
    from ala_encoder.translator import Translation

Chunk = tuple[str, "list[Line]"]
"""The name of a text, and lines of it."""


Put = Callable[[bytes], object]
"""Takes text that is ready."""


def main(settings: TranslateRun) -> None:
    """Translate all lines in order; what is to be said is said on standard error."""
    find_export(settings.export)
    if ranks.world_size() > 1:
        raise UserError("translate: is one process, start it without a launcher")

    from tqdm import tqdm

    from ala_encoder import engine, export
    from ala_encoder.lines import Reading
    from ala_encoder.memory import keep_freed_memory
    from ala_encoder.translator import Translator

    keep_freed_memory()
    exported = export.read_translation(settings.export)
    search = exported.card.search
    if settings.search is not None:
        search = settings.search.over(search)
    cut = settings.too_long == "cut"
    translator = Translator(exported, search, engine.device(), ranks.say, cut=cut)
    reading = Reading()

    def translate(put: Put) -> None:
        is_typed = not settings.input and os.isatty(0)
        first = 1
        with tqdm(unit=" lines", unit_scale=True, disable=is_typed or None) as bar:
            for name, lines in _chunks(settings.input, reading):
                found = translator.translate(lines, name)
                put(_text(found, None if search.n_best == 1 else first))
                first += len(lines)
                bar.update(len(lines))

    if settings.output is None:
        _to_stdout(translate)
    else:
        _to_file(settings.output, translate)
    for note in (*reading.notes(), *translator.notes()):
        ranks.say(note)


def _chunks(paths: tuple[Path, ...], reading: Reading) -> Iterator[Chunk]:
    """Yield the lines of the files, or of standard input, as they come."""
    from ala_encoder.lines import read_lines
    from ala_encoder.streams import Arriving, chunks

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


def _text(found: list[list[Translation]], first: int | None) -> bytes:
    """Return the best of each line; or all of them as rows, `first` the number of the first line.

    The text is a row's last cell, so that a tab in it is text.
    """
    if first is None:
        return "".join(f"{best[0].text}\n" for best in found).encode("utf-8")
    rows = (
        f"{number}\t{one.score:.6f}\t{one.text}\n"
        for number, best in enumerate(found, first)
        for one in best
    )
    return "".join(rows).encode("utf-8")


def _to_stdout(translate: Callable[[Put], None]) -> None:
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
        translate(put)
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _to_file(path: Path, translate: Callable[[Put], None]) -> None:
    def write(aside: Path) -> None:
        with (gzip.open if path.suffix == ".gz" else open)(aside, "wb") as file:
            translate(file.write)

    try:
        write_aside(path, write)
    except OSError as error:
        raise UserError(f"output = {path}: cannot be written: {reason(error)}") from None


if __name__ == "__main__":
    leave(run(main, TranslateRun, __doc__ or "", positional="export"))
