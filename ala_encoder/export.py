"""The self-describing folder a run ends with, and what later stages start from.

`export/` holds `export.json` (what the model is, where it comes from), `model.safetensors`, the
tokenizer's files and a model card. Reading it needs neither DeepSpeed nor MLflow. A missing, extra
or misshapen weight is an error.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ala_encoder import __version__, banks, glue
from ala_encoder.errors import UserError
from ala_encoder.files import folder_aside, read_json, write_json, write_text
from ala_encoder.models import Classifier, Encoder, MaskedLM
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.base import Section
from ala_encoder.settings.corpus import CorpusSettings
from ala_encoder.settings.experiment import check_stack, find_export
from ala_encoder.settings.loader import check
from ala_encoder.settings.model import EncoderModel
from ala_encoder.settings.task import TaskSettings
from ala_encoder.tokenizer import Tokenizer, load

WEIGHTS = "model.safetensors"


class Card(Section):
    """What `export.json` says; enough to rebuild the model and to evaluate it again."""

    format: Literal[1] = 1
    kind: Literal["masked_lm", "classifier"]
    variant: str
    seed: int
    run_name: str
    mlflow_run_id: str | None = None
    version: str = __version__
    vocab_size: int
    model: EncoderModel
    encoder: AttentionSettings
    data: CorpusSettings | TaskSettings
    data_name: str
    """Name of the data set in tables; says so when it was generated."""
    labels: tuple[str, ...] = ()
    """A classifier's classes in order; none: it gives one number (regression)."""
    parameters: dict[str, int]
    scores: dict[str, float | None] = Field(default_factory=dict)


@dataclass(frozen=True)
class Export:
    """An export, read: its card, tokenizer and weights by name."""

    folder: Path
    card: Card
    tokenizer: Tokenizer
    state: dict[str, Tensor]

    def build(self) -> MaskedLM | Classifier:
        """Return the model with its weights; raises UserError listing keys that do not fit.

        The card is not trusted: it may ask for more memory or layers than there are weights.
        """
        path = self.folder / WEIGHTS
        try:
            state = self._fitted()
            with torch.device("meta"):  # shapes alone
                _check_fit(self._model(), state, path)
        except RuntimeError as error:  # more elements than 64 bits count
            raise UserError(f"{path}: no weights of the card's sizes: {error}") from None
        model = self._model()
        model.load_state_dict(state)
        model.eval()
        return model

    def _fitted(self) -> dict[str, Tensor]:
        """Return the weights that the card's model has a place for."""
        path, model = self.folder / WEIGHTS, self.card.model
        if model.num_layers > len(self.state):
            raise UserError(
                f"{path}: {len(self.state)} tensors, the card says {model.num_layers} layers"
            )
        table = check_stack(model, self.card.encoder, model.max_length)
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


def write(folder: Path, card: Card, tokenizer: Tokenizer, state: Mapping[str, Tensor]) -> None:
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
    """Read an export or the export of a run folder; raises UserError naming what is wrong."""
    folder = find_export(path)
    try:
        card = check(read_json(folder / "export.json"), Card)
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
    return Export(folder, card, tokenizer, state)


def _check_fit(module: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    expected = {name: tensor.shape for name, tensor in module.state_dict().items()}
    missing, extra = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if missing or extra:
        raise UserError(f"{path}: missing {missing or 'nothing'}, unknown {extra or 'nothing'}")
    for name, shape in expected.items():
        if state[name].shape != shape:
            raise UserError(f"{path}: {name} is {tuple(state[name].shape)}, not {tuple(shape)}")


def readme(card: Card) -> str:
    """A model card: what it is, what it was trained on, how to read it."""
    scores = [f"| {name} | {value} |" for name, value in card.scores.items()]
    attention = card.encoder.layout or "a head table"
    biases = ", ".join(bias.kind for bias in card.encoder.biases) or "none"
    task = "masked language model"
    if isinstance(card.data, TaskSettings):
        task = f"task {card.data.task}"
    lines = [
        f"# {card.run_name}",
        "",
        f"A BERT-style encoder, variant `{card.variant}`, seed {card.seed}, {task}.",
        "",
        f"- attention: {attention}, {card.encoder.mask_operator}, distance bias: {biases}",
        f"- parameters: {card.parameters['total']:,} in all, "
        f"{card.parameters['encoder_attention']:,} in Q, K, V and output projections, "
        f"{card.parameters['qk_groups']} Q/K groups",
        f"- data: {card.data_name}",
        "",
        "| score | value |",
        "|---|---|",
        *scores,
        "",
        "Read it with `ala_encoder.export.read(folder).build()`, score it with",
        "`python -m pipelines.evaluate export=FOLDER`.",
    ]
    return "\n".join(lines) + "\n"


def check_task(card: Card, task: glue.Task) -> None:
    """Raise UserError when a classifier's classes are not the task's, in its order."""
    if card.labels != task.labels:
        wanted, found = (
            f"the classes {', '.join(labels)}" if labels else "one number and no classes"
            for labels in (task.labels, card.labels)
        )
        raise UserError(f"task {task.name}: has {wanted}; {card.run_name} was trained on {found}")
