"""Turn the text of a config into token arrays, once, with a manifest of hashes."""

from __future__ import annotations

import sys

from ala_encoder.command import run
from ala_encoder.settings.experiment import PretrainRun


def main(settings: PretrainRun) -> None:
    """Write the corpus folder; a current one is left, a stale one refused."""
    from ala_encoder import corpus, sources
    from ala_encoder.tokenizer import open_folder

    tokenizer = open_folder(settings.tokenizer)
    source = sources.find_source(settings.data)
    manifest = corpus.prepare(
        settings.data.path, source, tokenizer, on_bad_row=settings.data.on_bad_row
    )
    for split, record in manifest.splits.items():
        pieces = record.tokens - record.documents  # without the [SEP] of each
        print(
            f"  {split}: {record.documents:,} documents, {record.paragraphs:,} paragraphs, "
            f"{record.tokens:,} tokens, {record.unknown / record.tokens:.2%} unknown, "
            f"{pieces / max(1, record.words):.3f} pieces per word"
        )


if __name__ == "__main__":
    sys.exit(run(main, PretrainRun, __doc__ or ""))
