"""Weights and configurations of Hugging Face BERT, in and out.

For: one declarative map from our parameter names to those of `transformers`, used by import, export
and the parity tests alike. Not for: the project's own exports (`export`), tokenizers (`tokenizer`).

The only place that knows Hugging Face classes. What a plain BERT cannot express (pre-norm, local
masks, distance biases) is refused: it would load there and answer wrongly without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ala_encoder.banks import say_dropped
from ala_encoder.errors import UserError
from ala_encoder.files import read_json
from ala_encoder.heads import HeadTable
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.experiment import check_stack
from ala_encoder.settings.loader import check
from ala_encoder.settings.model import EncoderModel

if TYPE_CHECKING:
    from transformers import BertConfig

Form = Literal["encoder", "masked_lm", "classifier"]
State = dict[str, Tensor]


@dataclass(frozen=True)
class Row:
    """One line of the map: our name, theirs, what stands under the two, and the weight's sizes.

    kind: `tensor` one array; `linear` weight and bias; `norm` weight and bias, both one vector;
    `attention` a linear whose bias ours may lack (attention_bias); `bank` likewise, with our rows
    found through the head table. {n} is the layer, and the block of the bank in our `bank` names.
    """

    ours: str
    theirs: str
    kind: Literal["tensor", "linear", "norm", "attention", "bank"]
    sizes: str


_LAYER, _BANK = "encoder.stack.layers.{n}.", "encoder.stack.bank.projections.{n}."
_BERT = "encoder.layer.{n}."

BERT_MAP: dict[str, tuple[Row, ...]] = {
    "encoder": (
        Row("encoder.vocabulary.weight", "embeddings.word_embeddings.weight", "tensor", "vocab d"),
        Row(
            "encoder.positions.embedding.weight",
            "embeddings.position_embeddings.weight",
            "tensor",
            "length d",
        ),
        Row(
            "encoder.token_types.weight",
            "embeddings.token_type_embeddings.weight",
            "tensor",
            "types d",
        ),
        Row("encoder.norm", "embeddings.LayerNorm", "norm", "d"),
        Row(_BANK + "q_proj", _BERT + "attention.self.query", "bank", "d d"),
        Row(_BANK + "k_proj", _BERT + "attention.self.key", "bank", "d d"),
        Row(_LAYER + "attention.v_proj", _BERT + "attention.self.value", "attention", "d d"),
        Row(_LAYER + "attention.out_proj", _BERT + "attention.output.dense", "attention", "d d"),
        Row(_LAYER + "attention_norm", _BERT + "attention.output.LayerNorm", "norm", "d"),
        Row(_LAYER + "ffn.in_proj", _BERT + "intermediate.dense", "linear", "ffn d"),
        Row(_LAYER + "ffn.out_proj", _BERT + "output.dense", "linear", "d ffn"),
        Row(_LAYER + "ffn_norm", _BERT + "output.LayerNorm", "norm", "d"),
    ),
    "pooler": (Row("pooler", "pooler.dense", "linear", "d d"),),
    "head": (
        Row("head.proj", "cls.predictions.transform.dense", "linear", "d d"),
        Row("head.norm", "cls.predictions.transform.LayerNorm", "norm", "d"),
        Row("head.output_bias", "cls.predictions.bias", "tensor", "vocab"),
    ),
    "classifier": (Row("classifier", "classifier", "linear", "labels d"),),
}
"""Every parameter of BERT by the part it belongs to, with the names of a bare `BertModel`.

Models with a head put `bert.` before the names of encoder and pooler.
"""

_FORMS: dict[str, tuple[str, ...]] = {
    "encoder": ("encoder",),
    "masked_lm": ("encoder", "head"),
    "classifier": ("encoder", "pooler", "classifier"),
}
_PREFIX, _PREFIXED = "bert.", ("embeddings.", "encoder.", "pooler.")

_TIED = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""Duplicates that some checkpoints hold: left out after a look that they are equal."""

_IGNORED = re.compile(r"embeddings\.position_ids|cls\.seq_relationship\.(weight|bias)")
"""A buffer, and the head of next-sentence prediction, which no model here has."""

