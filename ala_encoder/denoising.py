"""Denoising: an encoder-decoder reads a text of which spans are masked, and gives back the whole.

For: pretraining on running text what `finetune_nmt` starts from: corruption, examples and their
scores. Not for: masked language modelling (`objectives`, `examples`), reading text (`corpus`).

Text infilling of BART (Lewis et al. 2020, arXiv:1910.13461): spans of a text, their lengths drawn
from a Poisson distribution of mean 3, are replaced by one mask each; an empty span is a mask put
in. The target is the whole text, and not the spans alone (T5), so that source, target and the
decoder's start are those of translation.

Ours, where the paper is silent: a text is a document, cut evenly where it is too long, that ends
with eos; exactly max(1, round(0.3 n)) of its n tokens lie in spans, which may start inside of a
word; of all places for so many spans each is as likely; no token is replaced by a random one;
sentences stay in order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from ala_encoder.batches import Ids, Inputs
from ala_encoder.evaluation import Forward, loss_scores, token_loss
from ala_encoder.keyed import keyed_uniform
from ala_encoder.objectives import IGNORE
from ala_encoder.settings.corpus import CorpusSettings, SpanSettings
from ala_encoder.tokenizer import Tokenizer

_LENGTH, _PLACE = 4, 5  # streams of the keyed hash
_FIXED_SEED = 0
_AT_ONCE = 1 << 24  # tokens looked at at once: a corpus may be larger than memory


@final
@dataclass(frozen=True)
class Infilling:
    """Replaces spans of texts by one mask each.

    The spans of an example depend on (seed, epoch, example id) and its length alone. They are drawn
    until they have `num_masked` tokens, an empty one counted as one, and the last takes what is
    missing: so there is never more than a mask for each token left out, and no text grows.
    """

    seed: int
    mask_id: int
    probability: float = 0.3
    mean_length: float = 3.0

    def num_masked(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many of each number of tokens lie in spans: max(1, round(p · n))."""
        wanted: NDArray[np.int64] = np.rint(self.probability * sizes).astype(np.int64)
        return np.maximum(1, wanted)

    def spans(
        self, sizes: NDArray[np.int64], example_ids: Ids, epoch: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the tokens of each span [B, S], 0 after the last one, and the number of spans [B].

        sizes: the tokens of each text, int64 [B], at least 1.
        """
        masked = self.num_masked(sizes)
        u = self._uniform(example_ids, epoch, int(masked.max()), _LENGTH)
        drawn = np.searchsorted(self._cumulative, u, side="right")
        counted = np.maximum(drawn, 1).cumsum(1)
        numbers = (counted < masked[:, None]).sum(1) + 1
        spans = np.where(np.arange(u.shape[1]) < numbers[:, None] - 1, drawn, 0)
        spans[np.arange(len(spans)), numbers - 1] = masked - spans.sum(1)
        return spans, numbers

    def apply(
        self,
        rows: NDArray[np.int64],
        sizes: NDArray[np.int64],
        example_ids: Ids,
        epoch: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the corrupted texts [B, T'] and the tokens of each [B]; behind them lies anything.

        rows: texts [B, T], of `sizes` tokens each [B]. Of the kept tokens and the masks together it
        is drawn which are the masks; the spans come in the order of `spans`.
        """
        spans, numbers = self.spans(sizes, example_ids, epoch)
        left = sizes - self.num_masked(sizes) + numbers
        u = self._uniform(example_ids, epoch, int(left.max()), _PLACE)
        inside = np.arange(u.shape[1]) < left[:, None]
        ranks = np.where(inside, u, 2.0).argsort(1, kind="stable").argsort(1, kind="stable")
        is_mask = ranks < numbers[:, None]
        number = np.maximum(is_mask.cumsum(1) - 1, 0)
        taken = np.where(is_mask, np.take_along_axis(spans, number, 1), 1)
        places = np.minimum(taken.cumsum(1) - taken, rows.shape[1] - 1)
        kept = np.take_along_axis(rows, places, 1)
        return np.where(is_mask, self.mask_id, kept), left

    @cached_property
    def _cumulative(self) -> NDArray[np.float64]:
        """The probability of each length or a shorter one, as far as numbers below 1 tell apart."""
        lengths = np.arange(1, 10 * int(self.mean_length) + 60)
        terms = np.concatenate([[1.0], (self.mean_length / lengths).cumprod()])
        cumulative: NDArray[np.float64] = math.exp(-self.mean_length) * terms.cumsum()
        return cumulative

    def _uniform(
        self, example_ids: Ids, epoch: int, length: int, stream: int
    ) -> NDArray[np.float64]:
        ids = np.asarray(example_ids)[:, None]
        return keyed_uniform(self.seed, stream, epoch, ids, np.arange(length)[None])


@final
class InfilledTexts:
    """The documents of running text as numbered examples; see `batches.Examples`.

    One with more than `length` − 1 tokens is cut into as few texts as possible, all nearly equally
    long; no token is lost.
    """

    def __init__(
        self,
        tokens: NDArray[np.unsignedinteger[Any]],
        length: int,
        tokenizer: Tokenizer,
        infilling: Infilling,
    ) -> None:
        """tokens: documents, each with eos behind it; length: most tokens of a text, eos counted.

        Raises UserError where the tokenizer lacks a special token.
        """
        self.tokens, self.infilling = tokens, infilling
        self.bos_id, self.eos_id, self.pad_id = (
            tokenizer.bos_id,
            tokenizer.eos_id,
            tokenizer.pad_id,
        )
        self.starts, self.sizes = _texts(tokens, length - 1, tokenizer.eos_id)

    def __len__(self) -> int:
        return len(self.starts)

    def counts(self, ids: Ids, epoch: int) -> NDArray[np.int64]:
        """Every token of the text is predicted, eos too."""
        counts: NDArray[np.int64] = self.sizes[ids] + 1
        return counts

    def lengths(self) -> NDArray[np.int64]:
        """Return the tokens of each text, eos included: int64 [N]. What is masked is not longer."""
        return self.sizes + 1

    def num_tokens(self, ids: Ids) -> int:
        """Return the tokens of the texts, eos included: what the decoder reads and gives back."""
        return int((self.sizes[ids] + 1).sum())

    def texts(self, ids: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the tokens [B, T], padded on the right, and the number of each text [B]."""
        starts, sizes = self.starts[ids], self.sizes[ids]
        inside = np.arange(sizes.max()) < sizes[:, None]
        places = np.where(inside, starts[:, None] + np.arange(sizes.max()), 0)
        return np.where(inside, self.tokens[places].astype(np.int64), self.pad_id), sizes

    def collate(self, ids: Ids, epoch: int) -> Inputs:
        """Return src_ids, src_segments [B, S], trg_ids, trg_segments and labels [B, T].

        As `TranslationPairs`: the source is the text with its masks and eos; the decoder reads bos
        and the text, and the labels are the text and eos. An empty `ids` gives one row of a token
        and no label.
        """
        if len(ids) == 0:
            one = torch.ones(1, 1, dtype=torch.int64)
            ends = {"src_ids": one * self.eos_id, "trg_ids": one * self.bos_id}
            return {**ends, "src_segments": one, "trg_segments": one, "labels": one * IGNORE}
        rows, sizes = self.texts(ids)
        corrupted, left = self.infilling.apply(rows, sizes, ids, epoch)
        src, src_segments = self._ended(corrupted, left)
        trg, trg_segments = self._ended(rows, sizes)
        begins = np.full((len(rows), 1), self.bos_id)
        found = {
            "src_ids": src,
            "src_segments": src_segments,
            "trg_ids": np.concatenate([begins, rows], 1),
            "trg_segments": trg_segments,
            "labels": np.where(trg_segments == 1, trg, IGNORE),
        }
        return {name: torch.from_numpy(array) for name, array in found.items()}

    def _ended(
        self, rows: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return rows [B, T + 1] with eos behind each text, then padding, and their segments."""
        wider = np.concatenate([rows, np.full((len(rows), 1), self.pad_id)], 1)
        places = np.arange(wider.shape[1])
        inside = places <= sizes[:, None]
        ended = np.where(places < sizes[:, None], wider, self.eos_id)
        return np.where(inside, ended, self.pad_id), inside.astype(np.int64)


def _texts(
    tokens: NDArray[np.unsignedinteger[Any]], most: int, eos_id: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first place and the number of tokens of each text, int64 [N]."""
    parts = range(0, len(tokens), _AT_ONCE)
    found = [first + np.flatnonzero(tokens[first : first + _AT_ONCE] == eos_id) for first in parts]
    ends = np.concatenate([*found, [len(tokens)]]).astype(np.int64)
    begins = np.concatenate([[0], ends[:-1] + 1])
    begins, ends = begins[begins < ends], ends[begins < ends]
    pieces = -(-(ends - begins) // most)
    document = np.repeat(np.arange(len(pieces)), pieces)
    number = np.arange(len(document)) - (pieces.cumsum() - pieces)[document]
    size, of = (ends - begins)[document], pieces[document]
    starts, stops = number * size // of, (number + 1) * size // of
    return begins[document] + starts, stops - starts


def training_texts(
    tokens: NDArray[np.unsignedinteger[Any]], data: CorpusSettings, tokenizer: Tokenizer, seed: int
) -> InfilledTexts:
    """Return training texts, whose spans change with the seed and the epoch."""
    spans = data.spans or SpanSettings()
    infilling = Infilling(seed, tokenizer.mask_id, spans.probability, spans.mean_length)
    return InfilledTexts(tokens, data.length, tokenizer, infilling)


def validation_texts(
    tokens: NDArray[np.unsignedinteger[Any]], data: CorpusSettings, tokenizer: Tokenizer
) -> InfilledTexts:
    """Return validation texts; all variants and seeds share their one set of spans."""
    return training_texts(tokens, data, tokenizer, _FIXED_SEED)


def denoising_scores(
    forward: Forward, texts: InfilledTexts, batch_size: int
) -> dict[str, float | None]:
    """Return `loss_scores` over all tokens of the texts, in batches of as many tokens as
    `batch_size` of the longest text have."""
    batch_tokens = batch_size * int(texts.lengths().max())
    return loss_scores(token_loss(forward, texts, batch_tokens))
