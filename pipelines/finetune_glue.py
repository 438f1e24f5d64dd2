"""Fine-tune an encoder on a classification task, from an export or from scratch.

One process:   python -m pipelines.finetune_glue CONFIG.yaml [section.key=value …]
Many:          deepspeed --num_gpus N --module pipelines.finetune_glue CONFIG.yaml …
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ala_encoder import ranks
from ala_encoder.command import leave, run
from ala_encoder.parameters import count
from ala_encoder.settings.experiment import FinetuneRun
from ala_encoder.settings.exports import find_export
from ala_encoder.settings.train import split_batch

if TYPE_CHECKING:
    from ala_encoder.cards import Card
    from ala_encoder.evaluation import Forward
    from ala_encoder.finetuning import Start, TaskData


def main(settings: FinetuneRun) -> None:
    """Train, keep the weights that are best on dev, score dev and test, write predictions."""
    split_batch(settings.train, ranks.world_size())  # a misfit is told before anything is read
    if settings.init is not None:
        find_export(settings.init)

    from ala_encoder import glue, splits

    task = glue.task_of(settings.data)
    if settings.data.path is not None:
        splits.locate(task, settings.data)

    from ala_encoder import finetuning, runs  # torch, once the paths are known to be there
    from ala_encoder.goal import Goal

    start = finetuning.start_from(settings)
    found = splits.locate(task, settings.data, ranks.say)
    data = finetuning.read(found, settings.data, start.tokenizer)
    card = _card(settings, start, data)
    batch_size = settings.train.eval_batch_size
    steering = data.splits("dev")[0]
    prefix = glue.prefix_of(steering)

    with runs.open_run(settings, card, task.name, start.tags) as job:
        finetuning.log_data(job, data)
        goal = Goal(
            examples=data.train,
            evaluate=lambda forward: data.scores(forward, steering, batch_size),
            identity=runs.identity(settings, start.tokenizer, data.digest),
            best_metric=f"{prefix}_{task.best_metric}",
            best_loss=f"{prefix}_loss",
        )

        def score(forward: Forward) -> dict[str, float | None]:
            scores: dict[str, float | None] = {}
            for part in data.splits("dev", "test"):
                scores |= data.scores(forward, part, batch_size, job.folder / "eval")
            return scores

        model = start.build(task.num_outputs)
        runs.train(job, settings, model, goal, card, start.tokenizer, score)


def _card(settings: FinetuneRun, start: Start, data: TaskData) -> Card:
    from ala_encoder.cards import Card

    task, vocab_size = data.task, start.tokenizer.vocab_size
    return Card(
        kind="classifier",
        variant=start.variant,
        seed=settings.seed,
        run_name=settings.name or f"{start.variant}-{task.name}-{settings.seed}",
        vocab_size=vocab_size,
        model=start.model,
        encoder=start.encoder,
        data=settings.data,
        data_name=data.name,
        labels=task.labels,
        parameters=count(start.model, {"encoder": start.encoder}, vocab_size, task.num_outputs),
    )


if __name__ == "__main__":
    leave(run(main, FinetuneRun, __doc__ or ""))
