"""What `export.json` says of a model: enough to rebuild it and to use it again.

For: one card a family. Not for: writing and reading exports (`export`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, final

from pydantic import Field

from ala_encoder import __version__
from ala_encoder.errors import UserError
from ala_encoder.heads import HeadTable
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.base import Section
from ala_encoder.settings.corpus import CorpusSettings
from ala_encoder.settings.experiment import check_stacks
from ala_encoder.settings.model import (
    CausalModel,
    EncoderDecoderModel,
    EncoderModel,
    ModelSettings,
)
from ala_encoder.settings.parallel import TranslationData
from ala_encoder.settings.search import SearchSettings
from ala_encoder.settings.task import TaskSettings


class AnyCard(Section):
    """What `export.json` says, whatever the family; abstract."""

    format: Literal[1] = 1
    variant: str
    seed: int
    run_name: str
    mlflow_run_id: str | None = None
    version: str = __version__
    vocab_size: int
    model: ModelSettings
    data_name: str
    """Name of the data set in tables; says so when it was generated."""
    parameters: dict[str, int]
    scores: dict[str, float | None] = Field(default_factory=dict)
    averaged: tuple[str, ...] = ()
    """The steps whose weights they are the mean of; none: those of one step."""

    @property
    @abstractmethod
    def sections(self) -> dict[str, AttentionSettings]:
        """The attention settings by section."""

    @property
    def family(self) -> str:
        """The model's family."""
        return self.model.family

    @property
    def tables(self) -> dict[str, HeadTable]:
        """The head table of every section."""
        return check_stacks(self.model, self.sections, self.model.max_length)

    @property
    @abstractmethod
    def about(self) -> str:
        """What it is, for the model card."""

    @property
    def use(self) -> str:
        """The command that uses it on text; none: empty."""
        return ""


@final
class Card(AnyCard):
    """Of an encoder: enough to rebuild the model and to evaluate it again."""

    kind: Literal["masked_lm", "classifier"]
    model: EncoderModel
    encoder: AttentionSettings
    data: CorpusSettings | TaskSettings
    labels: tuple[str, ...] = ()
    """A classifier's classes in order; none: it gives one number (regression)."""

    @property
    def sections(self) -> dict[str, AttentionSettings]:
        return {"encoder": self.encoder}

    @property
    def about(self) -> str:
        task = "masked language model"
        if isinstance(self.data, TaskSettings):
            task = f"task {self.data.task}"
        return f"A BERT-style encoder, variant `{self.variant}`, seed {self.seed}, {task}."


@final
class CausalCard(AnyCard):
    """Of a causal language model: enough to rebuild it and to evaluate it again."""

    kind: Literal["causal_lm"] = "causal_lm"
    model: CausalModel
    decoder: AttentionSettings
    data: CorpusSettings

    @property
    def sections(self) -> dict[str, AttentionSettings]:
        return {"decoder": self.decoder}

    @property
    def about(self) -> str:
        return f"A causal language model, variant `{self.variant}`, seed {self.seed}."

    @property
    def use(self) -> str:
        return "python -m pipelines.generate FOLDER"


@final
class TranslationCard(AnyCard):
    """Of a translation model, or of one that is pretrained for it: enough to rebuild it, to
    translate, and to evaluate it again."""

    kind: Literal["seq2seq"] = "seq2seq"
    model: EncoderDecoderModel
    encoder: AttentionSettings
    decoder: AttentionSettings
    cross: AttentionSettings
    data: TranslationData | CorpusSettings
    """Its languages are those the model translates between; running text: it only fills in spans,
    and is what `finetune_nmt` starts from."""
    search: SearchSettings = SearchSettings()
    """How the translations were found that it was scored by."""
    signatures: dict[str, str] = Field(default_factory=dict)
    """sacreBLEU's signature of each kind of score, such as bleu."""

    @property
    def translates(self) -> bool:
        """Whether it has learned to translate."""
        return isinstance(self.data, TranslationData)

    @property
    def use(self) -> str:
        return "python -m pipelines.translate FOLDER" if self.translates else ""

    @property
    def pairs(self) -> TranslationData:
        """The pairs it was trained on; raises UserError where it has not learned to translate."""
        if isinstance(self.data, CorpusSettings):
            raise UserError(
                f"{self.run_name}: is pretrained to fill in spans, it cannot translate; "
                "run finetune_nmt with it as `init`"
            )
        return self.data

    @property
    def sections(self) -> dict[str, AttentionSettings]:
        return {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}

    @property
    def about(self) -> str:
        task = "An encoder-decoder pretrained to fill in spans"
        if isinstance(self.data, TranslationData):
            task = f"A translation model, {' to '.join(self.data.languages)}"
        return f"{task}, variant `{self.variant}`, seed {self.seed}."
