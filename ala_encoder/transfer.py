"""What a translation model starts from: nothing, a masked language model, an encoder-decoder that
learned to fill in spans, or a translation model, ours or a published one.

For: copying an export's weights into a new model, where sizes and tokenizer are the same. Not for:
exports themselves (`export`), names and shapes of published weights (`hub`), encoders that become
classifiers (`finetuning`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ala_encoder import hub, ranks
from ala_encoder.errors import UserError
from ala_encoder.export import Export, TranslationExport, link_to, read_any
from ala_encoder.files import read_json
from ala_encoder.models import Encoder, Seq2Seq
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.experiment import check_stacks
from ala_encoder.settings.exports import is_published
from ala_encoder.settings.model import EncoderDecoderModel, Transformer
from ala_encoder.settings.translation import TranslationRun
from ala_encoder.tokenizer import Marian, Tokenizer, load

_HARMLESS = {"family", "dropout", "init_std"}
_ONE_SIDED = {"num_decoder_layers", "output_bias"}
_COMPUTED = {"path", "compile", "dropout", "prune", "layout", "heads"}
"""Of a section: how it is computed; layout and heads are compared as head tables."""


@dataclass(frozen=True)
class Published:
    """A Hugging Face folder, and its weights under our names."""

    folder: Path
    state: dict[str, Tensor]


@dataclass(frozen=True)
class Start:
    """A run's settings, its tokenizer, and what its weights come from."""

    settings: TranslationRun
    tokenizer: Tokenizer
    source: Export | TranslationExport | Published | None = None

    @property
    def tags(self) -> dict[str, str]:
        """Return the MLflow tags that link a run to the one its weights come from."""
        if isinstance(self.source, Published):
            name = self.source.folder.resolve().name
            return {"pretrained_run": name, "pretrained_kind": "published"}
        return {} if self.source is None else link_to(self.source)

    @property
    def translates(self) -> bool:
        """Whether the weights can translate before any step."""
        if isinstance(self.source, TranslationExport):
            card = self.source.card
            return card.translates and card.pairs.languages == self.settings.data.languages
        return isinstance(self.source, Published)

    def build(self) -> Seq2Seq:
        """Return the model, the export's weights copied in, all else new."""
        settings = self.settings
        model = Seq2Seq(settings.model, settings.sections, self.tokenizer.vocab_size)
        if isinstance(self.source, TranslationExport):
            model.load_state_dict(self.source.build().state_dict())
        elif isinstance(self.source, Published):
            _load_published(model, self.source)
        elif self.source is not None:
            _load_encoder(model, self.source.build().encoder)
        return model


def start_from(settings: TranslationRun, tokenizer: Tokenizer) -> Start:
    """Read what `init` names; raises UserError, naming the key, where it is not of these sizes."""
    if settings.init is None:
        return Start(settings, tokenizer)
    if is_published(settings.init):
        return Start(settings, tokenizer, _published(settings, settings.init, tokenizer))
    source = read_any(settings.init)
    card = source.card
    _check_tokenizer(source.folder, source.tokenizer, settings, tokenizer)
    if isinstance(source, TranslationExport):
        given: Mapping[str, AttentionSettings] = source.card.sections
        ignored = _HARMLESS
        if source.card.translates and source.card.pairs.languages != settings.data.languages:
            has, wanted = ("-".join(x.languages) for x in (source.card.pairs, settings.data))
            ranks.say(f"note: {source.folder} translates {has}, and is trained on {wanted} here")
    elif isinstance(source, Export) and source.card.kind == "masked_lm":
        given, ignored = source.card.sections, _HARMLESS | _ONE_SIDED
        if settings.model.positions != "learned":
            ignored = ignored | {"max_length"}
    else:
        raise UserError(
            f"init: {source.folder} is a {source.card.kind}, needed is a masked_lm or seq2seq"
        )
    _check_model(card.model, settings.model, ignored, str(source.folder))
    for name in given:
        _check_section(name, settings, card.model, given, str(source.folder))
    return Start(settings, tokenizer, source)


