"""What a family of Hugging Face models is: its map of weights, and what its configuration says.

For: `Family`, of which each family's file makes one; its configuration read as settings and written
from them. Not for: tensors (`weights`).

A configuration is read through the family's own class in `transformers`, so that an absent key and
another spelling mean what they mean there. What is written is read again: a setting that does not
come back is one that the family cannot express, and refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

from torch import Tensor

from ala_encoder.errors import UserError, nearest, reason, shown
from ala_encoder.hub.weights import Row
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.biases import BiasSettings
from ala_encoder.settings.loader import check
from ala_encoder.settings.model import ModelSettings

Form = Literal["encoder", "masked_lm", "classifier", "causal_lm", "seq2seq"]
Attention: TypeAlias = AttentionSettings | Mapping[str, AttentionSettings | None]
"""Of the one stack, or by section: encoder, decoder, cross."""
Biases = dict[str, tuple[BiasSettings, ...]]

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "silu",
}
"""Their name → ours; of several names for one, the first is written."""

_NEVER = ("auto_map", "per_layer_config", "pruned_heads", "quantization_config")
"""Keys of any family that make another model of it; empty ones do nothing."""

_TOKENS = {
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "forced_eos_token_id": None,
    "decoder_start_token_id": 0,
}
"""What is written for special tokens: the defaults of a class are another vocabulary's."""


