"""The self-describing folder a run ends with, and what later stages start from.

`export/` holds `export.json` (what the model is, where it comes from), `model.safetensors`, the
tokenizer's files and a model card. Reading it needs neither DeepSpeed nor MLflow. A missing, extra
or misshapen weight is an error.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ala_encoder import banks, glue
from ala_encoder.cards import AnyCard, Card, CausalCard, TranslationCard
from ala_encoder.errors import UserError
from ala_encoder.files import folder_aside, read_json, write_json, write_text
from ala_encoder.models import CausalLM, Classifier, Encoder, MaskedLM, Seq2Seq
from ala_encoder.parameters import heads_without_qk
from ala_encoder.settings.experiment import check_stack
from ala_encoder.settings.exports import find_export
from ala_encoder.settings.loader import check
from ala_encoder.tokenizer import Tokenizer, load

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Export:
    """An encoder's export, read: its card, tokenizer and weights by name."""

    folder: Path
    card: Card
    tokenizer: Tokenizer
    state: dict[str, Tensor]

    def build(self) -> MaskedLM | Classifier:
        """Return the model with its weights; raises UserError listing keys that do not fit.

        The card is not trusted: it may ask for more memory or layers than there are weights.
        """
        return _filled(self._model, self._fitted, self.folder / WEIGHTS)

    def pruned(self, prune: float) -> Export:
        """Return it with another `encoder.prune`; raises UserError where that does nothing."""
        encoder = self.card.encoder.model_copy(update={"prune": prune})
        check_stack(self.card.model, encoder, self.card.data.length)
        return replace(self, card=self.card.model_copy(update={"encoder": encoder}))

    def _fitted(self) -> dict[str, Tensor]:
        """Return the weights that the card's model has a place for."""
        path, model = self.folder / WEIGHTS, self.card.model
        _check_layers(model.num_layers, self.state, path)
        table = self.card.tables["encoder"]
        return banks.fitted(self.state, table, model.dim, "encoder.stack.bank.", str(path))

    def _model(self) -> MaskedLM | Classifier:
        card = self.card
        if card.kind == "masked_lm":
            return MaskedLM(card.model, card.encoder, card.vocab_size)
        outputs = len(card.labels) or 1
        return Classifier(card.model, card.encoder, card.vocab_size, outputs)

    def load_encoder(self, encoder: Encoder) -> None:
        """Copy the encoder's weights into a model that has the same encoder."""
        prefix = "encoder."
        given = self._fitted()
        state = {k[len(prefix) :]: v for k, v in given.items() if k.startswith(prefix)}
        _check_fit(encoder, state, self.folder / WEIGHTS)
        encoder.load_state_dict(state)


@dataclass(frozen=True)
class TranslationExport:
    """A translation model's export, read: its card, tokenizer and weights by name."""

    folder: Path
    card: TranslationCard
    tokenizer: Tokenizer
    state: dict[str, Tensor]

    def build(self) -> Seq2Seq:
        """Return the model with its weights; raises UserError as `Export.build` does."""
        return _filled(self._model, self._fitted, self.folder / WEIGHTS)

    def _model(self) -> Seq2Seq:
        return Seq2Seq(self.card.model, self.card.sections, self.card.vocab_size)

    def _fitted(self) -> dict[str, Tensor]:
        path, model, state = self.folder / WEIGHTS, self.card.model, self.state
        _check_layers(model.num_layers + model.num_decoder_layers, state, path)
        for section, table in self.card.tables.items():
            bank = "decoder.cross_bank." if section == "cross" else f"{section}.bank."
            state = banks.fitted(state, table, model.dim, bank, str(path))
        return state


@dataclass(frozen=True)
class CausalExport:
    """A causal language model's export, read: its card, tokenizer and weights by name."""

    folder: Path
    card: CausalCard
    tokenizer: Tokenizer
    state: dict[str, Tensor]

    def build(self) -> CausalLM:
        """Return the model with its weights; raises UserError as `Export.build` does."""
        return _filled(self._model, self._fitted, self.folder / WEIGHTS)

    def pruned(self, prune: float, length: int) -> CausalExport:
        """Return it with another `decoder.prune`; raises UserError where that does nothing in
        texts of `length` tokens."""
        decoder = self.card.decoder.model_copy(update={"prune": prune})
        check_stack(self.card.model, decoder, length)
        return replace(self, card=self.card.model_copy(update={"decoder": decoder}))

    def _model(self) -> CausalLM:
        return CausalLM(self.card.model, self.card.decoder, self.card.vocab_size)

    def _fitted(self) -> dict[str, Tensor]:
        path, model = self.folder / WEIGHTS, self.card.model
        _check_layers(model.num_layers, self.state, path)
        return banks.fitted(
            self.state, self.card.tables["decoder"], model.dim, "stack.bank.", str(path)
        )


Built = TypeVar("Built", bound=nn.Module)
AnyCardT = TypeVar("AnyCardT", bound=AnyCard)


def _filled(
    make: Callable[[], Built], fitted: Callable[[], Mapping[str, Tensor]], path: Path
) -> Built:
    try:
        state = fitted()
        with torch.device("meta"):  # shapes alone
            _check_fit(make(), state, path)
    except RuntimeError as error:  # more elements than 64 bits count
        raise UserError(f"{path}: no weights of the card's sizes: {error}") from None
    model = make()
    model.load_state_dict(state)
    model.eval()
    return model


def _check_layers(num_layers: int, state: Mapping[str, Tensor], path: Path) -> None:
    if num_layers > len(state):
        raise UserError(f"{path}: {len(state)} tensors, the card says {num_layers} layers")


