"""Train the tokenizer that a config names, on the training text of its corpus."""

from __future__ import annotations

import sys

from ala_encoder.command import run
from ala_encoder.settings.experiment import PretrainRun


def main(settings: PretrainRun) -> None:
    """Write the tokenizer folder; an existing one is read, checked and left as it is."""
    from ala_encoder import corpus
    from ala_encoder.tokenizer import Tokenizer, report

    wanted = settings.tokenizer
    source = corpus.find_source(settings.data)
    if wanted.path.exists():
        tokenizer = Tokenizer.load(wanted.path)
        print(f"{wanted.path} exists: {tokenizer.vocab_size:,} pieces, left as it is")
    else:
        print(f"training {wanted.vocab_size:,} pieces on {source.name} …", flush=True)
        tokenizer = Tokenizer.train(
            source.files["train"],
            vocab_size=wanted.vocab_size,
            lowercase=wanted.lowercase,
            min_frequency=wanted.min_frequency,
        )
        tokenizer.save(wanted.path)
        print(f"{wanted.path}: {tokenizer.vocab_size:,} pieces")
    for name, value in report(tokenizer, source.files["valid"]).items():
        print(
            f"  {name.replace('_', ' ')}: {value:.4g}"
            if isinstance(value, float)
            else f"  {name.replace('_', ' ')}: {value:,}"
        )


if __name__ == "__main__":
    sys.exit(run(main, PretrainRun, __doc__ or ""))