_OLD_NAMES = {"gamma": "weight", "beta": "bias"}
"""What the first checkpoints, bert-base-uncased among them, call the parts of a layer norm."""


def bert_config(model: EncoderModel, vocab_size: int, attention_dropout: float = 0.0) -> BertConfig:
    """Return the BertConfig of the same architecture; raises UserError for a pre-norm model."""
    from transformers import BertConfig

    _check_plain(model)
    theirs = {their_name: getattr(model, name) for name, their_name in _CONFIG.items()}
    return BertConfig(
        vocab_size=vocab_size,
        hidden_act="gelu",
        type_vocab_size=2,
        attention_probs_dropout_prob=attention_dropout,
        **theirs,
    )


def to_bert(
    state: Mapping[str, Tensor], model: EncoderModel, attention: AttentionSettings, head: Form
) -> State:
    """Return copies of our parameters under the names of Hugging Face's BERT.

    head: `masked_lm` gives BertForMaskedLM, `classifier` BertForSequenceClassification, `encoder` a
    BertModel without pooler. Heads that share a Q/K group each get a copy of it; attention biases
    that the model lacks become zeros. As in files that `transformers` writes, the tied output
    matrix is there once: cls.predictions.decoder is left out.

    Raises UserError for what BERT cannot express (pre-norm, local masks, biases of the scores) and
    for missing, left-over or misshapen parameters.
    """
    _check_plain(model)
    table = check_stack(model, attention, model.max_length)
    if not table.is_full:
        local = next(cell for row in table.rows for cell in row if cell.is_local)
        raise UserError(f"export to BERT: it has no local masks, the table has {local}")
    if attention.biases:
        kind = attention.biases[0].kind
        raise UserError(f"export to BERT: it has no biases of the scores, the model has {kind}")
    entries = _entries(model, table, _FORMS[head], state)
    lacking = {e.theirs for e in entries if e.is_attention_bias and not model.attention_bias}
    wanted = {piece.name for e in entries if e.theirs not in lacking for piece in e.kept}
    _check_names("export to BERT", set(state), wanted)
    like = state["encoder.vocabulary.weight"]
    bert: State = {}
    for entry in entries:
        pieces = [
            state[piece.name].detach().tensor_split(piece.of)[piece.index]
            for piece in entry.kept
            if entry.theirs not in lacking
        ]
        tensor = torch.cat(pieces) if pieces else like.new_zeros(entry.shape)
        _check_shape("export to BERT", entry.kept[0].name, tensor, entry.shape)
        is_prefixed = head != "encoder" and entry.theirs.startswith(_PREFIXED)
        bert[_PREFIX * is_prefixed + entry.theirs] = tensor
    return bert


def from_bert(
    state: Mapping[str, Tensor], model: EncoderModel, attention: AttentionSettings, head: Form
) -> State:
    """Return copies of a Hugging Face BERT's parameters under our names, for a strict load.

    state: named as in BertForMaskedLM or BertForSequenceClassification, or as in a bare BertModel
    (no `bert.` in front), which `encoder` reads. Left out without notice are `position_ids`, the
    next-sentence head, a pooler where `head` has none, and `cls.predictions.decoder` where it
    equals what it is tied to. Local masks have no parameters, so a model that has them can start
    from BERT; the parameters of distance biases are not in the result.

    Raises UserError that lists missing and left-over keys, and for wrong shapes, an untied output
    matrix, heads that differ though `attention` lets them share one Q/K group, attention biases the
    model has no place for, and a pre-norm model.
    """
    return _import(_bare_names(state), model, attention, _FORMS[head])


