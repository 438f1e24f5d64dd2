"""Heads of one layer, each on the path chosen for it, put together in their order.

For: turning heads, biases and visibility into what each path takes: maps for `dense` and `sdpa`,
slopes, rows of offsets. Not for: the choice (`settings.paths`), a path's arithmetic (its file).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.heads import Head
from ala_encoder.kernels.banded import banded_one, banded_post, banded_pre
from ala_encoder.kernels.dense import dense
from ala_encoder.kernels.flex import flex
from ala_encoder.kernels.pruned import pruned
from ala_encoder.kernels.sdpa import sdpa
from ala_encoder.kernels.shifted import compiled
from ala_encoder.kernels.slope import slope
from ala_encoder.kernels.visibility import Visibility, combine
from ala_encoder.settings.paths import PRUNE_FROM, Case, Part, at_length, offsets, plan


@dataclass(frozen=True, eq=False)
class Scoring:
    """All that decides the weights of a layer beside q and k."""

    heads: tuple[Head, ...]
    groups: tuple[int | None, ...]
    """The Q/K group of each head; None: it has no Q and K, which are 0 then."""
    case: Case
    """`has_slopes` and `has_others` say what is given below; device and dtype are filled in."""
    visibility: Visibility = field(default_factory=Visibility)
    slopes: Tensor | None = None
    """a_i of biases −a_i |i − j|, broadcastable to [B, H, Q]."""
    bias: Callable[[Tensor], Tensor] | None = None
    """All other biases: offsets → float32, broadcastable to [B, H, Q, offsets]."""
    ratio: float | Tensor = 1.0
    """Cross-attention: its offset is j − ratio·i."""
    dropout: float = 0.0
    path: str = "auto"
    compile: bool = False
    prune: float | None = None
    """Weight that a row may lose on `slope`; no gradient then."""

    def parts(self, q: Tensor | None, v: Tensor) -> tuple[Part, ...]:
        """Return the parts on the device at hand."""
        given = [t for t in (q, v, self.slopes) if t is not None]
        case = replace(
            self.case,
            device=v.device.type,
            is_half=v.dtype in (torch.float16, torch.bfloat16),
            needs_gradient=torch.is_grad_enabled() and any(t.requires_grad for t in given),
        )
        return plan(self.heads, case, self.path)

    def total(self, offset: Tensor) -> Tensor | None:
        """Return all biases at some offsets, float32 broadcastable to [B, H, Q, offsets]."""
        terms = []
        if self.slopes is not None:
            terms.append(-self.slopes[..., None] * offset.abs().float())
        if self.bias is not None:
            terms.append(self.bias(offset))
        return sum(terms[1:], terms[0]) if terms else None


def mix(q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring) -> Tensor:
    """Return the mixed values of all heads: [B, H, Q, d].

    q: [B, G, Q, d] and k: [B, G, K, d] of the G Q/K groups (None: no head has any); v:
    [B, H, K, d]. All is computed in their dtype or better, also under autocast. Raises UserError
    when the path asked for by name cannot compute a head.
    """
    with torch.autocast(v.device.type, enabled=False):
        if 0 in v.shape or (q is not None and 0 in q.shape):
            return _mix_nothing(q, k, v)
        if v.device.type == "cpu" and not all(x is None or is_finite(x) for x in (q, k, v)):
            return _mix_strays(q, k, v, scoring)
        return _mix(q, k, v, scoring)


def _mix(q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring) -> Tensor:
    length = v.shape[2]
    parts = at_length(scoring.parts(q, v), length)
    mixed = [_PATHS[part.path(length)](q, k, v, scoring, part) for part in parts]
    if len(parts) == 1:
        return mixed[0]
    order = [head for part in parts for head in part.heads]
    back = [order.index(head) for head in range(len(order))]
    return torch.cat(mixed, 1)[:, back]


def _mix_nothing(q: Tensor | None, k: Tensor | None, v: Tensor) -> Tensor:
    """Mix no texts, no queries or no keys: [B, H, Q, d], all 0, with gradients of 0."""
    queries = v.shape[2] if q is None else q.shape[2]
    mixed = v.sum(2, keepdim=True).expand(-1, -1, queries, -1)
    return mixed if q is None or k is None else mixed + 0.0 * (q.sum() + k.sum())


def is_finite(x: Tensor) -> bool:
    """Tell whether all is finite, in one pass; a sum that overflows counts as not."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return bool(torch.isfinite(x.detach().sum(dtype=wide)))


