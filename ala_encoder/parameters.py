"""Exact parameter counts from settings alone, by formula, without building a model.

For: the `params` pipeline and the columns of every comparison. A test compares each count with the
built model. `encoder_attention` is what the source counts: Q, K, V and output projections of the
encoder's self-attention (Pande et al.); the parameters of distance biases stand apart.
"""

from __future__ import annotations

from collections.abc import Mapping

from ala_encoder.heads import HeadTable
from ala_encoder.settings.attention import AttentionSettings, head_table
from ala_encoder.settings.biases import SHARED
from ala_encoder.settings.model import (
    CausalModel,
    EncoderDecoderModel,
    EncoderModel,
    ModelSettings,
    Transformer,
)


def _linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return outputs * (inputs + bias)


def _norm(model: Transformer) -> int:
    return model.dim * (2 if model.normalization == "layer_norm" else 1)


def attention_parameters(table: HeadTable, dim: int, *, bias: bool) -> int:
    """Count Q, K, V and output projections of one attention of every layer of a stack."""
    head_dim = dim // table.num_heads
    shared = 2 * table.num_groups * _linear(dim, head_dim, bias)
    return shared + table.num_layers * 2 * _linear(dim, dim, bias)


def bias_parameters(attention: AttentionSettings, table: HeadTable, dim: int) -> int:
    """Count the parameters of a stack's biases: some are there once, the others in every layer."""
    ratios = table.num_layers * attention.ratio_learnable
    return ratios + sum(
        bias.num_parameters(dim, table.num_heads)
        * (1 if isinstance(bias, SHARED) else table.num_layers)
        for bias in attention.biases
    )


def heads_without_qk(tables: Mapping[str, HeadTable]) -> dict[str, list[str]]:
    """Name by section the heads that have no Q and K, such as `encoder layer 2 head 1 prev1`.

    These are pre-softmax heads of one key, whose weight is 1 whatever the score. Layers and heads
    are counted from 0, as in the keys of weights.
    """
    return {
        section: [
            f"{section} layer {layer} head {column} {head}"
            for layer, row in enumerate(table.rows)
            for column, head in enumerate(row)
            if not table.has_scores(head)
        ]
        for section, table in tables.items()
    }


def count(
    model: ModelSettings,
    attention: Mapping[str, AttentionSettings | None],
    vocab_size: int,
    num_labels: int | None = None,
) -> dict[str, int]:
    """Return the counts of a model by part.

    attention: the settings by section; None or left out: plain. For each section there are the
    counts of its projections and of its biases; `qk_groups` is of the first section. `total` is
    that of the pretraining form, or of a classifier when `num_labels` is given.
    """
    counts: dict[str, int] = {}
    for section in model.sections:
        settings = attention.get(section) or AttentionSettings()
        table = head_table(settings, model.layers_of(section), model.num_heads)
        counts |= {
            f"{section}_attention": attention_parameters(
                table, model.dim, bias=model.attention_bias
            ),
            f"{section}_bias": bias_parameters(settings, table, model.dim),
        }
        counts.setdefault("qk_groups", table.num_groups)
    counts["embeddings"] = vocab_size * model.dim
    if isinstance(model, EncoderModel):
        return counts | _encoder(model, counts, vocab_size, num_labels)
    if isinstance(model, CausalModel):
        return counts | _causal(model, counts)
    return counts | _encoder_decoder(model, counts, vocab_size)


def _stack(model: Transformer, counts: Mapping[str, int], *sections: str) -> int:
    """Count a stack whose layers have the attention of these sections."""
    ffn = _linear(model.dim, model.ffn_dim) + _linear(model.ffn_dim, model.dim)
    layer = ffn + (1 + len(sections)) * _norm(model)
    total = model.layers_of(sections[0]) * layer + _norm(model) * (model.norm == "pre")
    return total + sum(counts[f"{name}_attention"] + counts[f"{name}_bias"] for name in sections)


def _positions(model: Transformer) -> int:
    return (model.max_length or 0) * model.dim if model.positions == "learned" else 0


def _encoder(
    model: EncoderModel, counts: Mapping[str, int], vocab_size: int, num_labels: int | None
) -> dict[str, int]:
    types = 2 * model.dim
    encoder = counts["embeddings"] + _positions(model) + types + _norm(model)
    encoder += _stack(model, counts, "encoder")
    head = _linear(model.dim, model.dim) + _norm(model) + vocab_size
    pooler = _linear(model.dim, model.dim)
    if num_labels is not None:
        head = pooler + _linear(model.dim, num_labels)
    return {
        "encoder": encoder,
        "encoder_with_pooler": encoder + pooler,
        "total": encoder + head,
    }


def _causal(model: CausalModel, counts: Mapping[str, int]) -> dict[str, int]:
    parts = {
        "positions": _positions(model),
        "decoder_stack": _stack(model, counts, "decoder"),
        "output": 0 if model.tied_embeddings else counts["embeddings"],
    }
    norm = _norm(model) * model.embedding_norm
    return parts | {"total": counts["embeddings"] + norm + sum(parts.values())}


def _encoder_decoder(
    model: EncoderDecoderModel, counts: Mapping[str, int], vocab_size: int
) -> dict[str, int]:
    parts = {
        "positions": 2 * _positions(model),
        "encoder_stack": _stack(model, counts, "encoder"),
        "decoder_stack": _stack(model, counts, "decoder", "cross"),
        "output": vocab_size * model.output_bias,
    }
    return parts | {"total": counts["embeddings"] + sum(parts.values())}