def load_bert(
    folder: Path, attention: AttentionSettings | None = None
) -> tuple[EncoderModel, int, State]:
    """Read a Hugging Face folder (config.json, model.safetensors): (model, vocab_size, state).

    state: our names, as from `from_bert`: the encoder, and `pooler.`, `head.` and `classifier.`
    where the checkpoint has them. attention: of the model to fill; None: plain BERT. Dropout of
    attention weights and of the classifier is not taken over, our settings decide it.

    Raises UserError when a file is missing or broken (pickles are never read), for a configuration
    that is not a BERT encoder as it is here, and as `from_bert`.
    """
    model, vocab_size = _read_config(folder / "config.json")
    state = _bare_names(_read_safetensors(folder / "model.safetensors"))
    parts = [
        part
        for part, rows in BERT_MAP.items()
        if part == "encoder" or any(name.startswith(rows[0].theirs) for name in state)
    ]
    words = "embeddings.word_embeddings.weight"
    if words in state:
        _check_shape(str(folder), words, state[words], (vocab_size, model.dim))
    return model, vocab_size, _import(state, model, attention or AttentionSettings(), parts)


# ---------------------------------------------------------------------------------------------
# The map, written out for a model
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Piece:
    """Part `index` of the `of` equal parts of our tensor `name`, cut along the outputs."""

    name: str
    index: int = 0
    of: int = 1


@dataclass(frozen=True)
class _Entry:
    """One tensor of theirs and the pieces of ours that it consists of, one below the other."""

    theirs: str
    shape: tuple[int, ...]
    pieces: tuple[_Piece | None, ...]
    """None: rows of theirs that ours has no place for."""
    is_attention_bias: bool

    @property
    def kept(self) -> list[_Piece]:
        return [piece for piece in self.pieces if piece is not None]


def _entries(
    model: EncoderModel, table: HeadTable, parts: Iterable[str], state: Mapping[str, Tensor]
) -> list[_Entry]:
    """List every tensor of the parts; sizes the settings do not hold are read off `state`."""
    sizes = {"d": model.dim, "ffn": model.ffn_dim, "length": model.max_length, "types": 2}
    sizes["vocab"] = _rows(state, BERT_MAP["encoder"][0], "")
    sizes["labels"] = _rows(state, BERT_MAP["classifier"][0], ".weight")
    entries = []
    for row in (row for part in parts for row in BERT_MAP[part]):
        weight = tuple(sizes[size] for size in row.sizes.split())
        tensors = {".weight": weight, ".bias": weight[:1]} if row.kind != "tensor" else {"": weight}
        for layer in range(model.num_layers if "{n}" in row.theirs else 1):
            for suffix, shape in tensors.items():
                name = row.ours + suffix
                pieces: list[_Piece | None] = [_Piece(name.format(n=layer))]
                if row.kind == "bank":
                    pieces = _bank_pieces(name, table, layer)
                is_attention_bias = row.kind in ("attention", "bank") and suffix == ".bias"
                theirs = row.theirs.format(n=layer) + suffix
                entries.append(_Entry(theirs, shape, tuple(pieces), is_attention_bias))
    return entries


def _rows(state: Mapping[str, Tensor], row: Row, suffix: str) -> int:
    """Return the first size of the row's tensor, by our name or theirs; 0 where it is missing."""
    names = (row.ours + suffix, row.theirs + suffix)
    return next((len(state[name]) for name in names if name in state and state[name].dim()), 0)


def _bank_pieces(name: str, table: HeadTable, layer: int) -> list[_Piece | None]:
    """Find the rows of every head of `layer` in the bank; None: the head has no Q and K."""
    return [
        None
        if place is None
        else _Piece(name.format(n=place[0]), place[1], table.blocks[place[0]].num_groups)
        for place in table.places_of(layer)
    ]


