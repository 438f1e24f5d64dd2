"""Exact parameter counts from settings alone, by formula, without building a model.

For: the `params` pipeline and the columns of every comparison. A test compares each count with the
built model. `encoder_attention` is what the source counts: Q, K, V and output projections of the
encoder's self-attention (Pande et al.); the parameters of distance biases stand apart.
"""

from __future__ import annotations

from ala_encoder.heads import HeadTable
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.biases import SHARED
from ala_encoder.settings.model import EncoderDecoderModel, EncoderModel, ModelSettings


def _linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return outputs * (inputs + bias)


def _norm(dim: int) -> int:
    return 2 * dim


def attention_parameters(table: HeadTable, dim: int, *, bias: bool) -> int:
    """Count Q, K, V and output projections of a stack of self-attention."""
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


def count(
    model: ModelSettings,
    attention: AttentionSettings,
    table: HeadTable,
    vocab_size: int,
    num_labels: int | None = None,
) -> dict[str, int]:
    """Return the counts of a model by part.

    `total` is that of the pretraining form, or of a classifier when `num_labels` is given.
    """
    attention_count = attention_parameters(table, model.dim, bias=model.attention_bias)
    counts = {
        "encoder_attention": attention_count,
        "encoder_bias": bias_parameters(attention, table, model.dim),
        "qk_groups": table.num_groups,
        "embeddings": vocab_size * model.dim,
    }
    ffn = _linear(model.dim, model.ffn_dim) + _linear(model.ffn_dim, model.dim)
    stack = attention_count + counts["encoder_bias"]
    stack += model.num_layers * (ffn + 2 * _norm(model.dim))
    stack += _norm(model.dim) if model.norm == "pre" else 0
    if isinstance(model, EncoderModel):
        return counts | _encoder_total(model, stack, vocab_size, num_labels)
    return counts | _encoder_decoder_total(model, stack, ffn, vocab_size)


def _encoder_total(
    model: EncoderModel, stack: int, vocab_size: int, num_labels: int | None
) -> dict[str, int]:
    positions = model.max_length if model.positions == "learned" else 0
    embeddings = (vocab_size + positions + 2) * model.dim + _norm(model.dim)
    head = _linear(model.dim, model.dim) + _norm(model.dim) + vocab_size
    pooler = _linear(model.dim, model.dim)
    if num_labels is not None:
        head = pooler + _linear(model.dim, num_labels)
    return {
        "encoder": embeddings + stack,
        "encoder_with_pooler": embeddings + stack + pooler,
        "total": embeddings + stack + head,
    }


def _encoder_decoder_total(
    model: EncoderDecoderModel, stack: int, ffn: int, vocab_size: int
) -> dict[str, int]:
    own = 4 * _linear(model.dim, model.dim, model.attention_bias)
    layer = 2 * own + ffn + 3 * _norm(model.dim)
    decoder = model.num_decoder_layers * layer + (_norm(model.dim) if model.norm == "pre" else 0)
    return {
        "encoder": stack,
        "decoder": decoder,
        "total": vocab_size * model.dim + stack + decoder,
    }
