"""Marian (Junczys-Dowmunt et al. 2018, arXiv:1804.00344), as `transformers` holds OPUS-MT models:
post-norm, sinusoids, one vocabulary, a bias of each logit.
"""

from __future__ import annotations

from ala_encoder.hub.family import Family
from ala_encoder.hub.weights import Row
from ala_encoder.settings.model import EncoderDecoderModel


def _attention(theirs: str, ours: str, bank: str, section: str) -> tuple[Row, ...]:
    block = bank + ".projections.{block}."
    return (
        Row(block + "q_proj", theirs + ".q_proj", "attention", "d d", section),
        Row(block + "k_proj", theirs + ".k_proj", "attention", "d d", section),
        Row(ours + ".v_proj", theirs + ".v_proj", "attention", "d d", section),
        Row(ours + ".out_proj", theirs + ".out_proj", "attention", "d d", section),
    )


def _layers(section: str) -> tuple[Row, ...]:
    """Return the rows of a stack's self-attention and feed-forward layers."""
    here = section + ".layers.{n}."
    return (
        *_attention(here + "self_attn", here + "attention", section + ".bank", section),
        Row(here + "attention_norm", here + "self_attn_layer_norm", "norm", "d", section),
        Row(here + "ffn.in_proj", here + "fc1", "linear", "ffn d", section),
        Row(here + "ffn.out_proj", here + "fc2", "linear", "d ffn", section),
        Row(here + "ffn_norm", here + "final_layer_norm", "norm", "d", section),
    )


_HERE = "decoder.layers.{n}."

_MAP = (
    Row("vocabulary.weight", "shared.weight", "tensor", "vocab d"),
    *_layers("encoder"),
    *_layers("decoder"),
    *_attention(_HERE + "encoder_attn", _HERE + "cross_attention", "decoder.cross_bank", "cross"),
    Row(_HERE + "cross_norm", _HERE + "encoder_attn_layer_norm", "norm", "d", "cross"),
    Row("output_bias", "final_logits_bias", "tensor", "vocab", layout="row"),
)

FAMILY = Family(
    name="Marian",
    config="MarianConfig",
    model=EncoderDecoderModel,
    parts={"model": _MAP},
    forms={"seq2seq": ("model",)},
    prefix="model.",
    outside=("final_logits_bias", "lm_head."),
    tied=dict.fromkeys(
        ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
        "shared.weight",
    ),
    sines={"encoder.embed_positions.weight": "d", "decoder.embed_positions.weight": "d"},
    fields={
        "vocab_size": ("vocab_size", "decoder_vocab_size"),
        "dim": "d_model",
        "num_layers": "encoder_layers",
        "num_decoder_layers": "decoder_layers",
        "num_heads": ("encoder_attention_heads", "decoder_attention_heads"),
        "ffn_dim": ("encoder_ffn_dim", "decoder_ffn_dim"),
        "activation": "activation_function",
        "dropout": "dropout",
        "init_std": "init_std",
    },
    ours={
        "family": "encoder_decoder",
        "positions": "sinusoidal",
        "norm": "post",
        "normalization": "layer_norm",
        "attention_bias": True,
        "layer_norm_eps": 1e-5,
        "output_bias": True,
    },
    theirs={
        "scale_embedding": (True,),
        "share_encoder_decoder_embeddings": (True,),
        "tie_word_embeddings": (True,),
        "is_decoder": (False,),
        "activation_dropout": (0.0,),
        "encoder_layerdrop": (0.0,),
        "decoder_layerdrop": (0.0,),
        # Of files that were made when BART's class read them; a converted model has these values.
        "static_position_embeddings": (True,),
        "normalize_before": (False,),
        "normalize_embedding": (False,),
        "add_final_layer_norm": (False,),
    },
    free=frozenset({"attention_bias"}),
    attention_dropout="attention_dropout",
)
