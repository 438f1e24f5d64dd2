"""Fine-tune an encoder on a classification task, from an export or from scratch.

One process:   python -m pipelines.finetune_glue CONFIG.yaml [section.key=value …]
Many:          deepspeed --num_gpus N --module pipelines.finetune_glue CONFIG.yaml …
"""

from __future__ import annotations

import sys

from ala_encoder import ranks
from ala_encoder.command import run
from ala_encoder.parameters import count
from ala_encoder.settings.experiment import FinetuneRun, check_stack
from ala_encoder.settings.train import split_batch


def main(settings: FinetuneRun) -> None:
    """Train, keep the weights that are best on dev, score dev and test, write predictions."""
    settings.data.check_training()
    split = split_batch(settings.train, ranks.world_size())

    from ala_encoder import evaluation, export, finetuning, glue, runs
    from ala_encoder.engine import Engine
    from ala_encoder.training import Goal, fit

    start = finetuning.start_from(settings)
    task = glue.task_of(settings.data)
    data = finetuning.read(task, settings.data, start.tokenizer)
    table = check_stack(start.model, start.encoder, start.model.max_length)
    vocab_size = start.tokenizer.vocab_size
    counts = count(start.model, start.encoder, table, vocab_size, task.num_outputs)
    name = settings.name or f"{start.variant}-{task.name}-{settings.seed}"
    batch_size = settings.train.eval_batch_size

    with runs.open_run(
        settings, name, task.name, counts, variant=start.variant, tags=start.tags
    ) as job:
        finetuning.log_data(job, data)
        engine = Engine(start.build(task.num_outputs), settings, split)
        runs.log_engine(job, engine)
        steering = data.splits("dev")[0]
        prefix = glue.prefix_of(steering)
        goal = Goal(
            examples=data.train,
            evaluate=lambda forward: data.scores(forward, steering, batch_size),
            identity=runs.identity(settings, start.tokenizer, data.digest),
            best_metric=f"{prefix}_{task.best_metric}",
            best_loss=f"{prefix}_loss",
        )
        outcome = fit(engine, goal, settings, split, job.folder, job.log)
        if not outcome.finished:
            job.log.close("KILLED")
            return
        card = export.Card(
            kind="classifier",
            variant=start.variant,
            seed=settings.seed,
            run_name=name,
            vocab_size=vocab_size,
            model=start.model,
            encoder=start.encoder,
            data=settings.data,
            data_name=data.name,
            labels=task.labels,
            parameters=counts,
        )
        model = runs.write_export(job, engine, outcome, card, start.tokenizer)
        scores: dict[str, float | None] = {}
        for part in data.splits("dev", "test"):
            scores |= data.scores(evaluation.plain(model), part, batch_size, job.folder / "eval")
        runs.check_export(scores[f"{prefix}_loss"], outcome.state.best_loss, engine)
        runs.finish(job, card, scores)


if __name__ == "__main__":
    sys.exit(run(main, FinetuneRun, __doc__ or ""))
