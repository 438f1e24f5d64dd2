"""Translate text, line by line: from standard input or files, to standard output or a file.

python -m pipelines.translate RUN_OR_EXPORT [search.beam_size=4] < TEXT > TRANSLATIONS
python -m pipelines.translate RUN_OR_EXPORT input=TEXT.gz output=TRANSLATIONS
Empty lines stay. With search.n_best above 1: rows of the line's number from 1, score and text.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ala_encoder import ranks
from ala_encoder.command import leave, run
from ala_encoder.errors import UserError
from ala_encoder.settings.exports import find_export
from ala_encoder.settings.translate import TranslateRun

if TYPE_CHECKING:
    from ala_encoder.pipes import Put
    from ala_encoder.translator import Translation


def main(settings: TranslateRun) -> None:
    """Translate all lines in order; what is to be said is said on standard error."""
    find_export(settings.export)
    if ranks.world_size() > 1:
        raise UserError("translate: is one process, start it without a launcher")

    from tqdm import tqdm

    from ala_encoder import engine, export
    from ala_encoder.lines import Reading
    from ala_encoder.memory import keep_freed_memory
    from ala_encoder.pipes import incoming, outgoing
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
            for name, lines in incoming(settings.input, reading):
                found = translator.translate(lines, name)
                put(_text(found, None if search.n_best == 1 else first))
                first += len(lines)
                bar.update(len(lines))

    outgoing(settings.output, translate)
    for note in (*reading.notes(), *translator.notes()):
        ranks.say(note)


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


if __name__ == "__main__":
    leave(run(main, TranslateRun, __doc__ or "", positional="export"))
