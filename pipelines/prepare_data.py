"""Turn the text of a config into token arrays, once, with a manifest of hashes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ala_encoder.command import run
from ala_encoder.settings.experiment import Preparation
from ala_encoder.settings.parallel import TranslationData

if TYPE_CHECKING:
    from ala_encoder.settings.corpus import CorpusSettings
    from ala_encoder.tokenizer import Tokenizer


def main(settings: Preparation) -> None:
    """Write the corpus folder; a current one is left, a stale one refused."""
    from ala_encoder.tokenizer import open_folder

    tokenizer = open_folder(settings.tokenizer)
    if isinstance(settings.data, TranslationData):
        _prepare_pairs(settings.data, tokenizer)
    else:
        _prepare_text(settings.data, tokenizer)


def _prepare_text(data: CorpusSettings, tokenizer: Tokenizer) -> None:
    from ala_encoder import corpus, sources

    source = sources.find_source(data)
    manifest = corpus.prepare(data.path, source, tokenizer, on_bad_row=data.on_bad_row)
    for split, record in manifest.splits.items():
        pieces = record.tokens - record.documents  # without the [SEP] of each
        print(
            f"  {split}: {record.documents:,} documents, {record.paragraphs:,} paragraphs, "
            f"{record.tokens:,} tokens, {record.unknown / record.tokens:.2%} unknown, "
            f"{pieces / max(1, record.words):.3f} pieces per word"
        )


def _prepare_pairs(data: TranslationData, tokenizer: Tokenizer) -> None:
    from ala_encoder import parallel_corpus

    manifest = parallel_corpus.prepare(data, tokenizer)
    for split, record in manifest.splits.items():
        sides = zip(data.languages, (record.src, record.trg), strict=True)
        said = (
            f"{language} {side.tokens:,} tokens, {side.unknown / side.tokens:.2%} unknown"
            for language, side in sides
        )
        print(f"  {split}: {record.pairs:,} pairs, {', '.join(said)}")
    print(f"  {manifest.ratio:.4f} source tokens for each target token")


if __name__ == "__main__":
    sys.exit(run(main, Preparation, __doc__ or ""))
