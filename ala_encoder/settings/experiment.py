"""The settings of each training: sections composed, and checked against one another.

Nothing here needs torch: a mistake is told before a device is touched.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ala_encoder.errors import UserError
from ala_encoder.heads import HeadTable
from ala_encoder.settings.attention import AttentionSettings, check_attention, head_table
from ala_encoder.settings.base import NonNegativeInt, Section
from ala_encoder.settings.corpus import CorpusSettings
from ala_encoder.settings.engine import EngineSettings, read_deepspeed
from ala_encoder.settings.loader import check
from ala_encoder.settings.model import EncoderModel, ModelSettings
from ala_encoder.settings.optim import OptimSettings
from ala_encoder.settings.parallel import TranslationData
from ala_encoder.settings.search import SearchSettings
from ala_encoder.settings.task import TaskSettings
from ala_encoder.settings.tokenizer import TokenizerSettings
from ala_encoder.settings.tracking import TrackingSettings
from ala_encoder.settings.train import Rhythm, TokenTrainSettings, TrainSettings

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=100)]
Objective = Literal["mlm", "denoise", "clm"]
"""What a model is pretrained for."""
_FAMILIES = {"mlm": "encoder", "denoise": "encoder_decoder", "clm": "causal"}
"""Objective → the family of models that it pretrains."""
_OBJECTIVES = {family: objective for objective, family in _FAMILIES.items()}
_CORRUPTION = {"mlm": ("mask_probability", "mask_selection"), "denoise": ("spans",), "clm": ()}
"""Objective → what of `data` says how text is corrupted for it."""


def check_stack(
    model: ModelSettings, attention: AttentionSettings, max_length: int | None = None
) -> HeadTable:
    """Return the head table of a family's first section; see `check_stacks`."""
    section = model.sections[0]
    return check_stacks(model, {section: attention}, max_length)[section]


def check_stacks(
    model: ModelSettings,
    attention: Mapping[str, AttentionSettings | None],
    max_length: int | None = None,
) -> dict[str, HeadTable]:
    """Return the head table of every section: encoder, decoder (causal), cross, as the family has.

    attention: settings by section; None or left out: plain. max_length: of the texts, None: any.
    Raises UserError naming section and key, also for a section that the family has not.
    """
    for name, settings in attention.items():
        if name not in model.sections and settings is not None:
            have = ", ".join(model.sections)
            raise UserError(f"{name}: a model of family {model.family!r} has {have} alone")
    if model.dim % model.num_heads:
        raise UserError(f"model.dim = {model.dim}: not a multiple of num_heads {model.num_heads}")
    tables = {
        name: _check_section(model, name, attention.get(name) or AttentionSettings(), max_length)
        for name in model.sections
    }
    if model.positions == "sinusoidal" and model.dim % 2:
        raise UserError(f"model.dim = {model.dim}: odd, but sinusoidal positions come in pairs")
    if model.positions == "rotary":
        width = model.dim // model.num_heads
        if width % 2:
            raise UserError(f"model.positions = 'rotary': turns pairs, a head is {width} wide")
        if not any(table.num_groups for name, table in tables.items() if name != "cross"):
            raise UserError("model.positions = 'rotary': does nothing, no head has Q and K")
    return tables


def _check_section(
    model: ModelSettings, name: str, attention: AttentionSettings, max_length: int | None
) -> HeadTable:
    longest = sys.maxsize if max_length is None else max_length
    try:
        table = head_table(attention, model.layers_of(name), model.num_heads)
        causal, cross = name == "decoder", name == "cross"
        check_attention(attention, table, longest, causal=causal, cross=cross)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    return table


def _kind_of_batch(train: Any) -> str:
    names = train if isinstance(train, dict) else getattr(type(train), "model_fields", ())
    return "tokens" if "batch_tokens" in names else "examples"


