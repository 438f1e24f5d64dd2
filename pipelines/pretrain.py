"""Pretrain an encoder as a masked language model.

One process:   python -m pipelines.pretrain CONFIG.yaml [section.key=value …]
Many:          deepspeed --num_gpus N --module pipelines.pretrain CONFIG.yaml …
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ala_encoder import ranks
from ala_encoder.command import leave, run
from ala_encoder.parameters import count
from ala_encoder.settings.experiment import PretrainRun
from ala_encoder.settings.train import split_batch

if TYPE_CHECKING:
    from ala_encoder.evaluation import Forward
    from ala_encoder.export import Card
    from ala_encoder.tokenizer import Tokenizer


def main(settings: PretrainRun) -> None:
    """Train, validate on held-out text with one fixed mask set, and export."""
    split_batch(settings.train, ranks.world_size())  # a misfit is told before anything is read

    from ala_encoder import corpus, evaluation, runs, sources
    from ala_encoder.examples import training_blocks, unigram_loss, validation_blocks
    from ala_encoder.models import MaskedLM
    from ala_encoder.tokenizer import open_folder
    from ala_encoder.training import Goal

    tokenizer = open_folder(settings.tokenizer, ranks.say)
    source = sources.find_source(settings.data, ranks.say)
    manifest = corpus.prepare(
        settings.data.path, source, tokenizer, on_bad_row=settings.data.on_bad_row, say=ranks.say
    )
    tokens = corpus.open_tokens(settings.data.path, manifest, tokenizer, verify=ranks.is_main())
    train = training_blocks(tokens["train"], settings.data, tokenizer, settings.seed)
    valid = validation_blocks(tokens["valid"], settings.data, tokenizer)
    card = _card(settings, tokenizer, manifest.name)

    def evaluate(forward: Forward) -> dict[str, float | None]:
        return evaluation.masked_lm_scores(forward, valid, settings.train.eval_batch_size)

    def score(forward: Forward) -> dict[str, float | None]:
        scores = evaluate(forward)
        if ranks.is_main():
            floor = unigram_loss(tokens["train"], valid, tokenizer.vocab_size)
            scores["eval_unigram_loss"] = floor
        return scores

    with runs.open_run(settings, card, "mlm") as job:
        runs.log_corpus(job, settings.data, manifest)
        model = MaskedLM(settings.model, settings.encoder, tokenizer.vocab_size)
        goal = Goal(train, evaluate, runs.identity(settings, tokenizer, manifest.train.sha256))
        runs.train(job, settings, model, goal, card, tokenizer, score)


def _card(settings: PretrainRun, tokenizer: Tokenizer, data_name: str) -> Card:
    from ala_encoder.export import Card

    return Card(
        kind="masked_lm",
        variant=settings.variant,
        seed=settings.seed,
        run_name=settings.run_name,
        vocab_size=tokenizer.vocab_size,
        model=settings.model,
        encoder=settings.encoder,
        data=settings.data,
        data_name=data_name,
        parameters=count(settings.model, {"encoder": settings.encoder}, tokenizer.vocab_size),
    )


if __name__ == "__main__":
    leave(run(main, PretrainRun, __doc__ or ""))
