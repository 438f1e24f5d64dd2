"""Transformer blocks and the stack that owns what its layers share.

For: post-norm (BERT) and pre-norm blocks, with cross-attention or without, activation
checkpointing. Not for: embeddings and heads (`models`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ala_encoder import biases
from ala_encoder.attention import Attention, QKBank
from ala_encoder.cache import Cache, KeyValues
from ala_encoder.dropout import Dropout
from ala_encoder.heads import HeadTable
from ala_encoder.kernels import Visibility
from ala_encoder.positions import Rotary, counted
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import Transformer

# relu: in place it saves memory, but to autograd x is a view, which it would copy back and forth.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": lambda x: F.relu(x, inplace=not x.requires_grad),
    "silu": F.silu,
}


def build_norm(model: Transformer) -> nn.Module:
    """Return a normalisation of [..., dim]: nn.LayerNorm or nn.RMSNorm."""
    kind = nn.LayerNorm if model.normalization == "layer_norm" else nn.RMSNorm
    return kind(model.dim, eps=model.layer_norm_eps)


class FeedForward(nn.Module):
    """dim → ffn_dim → activation → dim."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.in_proj = nn.Linear(model.dim, model.ffn_dim)
        self.out_proj = nn.Linear(model.ffn_dim, model.dim)
        self.activation = ACTIVATIONS[model.activation]

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, dim] → [B, T, dim]."""
        out: Tensor = self.out_proj(self.activation(self.in_proj(x)))
        return out


@dataclass
class Trace:
    """What a forward pass leaves for the analysis when asked: one entry a layer."""

    hidden_states: list[Tensor] = field(default_factory=list)
    """The stack's input, then each layer's output: [B, T, dim]."""
    weights: list[Tensor] = field(default_factory=list)
    """Attention weights after softmax and `keep`: [B, H, T, T]."""
    cross_weights: list[Tensor] = field(default_factory=list)
    """The same of cross-attention: [B, H, T, S]."""


@dataclass(frozen=True, eq=False)
class Context:
    """What every layer of a stack is handed for one attention of it in a forward pass."""

    bank: QKBank
    visibility: Visibility
    shared: Iterable[nn.Module] = ()
    """The biases that all layers share."""
    rotation: tuple[Tensor, Tensor] | None = None
    memory: Tensor | None = None
    """Of cross-attention: [B, S, dim]."""
    cache: Sequence[KeyValues] | None = None
    """Of each layer, when a text is read step by step."""

    def attend(self, attention: Attention, x: Tensor, weights: list[Tensor] | None) -> Tensor:
        """Return what a layer's attention gives; its weights are put into `weights`, if any."""
        mixed, found = attention(
            x,
            self.bank,
            self.visibility,
            shared=self.shared,
            rotation=self.rotation,
            memory=self.memory,
            cache=None if self.cache is None else self.cache[attention.layer],
            need_weights=weights is not None,
        )
        if weights is not None:
            weights.append(found)
        return mixed  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, cross-attention where there is one, feed-forward: each with residual and norm."""

    def __init__(
        self,
        table: HeadTable,
        layer: int,
        model: Transformer,
        settings: AttentionSettings,
        *,
        causal: bool = False,
        cross: tuple[HeadTable, AttentionSettings] | None = None,
    ) -> None:
        super().__init__()
        self.is_pre_norm = model.norm == "pre"
        self.attention = Attention(
            table, layer, model.dim, settings, bias=model.attention_bias, causal=causal
        )
        self.attention_norm = build_norm(model)
        if cross is not None:
            self.cross_attention = Attention(
                cross[0], layer, model.dim, cross[1], bias=model.attention_bias, cross=True
            )
            self.cross_norm = build_norm(model)
        self.ffn = FeedForward(model)
        self.ffn_norm = build_norm(model)
        self.dropout = Dropout(model.dropout)

    def forward(
        self, x: Tensor, own: Context, cross: Context | None = None, trace: Trace | None = None
    ) -> Tensor:
        """x [B, T, dim] → [B, T, dim]; attention weights are put into `trace`, if any."""
        weights = None if trace is None else trace.weights
        x = self._step(x, self.attention_norm, lambda y: own.attend(self.attention, y, weights))
        if cross is not None:
            weights = None if trace is None else trace.cross_weights
            x = self._step(
                x, self.cross_norm, lambda y: cross.attend(self.cross_attention, y, weights)
            )
        return self._step(x, self.ffn_norm, self.ffn)

    def _step(self, x: Tensor, norm: nn.Module, change: Callable[[Tensor], Tensor]) -> Tensor:
        if self.is_pre_norm:
            return x + self.dropout(change(norm(x)))  # type: ignore[no-any-return]
        return norm(x + self.dropout(change(x)))  # type: ignore[no-any-return]


class Stack(nn.Module):
    """The layers, and what they share: banks of Q/K projections, some biases, the rotation."""

    def __init__(
        self,
        table: HeadTable,
        model: Transformer,
        settings: AttentionSettings,
        *,
        causal: bool = False,
        cross: tuple[HeadTable, AttentionSettings] | None = None,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.bank = QKBank(table, model.dim, bias=model.attention_bias)
        self.biases = biases.build(
            settings.biases, model.dim, model.num_heads, causal=causal, shared=True
        )
        self.has_cross = cross is not None
        if cross is not None:
            self.cross_bank = QKBank(cross[0], model.dim, bias=model.attention_bias)
            self.cross_biases = biases.build(
                cross[1].biases, model.dim, model.num_heads, shared=True
            )
        self.rotary = Rotary(model.dim // model.num_heads) if model.positions == "rotary" else None
        self.layers = nn.ModuleList(
            Block(table, layer, model, settings, causal=causal, cross=cross)
            for layer in range(table.num_layers)
        )
        self.norm = build_norm(model) if model.norm == "pre" else None
        self.activation_checkpointing = False

    def forward(
        self,
        x: Tensor,
        segments: Tensor | None,
        trace: Trace | None = None,
        *,
        memory: Tensor | None = None,
        memory_segments: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """x [B, T, dim], segments int [B, T] or None (no padding) → [B, T, dim].

        memory, memory_segments: [B, S, dim] and int [B, S] or None, of the text that a stack with
        cross-attention looks at; segments of equal number belong together. cache: x comes after
        what is in it, and is in it then; the memory is needed in the first step alone.
        """
        own = self._own(x, segments, cache)
        cross = self._cross(x, segments, memory, memory_segments, cache) if self.has_cross else None
        if trace is not None:
            trace.hidden_states.append(x)
        for layer in self.layers:
            if self.activation_checkpointing and self.training and trace is None:
                # Only the non-reentrant kind meets shared projections under ZeRO correctly.
                x = checkpoint(layer, x, own, cross, use_reentrant=False)
                continue
            x = layer(x, own, cross, trace)
            if trace is not None:
                trace.hidden_states.append(x)
        if cache is not None:
            cache.advance(segments, x.shape[1])
        return x if self.norm is None else self.norm(x)

    def cache(self, *, beam: bool = False) -> Cache:
        """Return an empty cache: of a text a row, or with `beam` of several hypotheses a row."""
        assert self.causal
        return Cache(len(self.layers), beam=beam)

    def _own(self, x: Tensor, segments: Tensor | None, cache: Cache | None) -> Context:
        rotation = None
        if self.rotary is not None:
            length = x.shape[1]
            rotation = self.rotary(
                counted(segments, length, x.device)
                if cache is None
                else cache.places(segments, length, x.device)
            )
        if cache is None:
            visibility = Visibility.of(segments, causal=self.causal)
            return Context(self.bank, visibility, self.biases, rotation)
        visibility = cache.visibility(segments, x)
        return Context(self.bank, visibility, self.biases, rotation, cache=cache.own)

    def _cross(
        self,
        x: Tensor,
        segments: Tensor | None,
        memory: Tensor | None,
        memory_segments: Tensor | None,
        cache: Cache | None,
    ) -> Context:
        if cache is None:
            assert memory is not None
            across = Visibility.across(segments, memory_segments, x.shape[1], memory.shape[1])
            return Context(self.cross_bank, across, self.cross_biases, memory=memory)
        across = cache.across(segments, x, memory, memory_segments)
        biases = self.cross_biases
        return Context(self.cross_bank, across, biases, memory=memory, cache=cache.cross)


def checkpoint_activations(model: nn.Module) -> None:
    """Let every stack of a model compute its layers again in the backward pass, to save memory."""
    for part in model.modules():
        if isinstance(part, Stack):
            part.activation_checkpointing = True
