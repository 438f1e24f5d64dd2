"""Multi-head attention whose heads have masks, shared Q/K groups and distance biases.

project → rotate → score → + biases (−inf hides) → softmax → x keep → mix

For: the projections, the table lookup and the order above; `attend`, the same without projections.
Not for: the arithmetic of a path (`kernels`), the formula of a bias (`biases`), what a mask means
(`heads`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from ala_encoder import biases, kernels
from ala_encoder.cache import KeyValues
from ala_encoder.errors import UserError
from ala_encoder.heads import HeadTable
from ala_encoder.kernels import Scoring, Visibility
from ala_encoder.positions import rotate
from ala_encoder.settings import paths
from ala_encoder.settings.attention import AttentionSettings, case_of, check_masks
from ala_encoder.settings.biases import LINEAR, SHARED


class QKProjection(nn.Module):
    """Queries and keys of the Q/K groups that the same layers use: dim → num_groups x head_dim."""

    def __init__(self, dim: int, num_groups: int, head_dim: int, *, bias: bool) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(dim, num_groups * head_dim, bias=bias)
        self.k_proj = nn.Linear(dim, num_groups * head_dim, bias=bias)

    def forward(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x [B, Q, dim], memory [B, K, dim] or None → q and k, each [B, G, T, head_dim]."""
        k = None if memory is None else split_heads(self.k_proj(memory), self.head_dim)
        return split_heads(self.q_proj(x), self.head_dim), k


