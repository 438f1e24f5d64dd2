"""Scores of a translation model: loss, BLEU and chrF of a held-out split.

For: what `finetune_nmt` and `evaluate` share. Not for: the search (`decoding`), BLEU (`bleu`), what
is scored on (`held_out`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ala_encoder import bleu, decoding, ranks
from ala_encoder.errors import UserError
from ala_encoder.evaluation import Forward, Scored, loss_scores, token_loss, write_scores
from ala_encoder.files import write_text
from ala_encoder.held_out import HeldOut
from ala_encoder.metrics import Score
from ala_encoder.models import Seq2Seq
from ala_encoder.settings.search import SearchSettings


def greedy(search: SearchSettings) -> SearchSettings:
    """Return the settings of a greedy search, of the same lengths and batches."""
    changes = {"beam_size": 1, "n_best": 1, "length_penalty": 0.0, "penalty": "gnmt"}
    return search.model_copy(update=changes)


def translations(model: Scored, split: HeldOut, search: SearchSettings) -> list[str]:
    """Return the best translation of every source as text, in order, on all ranks.

    The ranks share the sources. Raises UserError, on all of them, when the model gives NaN.
    """
    module, examples, tokenizer = model.module, split.examples, split.tokenizer
    assert isinstance(module, Seq2Seq)
    rank, world = ranks.rank(), ranks.world_size()
    numbers = range(rank, len(examples), world)
    sources = [examples.pairs.pair(number)[0].tolist() for number in numbers]
    texts, error = [], None
    try:
        found = decoding.translate(module, sources, search, decoding.Marks.of(tokenizer))
        texts = [tokenizer.decode_line(best[0].ids) for best in found]
    except UserError as caught:
        error = caught
    parts = ranks.gather((texts, error))
    for _, failed in parts:
        if failed is not None:
            raise failed
    return [parts[number % world][0][number // world] for number in range(len(examples))]


def scored_translations(
    model: Scored,
    split: HeldOut,
    search: SearchSettings,
    metrics: Sequence[str] = bleu.METRICS,
    word: str = "",
) -> tuple[dict[str, Score], list[str]]:
    """Return PREFIX_{word}bleu and so on, their notes the signatures, and the text."""
    found = translations(model, split, search)
    scores = bleu.text_scores(found, split.references, split.language, metrics, split.test_set)
    named = {
        f"{split.prefix}_{word}{name}": Score(score.value, note=score.signature)
        for name, score in scores.items()
    }
    return named, found


@dataclass(frozen=True)
class Scoring:
    """How the held-out splits of a run are scored."""

    splits: Mapping[str, HeldOut]
    search: SearchSettings
    batch_tokens: int
    task: str
    data_name: str
    metrics: tuple[str, ...] = bleu.METRICS
    """What translations by `search` are scored by; see `bleu.text_scores`."""

    def validate(self, model: Scored, *, translate: bool) -> dict[str, float | None]:
        """Return the loss on valid, and with `translate` BLEU and chrF of greedy translations."""
        valid = self.splits["valid"]
        scores = _losses(model, valid, self.batch_tokens)
        if translate:
            quick = ("bleu", "chrf")
            scores |= scored_translations(model, valid, greedy(self.search), quick, "greedy_")[0]
        return _values(scores)

    def scores(
        self, model: Scored, split: str, folder: Path, averaged: Sequence[str]
    ) -> dict[str, float | None]:
        """Return loss, BLEU and chrF of a split, and write its files into a folder, on rank 0.

        averaged: the steps whose weights they are the mean of. SPLIT.json is all of it in one
        record: scores, signatures, search, steps. SPLIT.translations.txt and SPLIT.references.txt
        are what BLEU was taken of.
        """
        part = self.splits[split]
        scores = _losses(model, part, self.batch_tokens)
        more, found = scored_translations(model, part, self.search, self.metrics)
        scores |= more
        if ranks.is_main():
            about = {
                "search": self.search.model_dump(mode="json"),
                "averaged": list(averaged),
                "trg_lang": part.language,
            }
            write_scores(folder, self.task, split, self.data_name, scores, about)
            for name, lines in (("translations", found), ("references", part.references)):
                write_text(folder / f"{split}.{name}.txt", "".join(f"{line}\n" for line in lines))
        return _values(scores)


def _values(scores: Mapping[str, Score]) -> dict[str, float | None]:
    return {name: score.value for name, score in scores.items()}


def _losses(forward: Forward, split: HeldOut, batch_tokens: int) -> dict[str, Score]:
    """Return PREFIX_loss (nats a token), PREFIX_perplexity and PREFIX_targets."""
    loss = token_loss(forward, split.examples, batch_tokens)
    return {name: Score(value) for name, value in loss_scores(loss, split.prefix).items()}
