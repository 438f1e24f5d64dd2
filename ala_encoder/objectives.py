"""What a model is trained for: the corruption of masked language modelling, and losses as sums.

For: choosing target positions by a keyed hash, and (loss sum, count) pairs, never a mean. Not for:
dividing by the global count (`engine`) or where the tokens come from (`corpus`).

Masked language model: Devlin et al. 2018: 15 % of the positions are targets; of those 80 % become
[MASK], 10 % a random token, 10 % stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.keyed import keyed_uniform

IGNORE = -100
"""The one label that is never counted."""

_SELECT, _ACTION, _TOKEN = 1, 2, 3  # streams of the keyed hash


@dataclass(frozen=True)
class Corruption:
    """Chooses and corrupts target positions; special tokens are neither targets nor replacements.

    The choice for an example depends on (seed, epoch, example id) alone. `exact` takes
    max(1, round(probability · n)) of an example's n ordinary tokens, so that the number of
    targets follows from its length; `independent` tosses a coin for each token, as Hugging Face.
    """

    seed: int
    vocab_size: int
    mask_id: int
    special_ids: frozenset[int]
    probability: float = 0.15
    selection: Literal["exact", "independent"] = "exact"

    def ordinary(self, input_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which tokens may be targets: bool, the shape of `input_ids`."""
        return ~np.isin(input_ids, self._specials)

    def selected(
        self, input_ids: NDArray[np.int64], example_ids: NDArray[np.int64], epoch: int
    ) -> NDArray[np.bool_]:
        """Return the target positions of a batch: input_ids int [B, T] → bool [B, T]."""
        ordinary = self.ordinary(input_ids)
        u = self._uniform(example_ids, epoch, input_ids.shape[1], _SELECT)
        if self.selection == "independent":
            return ordinary & (u < self.probability)
        wanted = self.exact_counts(ordinary.sum(1))
        ranks = np.where(ordinary, u, 2.0).argsort(1, kind="stable").argsort(1, kind="stable")
        chosen: NDArray[np.bool_] = ranks < wanted[:, None]
        return chosen

    def exact_counts(self, ordinary: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return max(1, round(p · n)) for each n, and 0 where there is nothing to choose."""
        counts = np.maximum(1, np.rint(self.probability * ordinary)).astype(np.int64)
        return np.where(ordinary > 0, counts, 0)

    def apply(
        self, input_ids: NDArray[np.int64], example_ids: NDArray[np.int64], epoch: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return (corrupted input_ids [B, T], targets bool [B, T])."""
        chosen = self.selected(input_ids, example_ids, epoch)
        action = self._uniform(example_ids, epoch, input_ids.shape[1], _ACTION)
        u = self._uniform(example_ids, epoch, input_ids.shape[1], _TOKEN)
        replacement = self._replacements[(u * len(self._replacements)).astype(np.int64)]
        corrupted = np.where(chosen & (action < 0.8), self.mask_id, input_ids)
        random = chosen & (action >= 0.8) & (action < 0.9)
        return np.where(random, replacement, corrupted), chosen

    @property
    def _specials(self) -> NDArray[np.int64]:
        return np.array(sorted(self.special_ids), dtype=np.int64)

    @property
    def _replacements(self) -> NDArray[np.int64]:
        return np.setdiff1d(np.arange(self.vocab_size), self._specials)

    def _uniform(
        self, example_ids: NDArray[np.int64], epoch: int, length: int, stream: int
    ) -> NDArray[np.float64]:
        return keyed_uniform(
            self.seed, stream, epoch, np.asarray(example_ids)[:, None], np.arange(length)[None, :]
        )


def summed_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return (summed loss, number of targets): the one objective of training and evaluation.

    The labels' type decides: `squared_error` for floating labels, `cross_entropy` for integers.
    """
    return (squared_error if labels.is_floating_point() else cross_entropy)(logits, labels)


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return (summed loss in nats, number of targets); IGNORE labels do not count.

    logits: [..., V]; labels: int [...], checked by `check_labels` where they were made. Computed in
    float32, or in float64 where the logits are.
    """
    rows = _precise(logits).flatten(0, -2)
    loss = F.cross_entropy(rows, labels.flatten(), ignore_index=IGNORE, reduction="sum")
    return loss, (labels != IGNORE).sum()


def smoothed_cross_entropy(
    logits: Tensor, labels: Tensor, epsilon: float, share: Tensor
) -> tuple[Tensor, Tensor]:
    """Return Σ (1 − ε) nll + ε Σ_k share_k (−log p_k), to be trained, and Σ nll, to be reported.

    Label smoothing (Szegedy et al. 2016, arXiv:1512.00567). logits: [..., V]; labels: int [...],
    IGNORE does not count; share: [V], how ε is spread over the vocabulary, of sum 1. In nats;
    computed in float32, or in float64 where the logits are. Only the first has a gradient.
    """
    rows = _precise(logits).flatten(0, -2)
    apply: Any = _Smoothed.apply
    loss, nll = apply(rows, labels.flatten(), epsilon, share.to(rows))
    return loss, nll


class _Smoothed(torch.autograd.Function):
    """`smoothed_cross_entropy` of [N, V] with its gradient p − (1 − ε) one-hot − ε share.

    Left to autograd, this takes three times as long: it goes over [N, V] a dozen times.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, labels: Tensor, epsilon: float, share: Tensor
    ) -> tuple[Tensor, Tensor]:
        counted = labels != IGNORE  # a mask, not an index, which would wait for a GPU
        wanted = labels.clamp(min=0)[:, None]
        log_p = rows.log_softmax(-1)
        nll = -log_p.gather(-1, wanted)[:, 0]
        loss = (1.0 - epsilon) * nll - epsilon * (log_p @ share)
        ctx.save_for_backward(log_p, wanted, counted, share)
        ctx.epsilon = epsilon
        reported = nll.where(counted, 0.0).sum()
        ctx.mark_non_differentiable(reported)
        return loss.where(counted, 0.0).sum(), reported

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        log_p, wanted, counted, share = ctx.saved_tensors
        found = log_p.exp().sub_(ctx.epsilon * share)
        found.scatter_add_(-1, wanted, found.new_full(wanted.shape, ctx.epsilon - 1.0))
        return found.mul_((gradient * counted)[:, None]), None, None, None


def squared_error(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return (Σ (logit - label)², number of labels that are not NaN); NaN stands for no label.

    logits: [B, 1]; labels: float [B]. Any other shape is an AssertionError, since [B, 1] against
    [B] would broadcast to [B, B]. Computed in float32, or in float64 where the logits are.
    """
    shapes = f"logits {tuple(logits.shape)}, labels {tuple(labels.shape)}"
    assert labels.ndim == 1 and logits.shape == (len(labels), 1), shapes
    known = ~labels.isnan()
    # chosen before the square: what is left out must not send a NaN back either
    errors = torch.where(known, _precise(logits)[:, 0] - labels, 0.0)
    return errors.square().sum(), known.sum()


def _precise(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def check_labels(labels: NDArray[np.int64], num_classes: int) -> None:
    """Raise ValueError for a label that is neither a class nor IGNORE: on a GPU it would poison."""
    wrong = labels[(labels != IGNORE) & ((labels < 0) | (labels >= num_classes))]
    if wrong.size:
        raise ValueError(f"label {wrong[0]}: allowed are 0 … {num_classes - 1} and {IGNORE}")
