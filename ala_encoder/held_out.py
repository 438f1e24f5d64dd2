"""What translations are scored on: a corpus's held-out splits, or files of their own.

For: source tokens and the text of the references, which belong together. Not for: scores
(`translation_scores`), training (`translation`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ala_encoder import parallel
from ala_encoder.errors import UserError
from ala_encoder.parallel_corpus import Pairs
from ala_encoder.parallel_manifests import ParallelManifest, refuse_changed
from ala_encoder.settings.parallel import ParallelFiles, TranslationData
from ala_encoder.tokenizer import Tokenizer
from ala_encoder.translation import TranslationPairs


@dataclass(frozen=True)
class HeldOut:
    """A split to be scored: its pairs, none left out, and the text of its targets."""

    examples: TranslationPairs
    references: Sequence[str]
    tokenizer: Tokenizer
    """Of the target language."""
    language: str
    test_set: str | None = None
    """sacreBLEU's name of it."""

    @property
    def prefix(self) -> str:
        """Return what the names of its scores begin with."""
        return "eval" if self.examples.name == "valid" else self.examples.name


def of_corpus(
    data: TranslationData,
    manifest: ParallelManifest,
    pairs: Mapping[str, Pairs],
    tokenizer: Tokenizer,
    positions: int | None,
    splits: Collection[str] = ("valid", "test"),
) -> dict[str, HeldOut]:
    """Return those of the splits that there are, as they are scored; other text may be gone.

    positions: that the model has; None: any number. Raises UserError for a pair with more tokens,
    since none is left out, and when the text is no longer there or has changed.
    """
    found = {}
    for split, source in parallel.find_sources(data, lambda text: None, splits).items():
        refuse_changed(data.path, manifest, split, source)
        examples = TranslationPairs(pairs[split], tokenizer, name=split)
        _check_lengths(examples, positions, f"data.{split}")
        references = [pair.trg for pair in parallel.pairs(source, source.reading())]
        assert len(references) == len(examples), "nothing of a held-out split is left out"
        trg = tokenizer.of_language(data.trg_lang)
        found[split] = HeldOut(examples, references, trg, data.trg_lang)
    return found


def of_files(
    text: ParallelFiles,
    languages: tuple[str, str],
    tokenizer: Tokenizer,
    positions: int | None,
    name: str | None = None,
) -> HeldOut:
    """Return files as a test split that is in no prepared corpus; name: sacreBLEU's, of this text.

    positions: as in `of_corpus`. Raises UserError as `of_corpus` and `parallel.pairs` do, and where
    there is no pair.
    """
    source = parallel.ParallelSource(languages, "error", text)
    found = list(parallel.pairs(source, source.reading()))
    if not found:
        raise UserError(f"{source}: no pair, the text is empty")
    sides = (tokenizer.of_language(language) for language in languages)
    tokens, ends = [], []
    for side, of_language in zip(("src", "trg"), sides, strict=True):
        rows = of_language.encode_sentences([getattr(pair, side) for pair in found])
        tokens.append(np.array([i for row in rows for i in (*row, of_language.eos_id)], np.uint32))
        ends.append(np.cumsum([len(row) + 1 for row in rows], dtype=np.int64))
    pairs = Pairs(tokens[0], tokens[1], ends[0], ends[1])
    examples = TranslationPairs(pairs, tokenizer, name="test")
    _check_lengths(examples, positions, str(source))
    trg = tokenizer.of_language(languages[1])
    return HeldOut(examples, [pair.trg for pair in found], trg, languages[1], name)


def _check_lengths(examples: TranslationPairs, positions: int | None, where: str) -> None:
    longest = int(examples.lengths().max())
    if positions is not None and longest > positions:
        row = int(examples.lengths().max(1).argmax())
        raise UserError(
            f"{where}: pair {row + 1} has {longest} tokens, the model {positions} positions"
        )
