"""Multi-head attention whose heads have masks, shared Q/K groups and distance biases.

project → rotate → score → + biases (−inf hides) → softmax → x keep → mix

For: the projections, the table lookup and the order above. Not for: the same without projections
(`functional`), the arithmetic of a path (`kernels`), the formula of a bias (`biases`), what a mask
means (`heads`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ala_encoder import biases, kernels
from ala_encoder.cache import KeyValues
from ala_encoder.errors import UserError
from ala_encoder.heads import HeadTable
from ala_encoder.kernels import Scoring, Visibility
from ala_encoder.positions import rotate
from ala_encoder.settings import paths
from ala_encoder.settings.attention import AttentionSettings, case_of
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
        first = paths.compiled_from(self.heads, case, self.settings.path)
        return path + "(compiled)" * (self.compiles and first is not None)

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
        x = emptied(x, visibility.real)
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
        memory = x if memory is None else emptied(memory, visibility.real_keys)
        q, k = bank(x, self.layer, memory)
        if rotation is not None and q is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        v = split_heads(self.v_proj(memory), self.head_dim)
        if cache is not None:
            k, v = cache.append(k, v)
        if q is None and visibility.is_step:
            # as many queries, without a group
            q = v.new_empty(len(x), 0, x.shape[1], self.head_dim)
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
            prune=None if self.training or torch.is_grad_enabled() else self.settings.prune,
        )


def compile_long_runs(model: nn.Module, steps: int) -> None:
    """Let attention with `compile: auto` be compiled where a run of `steps` repays the time.

    Raises UserError for `compile: on` without a C++ compiler, which a CPU needs.
    """
    name = os.environ.get("CXX", "g++")
    has_compiler = shutil.which(name) is not None
    for part in model.modules():
        if not isinstance(part, Attention):
            continue
        if part.settings.compile == "auto":
            part.compiles = steps >= paths.COMPILED_FROM_STEPS and has_compiler
        elif part.compiles and not has_compiler and part.v_proj.weight.device.type == "cpu":
            raise UserError(f"compile = 'on': there is no C++ compiler {name!r}; write auto or off")


def emptied(x: Tensor, real: Tensor | None) -> Tensor:
    """Return x [B, T, dim] or [B, H, T, d] with 0 at padding."""
    if real is None:
        return x
    # A NaN times a weight or a gradient of 0 is still NaN, so padding is emptied first.
    return x.masked_fill(~(real[:, None, :, None] if x.dim() == 4 else real[..., None]), 0.0)


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """[B, T, heads x head_dim] → [B, heads, T, head_dim]."""
    return x.view(*x.shape[:-1], x.shape[-1] // head_dim, head_dim).transpose(1, 2)
