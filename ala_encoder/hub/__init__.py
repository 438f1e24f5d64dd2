"""Weights and configurations of Hugging Face models, in and out.

For: import, export and the parity tests of every family here. A family is one file of this package,
named as the `model_type` of its config.json. Not for: the project's own exports (`export`),
tokenizers (`tokenizer`).

The only place that knows Hugging Face classes. What a family cannot express (local masks, other
biases, another norm) is refused: it would load there and answer wrongly without a word. So is every
field of a configuration that changes what is computed and that our models have no setting for. Only
dropout is not taken to the letter: the model's one rate acts where our models have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch
from torch import Tensor

from ala_encoder.banks import say_dropped
from ala_encoder.errors import UserError
from ala_encoder.files import read_json
from ala_encoder.heads import HeadTable
from ala_encoder.hub.family import Attention, Family, Form, refused
from ala_encoder.hub.weights import Row, State, check_shape, entries, exported, imported, sines
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.experiment import check_stacks
from ala_encoder.settings.model import EncoderModel, ModelSettings

__all__ = [
    "FAMILIES",
    "Attention",
    "Checkpoint",
    "Form",
    "State",
    "config_of",
    "from_hub",
    "load",
    "to_hub",
]

_modules = {one.name: import_module(f"{__name__}.{one.name}") for one in iter_modules(__path__)}
FAMILIES: dict[str, Family] = {
    name: module.FAMILY for name, module in _modules.items() if hasattr(module, "FAMILY")
}
"""Every family by its `model_type`."""

_OLD_NAMES = {"gamma": "weight", "beta": "bias"}
"""What the first checkpoints, bert-base-uncased among them, call the parts of a layer norm."""


@dataclass(frozen=True)
class Checkpoint:
    """A Hugging Face folder, read: settings, and weights under our names."""

    family: str
    model: ModelSettings
    attention: dict[str, AttentionSettings]
    """By section, as the model's family has them."""
    vocab_size: int
    state: State


def config_of(
    family: str, model: ModelSettings, vocab_size: int, attention: Attention | None = None
) -> Any:
    """Return the configuration of the same architecture, of the family's class in `transformers`.

    attention: None: what the family has. The ids of special tokens are the tokenizer's: they are
    unset (a decoder's start is 0) and can be set on what is returned. Attention biases that the
    model lacks, and how a classifier pools, are no part of a configuration.

    Raises UserError for an unknown family and for settings that it cannot express.
    """
    known = _family(family)
    if attention is None:
        attention = known.own_attention()
    return known.config_of(model, vocab_size, _sections(model, attention))


def to_hub(
    family: str, state: Mapping[str, Tensor], model: ModelSettings, attention: Attention, form: Form
) -> State:
    """Return copies of our parameters under the names of a Hugging Face model.

    form: `encoder` gives the bare model (without pooler); masked_lm, classifier, causal_lm and
    seq2seq the model with that head. Heads that share a Q/K group each get a copy of it; attention
    biases that the model lacks become zeros. As in files that `transformers` writes, a tied matrix
    is there once.

    Raises UserError for what the family cannot express (local masks, other biases of the scores,
    another norm) and for missing, left-over or misshapen parameters.
    """
    known = _family(family)
    what, rows = f"export to {known.name}", known.rows(known.parts_of(form), model)
    sections = _sections(model, attention)
    tables = _check(what, known, model, sections, form, is_exact=True)
    for section, table in tables.items():
        local = next((cell for row in table.rows for cell in row if cell.is_local), None)
        if local is not None:
            raise UserError(f"{what}: {section}: it has no local masks, the table has {local}")
    sizes = known.sizes_of(model, sections, rows, state)
    found = entries(rows, sizes, tables, attention_bias=model.attention_bias)
    theirs = exported(what, state, found)
    if model.max_length is not None:
        theirs |= {name: sines(model.max_length, sizes[size]) for name, size in known.sines.items()}
    if form == "encoder":
        return theirs
    return {known.prefix_of(name) + name: tensor for name, tensor in theirs.items()}


def from_hub(
    family: str, state: Mapping[str, Tensor], model: ModelSettings, attention: Attention, form: Form
) -> State:
    """Return copies of a Hugging Face model's parameters under our names, for a strict load.

    state: named as in the model of that form, or as in the bare one. Left out without notice are
    buffers and heads that no form has, a pooler where `form` has none, and tied names where they
    equal what they are tied to. Local masks have no parameters, so a model that has them can start
    from any family; parameters of biases that come after the family's own are not in the result.

    Raises UserError that lists missing and left-over keys, and for wrong shapes, an untied matrix
    that is tied here, heads that differ though `attention` lets them share one Q/K group, attention
    biases the model has no place for, and a model that the family cannot be.
    """
    known = _family(family)
    sections = _sections(model, attention)
    return _import(known, _bare_names(known, state), model, sections, known.parts_of(form), form)


