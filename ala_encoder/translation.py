"""Translation as a task: pairs as training examples, translations of a split, and their scores.

For: what `finetune_nmt` and `evaluate` share. Not for: reading text (`parallel_corpus`), the search
(`decoding`), what a model starts from (`transfer`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ala_encoder import bleu, decoding, parallel, parallel_corpus, ranks
from ala_encoder.batches import FIXED_EPOCH, Examples, Ids, Inputs, TokenPlan
from ala_encoder.errors import UserError
from ala_encoder.evaluation import Forward, Loss, Scored, write_scores
from ala_encoder.files import write_text
from ala_encoder.language_model import perplexity
from ala_encoder.metrics import Score
from ala_encoder.models import Seq2Seq
from ala_encoder.objectives import IGNORE, cross_entropy, pad, smoothed_cross_entropy
from ala_encoder.parallel_corpus import Pairs
from ala_encoder.parallel_manifests import ParallelManifest, refuse_changed
from ala_encoder.settings.parallel import ParallelFiles, TranslationData
from ala_encoder.settings.search import SearchSettings
from ala_encoder.tokenizer import Tokenizer

PREFIXES = {"valid": "eval", "test": "test", "train": "train"}
"""Split → what the names of its scores begin with."""
_ROWS = 512
"""Targets whose loss is taken at once, in float64."""


@final
class TranslationPairs:
    """The pairs of a split as numbered examples; see `batches.Examples`."""

    def __init__(
        self, pairs: Pairs, tokenizer: Tokenizer, *, name: str, max_length: int | None = None
    ) -> None:
        """max_length: pairs with a longer side are left out and counted; None: all are taken.

        Raises UserError when none is left.
        """
        self.pairs, self.name = pairs, name
        self.bos_id, self.pad_id, self.eos_id = (
            tokenizer.bos_id,
            tokenizer.pad_id,
            tokenizer.eos_id,
        )
        lengths = pairs.lengths()
        kept = np.arange(len(pairs))
        if max_length is not None:
            kept = np.flatnonzero(lengths.max(1) <= max_length)
        if not len(kept):
            raise UserError(f"train.max_length = {max_length}: every pair of {name} is longer")
        self.places: NDArray[np.int64] = kept.astype(np.int64)
        """The number in the split of each example."""
        self.num_dropped = len(pairs) - len(kept)
        self._lengths = lengths[kept]

    def __len__(self) -> int:
        return len(self.places)

    def counts(self, ids: Ids, epoch: int) -> NDArray[np.int64]:
        """Every target token is predicted, eos too."""
        counts: NDArray[np.int64] = self._lengths[ids, 1]
        return counts

    def lengths(self) -> NDArray[np.int64]:
        """Return the tokens of each pair's source and target, eos included: int64 [N, 2]."""
        return self._lengths

    def num_tokens(self, ids: Ids) -> int:
        """Return the tokens of both sides."""
        return int(self._lengths[ids].sum())

    def collate(self, ids: Ids, epoch: int) -> Inputs:
        """Return src_ids, src_segments [B, S], trg_ids, trg_segments and labels [B, T].

        The decoder reads bos and the target without its eos; the labels are the target. An empty
        `ids` gives one row of a token and no label.
        """
        rows = [self.pairs.pair(int(self.places[i])) for i in ids]
        src = [row.tolist() for row, _ in rows] or [[self.eos_id]]
        trg = [row.tolist() for _, row in rows] or [[IGNORE]]
        return {
            "src_ids": pad(src, self.pad_id),
            "src_segments": pad([[1] * len(row) for row in src], 0),
            "trg_ids": pad([[self.bos_id, *row[:-1]] for row in trg], self.pad_id),
            "trg_segments": pad([[1] * len(row) for row in trg], 0),
            "labels": pad(trg, IGNORE),
        }


