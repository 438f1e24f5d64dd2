"""Turn the text of a config into token arrays, once, with a manifest of hashes."""

from __future__ import annotations

import sys

from ala_encoder.command import run
from ala_encoder.settings.experiment import PretrainRun


def main(settings: PretrainRun) -> None:
    """Write the corpus folder; a current one is left, a stale one refused."""
    from ala_encoder import corpus
    from ala_encoder.errors import UserError
    from ala_encoder.tokenizer import Tokenizer

    if not settings.tokenizer.path.exists():
        raise UserError(f"tokenizer.path = {settings.tokenizer.path}: run train_tokenizer first")
    tokenizer = Tokenizer.load(settings.tokenizer.path)
    source = corpus.find_source(settings.data)
    manifest = corpus.prepare(settings.data.path, source, tokenizer)
    for split, record in manifest["splits"].items():
        unknown = record["unknown"] / record["tokens"]
        print(
            f"  {split}: {record['documents']:,} documents, {record['paragraphs']:,} paragraphs, "
            f"{record['tokens']:,} tokens, {unknown:.2%} unknown"
        )


if __name__ == "__main__":
    sys.exit(run(main, PretrainRun, __doc__ or ""))