def load(folder: Path, attention: Attention | None = None) -> Checkpoint:
    """Read a Hugging Face folder (config.json, model.safetensors), of any family here.

    state: as from `from_hub`, with whatever heads the checkpoint has. attention: of the model to
    fill; None: what the family has. Dropout of attention weights and of a classifier is not taken
    over, our settings decide it.

    Raises UserError when a file is missing or broken (pickles are never read), for a configuration
    that our models cannot compute, and as `from_hub`.
    """
    path = folder / "config.json"
    config = read_json(path)
    try:
        name = config.get("model_type")
        if not isinstance(name, str) or name not in FAMILIES:
            raise refused("model_type", name, *FAMILIES)
        known = FAMILIES[name]
        model, vocab_size, biases = known.parse(config)
        own = {section: AttentionSettings(biases=of) for section, of in biases.items()}
        sections = _sections(model, own if attention is None else attention)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    state = _bare_names(known, _read_safetensors(folder / "model.safetensors"))
    layers = max(model.layers_of(section) for section in sections)
    longest = max((size for tensor in state.values() for size in tensor.shape), default=0)
    if layers > len(state) or model.dim > longest:  # more than can be counted in reasonable time
        raise UserError(f"{path}: {layers} layers of width {model.dim} are not in the weights")
    first, *others = known.parts
    parts = [first, *(part for part in others if known.has_part(part, state))]
    ours = _import(known, state, model, sections, parts, "encoder", vocab_size)
    return Checkpoint(name, model, sections, vocab_size, ours)


def _family(name: str) -> Family:
    if name not in FAMILIES:
        raise refused("family", name, *FAMILIES)
    return FAMILIES[name]


def _sections(model: ModelSettings, attention: Attention) -> dict[str, AttentionSettings]:
    if isinstance(attention, AttentionSettings):
        attention = {model.sections[0]: attention}
    given = dict.fromkeys(model.sections) | dict(attention)
    return {name: of or AttentionSettings() for name, of in given.items()}


def _check(
    what: str,
    known: Family,
    model: ModelSettings,
    sections: Mapping[str, AttentionSettings],
    form: Form,
    *,
    is_exact: bool,
) -> dict[str, HeadTable]:
    """Return the head tables; raises UserError for a model that the family cannot be."""
    try:
        known.config_of(model, 1, sections, is_exact=is_exact)
        if form == "classifier" and isinstance(model, EncoderModel) and model.pooling != "first":
            raise UserError(f"model.pooling = {model.pooling!r}: its classifier has 'first'")
        return check_stacks(model, sections, model.max_length)
    except UserError as error:
        raise UserError(f"{what}: {error}") from None


def _import(
    known: Family,
    state: State,
    model: ModelSettings,
    sections: Mapping[str, AttentionSettings],
    parts: Sequence[str],
    form: Form,
    vocab_size: int | None = None,
) -> State:
    what = f"import of {known.name}"
    tables = _check(what, known, model, sections, form, is_exact=False)
    rows = known.rows(parts, model)
    state = _untied(what, known, state, rows)
    sizes = known.sizes_of(model, sections, rows, state)
    if vocab_size is not None:
        sizes["vocab"] = vocab_size
    found = entries(rows, sizes, tables, attention_bias=model.attention_bias)
    wanted = {entry.theirs for entry in found}
    given = {name: x for name, x in state.items() if name in wanted or not known.is_ignored(name)}
    _drop_sines(what, known, given, sizes)
    ours, dropped = imported(what, given, found)
    if dropped:
        heads = sum(group is None for of in tables.values() for row in of.groups for group in row)
        say_dropped(what, heads, dropped)
    return ours


# ---------------------------------------------------------------------------------------------
# Names and files
# ---------------------------------------------------------------------------------------------


def _bare_names(known: Family, state: Mapping[str, Tensor]) -> State:
    """Return `state` with the names of the map: no prefix, layer norms with weight and bias."""
    bare: State = {}
    for old, tensor in state.items():
        module, dot, last = old.removeprefix(known.prefix).rpartition(".")
        name = module + dot + _OLD_NAMES.get(last, last)
        if name in bare:
            raise UserError(f"import of {known.name}: {name} is there twice, once as {old}")
        bare[name] = tensor
    return bare


def _untied(what: str, known: Family, state: State, rows: Sequence[Row]) -> State:
    """Return `state` with one name for what is tied, the map's, whichever of them is there."""
    state = dict(state)
    own = {row.theirs for row in rows}
    for copy, original in known.tied.items():
        if copy in state and copy not in own:
            tensor = state.pop(copy)
            if not torch.equal(tensor, state.setdefault(original, tensor)):
                raise UserError(f"{what}: {copy} differs from {original}, here they are tied")
    return state


def _drop_sines(what: str, known: Family, state: State, sizes: Mapping[str, int]) -> None:
    """Take frozen tables of positions out, after a look that they are what is computed here."""
    for name, size in known.sines.items():
        if (table := state.pop(name, None)) is not None:
            length = (sizes["length"],) if sizes["length"] else table.shape[:1]
            check_shape(what, name, table, (*length, sizes[size]))
            # As close as half precision is; a table that was learned is further off.
            if not torch.allclose(table.float(), sines(*table.shape), rtol=0, atol=1e-3):
                raise UserError(f"{what}: {name} is not the sinusoids that are computed here")


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
