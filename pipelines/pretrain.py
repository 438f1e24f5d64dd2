"""Pretrain an encoder as a masked language model, or an encoder-decoder to fill in spans.

One process:   python -m pipelines.pretrain CONFIG.yaml [section.key=value …]
Many:          deepspeed --num_gpus N --module pipelines.pretrain CONFIG.yaml …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ala_encoder import ranks
from ala_encoder.command import leave, run
from ala_encoder.parameters import count
from ala_encoder.settings.experiment import PretrainRun
from ala_encoder.settings.model import EncoderModel
from ala_encoder.settings.train import split_batch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from ala_encoder.batches import Examples
    from ala_encoder.evaluation import Forward
    from ala_encoder.export import AnyCard
    from ala_encoder.tokenizer import Tokenizer

    Scores = dict[str, float | None]
    Tokens = Mapping[str, NDArray[Any]]


class _Task(NamedTuple):
    """What an objective makes of the text."""

    build: Callable[[], nn.Module]
    train: Examples
    evaluate: Callable[[Forward], Scores]
    floor: Callable[[], Scores]
    """Scores of no model."""


def main(settings: PretrainRun) -> None:
    """Train, validate on held-out text that is always corrupted alike, and export."""
    split_batch(settings.train, ranks.world_size())  # a misfit is told before anything is read

    from ala_encoder import corpus, runs, sources
    from ala_encoder.tokenizer import open_folder
    from ala_encoder.training import Goal

    tokenizer = open_folder(settings.tokenizer, ranks.say)
    _ = tokenizer.mask_id  # a missing one is told before hours of text are read
    source = sources.find_source(settings.data, ranks.say)
    manifest = corpus.prepare(
        settings.data.path, source, tokenizer, on_bad_row=settings.data.on_bad_row, say=ranks.say
    )
    tokens = corpus.open_tokens(settings.data.path, manifest, tokenizer, verify=ranks.is_main())
    make = _masked if settings.objective == "mlm" else _denoised
    task = make(settings, tokens, tokenizer)
    card = _card(settings, tokenizer, manifest.name)

    def score(forward: Forward) -> Scores:
        scores = task.evaluate(forward)
        return {**scores, **task.floor()} if ranks.is_main() else scores

    with runs.open_run(settings, card, settings.objective) as job:
        runs.log_corpus(job, settings.data, manifest)
        identity = runs.identity(settings, tokenizer, manifest.train.sha256)
        goal = Goal(task.train, task.evaluate, identity)
        runs.train(job, settings, task.build(), goal, card, tokenizer, score)


def _masked(settings: PretrainRun, tokens: Tokens, tokenizer: Tokenizer) -> _Task:
    from ala_encoder import evaluation, examples
    from ala_encoder.models import MaskedLM

    model, data = settings.model, settings.data
    assert isinstance(model, EncoderModel)
    valid = examples.validation_blocks(tokens["valid"], data, tokenizer)
    size = settings.train.eval_batch_size
    vocab_size = tokenizer.vocab_size
    return _Task(
        build=lambda: MaskedLM(model, settings.encoder, vocab_size),
        train=examples.training_blocks(tokens["train"], data, tokenizer, settings.seed),
        evaluate=lambda forward: evaluation.masked_lm_scores(forward, valid, size),
        floor=lambda: {
            "eval_unigram_loss": examples.unigram_loss(tokens["train"], valid, vocab_size)
        },
    )


def _denoised(settings: PretrainRun, tokens: Tokens, tokenizer: Tokenizer) -> _Task:
    from ala_encoder import denoising
    from ala_encoder.models import Seq2Seq

    model, data = settings.model, settings.data
    assert not isinstance(model, EncoderModel)
    valid = denoising.validation_texts(tokens["valid"], data, tokenizer)
    size = settings.train.eval_batch_size
    return _Task(
        build=lambda: Seq2Seq(model, settings.sections, tokenizer.vocab_size),
        train=denoising.training_texts(tokens["train"], data, tokenizer, settings.seed),
        evaluate=lambda forward: denoising.denoising_scores(forward, valid, size),
        floor=dict,
    )


def _card(settings: PretrainRun, tokenizer: Tokenizer, data_name: str) -> AnyCard:
    from ala_encoder.export import Card, TranslationCard

    about: dict[str, Any] = {
        "variant": settings.variant,
        "seed": settings.seed,
        "run_name": settings.run_name,
        "vocab_size": tokenizer.vocab_size,
        "model": settings.model,
        **settings.sections,
        "data": settings.data,
        "data_name": data_name,
        "parameters": count(settings.model, settings.sections, tokenizer.vocab_size),
    }
    if settings.objective == "mlm":
        return Card(kind="masked_lm", **about)
    return TranslationCard(**about)


if __name__ == "__main__":
    leave(run(main, PretrainRun, __doc__ or ""))