def _mix_strays(q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring) -> Tensor:
    """Mix where some number is NaN or infinite: only a query that sees it, or has it, gets NaN.

    In a matrix product a hidden NaN would reach every row, since 0 times NaN is NaN. Which query
    sees which key takes a map, so this is for the exception alone.
    """
    q, bad_rows = _without_strays(q, scoring)
    k, bad_keys = _without_strays(k, scoring)
    v, bad_values = torch.where(torch.isfinite(v), v, 0.0), ~torch.isfinite(v).all(-1)
    if scoring.slopes is not None:
        finite = torch.isfinite(scoring.slopes)
        scoring = replace(scoring, slopes=torch.where(finite, scoring.slopes, 0.0))
    mixed = _mix(q, k, v, scoring)
    every = Part(tuple(range(len(scoring.heads))), ((0, "dense"),))
    with torch.no_grad():
        given, keep = _with_maps(q, k, v, scoring, every)
        pairs = scoring.visibility.pairs(mixed.shape[2], v.shape[2], v.device)
        mask, empty = combine(given["bias"], pairs)
        seen = torch.ones((), dtype=torch.bool)
        if mask is not None:
            assert empty is not None
            seen = (mask if mask.dtype == torch.bool else ~torch.isneginf(mask)) & ~empty
        kept = seen if keep is None else seen & keep
        reached = (seen & bad_keys[:, :, None]) | (kept & bad_values[:, :, None])
        reached = reached.any(-1) | bad_rows
    return mixed.masked_fill(reached[..., None], float("nan"))


def _without_strays(x: Tensor | None, scoring: Scoring) -> tuple[Tensor | None, Tensor]:
    """Return q or k with 0 for what is not finite, and where that was: bool [B, H, T]."""
    if x is None:
        return None, torch.zeros(1, len(scoring.groups), 1, dtype=torch.bool)
    finite = torch.isfinite(x)
    bad = F.pad(~finite.all(-1), (0, 0, 0, 1))  # the last is for heads without Q and K
    return torch.where(finite, x, 0.0), bad[:, [-1 if g is None else g for g in scoring.groups]]