def _published(settings: TranslationRun, folder: Path, tokenizer: Tokenizer) -> Published:
    """Read a published encoder-decoder whose weights the model of `settings` can take."""
    config = read_json(folder / "config.json")
    allowed = [name for name, one in hub.FAMILIES.items() if one.model is EncoderDecoderModel]
    if config.get("model_type") not in allowed:
        raise UserError(
            f"init: {folder} has model_type = {config.get('model_type')!r}, needed is "
            f"{' or '.join(allowed)}"
        )
    _check_tokenizer(folder, load(folder), settings, tokenizer)
    found = hub.load(folder, settings.sections)
    _check_model(found.model, settings.model, _HARMLESS, str(folder))
    wanted = {
        "vocab_size": tokenizer.vocab_size,
        "decoder_start_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
    }
    for key, value in wanted.items():
        if config.get(key) != value:
            raise UserError(
                f"init: {folder} has {key} = {config.get(key)!r}, its tokenizer {value}"
            )
    return Published(folder, found.state)


def _check_tokenizer(
    folder: Path, theirs: Tokenizer, settings: TranslationRun, ours: Tokenizer
) -> None:
    if theirs.fingerprint != ours.fingerprint:
        raise UserError(
            f"init: {folder} has another tokenizer than tokenizer.path = "
            f"{settings.tokenizer.path}; give its own"
        )
    if isinstance(ours, Marian) and ours.languages != settings.data.languages:
        has, wanted = ("-".join(one) for one in (ours.languages, settings.data.languages))
        raise UserError(f"init: {folder} is of {has}, data.src_lang and data.trg_lang of {wanted}")


def _check_model(theirs: Transformer, ours: Transformer, ignored: set[str], where: str) -> None:
    has, wanted = theirs.model_dump(), ours.model_dump()
    for key in wanted.keys() - ignored:
        if has.get(key) != wanted[key]:
            raise UserError(
                f"init: {where} has model.{key} = {has.get(key)!r}, here it is {wanted[key]!r}"
            )


def _check_section(
    name: str,
    settings: TranslationRun,
    model: Transformer,
    given: Mapping[str, AttentionSettings],
    where: str,
) -> None:
    has: dict[str, Any] = given[name].model_dump(exclude=_COMPUTED)
    wanted: dict[str, Any] = settings.sections[name].model_dump(exclude=_COMPUTED)
    for key, value in wanted.items():
        if has[key] != value:
            raise UserError(f"init: {where} has {name}.{key} = {has[key]!r}, here it is {value!r}")
    tables = (
        check_stacks(model, given, model.max_length)[name],  # type: ignore[arg-type]
        check_stacks(settings.model, settings.sections, settings.model.max_length)[name],
    )
    if tables[0] != tables[1]:
        raise UserError(f"init: {where} has other heads in {name}: {tables[0]}, here {tables[1]}")


def _load_encoder(model: Seq2Seq, encoder: Encoder) -> None:
    """Copy vocabulary, positions and layers; a masked language model has more before its layers."""
    state: dict[str, Tensor] = {}
    for name, tensor in encoder.state_dict().items():
        part, _, rest = name.partition(".")
        names = {
            "vocabulary": name,
            "positions": f"encoder_positions.{rest}",
            "stack": f"encoder.{rest}",
        }
        if part in names:
            state[names[part]] = tensor
    result = model.load_state_dict(state, strict=False)
    assert not result.unexpected_keys, result.unexpected_keys
    assert all(name.startswith(("decoder", "output_bias")) for name in result.missing_keys)
    ranks.say(
        "note: the encoder's layers and vocabulary are the export's; its token types and the norm "
        "of its embeddings have no place in a translation model"
    )


def _load_published(model: Seq2Seq, source: Published) -> None:
    """Copy all weights; what biases added to the model have learned is none of them."""
    result = model.load_state_dict(source.state, strict=False)
    assert not result.unexpected_keys, result.unexpected_keys
    new = re.compile(r"\.(biases|cross_biases)\.|\.ratio$")
    assert all(map(new.search, result.missing_keys)), result.missing_keys
    if result.missing_keys:
        ranks.say(f"note: not in {source.folder}, so new: {', '.join(result.missing_keys)}")