def write(folder: Path, card: AnyCard, tokenizer: Tokenizer, state: Mapping[str, Tensor]) -> None:
    """Write an export aside and rename it; one that is there is replaced."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)  # of a process that was killed
    with folder_aside(folder) as aside:
        tokenizer.save(aside)
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, aside / WEIGHTS)
        write_json(aside / "export.json", card.model_dump(mode="json"))
        write_text(aside / "README.md", readme(card))
        if folder.exists():
            os.replace(folder, old)
    shutil.rmtree(old, ignore_errors=True)


def read(path: Path) -> Export:
    """Read an encoder's export, alone or in a run folder.

    Raises UserError naming what is wrong, also for a translation model's.
    """
    return Export(*_read(path, Card))


def read_translation(path: Path) -> TranslationExport:
    """Read a translation model's export, alone or in a run folder; raises UserError as `read`."""
    return TranslationExport(*_read(path, TranslationCard))


def read_causal(path: Path) -> CausalExport:
    """Read a causal language model's export, in a run folder or not; raises UserError as `read`."""
    return CausalExport(*_read(path, CausalCard))


AnyExport = Export | CausalExport | TranslationExport


def read_any(path: Path) -> AnyExport:
    """Read an export of any kind; raises UserError as `read`."""
    kind = _kind(find_export(path))
    if kind in _KINDS[TranslationCard]:
        return read_translation(path)
    return read_causal(path) if kind in _KINDS[CausalCard] else read(path)


_KINDS: dict[type[AnyCard], tuple[str, ...]] = {
    Card: ("masked_lm", "classifier"),
    CausalCard: ("causal_lm",),
    TranslationCard: ("seq2seq",),
}
_READERS: dict[type[AnyCard], str] = {
    Card: "read",
    CausalCard: "read_causal",
    TranslationCard: "read_translation",
}


def _kind(folder: Path) -> object:
    return read_json(folder / "export.json").get("kind")


def _read(path: Path, cls: type[AnyCardT]) -> tuple[Path, AnyCardT, Tokenizer, dict[str, Tensor]]:
    folder = find_export(path)
    kind = _kind(folder)
    others = (kinds for other, kinds in _KINDS.items() if other is not cls)
    if any(kind in kinds for kinds in others):
        raise UserError(f"{folder}: is a {kind}, needed is {' or '.join(_KINDS[cls])}")
    try:
        card = check(read_json(folder / "export.json"), cls)
    except UserError as error:
        raise UserError(f"{folder / 'export.json'}: {error}") from None
    tokenizer = load(folder)
    if tokenizer.vocab_size != card.vocab_size:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} pieces, the model "
            f"{card.vocab_size}"
        )
    try:
        state = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder / WEIGHTS}: cannot read the weights: {error}") from None
    return folder, card, tokenizer, state


def _check_fit(module: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    expected = {name: tensor.shape for name, tensor in module.state_dict().items()}
    missing, extra = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if missing or extra:
        raise UserError(f"{path}: missing {missing or 'nothing'}, unknown {extra or 'nothing'}")
    for name, shape in expected.items():
        if state[name].shape != shape:
            raise UserError(f"{path}: {name} is {tuple(state[name].shape)}, not {tuple(shape)}")


def readme(card: AnyCard) -> str:
    """A model card: what it is, what it was trained on, how to read it."""
    scores = [f"| {name} | {value} |" for name, value in card.scores.items()]
    section, settings = next(iter(card.sections.items()))
    attention = settings.layout or ("full" if settings.heads is None else "a head table")
    biases = ", ".join(bias.kind for bias in settings.biases) or "none"
    lines = [
        f"# {card.run_name}",
        "",
        card.about,
        "",
        f"- attention: {attention}, {settings.mask_operator}, distance bias: {biases}",
        f"- parameters: {card.parameters['total']:,} in all, "
        f"{card.parameters[f'{section}_attention']:,} in Q, K, V and output projections, "
        f"{card.parameters['qk_groups']} Q/K groups",
        *_without_qk(card),
        f"- data: {card.data_name}",
        *([f"- weights: the mean of {', '.join(card.averaged)}"] if card.averaged else []),
        "",
        "| score | value |",
        "|---|---|",
        *scores,
        "",
        f"Read it with `ala_encoder.export.{_READERS[type(card)]}(folder).build()`, score it with",
        f"`python -m pipelines.evaluate FOLDER`{card.use and f', use it with `{card.use}`'}.",
    ]
    return "\n".join(lines) + "\n"


def _without_qk(card: AnyCard) -> list[str]:
    found = heads_without_qk(card.tables)
    names = [name for section in found.values() for name in section]
    counts = ", ".join(f"{len(section)} in {name}" for name, section in found.items() if section)
    listed = ", ".join(names)
    return [f"- heads without Q and K (counted from 0): {counts}: {listed}"] if names else []


def check_task(card: Card, task: glue.Task) -> None:
    """Raise UserError when a classifier's classes are not the task's, in its order."""
    if card.labels != task.labels:
        wanted, found = (
            f"the classes {', '.join(labels)}" if labels else "one number and no classes"
            for labels in (task.labels, card.labels)
        )
        raise UserError(f"task {task.name}: has {wanted}; {card.run_name} was trained on {found}")


def link_to(source: AnyExport) -> dict[str, str]:
    """Return the MLflow tags that link a run to the one whose export it starts from."""
    kind: str = source.card.kind
    if isinstance(source, TranslationExport) and not source.card.translates:
        kind = "denoise"
    tags = {"pretrained_run": source.card.run_name, "pretrained_kind": kind}
    if source.card.mlflow_run_id is not None:
        tags["pretrained_run_id"] = source.card.mlflow_run_id
    return tags