def mix_in_the_open(
    q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """Return what `mix` returns, and the weights [B, H, Q, K], computed by `dense`."""
    return _open(q, k, v, scoring, Part(tuple(range(len(scoring.heads))), ((0, "dense"),)))


def _open(
    q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part
) -> tuple[Tensor, Tensor]:
    given, keep = _with_maps(q, k, v, scoring, part)
    queries, keys = given["q"].shape[2], v.shape[2]
    visible = scoring.visibility.pairs(queries, keys, v.device)
    return dense(**given, visible=visible, keep=keep, dropout=scoring.dropout)


def _dense(q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part) -> Tensor:
    return _open(q, k, v, scoring, part)[0]


def _sdpa(q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part) -> Tensor:
    given, _ = _with_maps(q, k, v, scoring, part)
    return sdpa(**given, visibility=scoring.visibility)


def _slope(q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part) -> Tensor:
    q, k, v = _expanded(q, k, v, scoring, part)
    assert scoring.slopes is not None
    seen = scoring.visibility
    steep = _of_heads(scoring.slopes, part, -2)
    if scoring.prune is not None and v.device.type == "cpu" and v.shape[2] >= PRUNE_FROM:
        return pruned(q, k, v, steep, scoring.prune, causal=seen.causal, segments=seen.segments)
    return slope(q, k, v, steep, causal=seen.causal, segments=seen.segments)


def _flex(q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part) -> Tensor:
    q, k, v = _expanded(q, k, v, scoring, part)
    own, given_bias = [scoring.heads[h] for h in part.heads], scoring.bias

    def bias(row: Tensor) -> Tensor:
        assert given_bias is not None
        return _of_heads(given_bias(row), part)

    def allowed(row: Tensor) -> Tensor:
        return torch.stack([head.allows(row) for head in own])

    return flex(
        q,
        k,
        v,
        slopes=None if scoring.slopes is None else _of_heads(scoring.slopes, part, -2),
        bias=None if given_bias is None else bias,
        allowed=allowed if any(head.is_local for head in own) else None,
        visibility=scoring.visibility,
    )


def _banded(q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part) -> Tensor:
    own, segments = [scoring.heads[h] for h in part.heads], scoring.visibility.segments
    if not part.has_scores:
        return banded_one(_of_heads(v, part), [h.offsets()[0] for h in own], segments=segments)
    known = [offsets(head, scoring.case) for head in own]
    row = sorted({o for seen in known if seen is not None for o in seen})
    device = v.device
    if own[0].is_local and not scoring.case.is_pre_softmax:
        keep = torch.tensor([[head.allows(o) for o in row] for head in own], device=device)
        q, k, groups = _used(q, k, v, scoring, part)
        v = _of_heads(v, part)
        return banded_post(q, k, v, row, keep, groups=groups, segments=segments)
    q, k, v = _expanded(q, k, v, scoring, part)
    bias = scoring.total(torch.tensor([row], device=device))
    if bias is not None:
        bias = _of_heads(bias, part)
    if len({(head.kind, head.k) for head in own}) > 1:
        hidden = [[[not head.allows(o) for o in row]] for head in own]
        local = closed(torch.tensor(hidden, device=device))
        bias = local if bias is None else bias + local
    run = compiled() if scoring.compile else banded_pre
    return run(q, k, v, row, bias=bias, segments=segments)


_PATHS: dict[str, Callable[..., Tensor]] = {
    "dense": _dense,
    "sdpa": _sdpa,
    "slope": _slope,
    "banded": _banded,
    "flex": _flex,
}


# ---------------------------------------------------------------------------------------------
# What a part takes of the whole
# ---------------------------------------------------------------------------------------------


def _index(part: Part) -> Any:
    """Return the index of a part's heads: a slice when they are all or in a row, which copies
    nothing."""
    first, last = part.heads[0], part.heads[-1]
    if part.heads == tuple(range(first, last + 1)):
        return slice(first, last + 1)
    return list(part.heads)


def _of_heads(x: Tensor, part: Part, dim: int = -3) -> Tensor:
    """Return the heads of a part; `dim`, counted from the end, may be missing or 1 for all."""
    if x.dim() < -dim or x.shape[dim] == 1 or part.heads == tuple(range(x.shape[dim])):
        return x  # a slice of all would cost a copy of its gradient
    return x[(..., _index(part), *[slice(None)] * (-dim - 1))]


def _used(
    q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part
) -> tuple[Tensor, Tensor, tuple[int, ...] | None]:
    """Return q and k of the groups that a part uses, and each head's group among them."""
    groups = [scoring.groups[h] for h in part.heads]
    if None in groups:
        q, k = (_with_nothing(v[:, :0] if x is None else x) for x in (q, k))
    assert q is not None and k is not None
    numbers = [q.shape[1] - 1 if group is None else group for group in groups]
    used = sorted(set(numbers))
    own = tuple(used.index(number) for number in numbers)
    if used != list(range(q.shape[1])):
        q, k = q[:, used], k[:, used]
    return q, k, None if own == tuple(range(len(used))) else own


def _with_nothing(x: Tensor) -> Tensor:
    """Return q or k with one more group, 0."""
    return torch.cat([x, x.new_zeros(len(x), 1, *x.shape[2:])], 1)


def _expanded(
    q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v of a part with one group for each head."""
    q, k, groups = _used(q, k, v, scoring, part)
    if groups is not None:
        q, k = q[:, list(groups)], k[:, list(groups)]
    return q, k, _of_heads(v, part)


def _with_maps(
    q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part
) -> tuple[dict[str, Any], Tensor | None]:
    """Return q, k, v, groups and the map of biases of a part, and its masks after the softmax."""
    own = [scoring.heads[h] for h in part.heads]
    q, k, groups = _used(q, k, v, scoring, part)
    bias = keep = None
    if scoring.slopes is not None or scoring.bias is not None:
        bias = scoring.total(_offset(q, k, scoring))
        assert bias is not None
        bias = _of_heads(bias, part)
    if any(head.is_local for head in own):
        offset = _offset(q, k, scoring)
        keep = torch.stack([head.allows(offset) for head in own])
    if keep is not None and scoring.case.is_pre_softmax:
        hidden = closed(~keep)
        bias, keep = hidden if bias is None else bias + hidden, None
    given = {"q": q, "k": k, "v": _of_heads(v, part), "bias": bias, "groups": groups}
    return given, keep


def closed(hidden: Tensor) -> Tensor:
    """Return −inf where hidden, 0 elsewhere, float32."""
    zeros = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
    return zeros.masked_fill(hidden, float("-inf"))


def _offset(q: Tensor, k: Tensor, scoring: Scoring) -> Tensor:
    queries, keys, seen = q.shape[2], k.shape[2], scoring.visibility
    if not scoring.case.cross:
        return seen.offset(queries, keys, q.device)
    rows, columns = seen.places(queries, keys, q.device)
    offset = columns[:, None, :] - scoring.ratio * rows[:, :, None]
    return offset[:, None] if len(offset) > 1 else offset[0]
