"""The attention as one function of q, k and v, for anyone to call.

For: `attend`, which checks what it is given and computes it on the paths of `kernels`. Not for: the
layers of a model (`attention`), whose settings are checked before anything is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ala_encoder import kernels
from ala_encoder.attention import emptied
from ala_encoder.errors import UserError, nearest, shown
from ala_encoder.heads import HeadTable
from ala_encoder.kernels import Scoring, Visibility
from ala_encoder.settings import paths
from ala_encoder.settings.attention import check_masks

MASK_OPERATORS = ("post_softmax", "pre_softmax")


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    heads: Sequence[str] | None = None,
    mask_operator: Literal["post_softmax", "pre_softmax"] = "post_softmax",
    slopes: Tensor | None = None,
    bias: Callable[[Tensor], Tensor] | None = None,
    causal: bool = False,
    segments: Tensor | None = None,
    cross: bool = False,
    memory_segments: Tensor | None = None,
    ratio: float | Tensor = 1.0,
    dropout: float = 0.0,
    path: str = "auto",
    prune: float | None = None,
) -> Tensor:
    """Compute keep · softmax(q_i·k_j/sqrt(d) − slopes_i |o| + bias(o)) v with the offset o = j − i.

    q: [B, G, Q, d] and k: [B, G, K, d] of G Q/K groups, v: [B, H, K, d] of H heads. Returns
    [B, H, Q, d]; a query with nothing to see, padding too, gives 0. What lies at padding never
    matters, not even a NaN. Every path gives the same numbers, in the dtype of q, k and v or better
    also under autocast. Second derivatives exist on `dense` alone, elsewhere they raise
    RuntimeError; torch.func transforms are not supported.

    - heads: a cell for each of the H heads: full (the default), identity, prevK, nextK, bandK.
      Without groups G = H; cells of one `#group` share a q and k, groups in order of first use.
    - mask_operator: post_softmax multiplies the weights by the mask (Pande et al., arXiv
      2008.05828); pre_softmax hides keys before the softmax.
    - slopes: a_i >= 0, broadcastable to [B, H, Q], for ALiBi and learned distance biases.
    - bias: any further function of the offset: takes an int tensor of offsets [Q, K], or [1, N],
      and returns float32 broadcastable to [B, H, Q, offsets]; −inf hides.
    - causal: hides j > i. cross: k and v belong to another text; the offset is then j − ratio·i
      (ours), a float tensor.
    - segments: int or bool [B, Q], 0 is padding and equal numbers see each other; memory_segments:
      the same of the keys, [B, K], with `cross`.
    - dropout: of the weights; above 0 all is computed in the open.
    - path: auto, dense, sdpa, slope, banded or flex (`ala_encoder.settings.paths`).
    - prune: between 0 and 1, what the weights of a query may lose in sum (ours): where slopes are
      all there is, on a CPU, keys too far away to weigh more are left out of texts of 1,536 tokens
      and more. `kernels.watch_pruning` tells how much that changes at most.

    Raises UserError for shapes, types and numbers that do not fit, what would do nothing, a path
    asked for by name that cannot compute this, and `prune` where a gradient is needed or no key can
    be left out.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check_kind(name, x, Tensor, "a tensor")
    for name, y in (
        ("slopes", slopes), ("segments", segments), ("memory_segments", memory_segments)
    ):  # fmt: skip
        _check_kind(name, y, (Tensor, type(None)), "a tensor")
    _check_kind("causal", causal, bool, "True or False")
    _check_kind("cross", cross, bool, "True or False")
    _check_kind("dropout", dropout, (int, float), "a number")
    _check_kind("prune", prune, (int, float, type(None)), "a number")
    if bias is not None and not callable(bias):
        raise UserError(f"bias: is {shown(bias)}, needed is a function of offsets")
    _check_ranks(q, k, v, slopes)
    is_pre_softmax = _one_of("mask_operator", mask_operator, MASK_OPERATORS) == "pre_softmax"
    _one_of("path", path, ("auto", *paths.PATHS))
    cells = ["full"] * v.shape[1] if heads is None else list(map(str, heads))
    table = HeadTable.parse([cells], is_pre_softmax=is_pre_softmax)
    every = replace(table, is_pre_softmax=False)  # q and k come for all, also where none is used
    _check_shapes(q, k, v, every, slopes, segments, memory_segments, cross)
    check_masks(table.rows[0], is_pre_softmax=is_pre_softmax, causal=causal, cross=cross)
    _check_numbers(slopes, dropout, causal=causal, cross=cross)
    _check_ratio(ratio, cross=cross, has_bias=slopes is not None or bias is not None)
    case = paths.Case(
        is_pre_softmax=is_pre_softmax,
        has_slopes=slopes is not None,
        has_others=bias is not None,
        causal=causal,
        cross=cross,
        dropout=dropout > 0,
    )
    if prune is not None:
        _check_prune(prune, v.device.type, (q, k, v, slopes))
        paths.check_prune(path, table.rows[0], case)
    visibility = Visibility.of(segments, causal=causal)
    if cross:
        visibility = Visibility.across(segments, memory_segments, q.shape[2], v.shape[2])
    q, k, v = (
        emptied(q, visibility.real),
        emptied(k, visibility.real_keys),
        emptied(v, visibility.real_keys),
    )
    scoring = Scoring(
        table.rows[0],
        every.columns_of(0),
        case,
        visibility,
        slopes=None if slopes is None else _real_slopes(slopes, visibility.real),
        bias=None if bias is None else _bias_of(bias, (*v.shape[:2], q.shape[2])),
        ratio=ratio,
        dropout=dropout,
        path=path,
        prune=prune,
    )
    return kernels.mix(q, k, v, scoring)


