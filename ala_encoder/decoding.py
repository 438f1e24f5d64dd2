"""The search for translations: greedy and beam, of a batch and of a whole text.

For: Seq2Seq models. A hypothesis y scores log p(y | x) / penalty(|y|), where |y| counts eos. Not
for: sampling, text (`tokenizer`), what a decoder keeps between steps (`cache`).

Of each step's best `beam_size` continuations those that end are finished, and the best that do not
end go on. A sentence is done when `beam_size` have finished and the best that goes on, over the
penalty of its present length, is below all of them (as `generate` of transformers; to stop at
`beam_size` finished, as fairseq does, loses what a model is sure of: a few short ones that it all
but rules out end before it). It is done earlier, which changes nothing, when none that goes on can
still come among the `n_best`: its log-probability only falls, so the present one over the longest
translation's penalty is a bound.

A sentence's numbers do not depend on the others of its batch, up to rounding: a matrix product of
another shape adds up in another order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ala_encoder.batches import padded
from ala_encoder.cache import without
from ala_encoder.errors import UserError
from ala_encoder.models import Seq2Seq
from ala_encoder.settings.search import SearchSettings
from ala_encoder.tokenizer import Tokenizer

_LOGITS = 2**22
"""Logits at once: 16 MiB, which an allocator hands out again; more it would map anew each time."""
_ENCODED = 2048
"""Most source tokens that are encoded at once, padding counted."""
_BLOCK = 64
"""Logits of a block in `largest`."""


class Marks(NamedTuple):
    """The ids that a search must know."""

    bos: int
    """What a decoder starts from."""
    eos: int
    pad: int
    forbidden: Collection[int]
    """Ids that are never put out; they keep their share of the probability."""

    @classmethod
    def of(cls, target: Tokenizer) -> Marks:
        """Return those of the target language; raises UserError where one is missing."""
        return cls(target.bos_id, target.eos_id, target.pad_id, target.never_put_out)


@dataclass(frozen=True)
class Hypothesis:
    """A translation and what the model makes of it."""

    ids: tuple[int, ...]
    """Without bos and eos."""
    score: float
    """`log_prob` over the length penalty."""
    log_prob: float
    """Sum over all tokens, eos among them, in nats."""

    @property
    def length(self) -> int:
        """Number of tokens, eos counted."""
        return len(self.ids) + 1


def translate(
    model: Seq2Seq,
    sources: Sequence[Sequence[int]],
    settings: SearchSettings,
    marks: Marks,
) -> list[list[Hypothesis]]:
    """Return the n best translations of each source, best first, in batches of similar length.

    sources: each with eos at its end, none longer than the model's positions. One without a token
    but eos has the empty translation, of score 0, and never meets the model. What is raised: as in
    `search`.
    """
    found = [[Hypothesis((), 0.0, 0.0)] for _ in sources]
    device = next(model.parameters()).device
    words = [n for n, source in enumerate(sources) if any(token != marks.eos for token in source)]
    for batch in by_length([len(sources[n]) for n in words], settings.batch_tokens):
        numbers = [words[place] for place in batch]
        ids, segments = padded([sources[n] for n in numbers], marks.pad)
        results = search(model, ids.to(device), segments.to(device), settings, marks)
        for n, hypotheses in zip(numbers, results, strict=True):
            found[n] = hypotheses
    return found


def by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield the places of texts of similar length, the longest first; see `batch_tokens`."""
    order, start = sorted(range(len(lengths)), key=lambda n: -lengths[n]), 0
    while start < len(order):
        rows = max(1, batch_tokens // lengths[order[start]])
        yield order[start : start + rows]
        start += rows


@torch.inference_mode()
def search(
    model: Seq2Seq,
    src_ids: Tensor,
    src_segments: Tensor,
    settings: SearchSettings,
    marks: Marks,
) -> list[list[Hypothesis]]:
    """Return each sentence's n best hypotheses, best first; fewer where there are not as many.

    src_ids, src_segments: int [B, S], one sentence a row, segment 0 is padding. A hypothesis that
    is as long as may be can only end, so all do.

    Raises UserError when a logit is NaN.
    """
    assert not model.training, "dropout would make a search random"
    assert model.max_length is None or src_ids.shape[1] <= model.max_length
    beams = _Beams(model, (src_segments > 0).sum(1), settings, marks)
    banned = sorted(set(marks.forbidden) - {marks.eos})
    forbidden = torch.tensor(banned, dtype=torch.long, device=src_ids.device)
    cache = model.decoder.cache(beam=settings.beam_size > 1)
    memory: Tensor | None = _encoded(model, src_ids, src_segments)
    segments: Tensor | None = src_segments
    while True:
        hidden = model.decode(beams.tokens[:, :, -1], memory, None, segments, cache=cache)
        parents = beams.extend(*beams.continuations(model, hidden, forbidden))
        order = beams.leave()
        if not len(beams.sentences):
            return beams.n_best()
        if order is not None:
            cache.keep(order)
            parents = parents[order]
        cache.follow(parents)
        memory = segments = None  # the cache keeps them


def _encoded(model: Seq2Seq, ids: Tensor, segments: Tensor) -> Tensor:
    """Return the memory [B, S, dim], made of rows of similar length with little padding."""
    lengths = (segments > 0).sum(1).tolist()
    assert lengths and min(lengths) > 0, "every row is a sentence"
    memory: Tensor | None = None
    for batch in by_length(lengths, _ENCODED):
        rows = torch.tensor(batch, device=ids.device)
        columns = (segments[rows] > 0).any(0).nonzero()[:, 0]
        part = model.encode(ids[rows][:, columns], segments[rows][:, columns])
        if memory is None:
            memory = part.new_zeros(*ids.shape, part.shape[-1])
        memory[rows[:, None], columns] = part
    assert memory is not None
    return memory


class _Beams:
    """The hypotheses of a batch that go on, best first, and those that have finished.

    A row is a sentence; the sentences that are done leave, so rows change places.
    """

    def __init__(
        self, model: Seq2Seq, src_lengths: Tensor, settings: SearchSettings, marks: Marks
    ) -> None:
        rows, device = len(src_lengths), src_lengths.device
        self.settings, self.eos = settings, marks.eos
        self.sentences = torch.arange(rows, device=device)
        """Which sentence a row is."""
        self.limits = src_lengths + settings.max_extra_tokens
        """The length that a translation may have."""
        if model.max_length is not None:
            self.limits = self.limits.clamp(max=model.max_length)
        self.tokens = src_lengths.new_full((rows, 1, 1), marks.bos)
        """[B, hypotheses, length]: one at first, `beam_size` then if the vocabulary has as many."""
        self.log_probs = torch.zeros(rows, 1, device=device)
        self.best = torch.full((rows, settings.beam_size), -torch.inf, device=device)
        """The `beam_size` best scores of what has finished, best first."""
        self.finished: list[list[Hypothesis]] = [[] for _ in range(rows)]

    def continuations(
        self, model: Seq2Seq, hidden: Tensor, banned: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return each sentence's best 2 · beam_size, best first: log-probs, parents and tokens.

        hidden: [B, hypotheses, dim], the decoder's last states. Of one hypothesis beam_size + 1
        matter at most: eos, and as many others as can go on.
        """
        rows, width, dim = hidden.shape
        most = min(self.settings.beam_size + 1, model.vocab_size)
        found = []
        for part in torch.split(hidden.view(-1, dim), max(1, _LOGITS // model.vocab_size)):
            logits = model.logits(part).float()
            top, end, own = logits.amax(-1, keepdim=True), logits[:, [self.eos]], logits[:, banned]
            logits[:, banned] = -torch.inf
            values, ids = largest(logits, most)
            logits[:, banned] = own
            # Anything else as large as the logits would cost half of their matrix product.
            total = logits.sub_(top).exp_().sum(-1, keepdim=True).log_() + top
            found.append((values - total, ids, end - total))
        values, ids, end = (
            torch.cat(parts).view(rows, width, -1) for parts in zip(*found, strict=True)
        )
        full = self.limits == self.tokens.shape[2]
        if full.any():
            values[full], ids[full] = -torch.inf, self.eos
            values[full, :, :1] = end[full]
        values = (values + self.log_probs[..., None]).flatten(1)
        values, places = values.topk(min(2 * self.settings.beam_size, values.shape[1]))
        if values.isnan().any():
            raise UserError("search: the model gives NaN")
        return values, places // most, ids.flatten(1).gather(1, places)

    def extend(self, log_probs: Tensor, parents: Tensor, ids: Tensor) -> Tensor:
        """Finish what ends and go on with the rest; return the parents: int [B, hypotheses]."""
        width, length = self.settings.beam_size, self.tokens.shape[2]
        is_end = ids == self.eos
        ends = is_end[:, :width] & (log_probs[:, :width] > -torch.inf)
        if ends.any():
            self._finish(ends, log_probs[:, :width], parents)
        on = is_end.int().argsort(dim=1, stable=True)[:, :width]
        log_probs = log_probs.masked_fill(is_end, -torch.inf)
        self.log_probs, parents, ids = (x.gather(1, on) for x in (log_probs, parents, ids))
        before = self.tokens.gather(1, parents[..., None].expand(-1, -1, length))
        self.tokens = torch.cat([before, ids[..., None]], 2)
        return parents

    def leave(self) -> Tensor | None:
        """Let sentences that are done leave; return the rows that stay, None: all do."""
        best, length = self.log_probs[:, 0], torch.tensor(self.tokens.shape[2] - 1)
        done = best / self._penalty(length) <= self.best[:, -1]
        done |= best / self._penalty(self.limits) <= self.best[:, self.settings.n_best - 1]
        if not done.any():
            return None
        order = without(done)
        self.sentences, self.limits = self.sentences[order], self.limits[order]
        self.tokens, self.log_probs = self.tokens[order], self.log_probs[order]
        self.best = self.best[order]
        return order

    def n_best(self) -> list[list[Hypothesis]]:
        """Return each sentence's best, best first."""
        ranked = (sorted(found, key=lambda one: -one.score) for found in self.finished)
        return [found[: self.settings.n_best] for found in ranked]

    def _finish(self, ends: Tensor, log_probs: Tensor, parents: Tensor) -> None:
        scores = log_probs / self._penalty(torch.tensor(self.tokens.shape[2]))
        rows, places = ends.nonzero(as_tuple=True)
        found = (
            self.sentences[rows],
            self.tokens[rows, parents[rows, places], 1:],
            scores[rows, places],
            log_probs[rows, places],
        )
        for sentence, ids, *numbers in zip(*(part.tolist() for part in found), strict=True):
            self.finished[sentence].append(Hypothesis(tuple(ids), *numbers))
        scores = scores.masked_fill(~ends, -torch.inf)
        self.best = torch.cat([self.best, scores], 1).topk(self.settings.beam_size).values

    def _penalty(self, length: Tensor) -> Tensor:
        base = (5 + length) / 6 if self.settings.penalty == "gnmt" else length.float()
        return base**self.settings.length_penalty


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest numbers of each row and their places: [N, V] → [N, k] twice.

    As `topk`, and faster on long rows: it looks only into the k blocks with the largest tops.
    """
    blocks = x.shape[1] // _BLOCK
    if blocks < 4 * k:
        values, places = x.topk(k)
        return values, places
    columns = torch.arange(x.shape[1], device=x.device)
    inside, rest = columns[: blocks * _BLOCK].view(blocks, _BLOCK), columns[blocks * _BLOCK :]
    tops = x[:, : blocks * _BLOCK].view(-1, blocks, _BLOCK).amax(-1)
    places = inside[tops.topk(k).indices].flatten(1)
    places = torch.cat([places, rest.expand(len(x), -1)], 1)
    values, at = x.gather(1, places).topk(k)
    return values, places.gather(1, at)