class Architecture(Section):
    """What is needed to count a model, of any family; read by `params` out of any training config.

    The sections that only a training reads may be there; they are checked one by one.
    """

    model: ModelSettings
    encoder: AttentionSettings | None = None
    decoder: AttentionSettings | None = None
    """Self-attention of a causal model, or of an encoder-decoder's decoder."""
    cross: AttentionSettings | None = None
    """What a decoder pays to the source text; the offset of its biases is j − ratio·i."""
    tokenizer: TokenizerSettings
    variant: Name | None = None
    seed: NonNegativeInt | None = None
    output: Path | None = None
    name: Name | None = None
    data: dict[str, Any] | None = None
    optim: OptimSettings | None = None
    train: (
        Annotated[
            Annotated[TrainSettings, Tag("examples")]
            | Annotated[TokenTrainSettings, Tag("tokens")],
            Discriminator(_kind_of_batch),
        ]
        | None
    ) = None
    engine: EngineSettings | None = None
    deepspeed: dict[str, Any] | str | None = None
    tracking: TrackingSettings | None = None
    init: Path | None = None
    search: SearchSettings | None = None
    objective: Objective | None = None

    @model_validator(mode="after")
    def _fits(self) -> Architecture:
        check_stacks(self.model, self.attention, self.model.max_length)
        return self

    @property
    def tables(self) -> dict[str, HeadTable]:
        """The head table of every section that the family has."""
        return check_stacks(self.model, self.attention, self.model.max_length)

    @property
    def attention(self) -> dict[str, AttentionSettings]:
        """The attention sections that are given."""
        all_of_them = {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}
        return {name: given for name, given in all_of_them.items() if given is not None}

    @property
    def vocab_size(self) -> int:
        if self.tokenizer.vocab_size is None:
            raise UserError("tokenizer.vocab_size: missing; counts read no files, state the size")
        return self.tokenizer.vocab_size


class TrainingRun(Section):
    """What every run that trains has."""

    variant: Name
    """Name of the model variant in every table."""
    seed: NonNegativeInt = 1337
    output: Path = Path("runs")
    """Folder that holds the run folders."""
    name: Name | None = None
    """Name of the run and its folder; none: variant-task-seed."""
    optim: OptimSettings = OptimSettings()
    train: Rhythm
    engine: EngineSettings = EngineSettings()
    deepspeed: dict[str, Any] | str | None = None
    """Any further DeepSpeed keys, or the path of a DeepSpeed JSON file."""
    tracking: TrackingSettings = TrackingSettings()

    @field_validator("deepspeed")
    @classmethod
    def _read(cls, value: dict[str, Any] | str | None) -> dict[str, Any] | None:
        return None if value is None else read_deepspeed(value)

    @model_validator(mode="after")
    def _consistent(self) -> TrainingRun:
        train, engine = self.train, self.engine
        if (train.steps is None) == (train.epochs is None):
            raise UserError("train: give one of steps and epochs")
        if train.steps is not None and self.optim.warmup_steps > train.steps:
            raise UserError(
                f"optim.warmup_steps = {self.optim.warmup_steps}: more than train.steps "
                f"{train.steps}"
            )
        if engine.offload_optimizer != "none" and engine.zero_stage == 0:
            raise UserError("engine.offload_optimizer = 'cpu': needs zero_stage 1, 2 or 3, is 0")
        if engine.offload_parameters != "none" and engine.zero_stage != 3:
            raise UserError(
                f"engine.offload_parameters = 'cpu': needs zero_stage 3, is {engine.zero_stage}"
            )
        if self.optim.schedule in ("constant", "inverse_sqrt") and self.optim.final_ratio:
            raise UserError(f"optim.final_ratio: does nothing with {self.optim.schedule!r}")
        if self.optim.schedule == "inverse_sqrt" and self.optim.warmup_steps == 0:
            raise UserError("optim.warmup_steps = 0: inverse_sqrt decays from its warmup's end")
        return self