def _import(
    state: State, model: EncoderModel, attention: AttentionSettings, parts: Iterable[str]
) -> State:
    _check_plain(model)
    table = check_stack(model, attention, model.max_length)
    entries = _entries(model, table, parts, state)
    given = {name for name in state if not _IGNORED.fullmatch(name)}
    if "pooler" not in parts:
        given -= {name for name in given if name.startswith("pooler.")}
    if "head" in parts:
        given -= set(_TIED)
    _check_names("import of BERT", given, {entry.theirs for entry in entries})
    _check_tied(state)
    found: dict[_Piece, tuple[str, Tensor]] = {}
    dropped: list[Tensor] = []
    for entry in entries:
        tensor = state[entry.theirs]
        _check_shape("import of BERT", entry.theirs, tensor, entry.shape)
        if entry.is_attention_bias and not model.attention_bias:
            if tensor.any():
                raise UserError(
                    f"import of BERT: {entry.theirs} is not 0, but model.attention_bias is false"
                )
            continue
        parts_of_tensor = tensor.tensor_split(len(entry.pieces))
        for head, (piece, rows) in enumerate(zip(entry.pieces, parts_of_tensor, strict=True)):
            if piece is None:
                dropped.append(rows)
                continue
            here = f"{entry.theirs} of head {head}"
            first, known = found.setdefault(piece, (here, rows))
            if not torch.equal(known, rows):
                raise UserError(
                    f"import of BERT: {first} and {here} differ, but share one Q/K group"
                )
    if dropped:
        heads = sum(column is None for row in table.groups for column in row)
        say_dropped("import of BERT", heads, sum(rows.numel() for rows in dropped))
    return {
        piece.name: torch.cat(
            [found[_Piece(piece.name, index, piece.of)][1] for index in range(piece.of)]
        )
        for piece in found
        if piece.index == 0
    }


# ---------------------------------------------------------------------------------------------
# Checks and files
# ---------------------------------------------------------------------------------------------


def _bare_names(state: Mapping[str, Tensor]) -> State:
    """Return `state` with the names of the map: no `bert.`, layer norms with weight and bias."""
    bare: State = {}
    for old, tensor in state.items():
        module, dot, last = old.removeprefix(_PREFIX).rpartition(".")
        name = module + dot + _OLD_NAMES.get(last, last)
        if name in bare:
            raise UserError(f"import of BERT: {name} is there twice, once as {old}")
        bare[name] = tensor
    return bare


def _check_plain(model: EncoderModel) -> None:
    if model.norm != "post":
        raise UserError(f"model.norm = {model.norm!r}: BERT is post-norm, allowed here is post")
    if model.positions != "learned":
        raise UserError(f"model.positions = {model.positions!r}: those of BERT are learned")


def _check_names(what: str, given: set[str], wanted: set[str]) -> None:
    lists = [
        f"{word} {', '.join(sorted(names))}"
        for word, names in (("missing", wanted - given), ("left over", given - wanted))
        if names
    ]
    if lists:
        raise UserError(f"{what}: keys {'; '.join(lists)}")


def _check_shape(what: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise UserError(f"{what}: {name} has shape {list(tensor.shape)}, needed is {list(shape)}")


def _check_tied(state: State) -> None:
    for copy, original in _TIED.items():
        if copy in state and not torch.equal(state[copy], state[original]):
            raise UserError(f"import of BERT: {copy} differs from {original}, here they are tied")


_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "model_type": ("bert",),
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute", None),
    "type_vocab_size": (2,),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
}
"""What config.json may say; a key that is absent has the first value."""

_CONFIG = {
    "dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "ffn_dim": "intermediate_size",
    "max_length": "max_position_embeddings",
    "dropout": "hidden_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
    "init_std": "initializer_range",
}
"""Our setting → theirs; an absent one has BERT-base's value on both sides."""


def _read_config(path: Path) -> tuple[EncoderModel, int]:
    config = read_json(path)
    for key, allowed in _SUPPORTED.items():
        if (value := config.get(key, allowed[0])) not in allowed:
            raise UserError(f"{path}: {key} = {value!r}: allowed is {allowed[0]!r}")
    vocab_size = config.get("vocab_size", 30_522)
    if type(vocab_size) is not int or vocab_size < 1:
        raise UserError(f"{path}: vocab_size = {vocab_size!r}: allowed is a positive integer")
    given = {ours: config[theirs] for ours, theirs in _CONFIG.items() if theirs in config}
    try:
        return check({"family": "encoder", **given}, EncoderModel), vocab_size
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _read_safetensors(path: Path) -> State:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise UserError(
            f"{path}: no such file; weights are read from one safetensors file, never a pickle"
        )
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot read the weights: {error}") from None
