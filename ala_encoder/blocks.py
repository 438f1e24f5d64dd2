"""Transformer blocks and the stack that owns what its layers share.

For: post-norm (BERT) and pre-norm encoder blocks, activation checkpointing. Not for: embeddings and
heads (`models`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ala_encoder import biases
from ala_encoder.attention import Attention, QKBank
from ala_encoder.heads import HeadTable
from ala_encoder.kernels import Visibility
from ala_encoder.positions import Rotary, counted
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import EncoderModel


class FeedForward(nn.Module):
    """dim → ffn_dim → GELU (erf) → dim."""

    def __init__(self, dim: int, ffn_dim: int) -> None:
        super().__init__()
        self.in_proj = nn.Linear(dim, ffn_dim)
        self.out_proj = nn.Linear(ffn_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, dim] → [B, T, dim]."""
        out: Tensor = self.out_proj(F.gelu(self.in_proj(x)))
        return out


class Block(nn.Module):
    """Attention and feed-forward, each with a residual and a layer norm."""

    def __init__(
        self,
        table: HeadTable,
        layer: int,
        model: EncoderModel,
        settings: AttentionSettings,
        *,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.is_pre_norm = model.norm == "pre"
        self.attention = Attention(
            table, layer, model.dim, settings, bias=model.attention_bias, causal=causal
        )
        self.attention_norm = nn.LayerNorm(model.dim, eps=model.layer_norm_eps)
        self.ffn = FeedForward(model.dim, model.ffn_dim)
        self.ffn_norm = nn.LayerNorm(model.dim, eps=model.layer_norm_eps)
        self.dropout = nn.Dropout(model.dropout)

    def forward(
        self,
        x: Tensor,
        bank: QKBank,
        visibility: Visibility,
        shared: Sequence[nn.Module] = (),
        rotation: tuple[Tensor, Tensor] | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """x [B, T, dim] → (x [B, T, dim], attention weights [B, H, T, T] or None)."""
        inside = self.attention_norm(x) if self.is_pre_norm else x
        mixed, weights = self.attention(
            inside, bank, visibility, shared=shared, rotation=rotation, need_weights=need_weights
        )
        x = x + self.dropout(mixed)
        if self.is_pre_norm:
            return x + self.dropout(self.ffn(self.ffn_norm(x))), weights
        x = self.attention_norm(x)
        return self.ffn_norm(x + self.dropout(self.ffn(x))), weights


@dataclass
class Trace:
    """What a forward pass leaves for the analysis when asked: one entry a layer."""

    hidden_states: list[Tensor] = field(default_factory=list)
    """The stack's input, then each layer's output: [B, T, dim]."""
    weights: list[Tensor] = field(default_factory=list)
    """Attention weights after softmax and `keep`: [B, H, T, T]."""


class Stack(nn.Module):
    """The layers, and what they share: the bank of Q/K projections, some biases, the rotation."""

    def __init__(
        self,
        table: HeadTable,
        model: EncoderModel,
        settings: AttentionSettings,
        *,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.bank = QKBank(table, model.dim, bias=model.attention_bias)
        self.biases = biases.build(
            settings.biases, model.dim, model.num_heads, causal=causal, shared=True
        )
        self.rotary = Rotary(model.dim // model.num_heads) if model.positions == "rotary" else None
        self.layers = nn.ModuleList(
            Block(table, layer, model, settings, causal=causal) for layer in range(table.num_layers)
        )
        self.norm = (
            nn.LayerNorm(model.dim, eps=model.layer_norm_eps) if model.norm == "pre" else None
        )
        self.activation_checkpointing = False

    def forward(self, x: Tensor, segments: Tensor | None, trace: Trace | None = None) -> Tensor:
        """x [B, T, dim], segments int [B, T] or None (no padding) → [B, T, dim]."""
        visibility = Visibility.of(segments, causal=self.causal)
        rotation = None
        if self.rotary is not None:
            rotation = self.rotary(counted(segments, x.shape[1], x.device))
        given = (self.bank, visibility, self.biases, rotation)
        if trace is not None:
            trace.hidden_states.append(x)
        for layer in self.layers:
            if self.activation_checkpointing and self.training and trace is None:
                # Only the non-reentrant kind meets shared projections under ZeRO correctly.
                x, _ = checkpoint(layer, x, *given, use_reentrant=False)
                continue
            x, weights = layer(x, *given, trace is not None)
            if trace is not None:
                assert weights is not None
                trace.hidden_states.append(x)
                trace.weights.append(weights)
        return x if self.norm is None else self.norm(x)
