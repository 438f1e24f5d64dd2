"""Make the tokenizer that a config names: trained on its text, or copied from a published one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ala_encoder.command import run
from ala_encoder.settings.experiment import Preparation
from ala_encoder.settings.parallel import TranslationData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ala_encoder.lines import Reading
    from ala_encoder.settings.corpus import CorpusSettings
    from ala_encoder.tokenizer import InLanguage, Tokenizer

    Report = Callable[[Tokenizer], dict[str, Any]]


def main(settings: Preparation, as_json: bool) -> None:
    """Write the tokenizer folder, and how it fits the valid text; an existing one is left as is."""
    import functools
    import json

    from ala_encoder import files, tokenizer
    from ala_encoder.lines import Reading

    say = functools.partial(print, flush=True, file=sys.stderr if as_json else sys.stdout)
    wanted, data = settings.tokenizer, settings.data
    reading = Reading(data.on_bad_row)
    texts: Iterator[str | InLanguage]
    if isinstance(data, TranslationData):
        texts, report = _of_pairs(data, reading, say)
    else:
        texts, report = _of_paragraphs(data, reading, say)
    with files.locked(wanted.path, say):
        made = not wanted.path.exists()
        if made:
            say(f"making a {wanted.kind} tokenizer in {wanted.path} …")
            tokenizer.make(wanted, texts, say)
        ready = tokenizer.open_folder(wanted, say)
        say(f"{wanted.path}: {ready.vocab_size:,} pieces{'' if made else ', left as it is'}")
        fit = report(ready)
        if made:
            files.write_json(wanted.path / "report.json", fit)
    for note in reading.notes():
        say(f"note: {note}")
    if as_json:
        print(json.dumps(fit))
    else:
        _show(fit)


def _of_paragraphs(
    data: CorpusSettings, reading: Reading, say: Callable[[str], None]
) -> tuple[Iterator[str], Report]:
    """Return the training text and what to say of a tokenizer: how it fits the valid text."""
    from ala_encoder import sources
    from ala_encoder.tokenizer import fit_report

    source = sources.find_source(data, say)

    def report(ready: Tokenizer) -> dict[str, Any]:
        return dict(fit_report(ready, sources.texts(source, "valid", reading)))

    return sources.texts(source, "train", reading), report


def _of_pairs(
    data: TranslationData, reading: Reading, say: Callable[[str], None]
) -> tuple[Iterator[InLanguage], Report]:
    """The same of both sides of parallel text, by language, and what decoding gives back of it."""
    from ala_encoder import parallel
    from ala_encoder.tokenizer import fit_report, round_trip_report

    found = parallel.find_sources(data, say)
    valid = found["valid"]

    def lines(language: str) -> Iterator[str]:
        texts = parallel.texts(valid, valid.reading())
        return (text.text for text in texts if text.language == language)

    def report(ready: Tokenizer) -> dict[str, Any]:
        fits = {}
        for language in data.languages:
            view = ready.of_language(language)
            fits[language] = {
                **fit_report(view, lines(language)),
                **round_trip_report(view, lines(language)),
            }
        return fits

    return parallel.texts(found["train"], reading), report


def _show(fit: dict[str, Any], indent: str = "  ") -> None:
    for name, value in fit.items():
        if isinstance(value, dict):
            print(f"{indent}{name}:")
            _show(value, f"{indent}  ")
            continue
        shown = f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
        print(f"{indent}{name.replace('_', ' ')}: {shown}")


if __name__ == "__main__":
    sys.exit(run(main, Preparation, __doc__ or "", json_flag=True))
