"""T5, version 1.0 (Raffel et al. 2020, arXiv:1910.10683): pre-norm, RMS norms, relative biases.

Its scores are not divided by sqrt(head_dim): q is multiplied by it here. Its last hidden state is
multiplied by dim^-.5 before the tied matrix: so is the weight of the decoder's last norm here.
Where these are no powers of two, they cost a rounding. Its feed-forward layers have no biases: ours
are 0 when they come from there, and must be to go there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ala_encoder.errors import UserError
from ala_encoder.hub.family import Biases, Family
from ala_encoder.hub.weights import Row
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.biases import T5Bias
from ala_encoder.settings.loader import check
from ala_encoder.settings.model import EncoderDecoderModel


def _attention(theirs: str, ours: str, bank: str, section: str) -> tuple[Row, ...]:
    q, k = (bank + ".projections.{block}." + name for name in ("q_proj.weight", "k_proj.weight"))
    return (
        Row(q, theirs + ".q.weight", "tensor", "d d", section, scale=("head", 0.5)),
        Row(k, theirs + ".k.weight", "tensor", "d d", section),
        Row(ours + ".v_proj.weight", theirs + ".v.weight", "tensor", "d d", section),
        Row(ours + ".out_proj.weight", theirs + ".o.weight", "tensor", "d d", section),
    )


def _stack(section: str, ffn: int) -> tuple[Row, ...]:
    """Return the rows of a stack but for cross-attention; `ffn` is the place of feed-forward."""
    ours, theirs = section + ".layers.{n}.", section + ".block.{n}.layer."
    bias = section + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    dense = f"{theirs}{ffn}.DenseReluDense"
    return (
        Row(section + ".biases.0.table.weight", bias, "tensor", "buckets heads", section),
        *_attention(theirs + "0.SelfAttention", ours + "attention", section + ".bank", section),
        Row(ours + "attention_norm.weight", theirs + "0.layer_norm.weight", "tensor", "d", section),
        Row(ours + "ffn.in_proj.weight", dense + ".wi.weight", "tensor", "ffn d", section),
        Row(ours + "ffn.in_proj.bias", "", "tensor", "ffn", section),
        Row(ours + "ffn.out_proj.weight", dense + ".wo.weight", "tensor", "d ffn", section),
        Row(ours + "ffn.out_proj.bias", "", "tensor", "d", section),
        Row(ours + "ffn_norm.weight", f"{theirs}{ffn}.layer_norm.weight", "tensor", "d", section),
    )


_OURS, _THEIRS = "decoder.layers.{n}.cross_", "decoder.block.{n}.layer.1."
_NORM = "final_layer_norm.weight"

_MAP = (
    Row("vocabulary.weight", "shared.weight", "tensor", "vocab d"),
    *_stack("encoder", 1),
    Row("encoder.norm.weight", "encoder." + _NORM, "tensor", "d"),
    *_stack("decoder", 2),
    *_attention(_THEIRS + "EncDecAttention", _OURS + "attention", "decoder.cross_bank", "cross"),
    Row(_OURS + "norm.weight", _THEIRS + "layer_norm.weight", "tensor", "d", "cross"),
    Row("decoder.norm.weight", "decoder." + _NORM, "tensor", "d", scale=("d", -0.5)),
)


def _read(config: Any) -> dict[str, Any]:
    if config.d_kv * config.num_heads != config.d_model:
        raise UserError(
            f"d_kv = {config.d_kv}: times num_heads {config.num_heads} it must be d_model "
            f"{config.d_model}"
        )
    # Files may hold what follows from feed_forward_proj, and then it counts.
    if config.is_gated_act or config.dense_act_fn != config.feed_forward_proj:
        raise UserError(
            f"feed_forward_proj = {config.feed_forward_proj!r}: with is_gated_act = "
            f"{config.is_gated_act} and dense_act_fn = {config.dense_act_fn!r}, allowed is an "
            "activation alone"
        )
    return {}


def _biases(config: Any) -> Biases:
    fields = {
        "num_buckets": config.relative_attention_num_buckets,
        "max_distance": config.relative_attention_max_distance,
    }
    bias = check({"kind": "t5", **fields}, T5Bias)
    return {"encoder": (bias,), "decoder": (bias,)}


def _write(model: Any, attention: Mapping[str, AttentionSettings]) -> dict[str, Any]:
    fields = {"d_kv": model.dim // model.num_heads}
    bias = next(iter(attention["encoder"].biases), None)
    if isinstance(bias, T5Bias):
        fields["relative_attention_num_buckets"] = bias.num_buckets
        fields["relative_attention_max_distance"] = bias.max_distance
    return fields


def _sizes(attention: Mapping[str, AttentionSettings]) -> dict[str, int]:
    bias = attention["encoder"].biases[0]
    assert isinstance(bias, T5Bias)
    return {"buckets": bias.num_buckets}


FAMILY = Family(
    name="T5",
    config="T5Config",
    model=EncoderDecoderModel,
    parts={"model": _MAP},
    forms={"seq2seq": ("model",)},
    tied=dict.fromkeys(
        ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
        "shared.weight",
    ),
    # Of the first files; cross-attention reads it nowhere.
    ignored=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    fields={
        "vocab_size": "vocab_size",
        "dim": "d_model",
        "num_layers": "num_layers",
        "num_decoder_layers": "num_decoder_layers",
        "num_heads": "num_heads",
        "ffn_dim": "d_ff",
        "activation": "feed_forward_proj",
        "dropout": "dropout_rate",
        "layer_norm_eps": "layer_norm_epsilon",
    },
    ours={
        "family": "encoder_decoder",
        "positions": "none",
        "norm": "pre",
        "normalization": "rms_norm",
        "attention_bias": False,
        "output_bias": False,
    },
    theirs={
        "scale_decoder_outputs": (True,),
        "tie_word_embeddings": (True,),
        "is_decoder": (False,),
        "is_encoder_decoder": (True,),
    },
    free=frozenset({"init_std"}),
    keys=("is_gated_act", "dense_act_fn"),
    read=_read,
    biases=_biases,
    write=_write,
    sizes=_sizes,
)
