"""Settings of the attention of one stack: head table, mask operator, biases, path."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from ala_encoder.errors import UserError
from ala_encoder.heads import Head, HeadTable, named_layout
from ala_encoder.settings import biases as kinds
from ala_encoder.settings.base import Probability, Section
from ala_encoder.settings.biases import LINEAR, BiasSettings
from ala_encoder.settings.paths import (
    PRUNE_FROM,
    Asked,
    Case,
    check_path,
    check_prune,
    compiled_from,
    offsets,
)


class AttentionSettings(Section):
    """Attention of one stack. Give `layout` or `heads`, not both; neither means `layout: full`."""

    layout: str | None = None
    """A named layout: full, a … l, bert_full, bert_band2, bert_band6, bert_band6_tied132, …"""
    heads: tuple[tuple[str, ...], ...] | None = None
    """The table itself: rows = layers, cells = full, identity, prevK, nextK, bandK, with #group."""
    mask_operator: Literal["post_softmax", "pre_softmax"] = "post_softmax"
    """post_softmax: the local mask multiplies the weights (`keep`); pre_softmax: it hides keys."""
    biases: tuple[BiasSettings, ...] = ()
    """Added to the scores before the softmax; several are summed. In place of one of Adaptive
    Locality Attention, its own keys: `attn_variant`, `alpha_init` and so on (`source_keys`)."""
    ratio: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0
    """Cross-attention only: the offset of a bias is j − ratio·i, so ratio is keys for each query
    (ours)."""
    ratio_learnable: bool = False
    """Whether each layer learns its ratio, from `ratio` on."""
    path: Asked = "auto"
    """How attention is computed; a path that cannot compute this table is refused."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether `banded` is compiled before the softmax; auto: in trainings of 2,000 steps and more,
    where there is a C++ compiler."""
    dropout: Probability = 0.0
    """Dropout of attention weights; above 0 only the dense path is used."""
    prune: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """What a query's attention weights may lose in sum (ours): in evaluation on a CPU, keys too far
    away to weigh more are left out of texts of 1,536 tokens and more. None: nothing is."""


def head_table(attention: AttentionSettings, num_layers: int, num_heads: int) -> HeadTable:
    """Return the stack's head table; raises UserError when it does not fit the model."""
    is_pre_softmax = attention.mask_operator == "pre_softmax"
    if attention.heads is None:
        table = named_layout(attention.layout or "full", num_layers, num_heads)
        return replace(table, is_pre_softmax=is_pre_softmax)
    if attention.layout is not None:
        raise UserError("layout and heads are both given: keep one")
    table = HeadTable.parse(attention.heads, is_pre_softmax=is_pre_softmax)
    if (table.num_layers, table.num_heads) != (num_layers, num_heads):
        raise UserError(
            f"heads has {table.num_layers} rows x {table.num_heads} cells, the model "
            f"{num_layers} layers x {num_heads} heads"
        )
    return table


def case_of(attention: AttentionSettings, *, causal: bool = False, cross: bool = False) -> Case:
    """Return what the choice of a path depends on, as far as settings say it."""
    widths = [bias.width for bias in attention.biases if isinstance(bias, kinds.Window)]
    return Case(
        is_pre_softmax=attention.mask_operator == "pre_softmax",
        has_slopes=any(isinstance(bias, LINEAR) for bias in attention.biases),
        has_others=any(not isinstance(b, (*LINEAR, kinds.Window)) for b in attention.biases),
        window=min(widths, default=None),
        causal=causal,
        cross=cross,
        dropout=attention.dropout > 0,
    )


def check_masks(heads: Sequence[Head], *, is_pre_softmax: bool, causal: bool, cross: bool) -> None:
    """Raise UserError for a mask that has no effect or hides all."""
    local = [head for head in heads if head.is_local]
    if cross and local:
        raise UserError(f"head {local[0]}: cross-attention has no local masks")
    if is_pre_softmax and not local:
        raise UserError("mask_operator = 'pre_softmax': no head has a local mask, it does nothing")
    ahead = next((head for head in local if head.offsets()[0] > 0), None)
    if causal and ahead is not None:
        raise UserError(f"head {ahead}: sees nothing where attention is causal")