def _one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        near = nearest(str(value), allowed)
        raise UserError(f"{name} = {value!r}: allowed are {', '.join(allowed)}{near}")
    return value


def _check_kind(name: str, value: object, kind: type | tuple[type, ...], needed: str) -> None:
    if not isinstance(value, kind):
        raise UserError(f"{name}: is {shown(value)}, needed is {needed}")


def _check_ranks(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise UserError(f"{name}: has shape {list(x.shape)}, needed is [B, heads, T, d]")
        if x.is_floating_point() and torch.finfo(x.dtype).bits < 16:
            raise UserError(f"{name}: is {x.dtype}, needed are at least 16 bits")
        if not x.is_floating_point() or x.dtype != v.dtype or x.device != v.device:
            raise UserError(
                f"{name}: is {x.dtype} on {x.device}, v is {v.dtype} on {v.device}; both must be "
                "the same, and floating-point"
            )
    if slopes is not None and (not slopes.is_floating_point() or slopes.device != v.device):
        raise UserError(
            f"slopes: are {slopes.dtype} on {slopes.device}, needed are floating-point numbers on "
            f"{v.device}"
        )


def _check_shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: HeadTable,
    slopes: Tensor | None,
    segments: Tensor | None,
    memory_segments: Tensor | None,
    cross: bool,
) -> None:
    batch, num_heads, keys, width = v.shape
    if table.num_heads != num_heads:
        raise UserError(f"heads: {table.num_heads} cells, v has {num_heads} heads")
    queries = q.shape[2] if cross else keys
    wanted = {
        "q": (q, (batch, table.num_groups, queries, width)),
        "k": (k, (batch, table.num_groups, keys, width)),
        "segments": (segments, (batch, queries)),
        "memory_segments": (memory_segments, (batch, keys)),
    }
    for name, (given, shape) in wanted.items():
        if given is not None and tuple(given.shape) != shape:
            raise UserError(f"{name}: has shape {list(given.shape)}, needed is {list(shape)}")
    if memory_segments is not None and not cross:
        raise UserError("memory_segments: do nothing without `cross`")
    if slopes is not None:
        shape = (batch, num_heads, queries)
        if not _broadcasts(slopes.shape, shape):
            raise UserError(
                f"slopes: have shape {list(slopes.shape)}, needed is {list(shape)} or what "
                "broadcasts to it"
            )


def _broadcasts(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    sizes = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(size in (1, whole) for size, whole in sizes)


def _check_ratio(ratio: float | Tensor, *, cross: bool, has_bias: bool) -> None:
    if not isinstance(ratio, (int, float, Tensor)) or (
        isinstance(ratio, Tensor) and ratio.numel() != 1
    ):
        raise UserError(f"ratio: is {shown(ratio)}, needed is one number, or a tensor of one")
    if isinstance(ratio, Tensor) or ratio != 1.0:
        if not cross:
            raise UserError("ratio: does nothing without `cross`, the offset is j - i")
        if not has_bias:
            raise UserError("ratio: does nothing without slopes or a bias")
    if not isinstance(ratio, Tensor) and not math.isfinite(ratio):
        raise UserError(f"ratio = {ratio}: allowed are finite numbers")


def _check_numbers(slopes: Tensor | None, dropout: float, *, causal: bool, cross: bool) -> None:
    if causal and cross:
        raise UserError("causal = True: cross-attention sees all of the other text")
    if not 0.0 <= dropout < 1.0:
        raise UserError(f"dropout = {dropout}: allowed is 0 and above, below 1")
    # On a GPU a look at the numbers would wait for them.
    if slopes is not None and slopes.device.type == "cpu" and bool((slopes < 0).any()):
        raise UserError(f"slopes: hold {float(slopes.detach().min())}, allowed are 0 and above")


def _real_slopes(slopes: Tensor, real: Tensor | None) -> Tensor:
    """Return slopes in float32 or better, 0 at padding."""
    slopes = slopes.to(torch.promote_types(slopes.dtype, torch.float32))
    if real is None or slopes.dim() == 0 or slopes.shape[-1] == 1:
        return slopes
    return torch.where(real[:, None], slopes, 0.0)


def _bias_of(
    bias: Callable[[Tensor], Tensor], rows: tuple[int, int, int]
) -> Callable[[Tensor], Tensor]:
    """Return a bias that is checked, and has a column for each offset; rows: [B, H, Q]."""

    def checked(offset: Tensor) -> Tensor:
        found = bias(offset)
        if not isinstance(found, Tensor) or not found.is_floating_point():
            kind = found.dtype if isinstance(found, Tensor) else type(found).__name__
            raise UserError(f"bias: returned {kind}, needed is a tensor of floating-point numbers")
        wanted = (*rows, offset.shape[-1])
        if not _broadcasts(found.shape, wanted):
            raise UserError(
                f"bias: returned shape {list(found.shape)} for offsets of shape "
                f"{list(offset.shape)}, needed is {list(wanted)} or what broadcasts to it"
            )
        return torch.broadcast_tensors(found, offset)[0]  # type: ignore[no-untyped-call,no-any-return]

    return checked


def _check_prune(prune: float, device: str, given: Sequence[Tensor | None]) -> None:
    if device != "cpu":
        raise UserError(f"prune: leaves keys out on a CPU alone, these are on {device}")
    if not 0.0 < prune < 1.0:
        raise UserError(f"prune = {prune}: allowed are numbers between 0 and 1")
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given):
        raise UserError("prune: has no gradient, use torch.no_grad()")