def never_put_out(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids that are no target: bos, padding and so on, but neither eos nor unknown."""
    return tokenizer.special_ids - {tokenizer.eos_id, tokenizer.unk_id}


def smoothing(
    tokenizer: Tokenizer, epsilon: float
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the objective of training: epsilon is spread evenly over what can be a target."""
    share = torch.ones(tokenizer.vocab_size)
    share[sorted(never_put_out(tokenizer))] = 0.0
    share /= share.sum()
    return lambda logits, labels: smoothed_cross_entropy(logits, labels, epsilon, share)


# ---------------------------------------------------------------------------------------------
# Scores
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOut:
    """A split to be scored: its pairs, none left out, and the text of its targets."""

    examples: TranslationPairs
    references: Sequence[str]
    tokenizer: Tokenizer
    """Of the target language."""
    language: str
    test_set: str | None = None
    """sacreBLEU's name of it."""

    @property
    def prefix(self) -> str:
        return PREFIXES[self.examples.name]


def held_out(
    data: TranslationData,
    manifest: ParallelManifest,
    pairs: Mapping[str, Pairs],
    tokenizer: Tokenizer,
    positions: int | None,
) -> dict[str, HeldOut]:
    """Return valid, and test where there is one, as they are scored; the text of train may be gone.

    positions: that the model has; None: any number. Raises UserError for a pair with more tokens,
    since none is left out, and when the text is no longer there or has changed.
    """
    found = {}
    for split, source in parallel.find_sources(data, lambda text: None, ("valid", "test")).items():
        refuse_changed(data.path, manifest, split, source)
        examples = TranslationPairs(pairs[split], tokenizer, name=split)
        _check_lengths(examples, positions, f"data.{split}")
        references = [pair.trg for pair in parallel.pairs(source, source.reading())]
        assert len(references) == len(examples), "nothing of a held-out split is left out"
        trg = tokenizer.of_language(data.trg_lang)
        found[split] = HeldOut(examples, references, trg, data.trg_lang)
    return found


def from_files(
    text: ParallelFiles,
    languages: tuple[str, str],
    tokenizer: Tokenizer,
    positions: int | None,
    name: str | None = None,
) -> HeldOut:
    """Return files as a test split that is in no prepared corpus; name: sacreBLEU's, of this text.

    positions: as in `held_out`. Raises UserError as `held_out` and `parallel.pairs` do, and where
    there is no pair.
    """
    source = parallel.ParallelSource(languages, "error", text)
    found = list(parallel.pairs(source, source.reading()))
    if not found:
        raise UserError(f"{source}: no pair, the text is empty")
    sides = (tokenizer.of_language(language) for language in languages)
    tokens, ends = [], []
    for side, of_language in zip(("src", "trg"), sides, strict=True):
        rows = of_language.encode_sentences([getattr(pair, side) for pair in found])
        tokens.append(np.array([i for row in rows for i in (*row, of_language.eos_id)], np.uint32))
        ends.append(np.cumsum([len(row) + 1 for row in rows], dtype=np.int64))
    pairs = Pairs(tokens[0], tokens[1], ends[0], ends[1])
    examples = TranslationPairs(pairs, tokenizer, name="test")
    _check_lengths(examples, positions, str(source))
    trg = tokenizer.of_language(languages[1])
    return HeldOut(examples, [pair.trg for pair in found], trg, languages[1], name)


def _check_lengths(examples: TranslationPairs, positions: int | None, where: str) -> None:
    longest = int(examples.lengths().max())
    if positions is not None and longest > positions:
        row = int(examples.lengths().max(1).argmax())
        raise UserError(
            f"{where}: pair {row} has {longest} tokens, the model {positions} positions"
        )


def pairs_loss(forward: Forward, examples: Examples, batch_tokens: int) -> Loss:
    """Return the loss, not smoothed, over all target tokens, summed over batches and ranks.

    Every rank makes as many calls; a pair longer than `batch_tokens` is a batch of its own.
    """
    total, count, world = 0.0, 0, ranks.world_size()
    lengths = examples.lengths()
    assert lengths is not None
    batches = TokenPlan(0, lengths, batch_tokens).batches(0, FIXED_EPOCH)
    none = np.empty(0, dtype=np.int64)
    with torch.no_grad():
        for first in range(0, len(batches), world):
            turn = [*batches[first : first + world], *[none] * world]
            inputs = examples.collate(turn[ranks.rank()], FIXED_EPOCH)
            logits = forward(inputs).flatten(0, -2)
            labels = inputs["labels"].to(logits.device).flatten()
            for start in range(0, len(labels), _ROWS):
                part = slice(start, start + _ROWS)
                loss, targets = cross_entropy(logits[part].double(), labels[part])
                total += float(loss)
                count += int(targets)
    summed = ranks.all_sum([total, count])
    return Loss(summed[0], int(summed[1]))


def loss_scores(forward: Forward, split: HeldOut, batch_tokens: int) -> dict[str, Score]:
    """Return PREFIX_loss (nats a token), PREFIX_perplexity and PREFIX_targets."""
    loss = pairs_loss(forward, split.examples, batch_tokens)
    mean = loss.mean
    return {
        f"{split.prefix}_loss": Score(mean),
        f"{split.prefix}_perplexity": Score(
            None if mean is None else perplexity(loss.total, loss.count)
        ),
        f"{split.prefix}_targets": Score(float(loss.count)),
    }


def greedy(search: SearchSettings) -> SearchSettings:
    """Return the settings of a greedy search, of the same lengths and batches."""
    changes = {"beam_size": 1, "n_best": 1, "length_penalty": 0.0, "penalty": "gnmt"}
    return search.model_copy(update=changes)


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return a translation as one line of text; tokenizer: of the target language."""
    return " ".join(tokenizer.decode(ids).splitlines())


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
        found = decoding.translate(
            module,
            sources,
            search,
            bos=examples.bos_id,
            eos=examples.eos_id,
            pad=examples.pad_id,
            forbidden=never_put_out(tokenizer),
        )
        texts = [text_of(tokenizer, best[0].ids) for best in found]
    except UserError as caught:
        error = caught
    parts = ranks.gather((texts, error))
    for _, failed in parts:
        if failed is not None:
            raise failed
    return [parts[number % world][0][number // world] for number in range(len(examples))]


def text_scores(
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
        scores = loss_scores(model, valid, self.batch_tokens)
        if translate:
            quick = ("bleu", "chrf")
            scores |= text_scores(model, valid, greedy(self.search), quick, "greedy_")[0]
        return _values(scores)

    def scores(
        self, model: Scored, split: str, folder: Path, averaged: Sequence[str]
    ) -> dict[str, float | None]:
        """Return loss, BLEU and chrF of a split, and write its files into a folder, on rank 0.

        averaged: the checkpoints whose mean the weights are. SPLIT.json is all of it in one record:
        scores, signatures, search, checkpoints. SPLIT.translations.txt and SPLIT.references.txt
        are what BLEU was taken of.
        """
        part = self.splits[split]
        scores = loss_scores(model, part, self.batch_tokens)
        more, found = text_scores(model, part, self.search, self.metrics)
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


def prepared(
    data: TranslationData, tokenizer: Tokenizer
) -> tuple[ParallelManifest, dict[str, Pairs]]:
    """Return the corpus of `data`, made first where it is not there; every rank calls it."""
    manifest = parallel_corpus.prepare(data, tokenizer, say=ranks.say)
    pairs = parallel_corpus.open_pairs(data.path, manifest, tokenizer, verify=ranks.is_main())
    return manifest, pairs