class QKBank(nn.Module):
    """Every (W_q, W_k) of a stack, one projection for the groups that the same layers use.

    Tied and untied models are this one module with different tables. Layers call it (they never
    read its weights), so each shared pair is one parameter with one key in the state dict.
    """

    def __init__(self, table: HeadTable, dim: int, *, bias: bool) -> None:
        super().__init__()
        head_dim = dim // table.num_heads
        self.projections = nn.ModuleList(
            QKProjection(dim, block.num_groups, head_dim, bias=bias) for block in table.blocks
        )
        self._blocks = [table.blocks_of(layer) for layer in range(table.num_layers)]

    def forward(
        self, x: Tensor, layer: int, memory: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return q and k of all groups of `layer`, each [B, groups of the layer, T, head_dim].

        memory: what keys come from; None: they are known, and only q is made. None twice when no
        head has Q and K.
        """
        parts = [self.projections[block](x, memory) for block in self._blocks[layer]]
        if len(parts) < 2:
            return parts[0] if parts else (None, None)
        keys = None if memory is None else torch.cat([k for _, k in parts], 1)
        return torch.cat([q for q, _ in parts], 1), keys


class Attention(nn.Module):
    """Attention of one layer; Q and K come from the stack's bank, V and output are its own."""

    def __init__(
        self,
        table: HeadTable,
        layer: int,
        dim: int,
        settings: AttentionSettings,
        *,
        bias: bool,
        causal: bool = False,
        cross: bool = False,
    ) -> None:
        super().__init__()
        assert table.is_pre_softmax == (settings.mask_operator == "pre_softmax")
        self.layer = layer
        self.head_dim = dim // table.num_heads
        self.heads = table.rows[layer]
        self.groups = table.columns_of(layer)
        self.settings = settings
        self.compiles = settings.compile == "on"
        self.case = case_of(settings, causal=causal, cross=cross)
        self.biases = biases.build(settings.biases, dim, table.num_heads, causal=causal)
        own = [entry for entry in settings.biases if not isinstance(entry, SHARED)]
        self._is_linear = [isinstance(entry, LINEAR) for entry in own]
        self.ratio: float | nn.Parameter = settings.ratio
        if settings.ratio_learnable:
            # Not a number alone: DeepSpeed sends parameters as bytes, which needs a dimension.
            self.ratio = nn.Parameter(torch.tensor([settings.ratio]))
        self.v_proj = nn.Linear(dim, dim, bias=bias)
        self.out_proj = nn.Linear(dim, dim, bias=bias)

    @property
    def path(self) -> str:
        """The paths that training takes where the parameters are, as `paths.describe` writes."""
        weight = self.v_proj.weight
        is_half = weight.dtype in (torch.float16, torch.bfloat16)
        case = replace(self.case, device=weight.device.type, is_half=is_half)
        path = paths.describe(paths.plan(self.heads, case, self.settings.path), case)
        before = case.is_pre_softmax or case.window is not None
        return path + "(compiled)" * (self.compiles and before and "banded" in path)

    def forward(
        self,
        x: Tensor,
        bank: QKBank,
        visibility: Visibility,
        *,
        shared: Sequence[nn.Module] = (),
        rotation: tuple[Tensor, Tensor] | None = None,
        memory: Tensor | None = None,
        cache: KeyValues | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """x [B, Q, dim] → (output [B, Q, dim], weights [B, H, Q, K] or None).

        shared: the biases that all layers share; rotation: of `positions.Rotary`; memory: [B, K,
        dim], what a cross-attention looks at; cache: keys and values of earlier steps, to which
        those of x are added (of a cross-attention: those of the memory, in the first step alone).
        Weights are handed out when asked for, whatever the path: `dense` is computed then, as it is
        in a step.
        """
        assert visibility.causal == self.case.causal
        x = _emptied(x, visibility.real)
        q, k, v = self._projected(x, bank, visibility, rotation, memory, cache)
        scoring = self._scoring(x, visibility, shared)
        weights = None
        if need_weights or visibility.is_step:
            mixed, weights = kernels.mix_in_the_open(q, k, v, scoring)
        else:
            mixed = kernels.mix(q, k, v, scoring)
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), weights

    def _projected(
        self,
        x: Tensor,
        bank: QKBank,
        visibility: Visibility,
        rotation: tuple[Tensor, Tensor] | None,
        memory: Tensor | None,
        cache: KeyValues | None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Return q of x, and k and v of all that it may look at."""
        if self.case.cross and cache is not None and cache.length:
            return bank(x, self.layer, None)[0], *cache.all
        assert (memory is not None) == self.case.cross
        memory = x if memory is None else _emptied(memory, visibility.real_keys)
        q, k = bank(x, self.layer, memory)
        if rotation is not None and q is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        v = split_heads(self.v_proj(memory), self.head_dim)
        if cache is not None:
            k, v = cache.append(k, v)
        if q is None and visibility.is_step:
            q = v.new_empty(
                len(x), 0, x.shape[1], self.head_dim
            )  # as many queries, without a group
        return q, k, v

    def _scoring(self, x: Tensor, visibility: Visibility, shared: Sequence[nn.Module]) -> Scoring:
        own = list(zip(self.biases, self._is_linear, strict=True))
        linear = [biases.slopes(bias, x) for bias, is_linear in own if is_linear]
        others = [bias for bias, is_linear in own if not is_linear] + list(shared)

        def bias(offset: Tensor) -> Tensor:
            terms: list[Tensor] = [other(offset, x) for other in others]
            return sum(terms[1:], terms[0])

        return Scoring(
            self.heads,
            self.groups,
            self.case,
            visibility,
            slopes=sum(linear[1:], linear[0]) if linear else None,
            bias=bias if others else None,
            ratio=self.ratio,
            dropout=self.settings.dropout if self.training else 0.0,
            path=self.settings.path,
            compile=self.compiles,
        )


def compile_long_runs(model: nn.Module, steps: int) -> None:
    """Let attention with `compile: auto` be compiled where a run of `steps` repays the time."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    for part in model.modules():
        if isinstance(part, Attention) and part.settings.compile == "auto":
            part.compiles = steps >= paths.COMPILED_FROM_STEPS and compiler is not None


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
) -> Tensor:
    """Compute keep · softmax(q_i·k_j/sqrt(d) − slopes_i |o| + bias(o)) v with the offset o = j − i.

    q: [B, G, Q, d] and k: [B, G, K, d] of G Q/K groups, v: [B, H, K, d] of H heads. Returns
    [B, H, Q, d]; a query with nothing to see, padding too, gives 0. What lies at padding never
    matters, not even a NaN. Every path gives the same numbers.

    - heads: a cell for each of the H heads: full (the default), identity, prevK, nextK, bandK.
      Without groups G = H; cells of one `#group` share a q and k, groups in order of first use.
    - mask_operator: post_softmax multiplies the weights by the mask (Pande et al., arXiv
      2008.05828); pre_softmax hides keys before the softmax.
    - slopes: a_i >= 0, broadcastable to [B, H, Q], for ALiBi and learned distance biases.
    - bias: any further function of the offset: takes an int tensor of offsets [Q, K], or [1, N],
      and returns float32 broadcastable to [B, H, Q, offsets]; −inf hides.
    - causal: hides j > i. cross: k and v belong to another text; the offset is then j − ratio·i
      (ours), a float tensor.
    - segments: int [B, Q], 0 is padding and equal numbers see each other; memory_segments: the
      same of the keys, int [B, K], with `cross`.
    - dropout: of the weights; above 0 all is computed in the open.
    - path: auto, dense, sdpa, slope, banded or flex (`ala_encoder.settings.paths`).

    Raises UserError for shapes that do not fit, masks that do nothing, and a path asked for by
    name that cannot compute this.
    """
    num_heads, length = v.shape[1], q.shape[2]
    is_pre_softmax = mask_operator == "pre_softmax"
    cells = ["full"] * num_heads if heads is None else list(heads)
    table = HeadTable.parse([cells], is_pre_softmax=is_pre_softmax)
    every = replace(table, is_pre_softmax=False)
    _check_shapes(q, k, v, every, segments, memory_segments, cross)
    check_masks(table.rows[0], is_pre_softmax=is_pre_softmax, causal=causal, cross=cross)
    if path not in ("auto", *paths.PATHS):
        raise UserError(f"path = {path!r}: allowed are auto, {', '.join(paths.PATHS)}")
    if causal and cross:
        raise UserError("causal = True: cross-attention sees all of the other text")
    case = paths.Case(
        is_pre_softmax=is_pre_softmax,
        has_slopes=slopes is not None,
        has_others=bias is not None,
        causal=causal,
        cross=cross,
        dropout=dropout > 0,
    )
    visibility = Visibility.of(segments, causal=causal)
    if cross:
        visibility = Visibility.across(segments, memory_segments, length, v.shape[2])
    q, k, v = (
        _emptied(q, visibility.real),
        _emptied(k, visibility.real_keys),
        _emptied(v, visibility.real_keys),
    )
    scoring = Scoring(
        table.rows[0],
        every.columns_of(0),
        case,
        visibility,
        slopes=None if slopes is None else slopes.float(),
        bias=bias,
        ratio=ratio,
        dropout=dropout,
        path=path,
    )
    return kernels.mix(q, k, v, scoring)


def _check_shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: HeadTable,
    segments: Tensor | None,
    memory_segments: Tensor | None,
    cross: bool,
) -> None:
    batch, num_heads, keys, width = v.shape
    if table.num_heads != num_heads:
        raise UserError(f"heads: {table.num_heads} cells, v has {num_heads} heads")
    wanted = {
        "q": (q, (batch, table.num_groups, q.shape[2] if cross else keys, width)),
        "k": (k, (batch, table.num_groups, keys, width)),
        "segments": (segments, (batch, q.shape[2])),
        "memory_segments": (memory_segments, (batch, keys)),
    }
    for name, (given, shape) in wanted.items():
        if given is not None and tuple(given.shape) != shape:
            raise UserError(f"{name}: has shape {list(given.shape)}, needed is {list(shape)}")
    if memory_segments is not None and not cross:
        raise UserError("memory_segments: do nothing without `cross`")


def _emptied(x: Tensor, real: Tensor | None) -> Tensor:
    """Return x [B, T, dim] or [B, H, T, d] with 0 at padding."""
    if real is None:
        return x
    # A NaN times a weight or a gradient of 0 is still NaN, so padding is emptied first.
    return x.masked_fill(~(real[:, None, :, None] if x.dim() == 4 else real[..., None]), 0.0)


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """[B, T, heads x head_dim] → [B, heads, T, head_dim]."""
    batch, length, _ = x.shape
    return x.view(batch, length, -1, head_dim).transpose(1, 2)