def check_attention(
    attention: AttentionSettings,
    table: HeadTable,
    max_length: int,
    *,
    causal: bool = False,
    cross: bool = False,
) -> None:
    """Raise UserError for a combination that is impossible or has no effect."""
    heads = [head for row in table.rows for head in row]
    check_masks(heads, is_pre_softmax=table.is_pre_softmax, causal=causal, cross=cross)
    for head in heads:
        _check_mask(head, max_length)
    case = case_of(attention, causal=causal, cross=cross)
    _check_ratio(attention, cross)
    _check_biases(attention, heads, max_length, case)
    check_path(attention.path, heads, case)
    if attention.prune is not None:
        check_prune(attention.path, heads, case)
        if max_length < PRUNE_FROM:
            raise UserError(f"prune: begins at {PRUNE_FROM} tokens, texts have {max_length}")
    if attention.compile == "on":
        starts = [compiled_from(row, case, attention.path) for row in table.rows]
        first = min((start for start in starts if start is not None), default=None)
        if first is None:
            raise UserError("compile = 'on': does nothing, no head is banded before the softmax")
        if first > max_length:
            raise UserError(
                f"compile = 'on': does nothing, `banded` begins at {first} tokens, texts have "
                f"{max_length}"
            )


def _check_mask(head: Head, max_length: int) -> None:
    if not head.is_local:
        return
    first, last = head.offsets()[0], head.offsets()[-1]
    if first >= max_length or last <= -max_length:
        raise UserError(f"head {head}: sees nothing within {max_length} tokens")
    if first < last and first <= 1 - max_length and last >= max_length - 1:
        raise UserError(f"head {head}: hides nothing within {max_length} tokens, write full")


def _check_biases(
    attention: AttentionSettings, heads: Sequence[Head], max_length: int, case: Case
) -> None:
    if attention.biases and case.is_pre_softmax and all(head.is_single_key for head in heads):
        raise UserError(
            f"biases: {attention.biases[0].kind} does nothing on pre-softmax heads of one key, "
            "and there are no others"
        )
    for bias in attention.biases:
        if isinstance(bias, kinds.T5Bias):
            bias.check(causal=case.causal)
        if isinstance(bias, kinds.MultiScaleDistBias) and not attention.ratio_learnable:
            reach = _farthest(attention, max_length) + 1
            bias.check(reach if case.window is None else min(reach, case.window))
    _check_window(attention, heads, max_length, case)


def _farthest(attention: AttentionSettings, max_length: int) -> int:
    """Return the largest offset: across two texts it is at most ratio·(max_length − 1)."""
    return math.ceil(max(1.0, attention.ratio) * (max_length - 1))


def _check_window(
    attention: AttentionSettings, heads: Sequence[Head], max_length: int, case: Case
) -> None:
    widths = sorted(bias.width for bias in attention.biases if isinstance(bias, kinds.Window))
    if not widths:
        return
    if len(widths) > 1:
        raise UserError(f"biases: window {widths[1]} does nothing beside window {widths[0]}")
    width = widths[0]
    if width == 1 and len(attention.biases) > 1:
        raise UserError("biases: window 1 leaves each query one key, others do nothing beside it")
    # A learned ratio has no end.
    if width > _farthest(attention, max_length) and not attention.ratio_learnable:
        raise UserError(f"biases: window {width} hides nothing in {max_length} tokens")
    if case.is_pre_softmax and all(head.is_local and head.k < width for head in heads):
        raise UserError(f"biases: window {width} hides nothing that the masks leave")
    for head in heads:
        if not head.is_local:
            continue
        seen = offsets(head, case)
        if not seen:
            raise UserError(f"head {head}: sees nothing beside window {width}")
        if seen == offsets(Head("full"), case):
            raise UserError(f"head {head}: hides nothing beside window {width}, write full")


def _check_ratio(attention: AttentionSettings, cross: bool) -> None:
    if not attention.ratio_learnable and attention.ratio == 1.0:
        return
    name = "ratio_learnable" if attention.ratio_learnable else "ratio"
    if not cross:
        raise UserError(f"{name}: does nothing in self-attention, whose offset is j - i")
    if not attention.biases:
        raise UserError(f"{name}: does nothing without biases")
    if attention.ratio_learnable:
        steep = next((b.kind for b in attention.biases if isinstance(b, kinds.KerplePower)), None)
        if steep is not None:
            raise UserError(f"ratio_learnable: the gradient of {steep} has no end at offset 0")
    blind = (kinds.Window, kinds.T5Bias)
    if attention.ratio_learnable and all(isinstance(bias, blind) for bias in attention.biases):
        raise UserError(f"ratio_learnable: {attention.biases[0].kind} passes it no gradient")
