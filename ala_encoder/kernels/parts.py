"""Heads of one layer, each on the path chosen for it, put together in their order.

For: `mix`, and one adapter a path, which hands it what it takes (`taken`). Not for: the choice
(`settings.paths`), a path's arithmetic (its file).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ala_encoder.kernels.banded import banded_one, banded_post, banded_pre
from ala_encoder.kernels.dense import dense
from ala_encoder.kernels.flex import flex
from ala_encoder.kernels.pruned import pruned
from ala_encoder.kernels.scoring import Scoring
from ala_encoder.kernels.sdpa import sdpa
from ala_encoder.kernels.shifted import compiled
from ala_encoder.kernels.slope import slope
from ala_encoder.kernels.strays import is_finite, mix_strays
from ala_encoder.kernels.taken import closed, expanded, of_heads, used, with_maps
from ala_encoder.settings.paths import PRUNE_FROM, Part, at_length, offsets


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
            return mix_strays(q, k, v, scoring, _mix)
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


def mix_in_the_open(
    q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """Return what `mix` returns, and the weights [B, H, Q, K], computed by `dense`."""
    return _open(q, k, v, scoring, Part(tuple(range(len(scoring.heads))), ((0, "dense"),)))


def _open(
    q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part
) -> tuple[Tensor, Tensor]:
    given, keep = with_maps(q, k, v, scoring, part)
    queries, keys = given["q"].shape[2], v.shape[2]
    visible = scoring.visibility.pairs(queries, keys, v.device)
    return dense(**given, visible=visible, keep=keep, dropout=scoring.dropout)


def _dense(q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part) -> Tensor:
    return _open(q, k, v, scoring, part)[0]


def _sdpa(q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part) -> Tensor:
    given, _ = with_maps(q, k, v, scoring, part)
    return sdpa(**given, visibility=scoring.visibility)


def _slope(q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part) -> Tensor:
    q, k, v = expanded(q, k, v, scoring, part)
    assert scoring.slopes is not None
    seen = scoring.visibility
    steep = of_heads(scoring.slopes, part, -2)
    if scoring.prune is not None and v.device.type == "cpu" and v.shape[2] >= PRUNE_FROM:
        return pruned(q, k, v, steep, scoring.prune, causal=seen.causal, segments=seen.segments)
    return slope(q, k, v, steep, causal=seen.causal, segments=seen.segments)


def _flex(q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part) -> Tensor:
    q, k, v = expanded(q, k, v, scoring, part)
    own, given_bias = [scoring.heads[h] for h in part.heads], scoring.bias

    def bias(row: Tensor) -> Tensor:
        assert given_bias is not None
        return of_heads(given_bias(row), part)

    def allowed(row: Tensor) -> Tensor:
        return torch.stack([head.allows(row) for head in own])

    return flex(
        q,
        k,
        v,
        slopes=None if scoring.slopes is None else of_heads(scoring.slopes, part, -2),
        bias=None if given_bias is None else bias,
        allowed=allowed if any(head.is_local for head in own) else None,
        visibility=scoring.visibility,
    )


def _banded(q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part) -> Tensor:
    own, segments = [scoring.heads[h] for h in part.heads], scoring.visibility.segments
    if not part.has_scores:
        return banded_one(of_heads(v, part), [h.offsets()[0] for h in own], segments=segments)
    known = [offsets(head, scoring.case) for head in own]
    row = _row(known, v.shape[2])
    device = v.device
    if own[0].is_local and not scoring.case.is_pre_softmax:
        keep = torch.tensor([[head.allows(o) for o in row] for head in own], device=device)
        q, k, groups = used(q, k, v, scoring, part)
        v = of_heads(v, part)
        return banded_post(q, k, v, row, keep, groups=groups, segments=segments)
    q, k, v = expanded(q, k, v, scoring, part)
    bias = scoring.total(torch.tensor([row], device=device))
    if bias is not None:
        bias = of_heads(bias, part)
    hidden = [[not head.allows(o) for o in row] for head in own]
    if any(map(any, hidden)):
        local = closed(torch.tensor(hidden, device=device)[:, None])
        bias = local if bias is None else bias + local
    run = compiled() if scoring.compile else banded_pre
    return run(q, k, v, row, bias=bias, segments=segments)


def _row(known: Sequence[range | None], length: int) -> list[int]:
    """Return the offsets that occur in a text among those that some heads see; 0 if none does."""
    seen = (range(max(r.start, 1 - length), min(r.stop, length)) for r in known if r is not None)
    return sorted({offset for part in seen for offset in part}) or [0]


_PATHS: dict[str, Callable[..., Tensor]] = {
    "dense": _dense,
    "sdpa": _sdpa,
    "slope": _slope,
    "banded": _banded,
    "flex": _flex,
}
