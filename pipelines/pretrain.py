"""Pretrain an encoder as a masked language model, an encoder-decoder to fill in spans, or a causal
language model.

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
from ala_encoder.settings.model import CausalModel, EncoderDecoderModel, EncoderModel
from ala_encoder.settings.train import split_batch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from ala_encoder.batches import Examples
    from ala_encoder.cards import AnyCard
    from ala_encoder.evaluation import Scored
    from ala_encoder.goal import Losses
    from ala_encoder.manifests import Manifest
    from ala_encoder.tokenizer import Tokenizer

    Scores = dict[str, float | None]


class _Text(NamedTuple):
    """A prepared corpus."""

    tokens: Mapping[str, NDArray[Any]]
    tokenizer: Tokenizer
    manifest: Manifest


class _Task(NamedTuple):
    """What an objective makes of the text."""

    build: Callable[[], nn.Module]
    train: Examples
    evaluate: Callable[[Scored], Scores]
    """Scores, and what else is logged beside them under names with a slash."""
    floor: Callable[[], Scores]
    """Scores of no model."""
    losses: Losses


def main(settings: PretrainRun) -> None:
    """Train, validate on held-out text that is the same for all variants, and export."""
    split_batch(settings.train, ranks.world_size())  # a misfit is told before anything is read

    from ala_encoder import corpus, runs, sources
    from ala_encoder.goal import Goal
    from ala_encoder.tokenizer import open_folder

    tokenizer = open_folder(settings.tokenizer, ranks.say)
    # a missing one is told before hours of text are read
    _ = tokenizer.eos_id if settings.objective == "clm" else tokenizer.mask_id
    source = sources.find_source(settings.data, ranks.say)
    manifest = corpus.prepare(
        settings.data.path, source, tokenizer, on_bad_row=settings.data.on_bad_row, say=ranks.say
    )
    tokens = corpus.open_tokens(settings.data.path, manifest, tokenizer, verify=ranks.is_main())
    task = _TASKS[settings.objective](settings, _Text(tokens, tokenizer, manifest))
    card = _card(settings, tokenizer, manifest.name)

    def score(trained: Scored) -> Scores:
        found = task.evaluate(trained)
        scores = {name: value for name, value in found.items() if "/" not in name}
        return {**scores, **task.floor()} if ranks.is_main() else scores

    with runs.open_run(settings, card, settings.objective) as job:
        runs.log_corpus(job, settings.data, manifest)
        identity = runs.identity(settings, tokenizer, manifest.train.sha256)
        goal = Goal(task.train, task.evaluate, identity, losses=task.losses)
        runs.train(job, settings, task.build(), goal, card, tokenizer, score)


def _masked(settings: PretrainRun, text: _Text) -> _Task:
    from ala_encoder import evaluation, examples
    from ala_encoder.goal import UNSMOOTHED
    from ala_encoder.models import MaskedLM

    model, data, (tokens, tokenizer, _) = settings.model, settings.data, text
    assert isinstance(model, EncoderModel)
    valid = examples.validation_blocks(tokens["valid"], data, tokenizer)
    size = settings.train.eval_batch_size
    vocab_size = tokenizer.vocab_size
    return _Task(
        build=lambda: MaskedLM(model, settings.sections["encoder"], vocab_size),
        train=examples.training_blocks(tokens["train"], data, tokenizer, settings.seed),
        evaluate=lambda trained: evaluation.masked_lm_scores(trained, valid, size),
        floor=lambda: {
            "eval_unigram_loss": examples.unigram_loss(tokens["train"], valid, vocab_size)
        },
        losses=UNSMOOTHED,
    )


def _denoised(settings: PretrainRun, text: _Text) -> _Task:
    from ala_encoder import denoising
    from ala_encoder.goal import UNSMOOTHED
    from ala_encoder.models import Seq2Seq

    model, data, (tokens, tokenizer, _) = settings.model, settings.data, text
    assert isinstance(model, EncoderDecoderModel)
    valid = denoising.validation_texts(tokens["valid"], data, tokenizer)
    size = settings.train.eval_batch_size
    return _Task(
        build=lambda: Seq2Seq(model, settings.sections, tokenizer.vocab_size),
        train=denoising.training_texts(tokens["train"], data, tokenizer, settings.seed),
        evaluate=lambda trained: denoising.denoising_scores(trained, valid, size),
        floor=dict,
        losses=UNSMOOTHED,
    )


def _causal(settings: PretrainRun, text: _Text) -> _Task:
    from ala_encoder import causal_lm
    from ala_encoder.models import CausalLM

    model, length, (tokens, tokenizer, manifest) = settings.model, settings.data.length, text
    assert isinstance(model, CausalModel)
    valid = causal_lm.blocks(tokens["valid"], length, "valid")
    about = causal_lm.Text.of(tokens["valid"], tokenizer, manifest.valid.words)
    size, vocab_size = settings.train.eval_batch_size, tokenizer.vocab_size
    if model.max_length is not None and model.max_length > length:
        ranks.say(f"note: positions from {length} on are not trained: data.length = {length}")

    def evaluate(trained: Scored) -> Scores:
        losses, observed = causal_lm.token_losses(trained, valid, size)
        return {**causal_lm.causal_lm_scores(losses, valid, about), **observed}

    return _Task(
        build=lambda: CausalLM(model, settings.sections["decoder"], vocab_size),
        train=causal_lm.blocks(tokens["train"], length, "train"),
        evaluate=evaluate,
        floor=lambda: {
            "eval_unigram_loss": causal_lm.unigram_loss(tokens["train"], valid, vocab_size)
        },
        losses=causal_lm.losses,
    )


_TASKS = {"mlm": _masked, "denoise": _denoised, "clm": _causal}


def _card(settings: PretrainRun, tokenizer: Tokenizer, data_name: str) -> AnyCard:
    from ala_encoder.cards import Card, CausalCard, TranslationCard

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
    return CausalCard(**about) if settings.objective == "clm" else TranslationCard(**about)


if __name__ == "__main__":
    leave(run(main, PretrainRun, __doc__ or ""))