class PretrainRun(TrainingRun):
    """Pretraining on running text; `train_tokenizer` and `prepare_data` read it too."""

    objective: Objective = "mlm"
    """mlm: an encoder predicts masked tokens; denoise: an encoder-decoder gives back the whole text
    of which spans are masked, and `finetune_nmt` goes on from it; clm: a causal model predicts each
    token from those before it."""
    model: ModelSettings
    encoder: Annotated[AttentionSettings | None, Field(validate_default=True)] = None
    """None: plain, where the model has an encoder."""
    decoder: AttentionSettings | None = None
    """Causal self-attention of a causal model or of an encoder-decoder; none: plain."""
    cross: AttentionSettings | None = None
    """What an encoder-decoder's decoder pays to the masked text; none: plain."""
    tokenizer: TokenizerSettings
    data: CorpusSettings
    train: TrainSettings

    @field_validator("model")
    @classmethod
    def _of_its_family(cls, model: ModelSettings, info: ValidationInfo) -> ModelSettings:
        objective, family = info.data.get("objective"), model.family
        if objective is not None and family != _FAMILIES[objective]:
            trained = ", `finetune_nmt` trains it" if family == "encoder_decoder" else ""
            raise UserError(
                f"model.family = {family!r}: needed with objective = {objective!r} is "
                f"{_FAMILIES[objective]!r}; objective: {_OBJECTIVES[family]} pretrains this "
                f"one{trained}"
            )
        return model

    @field_validator("encoder")
    @classmethod
    def _plain_by_default(
        cls, encoder: AttentionSettings | None, info: ValidationInfo
    ) -> AttentionSettings | None:
        model = info.data.get("model")
        if encoder is None and model is not None and "encoder" in model.sections:
            return AttentionSettings()
        return encoder

    @model_validator(mode="after")
    def _fits(self) -> PretrainRun:
        positions = self.model.max_length
        if positions is not None and self.data.length > positions:
            raise UserError(
                f"data.length = {self.data.length}: the model has {positions} "
                "positions (model.max_length)"
            )
        if self.train.patience is not None:
            raise UserError("train.patience: pretraining picks no best weights")
        given = {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}
        check_stacks(self.model, given, self.data.length)
        return self

    @model_validator(mode="after")
    def _corrupts_one_way(self) -> PretrainRun:
        own = _CORRUPTION[self.objective]
        for name in (name for names in _CORRUPTION.values() for name in names if name not in own):
            if getattr(self.data, name) != CorpusSettings.model_fields[name].default:
                raise UserError(f"data.{name}: does nothing with objective = {self.objective!r}")
        return self

    @property
    def sections(self) -> dict[str, AttentionSettings]:
        """The attention settings of the sections that the family has."""
        return {name: getattr(self, name) or AttentionSettings() for name in self.model.sections}

    @property
    def run_name(self) -> str:
        return self.name or f"{self.variant}-{self.objective}-{self.seed}"


class FinetuneRun(TrainingRun):
    """Fine-tuning on a classification task, from an export or from scratch."""

    variant: Name | None = None  # type: ignore[assignment]
    """None: the variant of the export."""
    init: Path | None = None
    """An export folder, or a run folder that has one."""
    model: EncoderModel | None = None
    """Only without `init`: train from scratch."""
    encoder: AttentionSettings | None = None
    tokenizer: TokenizerSettings | None = None
    data: TaskSettings
    train: TrainSettings

    @model_validator(mode="after")
    def _trainable(self) -> FinetuneRun:
        if self.data.task == "ax":
            raise UserError(
                "data.task = 'ax': has no training set; fine-tune mnli, then evaluate with task=ax"
            )
        return self

    @model_validator(mode="after")
    def _one_start(self) -> FinetuneRun:
        own = {"model": self.model, "encoder": self.encoder, "tokenizer": self.tokenizer}
        if self.init is not None:
            given = [name for name, section in own.items() if section is not None]
            if given:
                raise UserError(f"{given[0]}: `init` brings its own, leave one of the two out")
            return self
        if self.model is None or self.tokenizer is None or self.variant is None:
            raise UserError("give `init` (an export), or `variant`, `model` and `tokenizer`")
        if self.data.length > self.model.max_length:
            raise UserError(
                f"data.length = {self.data.length}: the model has {self.model.max_length} "
                "positions (model.max_length)"
            )
        check_stack(self.model, self.encoder or AttentionSettings(), self.data.length)
        return self


def _kind_of_text(data: Any) -> str:
    names = data if isinstance(data, dict) else getattr(type(data), "model_fields", ())
    return "parallel" if "src_lang" in names or "trg_lang" in names else "running"


class Preparation(Architecture):
    """What `train_tokenizer` and `prepare_data` read, out of any config that trains on text."""

    data: Annotated[  # type: ignore[assignment]
        Annotated[CorpusSettings, Tag("running")] | Annotated[TranslationData, Tag("parallel")],
        Discriminator(_kind_of_text),
    ]
    """Running text for pretraining, or with src_lang and trg_lang parallel text for translation."""

    @model_validator(mode="after")
    def _right_text(self) -> Preparation:
        is_parallel, family = isinstance(self.data, TranslationData), self.model.family
        if is_parallel and self.objective is not None:
            raise UserError(f"data: objective = {self.objective!r} needs running text")
        if is_parallel and family != "encoder_decoder":
            raise UserError(f"data: model.family = {family!r} needs running text")
        if not is_parallel and family == "encoder_decoder" and self.objective is None:
            raise UserError(
                f"data: model.family = {family!r} needs parallel text, or objective: denoise"
            )
        if self.objective is not None or family != "encoder_decoder":
            check(self.model_dump(mode="json", exclude_unset=True), PretrainRun)
        return self
