"""Settings of the attention of one stack: head table, mask operator, biases, path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from ala_encoder.errors import UserError
from ala_encoder.heads import Head, HeadTable, named_layout
from ala_encoder.settings.base import PositiveFloat, PositiveInt, Probability, Section


class DistBias(Section):
    """−alpha_h |i − j| (Adaptive Locality Attention), alpha = softplus(raw) per head and layer."""

    kind: Literal["distbias"]
    alpha_init: PositiveFloat = 0.01
    """The value of alpha at the start (not of its raw parameter)."""
    alpha_learnable: bool = True


class GatedDistBias(Section):
    """−alpha_h g_i |i − j| with g_i = sigmoid(W_g x_i + b_g), one gate a head."""

    kind: Literal["gated_distbias"]
    alpha_init: PositiveFloat = 0.01
    alpha_learnable: bool = True


class Window(Section):
    """Keys at |i − j| >= width are hidden; the current token counts as one of `width`."""

    kind: Literal["window"]
    width: PositiveInt


BiasSettings = Annotated[DistBias | GatedDistBias | Window, Field(discriminator="kind")]


class AttentionSettings(Section):
    """Attention of one stack. Give `layout` or `heads`, not both; neither means `layout: full`."""

    layout: str | None = None
    """A named layout: full, a … l, bert_full, bert_band2, bert_band6, bert_band6_tied132, …"""
    heads: tuple[tuple[str, ...], ...] | None = None
    """The table itself: rows = layers, cells = full, identity, prevK, nextK, bandK, with #group."""
    mask_operator: Literal["post_softmax", "pre_softmax"] = "post_softmax"
    """post_softmax: the local mask multiplies the weights (`keep`); pre_softmax: it hides keys."""
    biases: tuple[BiasSettings, ...] = ()
    """Added to the scores before the softmax; several are summed."""
    path: Literal["auto", "dense", "sdpa"] = "auto"
    """How attention is computed; a path that cannot compute this table is refused."""
    dropout: Probability = 0.0
    """Dropout of attention weights; above 0 only the dense path is used."""


def head_table(attention: AttentionSettings, num_layers: int, num_heads: int) -> HeadTable:
    """Return the stack's head table; raises UserError when it does not fit the model."""
    if attention.heads is None:
        return named_layout(attention.layout or "full", num_layers, num_heads)
    if attention.layout is not None:
        raise UserError("layout and heads are both given: keep one")
    table = HeadTable.parse(attention.heads)
    if (table.num_layers, table.num_heads) != (num_layers, num_heads):
        raise UserError(
            f"heads has {table.num_layers} rows x {table.num_heads} cells, the model "
            f"{num_layers} layers x {num_heads} heads"
        )
    return table


def sdpa_refusal(attention: AttentionSettings, heads: Sequence[Head]) -> str | None:
    """Say why the fused `sdpa` path cannot compute these heads, or None when it can."""
    is_local = any(head.is_local for head in heads)
    if is_local and attention.mask_operator == "post_softmax":
        return "it never holds the weights that a post-softmax mask multiplies"
    if attention.dropout > 0:
        return "attention dropout takes it off the fused kernel on a CPU"
    return None


def check_attention(attention: AttentionSettings, table: HeadTable, max_length: int) -> None:
    """Raise UserError for a combination that is impossible or has no effect."""
    heads = [head for row in table.rows for head in row]
    pre_softmax = attention.mask_operator == "pre_softmax"
    if pre_softmax and table.is_full:
        raise UserError("mask_operator = 'pre_softmax': no head has a local mask, it does nothing")
    for head in heads:
        if head.kind == "band" and head.k >= max_length - 1:
            raise UserError(f"head {head}: hides nothing within {max_length} tokens, write full")
        if head.kind in ("prev", "next") and head.k >= max_length:
            raise UserError(f"head {head}: sees nothing within {max_length} tokens")
    single = next((head for head in heads if head.is_single_key), None)
    if pre_softmax and single is not None and attention.biases:
        kind = attention.biases[0].kind
        raise UserError(
            f"biases: {kind} does nothing on the pre-softmax head {single}, which has one key"
        )
    for bias in attention.biases:
        if bias.kind == "window" and bias.width >= max_length:
            raise UserError(f"biases: window {bias.width} hides nothing in {max_length} tokens")
    if attention.path == "sdpa" and (reason := sdpa_refusal(attention, heads)) is not None:
        raise UserError(f"path = 'sdpa': {reason}; allowed here: auto, dense")
