"""BERT (Devlin et al. 2019, arXiv:1810.04805): bare, with its masked-language-model head, or with a
classifier on the pooler.
"""

from __future__ import annotations

from ala_encoder.hub.family import Family
from ala_encoder.hub.weights import Row
from ala_encoder.settings.model import EncoderModel

_OURS, _BANK = "encoder.stack.layers.{n}.", "encoder.stack.bank.projections.{block}."
_THEIRS = "encoder.layer.{n}."
_WORDS, _POSITIONS, _TYPES = (
    f"embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type")
)

ENCODER = (
    Row("encoder.vocabulary.weight", _WORDS, "tensor", "vocab d"),
    Row("encoder.positions.embedding.weight", _POSITIONS, "tensor", "length d"),
    Row("encoder.token_types.weight", _TYPES, "tensor", "types d"),
    Row("encoder.norm", "embeddings.LayerNorm", "norm", "d"),
    Row(_BANK + "q_proj", _THEIRS + "attention.self.query", "attention", "d d"),
    Row(_BANK + "k_proj", _THEIRS + "attention.self.key", "attention", "d d"),
    Row(_OURS + "attention.v_proj", _THEIRS + "attention.self.value", "attention", "d d"),
    Row(_OURS + "attention.out_proj", _THEIRS + "attention.output.dense", "attention", "d d"),
    Row(_OURS + "attention_norm", _THEIRS + "attention.output.LayerNorm", "norm", "d"),
    Row(_OURS + "ffn.in_proj", _THEIRS + "intermediate.dense", "linear", "ffn d"),
    Row(_OURS + "ffn.out_proj", _THEIRS + "output.dense", "linear", "d ffn"),
    Row(_OURS + "ffn_norm", _THEIRS + "output.LayerNorm", "norm", "d"),
)

HEAD = (
    Row("head.proj", "cls.predictions.transform.dense", "linear", "d d"),
    Row("head.norm", "cls.predictions.transform.LayerNorm", "norm", "d"),
    Row("head.output_bias", "cls.predictions.bias", "tensor", "vocab"),
)

FAMILY = Family(
    name="BERT",
    config="BertConfig",
    model=EncoderModel,
    parts={
        "encoder": ENCODER,
        "pooler": (Row("pooler", "pooler.dense", "linear", "d d"),),
        "head": HEAD,
        "classifier": (Row("classifier", "classifier", "linear", "labels d"),),
    },
    forms={
        "encoder": ("encoder",),
        "masked_lm": ("encoder", "head"),
        "classifier": ("encoder", "pooler", "classifier"),
    },
    prefix="bert.",
    outside=("cls.", "classifier."),
    tied={
        "cls.predictions.decoder.weight": _WORDS,
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    # A buffer, the head of next-sentence prediction, and the pooler where no classifier is read.
    ignored=r"embeddings\.position_ids|cls\.seq_relationship\.(weight|bias)"
    r"|pooler\.dense\.(weight|bias)",
    fields={
        "vocab_size": "vocab_size",
        "dim": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "ffn_dim": "intermediate_size",
        "max_length": "max_position_embeddings",
        "activation": "hidden_act",
        "dropout": "hidden_dropout_prob",
        "layer_norm_eps": "layer_norm_eps",
        "init_std": "initializer_range",
    },
    ours={
        "family": "encoder",
        "positions": "learned",
        "norm": "post",
        "normalization": "layer_norm",
        "attention_bias": True,
    },
    theirs={
        "position_embedding_type": ("absolute", None),
        "type_vocab_size": (2,),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
    free=frozenset({"attention_bias", "pooling"}),
    attention_dropout="attention_probs_dropout_prob",
)