@dataclass(frozen=True)
class Family:
    """A family: what is written here is all that import, export and tests know of it."""

    name: str
    config: str
    """The class of the configuration in `transformers`."""
    model: type[Any]
    """The class of our settings."""
    parts: Mapping[str, tuple[Row, ...]]
    """The map: every parameter by the part it belongs to; the vocabulary matrix comes first."""
    forms: Mapping[Form, tuple[str, ...]]
    """The parts of each form; `encoder` has names without `prefix`."""
    fields: Mapping[str, str | tuple[str, ...]]
    """Our setting, or `vocab_size` → theirs; several must be equal."""
    ours: Mapping[str, Any]
    """Our settings that the family fixes."""
    theirs: Mapping[str, tuple[Any, ...]]
    """Fields that may have one of these values alone; an absent one that their class does not know
    has the first."""
    free: frozenset[str] = frozenset()
    """Our settings that theirs has no word for and that change nothing there."""
    prefix: str = ""
    """In front of the names of the model without its heads."""
    outside: tuple[str, ...] = ()
    """How the names of the heads begin, which have no prefix."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Names that some files hold twice → the one that stands for both."""
    ignored: str = r"(?!)"
    """Names that are left out: buffers, and heads that no form here has."""
    sines: Mapping[str, str] = field(default_factory=dict)
    """Frozen sinusoids, which some files hold → the size that is their width."""
    attention_dropout: str | None = None
    """Their field for the dropout of attention weights alone."""
    keys: tuple[str, ...] = ()
    """Further keys that their class reads: older names, and what follows from other fields."""
    read: Callable[[Any], dict[str, Any]] = lambda config: {}
    """Further settings; raises UserError for what our models cannot compute."""
    biases: Callable[[Any], Biases] = lambda config: {}
    """The biases of the scores in each section."""
    write: Callable[[Any, Mapping[str, AttentionSettings]], dict[str, Any]] = lambda model, of: {}
    """Further fields of theirs."""
    sizes: Callable[[Mapping[str, AttentionSettings]], dict[str, int]] = lambda of: {}
    """Further sizes of rows."""

    def parts_of(self, form: Form) -> tuple[str, ...]:
        """Return the parts of a form; raises UserError for one that the family has not."""
        if form not in self.forms:
            raise UserError(f"{self.name}: {refused('form', form, *self.forms)}")
        return self.forms[form]

    def has_part(self, part: str, state: Mapping[str, Any]) -> bool:
        """Tell whether a state with their names has a part."""
        return any(name.startswith(self.parts[part][0].theirs) for name in state)

    def prefix_of(self, name: str) -> str:
        """Return what stands before a name in a model with a head."""
        return "" if name.startswith(self.outside) else self.prefix

    def is_ignored(self, name: str) -> bool:
        return re.fullmatch(self.ignored, name) is not None

    def rows(self, parts: Sequence[str], model: ModelSettings) -> list[Row]:
        """Return the lines of the map that a model has."""
        rows = [row for part in parts for row in self.parts[part]]
        return [row for row in rows if not (row.unless and getattr(model, row.unless))]

    def sizes_of(
        self,
        model: ModelSettings,
        attention: Mapping[str, AttentionSettings],
        rows: Sequence[Row],
        state: Mapping[str, Tensor],
    ) -> dict[str, int]:
        """Return the sizes by the names that rows give them; those of no setting are the state's.

        state: by our names or theirs; a size is 0 where the tensor to read it off is missing.
        """
        sizes = {
            "d": model.dim,
            "ffn": model.ffn_dim,
            "heads": model.num_heads,
            "head": model.dim // model.num_heads,
            "types": 2,
            "length": model.max_length or 0,
            **self.sizes(attention),
        }
        for row in rows:
            suffix = "" if row.kind == "tensor" else ".weight"
            names = (row.names[0] + suffix, row.theirs + suffix)
            lengths = (len(state[name]) for name in names if name in state and state[name].dim())
            sizes.setdefault(row.sizes.split()[0], next(lengths, 0))
        return sizes

    def own_attention(self) -> dict[str, AttentionSettings]:
        """Return the attention of the family's default configuration, by section."""
        biases = self.biases(self._class()())
        return {section: AttentionSettings(biases=of) for section, of in biases.items()}

    def settings(self, config: Any) -> tuple[ModelSettings, int, Biases]:
        """Return our settings, the size of the vocabulary and the biases of a configuration.

        Raises UserError for what our models cannot compute.
        """
        for name, allowed in self.theirs.items():
            if (value := getattr(config, name, allowed[0])) not in allowed:
                raise refused(name, value, *allowed)
        given = dict(self.ours)
        for ours, theirs in self.fields.items():
            names = (theirs,) if isinstance(theirs, str) else theirs
            value = getattr(config, names[0])
            for other in names[1:]:
                if getattr(config, other) != value:
                    raise UserError(
                        f"{other} = {getattr(config, other)!r}: must be that of {names[0]}, {value}"
                    )
            if ours == "activation":
                if value not in ACTIVATIONS:
                    raise refused(names[0], value, *ACTIVATIONS)
                value = ACTIVATIONS[value]
            given[ours] = value
        given |= self.read(config)
        vocab_size = given.pop("vocab_size")
        if type(vocab_size) is not int or vocab_size < 1:
            raise UserError(f"vocab_size = {vocab_size!r}: allowed is a positive integer")
        model: ModelSettings = check(given, self.model)
        return model, vocab_size, self.biases(config)

    def parse(self, data: Mapping[str, Any]) -> tuple[ModelSettings, int, Biases]:
        """Read what a config.json holds; raises UserError as `settings`, and for wrong types."""
        from transformers import PretrainedConfig

        for key in _NEVER:
            if data.get(key):
                raise UserError(f"{key} = {shown(data[key])}: makes another model of {self.name}")
        cls = self._class()
        base = {one.name for one in fields(PretrainedConfig)}
        known = {one.name for one in fields(cls)} - base | {*self.keys, *self.theirs}
        given = {key: value for key, value in data.items() if key in known}
        # Another name of a field counts more than its own, as in their class.
        given |= {key: data[name] for name, key in cls.attribute_map.items() if name in data}
        try:
            config = cls(**given)
        except Exception as error:  # huggingface_hub's own, and whatever values of any type bring
            raise UserError(reason(error)) from None
        return self.settings(config)

    def config_of(
        self,
        model: ModelSettings,
        vocab_size: int,
        attention: Mapping[str, AttentionSettings],
        *,
        is_exact: bool = True,
    ) -> Any:
        """Return their configuration; raises UserError for settings that it cannot express.

        is_exact: whether the biases of the scores are theirs alone; else theirs come first.
        """
        if not isinstance(model, self.model):
            raise UserError(
                f"model.family = {model.family!r}: a {self.name} is {self.ours['family']!r}"
            )
        ours = model.model_dump() | {"vocab_size": vocab_size}
        spoken = (their for their, our in ACTIVATIONS.items() if our == ours["activation"])
        ours["activation"] = next(spoken)
        cls, values = self._class(), dict[str, Any]()
        for name, theirs in self.fields.items():
            values |= dict.fromkeys((theirs,) if isinstance(theirs, str) else theirs, ours[name])
        values |= {name: one[0] for name, one in self.theirs.items() if hasattr(cls, name)}
        if self.attention_dropout is not None:
            values[self.attention_dropout] = attention[model.sections[0]].dropout
        values = {name: value for name, value in values.items() if value is not None}
        values |= {name: start for name, start in _TOKENS.items() if hasattr(cls, name)}
        config = cls(**values | self.write(model, attention))
        back, _, biases = self.settings(config)
        for name in dict.fromkeys([*self.ours, *self.model.model_fields]):
            if name not in self.free and getattr(model, name) != getattr(back, name):
                raise UserError(
                    f"model.{name} = {getattr(model, name)!r}: that of a {self.name} is "
                    f"{getattr(back, name)!r}"
                )
        for section in model.sections:
            given, own = attention[section].biases, biases.get(section, ())
            if (given if is_exact else given[: len(own)]) != own:
                raise UserError(
                    f"{section}.biases: the model has {_named(given)}, a {self.name} {_named(own)}"
                )
        return config

    def _class(self) -> Any:
        import transformers

        return getattr(transformers, self.config)


def refused(name: str, value: object, *allowed: object) -> UserError:
    """Return the error of a field that may not have this value."""
    near = nearest(value, map(str, allowed)) if isinstance(value, str) else ""
    many = f"are {', '.join(map(repr, allowed))}" if len(allowed) > 1 else f"is {allowed[0]!r}"
    return UserError(f"{name} = {shown(value)}: allowed {many}{near}")


def _named(biases: Sequence[BiasSettings]) -> str:
    """Return the kinds, each with what is not its default: alibi(slopes='press')."""
    names = []
    for bias in biases:
        given = bias.model_dump(exclude_defaults=True, exclude={"kind"})
        of = ", ".join(f"{name}={value!r}" for name, value in given.items())
        names.append(f"{bias.kind}({of})" if of else bias.kind)
    return " and ".join(names) or "none"
