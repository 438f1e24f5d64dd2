"""Cross-entropy over a large vocabulary, some rows at a time: its logits are never all there.

For: the loss of `Vocabulary`, its gradient, and the loss and rank of each target in evaluation. Not
for: logits that are there anyway (`objectives`), label smoothing.

With N targets and V entries all logits, their softmax and its gradient are three tensors N x V:
16 texts of 512 tokens over GPT-2's vocabulary take 4.9 GB in float32. Here chunks of rows take
their place, and the gradient of each is made in the forward pass, while its logits are there, as
Liger's kernel does (Hsu et al. 2024, arXiv:2410.10989). To compute the logits again in the
backward pass would keep less, [N] instead of [N, dim] and [V, dim], at four matrix products
instead of three, and of a small model's arithmetic the vocabulary is half. What is kept are the
gradients themselves, which the backward pass would make anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ala_encoder.objectives import IGNORE

_ELEMENTS = 1 << 25
"""Logits that are there at once: 128 MiB in float32."""


def chunked_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Return Σ −log softmax(x W^T)[label] in nats; IGNORE labels do not count.

    x: hidden states [..., dim]; weight: [V, dim]; labels: int [...]. A number in float32, whatever
    the precision of x and W, or in float64 where x is. A second derivative is a RuntimeError.
    """
    apply: Any = _Summed.apply
    loss: Tensor = apply(x.flatten(0, -2), weight, labels.flatten(), torch.is_grad_enabled())
    return loss


@torch.no_grad()
def losses_and_ranks(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Return [2, ...]: the loss of each label in nats, and the rank of its logit, from 0.

    x, weight, labels: as in `chunked_cross_entropy`. Of equal logits the one with the smaller id
    comes first. Where the label is IGNORE both are 0, and no logits are made. A loss that is not a
    number has the rank V. In float32, which holds any rank, or in float64 where x is.
    """
    rows, flat = x.flatten(0, -2), labels.flatten()
    found = torch.zeros(2, len(flat), dtype=_precision(x), device=x.device)
    places = (flat != IGNORE).nonzero()[:, 0]
    for part in _chunks(len(places), len(weight)):
        place = places[part]
        logits = _logits(rows[place], weight)
        wanted = flat[place, None]
        nll = logits.logsumexp(1) - logits.gather(1, wanted)[:, 0]
        found[0, place] = nll
        found[1, place] = _ranks(logits, wanted).where(nll.isfinite(), float(len(weight)))
    return found.view(2, *labels.shape)


def _ranks(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return how many logits [N, V] come before those of `wanted`, int [N, 1]: [N]."""
    own = logits.gather(1, wanted)
    flags = torch.empty_like(logits)  # 0 and 1 as numbers are summed faster than as bool
    larger = torch.gt(logits, own, out=flags).sum(1)
    equal = torch.eq(logits, own, out=flags).sum(1)
    rows = (equal > 1).nonzero()[:, 0]
    if len(rows):
        ids = torch.arange(logits.shape[1], device=logits.device)
        earlier = (logits[rows] == own[rows]) & (ids < wanted[rows])
        larger[rows] += earlier.sum(1).to(larger)
    return larger


class _Summed(torch.autograd.Function):
    """`chunked_cross_entropy` of [N, dim]; gradients are kept in float32, or float64 where x is."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, labels: Tensor, needs_gradient: bool
    ) -> Tensor:
        precision = _precision(x)
        # Not yet times the loss scale, small probabilities would be 0 in fp16.
        multiplied = precision if x.dtype == torch.float16 else x.dtype
        dx = dw = None
        if needs_gradient and ctx.needs_input_grad[0]:
            dx = torch.empty_like(x, dtype=precision)
        if needs_gradient and ctx.needs_input_grad[1]:
            dw = torch.zeros_like(weight, dtype=precision)
        total = x.new_zeros((), dtype=precision)
        for part in _chunks(len(x), len(weight)):
            counted = labels[part] != IGNORE  # a mask, not an index, which would wait for a GPU
            wanted = labels[part].clamp(min=0)[:, None]
            numbers = _logits(x[part], weight)
            own = numbers.gather(1, wanted)
            largest = numbers.amax(1, keepdim=True)
            sums = numbers.sub_(largest).exp_().sum(1, keepdim=True)
            nll = (sums.log() + largest - own)[:, 0]
            total += nll.where(counted, 0.0).sum()
            if dx is None and dw is None:
                continue
            # softmax − one-hot, in the place of the logits
            numbers.mul_(counted[:, None] / sums)
            numbers.scatter_add_(1, wanted, -counted[:, None].to(precision))
            numbers = numbers.to(multiplied)
            if dx is not None:
                dx[part] = numbers @ weight.to(multiplied)
            if dw is not None:
                _add_product(dw, numbers, x[part].to(multiplied))
        ctx.save_for_backward(dx, dw)
        ctx.dtypes = x.dtype, weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        if torch.is_grad_enabled():  # autograd does not see what dx and dw depend on
            raise RuntimeError("create_graph=True: second derivatives need the logits themselves")
        dx, dw = (
            None if made is None else (made * gradient).to(dtype)
            for made, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return dx, dw, None, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left^T right to `total`, whose numbers may be more precise than theirs."""
    if total.dtype == left.dtype:
        total.addmm_(left.T, right)
    else:
        total.add_(left.T @ right)


def _chunks(num_rows: int, vocab_size: int) -> Iterator[slice]:
    """Yield the rows of each chunk; all chunks are nearly equal."""
    most = max(1, _ELEMENTS // vocab_size)
    size = -(-num_rows // max(1, -(-num_rows // most)))
    return (slice(first, first + size) for first in range(0, num_rows, max(1, size)))


def _logits(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight.T).to(_precision(x))


def _precision(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
