"""Pretrain an encoder as a masked language model.

One process:   python -m pipelines.pretrain CONFIG.yaml [section.key=value …]
Many:          deepspeed --num_gpus N --module pipelines.pretrain CONFIG.yaml …
"""

from __future__ import annotations

import sys

from ala_encoder import ranks
from ala_encoder.command import run
from ala_encoder.parameters import count
from ala_encoder.settings.experiment import PretrainRun, check_stack
from ala_encoder.settings.train import split_batch


def main(settings: PretrainRun) -> None:
    """Train, validate on held-out text with one fixed mask set, and export."""
    split = split_batch(settings.train, ranks.world_size())

    from ala_encoder import corpus, evaluation, export, runs, sources
    from ala_encoder.engine import Engine
    from ala_encoder.errors import UserError
    from ala_encoder.examples import training_blocks, unigram_loss, validation_blocks
    from ala_encoder.models import MaskedLM
    from ala_encoder.tokenizer import Tokenizer
    from ala_encoder.training import Goal, fit

    if not settings.tokenizer.path.exists():
        raise UserError(f"tokenizer.path = {settings.tokenizer.path}: run train_tokenizer first")
    tokenizer = Tokenizer.load(settings.tokenizer.path)
    source = sources.find_source(settings.data, ranks.say)
    manifest = corpus.prepare(settings.data.path, source, tokenizer, say=ranks.say)
    tokens = corpus.open_tokens(settings.data.path, tokenizer, verify=ranks.is_main())
    train = training_blocks(tokens["train"], settings.data, tokenizer, settings.seed)
    valid = validation_blocks(tokens["valid"], settings.data, tokenizer)
    table = check_stack(settings.model, settings.encoder, settings.data.length)
    counts = count(settings.model, settings.encoder, table, tokenizer.vocab_size)
    batch_size = settings.train.eval_batch_size

    with runs.open_run(settings, settings.run_name, "mlm", counts, variant=settings.variant) as job:
        runs.log_corpus(job, settings.data, manifest)
        engine = Engine(
            MaskedLM(settings.model, settings.encoder, tokenizer.vocab_size), settings, split
        )
        runs.log_engine(job, engine)
        goal = Goal(
            examples=train,
            evaluate=lambda forward: evaluation.masked_lm_scores(forward, valid, batch_size),
            identity=runs.identity(settings, tokenizer, manifest["splits"]["train"]["sha256"]),
        )
        outcome = fit(engine, goal, settings, split, job.folder, job.log)
        if not outcome.finished:
            job.log.close("KILLED")
            return
        card = export.Card(
            kind="masked_lm",
            variant=settings.variant,
            seed=settings.seed,
            run_name=settings.run_name,
            vocab_size=tokenizer.vocab_size,
            model=settings.model,
            encoder=settings.encoder,
            data=settings.data,
            data_name=manifest["name"],
            parameters=counts,
        )
        model = runs.write_export(job, engine, outcome, card, tokenizer)
        scores = evaluation.masked_lm_scores(evaluation.plain(model), valid, batch_size)
        runs.check_export(scores["eval_loss"], outcome.state.scores["eval_loss"], engine)
        if ranks.is_main():
            floor = unigram_loss(tokens["train"], valid, tokenizer.vocab_size)
            scores["eval_unigram_loss"] = floor
        runs.finish(job, card, scores)


if __name__ == "__main__":
    sys.exit(run(main, PretrainRun, __doc__ or ""))
