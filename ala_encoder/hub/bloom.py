"""Bloom (Le Scao et al. 2022, arXiv:2211.05100): ALiBi, a norm of the embeddings, and one matrix
that holds q, k and v head by head.

Its bias is slope · j where ours is −slope · (i − j): the two differ by a constant of the row, which
no softmax sees.
"""

from __future__ import annotations

from ala_encoder.hub.family import Family
from ala_encoder.hub.weights import Row
from ala_encoder.settings.biases import Alibi
from ala_encoder.settings.model import CausalModel

_OURS, _BANK, _THEIRS = "stack.layers.{n}.", "stack.bank.projections.{block}.", "h.{n}."

_QKV = (_BANK + "q_proj", _BANK + "k_proj", _OURS + "attention.v_proj")

_MAP = (
    Row("vocabulary.weight", "word_embeddings.weight", "tensor", "vocab d"),
    Row("embedding_norm", "word_embeddings_layernorm", "norm", "d"),
    Row(_OURS + "attention_norm", _THEIRS + "input_layernorm", "norm", "d"),
    Row(_QKV, _THEIRS + "self_attention.query_key_value", "attention", "d d", by_head=True),
    Row(_OURS + "attention.out_proj", _THEIRS + "self_attention.dense", "attention", "d d"),
    Row(_OURS + "ffn_norm", _THEIRS + "post_attention_layernorm", "norm", "d"),
    Row(_OURS + "ffn.in_proj", _THEIRS + "mlp.dense_h_to_4h", "linear", "ffn d"),
    Row(_OURS + "ffn.out_proj", _THEIRS + "mlp.dense_4h_to_h", "linear", "d ffn"),
    Row("stack.norm", "ln_f", "norm", "d"),
    Row("output.weight", "lm_head.weight", "tensor", "vocab d", unless="tied_embeddings"),
)

FAMILY = Family(
    name="Bloom",
    config="BloomConfig",
    model=CausalModel,
    parts={"model": _MAP},
    forms={"causal_lm": ("model",)},
    prefix="transformer.",
    outside=("lm_head.",),
    tied={"lm_head.weight": "word_embeddings.weight"},
    fields={
        "vocab_size": "vocab_size",
        "dim": "hidden_size",
        "num_layers": "n_layer",
        "num_heads": "n_head",
        "dropout": "hidden_dropout",
        "layer_norm_eps": "layer_norm_epsilon",
        "init_std": "initializer_range",
        "tied_embeddings": "tie_word_embeddings",
    },
    ours={
        "family": "causal",
        "positions": "none",
        "norm": "pre",
        "normalization": "layer_norm",
        "activation": "gelu_tanh",
        "attention_bias": True,
        "embedding_norm": True,
    },
    theirs={
        "apply_residual_connection_post_layernorm": (False,),
        # It leaves out the biases of two matrices.
        "slow_but_exact": (False,),
    },
    free=frozenset({"attention_bias"}),
    attention_dropout="attention_dropout",
    keys=("n_embed",),
    read=lambda config: {"ffn_dim": 4 * config.hidden_size},
    biases=lambda config: {"decoder": (Alibi(kind="alibi", slopes="press"),)},
)
