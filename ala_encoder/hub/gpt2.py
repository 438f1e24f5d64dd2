"""GPT-2 (Radford et al. 2019): its matrices lie transposed, one holds q, k and v."""

from __future__ import annotations

from functools import partial

from ala_encoder.hub.family import Family
from ala_encoder.hub.weights import Row
from ala_encoder.settings.model import CausalModel

_OURS, _BANK, _THEIRS = "stack.layers.{n}.", "stack.bank.projections.{block}.", "h.{n}."

_QKV = (_BANK + "q_proj", _BANK + "k_proj", _OURS + "attention.v_proj")

_conv = partial(Row, layout="transposed")

_MAP = (
    Row("vocabulary.weight", "wte.weight", "tensor", "vocab d"),
    Row("positions.embedding.weight", "wpe.weight", "tensor", "length d"),
    Row(_OURS + "attention_norm", _THEIRS + "ln_1", "norm", "d"),
    _conv(_QKV, _THEIRS + "attn.c_attn", "attention", "d d"),
    _conv(_OURS + "attention.out_proj", _THEIRS + "attn.c_proj", "attention", "d d"),
    Row(_OURS + "ffn_norm", _THEIRS + "ln_2", "norm", "d"),
    _conv(_OURS + "ffn.in_proj", _THEIRS + "mlp.c_fc", "linear", "ffn d"),
    _conv(_OURS + "ffn.out_proj", _THEIRS + "mlp.c_proj", "linear", "d ffn"),
    Row("stack.norm", "ln_f", "norm", "d"),
    Row("output.weight", "lm_head.weight", "tensor", "vocab d", unless="tied_embeddings"),
)

FAMILY = Family(
    name="GPT-2",
    config="GPT2Config",
    model=CausalModel,
    parts={"model": _MAP},
    forms={"causal_lm": ("model",)},
    prefix="transformer.",
    outside=("lm_head.",),
    tied={"lm_head.weight": "wte.weight"},
    ignored=r"h\.\d+\.attn\.(bias|masked_bias)",  # buffers: the causal mask
    fields={
        "vocab_size": "vocab_size",
        "dim": "n_embd",
        "num_layers": "n_layer",
        "num_heads": "n_head",
        "max_length": "n_positions",
        "activation": "activation_function",
        "dropout": ("resid_pdrop", "embd_pdrop"),
        "layer_norm_eps": "layer_norm_epsilon",
        "init_std": "initializer_range",
        "tied_embeddings": "tie_word_embeddings",
    },
    ours={
        "family": "causal",
        "positions": "learned",
        "norm": "pre",
        "normalization": "layer_norm",
        "attention_bias": True,
        "embedding_norm": False,
    },
    theirs={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    free=frozenset({"attention_bias"}),
    attention_dropout="attn_pdrop",
    read=lambda config: {
        "ffn_dim": 4 * config.n_embd if config.n_inner is None else config.n_inner
    },
    write=lambda model, attention: {"n_inner": model.ffn_dim},
)
