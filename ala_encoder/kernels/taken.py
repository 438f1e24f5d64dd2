"""What a part of a layer's heads takes of the whole: its q, k and v, its slopes, its maps.

For: the adapters in `parts`. Not for: arithmetic (each path's own file).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ala_encoder.kernels.scoring import Scoring
from ala_encoder.settings.paths import Part


def _index(part: Part) -> Any:
    """Return the index of a part's heads: a slice when they are all or in a row, which copies
    nothing."""
    first, last = part.heads[0], part.heads[-1]
    if part.heads == tuple(range(first, last + 1)):
        return slice(first, last + 1)
    return list(part.heads)


def of_heads(x: Tensor, part: Part, dim: int = -3) -> Tensor:
    """Return the heads of a part; `dim`, counted from the end, may be missing or 1 for all."""
    if x.dim() < -dim or x.shape[dim] == 1 or part.heads == tuple(range(x.shape[dim])):
        return x  # a slice of all would cost a copy of its gradient
    return x[(..., _index(part), *[slice(None)] * (-dim - 1))]


def used(
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


def expanded(
    q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v of a part with one group for each head."""
    q, k, groups = used(q, k, v, scoring, part)
    if groups is not None:
        q, k = q[:, list(groups)], k[:, list(groups)]
    return q, k, of_heads(v, part)


def with_maps(
    q: Tensor | None, k: Tensor | None, v: Tensor, scoring: Scoring, part: Part
) -> tuple[dict[str, Any], Tensor | None]:
    """Return q, k, v, groups and the map of biases of a part, and its masks after the softmax."""
    own = [scoring.heads[h] for h in part.heads]
    q, k, groups = used(q, k, v, scoring, part)
    bias = keep = None
    if scoring.slopes is not None or scoring.bias is not None:
        bias = scoring.total(_offset(q, k, scoring))
        assert bias is not None
        bias = of_heads(bias, part)
    if any(head.is_local for head in own):
        offset = _offset(q, k, scoring)
        keep = torch.stack([head.allows(offset) for head in own])
    if keep is not None and scoring.case.is_pre_softmax:
        hidden = closed(~keep)
        bias, keep = hidden if bias is None else bias + hidden, None
    given = {"q": q, "k": k, "v": of_heads(v, part), "bias": bias, "groups": groups}
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
    ratio = scoring.ratio
    if isinstance(ratio, Tensor):
        ratio = ratio.to(torch.promote_types(ratio.dtype, torch.float32))  # bf16 loses distances
    offset = columns[:, None, :] - ratio * rows[:, :, None]
    return offset[:, None] if len(offset) > 1 else offset[0]
