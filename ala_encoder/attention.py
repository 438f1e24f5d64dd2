"""Multi-head attention whose heads have masks, shared Q/K groups and distance biases.

project → score → + biases (−inf hides) → softmax → x keep → mix

For: the projections, the table lookup and the order above. Not for: the arithmetic of a path
(`kernels`), the formula of a bias (`biases`), what a mask means (`heads`).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from ala_encoder import biases, kernels
from ala_encoder.heads import HeadTable
from ala_encoder.kernels import Visibility
from ala_encoder.settings.attention import AttentionSettings


class QKProjection(nn.Module):
    """Queries and keys of the Q/K groups that the same layers use: dim → num_groups x head_dim."""

    def __init__(self, dim: int, num_groups: int, head_dim: int, *, bias: bool) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(dim, num_groups * head_dim, bias=bias)
        self.k_proj = nn.Linear(dim, num_groups * head_dim, bias=bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, T, dim] → q and k, each [B, G, T, head_dim]."""
        return split_heads(self.q_proj(x), self.head_dim), split_heads(
            self.k_proj(x), self.head_dim
        )


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

    def forward(self, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Return q and k of all groups of `layer`, each [B, groups of the layer, T, head_dim]."""
        parts = [self.projections[block](x) for block in self._blocks[layer]]
        if len(parts) == 1:
            return cast("tuple[Tensor, Tensor]", parts[0])
        return torch.cat([q for q, _ in parts], 1), torch.cat([k for _, k in parts], 1)


class Attention(nn.Module):
    """Self-attention of one layer; Q and K come from the stack's bank, V and output are its own."""

    def __init__(
        self,
        table: HeadTable,
        layer: int,
        dim: int,
        settings: AttentionSettings,
        *,
        bias: bool,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = dim // table.num_heads
        self.heads = table.rows[layer]
        self.path = kernels.choose_path(settings, self.heads)
        self.dropout = settings.dropout
        self.is_pre_softmax = settings.mask_operator == "pre_softmax"
        columns = table.columns_of(layer)
        self.groups = None if columns == tuple(range(table.num_heads)) else columns
        self.biases = biases.build(settings.biases, dim, table.num_heads)
        self.v_proj = nn.Linear(dim, dim, bias=bias)
        self.out_proj = nn.Linear(dim, dim, bias=bias)

    def forward(
        self, x: Tensor, bank: QKBank, visibility: Visibility, *, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """x [B, T, dim] → (output [B, T, dim], weights [B, H, T, T] or None).

        Weights are handed out when asked for, whatever the path: `dense` is computed then.
        """
        if visibility.real is not None:
            # A NaN times a weight or a gradient of 0 is still NaN, so padding is emptied first.
            x = x.masked_fill(~visibility.real[..., None], 0.0)
        q, k = bank(x, self.layer)
        v = split_heads(self.v_proj(x), self.head_dim)
        keep, bias = self._masks(x)
        given: dict[str, Any] = {"bias": bias, "visible": visibility.pairs, "groups": self.groups}
        weights = None
        if self.path == "dense" or need_weights:
            mixed, weights = kernels.dense(
                q, k, v, **given, keep=keep, dropout=self.dropout if self.training else 0.0
            )
        else:
            mixed = kernels.sdpa(q, k, v, **given)
        output = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return output, weights if need_weights else None

    def _masks(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return keep (bool [H, T, T] or None) and the summed bias (or None)."""
        is_local = any(head.is_local for head in self.heads)
        if not is_local and not self.biases:
            return None, None
        positions = torch.arange(x.shape[1], device=x.device)
        offset = positions[None, :] - positions[:, None]
        terms = [bias(offset, x) for bias in self.biases]
        keep = torch.stack([head.allows(offset) for head in self.heads]) if is_local else None
        if keep is not None and self.is_pre_softmax:
            hidden = torch.zeros(keep.shape, dtype=torch.float32, device=x.device)
            terms.append(hidden.masked_fill(~keep, float("-inf")))
            keep = None
        return keep, sum(terms[1:], terms[0]) if terms else None


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """[B, T, heads x head_dim] → [B, heads, T, head_dim]."""
    batch, length, _ = x.shape
    return x.view(batch, length, -1, head_dim).transpose(1, 2)
