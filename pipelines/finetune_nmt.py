"""Train a translation model, from scratch, from an export, or from a published model.

One process:   python -m pipelines.finetune_nmt CONFIG.yaml [section.key=value …]
Many:          deepspeed --num_gpus N --module pipelines.finetune_nmt CONFIG.yaml …
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ala_encoder import ranks
from ala_encoder.command import leave, run
from ala_encoder.parameters import count
from ala_encoder.settings.exports import check_start
from ala_encoder.settings.train import split_batch
from ala_encoder.settings.translation import TranslationRun

if TYPE_CHECKING:
    from ala_encoder.cards import TranslationCard
    from ala_encoder.engine import Engine
    from ala_encoder.evaluation import Scored
    from ala_encoder.tokenizer import Tokenizer


def main(settings: TranslationRun) -> None:
    """Train, validate by loss and BLEU, export, and score valid and test by the search."""
    split_batch(settings.train, ranks.world_size())  # a misfit is told before anything is read
    if settings.init is not None:
        check_start(settings.init)

    from ala_encoder import bleu, held_out, runs, transfer, translation, translation_scores
    from ala_encoder.files import read_json
    from ala_encoder.goal import Goal, of_logits
    from ala_encoder.tokenizer import open_folder

    signatures = bleu.signatures(settings.data.trg_lang)
    tokenizer = open_folder(settings.tokenizer, ranks.say)
    translation.check_tokenizer(tokenizer)
    start = transfer.start_from(settings, tokenizer)
    manifest, pairs = translation.prepared(settings.data, tokenizer)
    options, model = settings.train, settings.model
    train = translation.TranslationPairs(
        pairs["train"], tokenizer, name="train", max_length=options.max_length
    )
    name = manifest.data_name(settings.data.path)
    card = _card(settings, tokenizer, name, signatures)
    scoring = translation_scores.Scoring(
        held_out.of_corpus(settings.data, manifest, pairs, tokenizer, model.max_length),
        settings.search,
        options.eval_batch_tokens,
        settings.task,
        card.data_name,
    )

    def evaluate(engine: Engine) -> dict[str, float | None]:
        return scoring.validate(engine, translate=options.greedy_bleu)

    def evaluate_start(engine: Engine) -> dict[str, float | None]:
        return scoring.validate(engine, translate=options.greedy_bleu and start.translates)

    with runs.open_run(settings, card, settings.task, start.tags) as job:
        runs.log_pairs(job, settings.data, manifest, card, train.num_dropped)
        goal = Goal(
            examples=train,
            evaluate=evaluate,
            identity=runs.identity(settings, tokenizer, manifest.digest),
            best_metric="eval_greedy_bleu" if options.greedy_bleu else "eval_loss",
            best_mode="max" if options.greedy_bleu else "min",
            losses=of_logits(translation.smoothing(tokenizer, options.label_smoothing)),
            evaluate_start=evaluate_start,
        )

        def score(trained: Scored) -> dict[str, float | None]:
            scores: dict[str, float | None] = {}
            averaged = read_json(job.folder / "export" / "export.json")["averaged"]
            for split in scoring.splits:
                scores |= scoring.scores(trained, split, job.folder / "eval", averaged)
                job.log.artifact(job.folder / "eval" / f"{split}.json", "eval")
            return scores

        runs.train(job, settings, start.build(), goal, card, tokenizer, score)


def _card(
    settings: TranslationRun, tokenizer: Tokenizer, data_name: str, signatures: dict[str, str]
) -> TranslationCard:
    from ala_encoder.cards import TranslationCard

    return TranslationCard(
        variant=settings.variant,
        seed=settings.seed,
        run_name=settings.run_name,
        vocab_size=tokenizer.vocab_size,
        model=settings.model,
        encoder=settings.encoder,
        decoder=settings.decoder,
        cross=settings.cross,
        data=settings.data,
        data_name=data_name,
        search=settings.search,
        signatures=signatures,
        parameters=count(settings.model, settings.sections, tokenizer.vocab_size),
    )


if __name__ == "__main__":
    leave(run(main, TranslationRun, __doc__ or ""))
