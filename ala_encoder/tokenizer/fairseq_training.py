"""Learning joint BPE codes and a dictionary, as subword-nmt and fairseq-preprocess make them.

For: the text of several languages together. Not for: reading text files (`parallel`).
Moses tokens are counted first and handed over sorted, so that codes and dictionary depend on tokens
and their counts alone: not on the order of files, lines or languages.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Iterable

from ala_encoder.errors import UserError
from ala_encoder.lines import SURROGATES
from ala_encoder.settings.tokenizer import FairseqBPESettings
from ala_encoder.tokenizer.base import InLanguage
from ala_encoder.tokenizer.fairseq import (
    FairseqBPE,
    moses_code,
    moses_tokens,
    parts,
    read_bpe,
    spell,
)
from ala_encoder.tokenizer.fairseq_files import Codes, Entry, Moses, padded


def train_fairseq_bpe(
    settings: FairseqBPESettings, texts: Iterable[str | InLanguage], say: Callable[[str], None]
) -> FairseqBPE:
    """Learn merges from all words together; ids: the specials, pieces by count, made-up words.

    Pieces of equal counts are in the order of their code points, as fairseq sorts them.
    Raises UserError for texts whose language is not told, and without a pair of letters to merge.
    """
    moses = Moses(settings.aggressive_dashes, settings.escape)
    counts: Counter[str] = Counter()
    languages: set[str] = set()
    for text in texts:
        if isinstance(text, str):
            raise UserError("tokenizer.kind = 'fairseq_bpe': is for parallel text (data.src_lang)")
        if text.language not in languages:
            languages.add(text.language)
            _note_prefixes(text.language, say)
        clean = SURROGATES.sub("", text.text)
        counts.update(moses_tokens(clean, text.language, moses))
    if not counts:
        raise UserError("no words to train on: the text is empty")
    codes = _learn(counts, settings, say)
    return FairseqBPE(codes, _dictionary(counts, codes), moses, sorted(languages))


def _note_prefixes(language: str, say: Callable[[str], None]) -> None:
    from sacremoses.corpus import NonbreakingPrefixes

    if moses_code(language) not in NonbreakingPrefixes().available_langs:
        say(f"note: Moses has no abbreviations of {language!r}; it takes those of English")


def _learn(counts: Counter[str], settings: FairseqBPESettings, say: Callable[[str], None]) -> Codes:
    from subword_nmt.learn_bpe import learn_bpe

    shorter: Counter[str] = Counter()
    for word, count in counts.items():
        for part in parts(word):
            shorter[part] += count
    head, merges = "", list[str]()
    if any(len(word) > 1 for word in shorter):
        lines = (f"{word} {shorter[word]}" for word in sorted(shorter))
        written = io.StringIO()
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
            learn_bpe(lines, written, settings.num_merges, settings.min_frequency, is_dict=True)
        head, *merges = written.getvalue().rstrip("\n").split("\n")
    if not merges:
        raise UserError(
            f"tokenizer.min_frequency = {settings.min_frequency}: no pair of letters inside a word "
            "occurs so often in this text"
        )
    if len(merges) < settings.num_merges:
        say(
            f"note: {len(merges):,} merges, not num_merges = {settings.num_merges:,}: in this text"
            f" no pair occurs min_frequency = {settings.min_frequency} times any more"
        )
    pairs = (merge.split(" ") for merge in merges)
    return Codes(head.partition(":")[2].strip(), tuple((left, right) for left, right in pairs))


def _dictionary(counts: Counter[str], codes: Codes) -> tuple[Entry, ...]:
    bpe = read_bpe(codes)
    pieces: Counter[str] = Counter()
    for word, count in counts.items():
        for piece in spell(bpe, word):
            pieces[piece] += count
    return padded(sorted(pieces.items(), key=lambda entry: (-entry[1], entry[0])))
