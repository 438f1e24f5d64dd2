"""The settings of a training of translation."""

from __future__ import annotations

from pathlib import Path

from pydantic import model_validator

from ala_encoder.errors import UserError
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.experiment import TrainingRun, check_stacks
from ala_encoder.settings.model import EncoderDecoderModel
from ala_encoder.settings.parallel import TranslationData
from ala_encoder.settings.search import SearchSettings
from ala_encoder.settings.tokenizer import TokenizerSettings
from ala_encoder.settings.train import TokenTrainSettings


class TranslationRun(TrainingRun):
    """Training of a translation model, from scratch, from an export, or from a published model.

    `train_tokenizer` and `prepare_data` read it too.
    """

    init: Path | None = None
    """An export to start from, or a run folder that has one: a masked language model, of which the
    encoder and the vocabulary are taken, or all of an encoder-decoder: a translation model, or one
    pretrained with `objective: denoise`. Or the Hugging Face folder of an encoder-decoder such as
    OPUS-MT's, which local masks and biases may be added to. It must be of the same sizes and
    tokenizer as here."""
    model: EncoderDecoderModel
    encoder: AttentionSettings = AttentionSettings()
    decoder: AttentionSettings = AttentionSettings()
    """Causal self-attention."""
    cross: AttentionSettings = AttentionSettings()
    """What the decoder pays to the source text."""
    tokenizer: TokenizerSettings
    data: TranslationData
    train: TokenTrainSettings
    search: SearchSettings = SearchSettings()
    """How the translations are found that the trained model is scored by."""

    @model_validator(mode="after")
    def _fits(self) -> TranslationRun:
        positions, longest = self.model.max_length, self.train.max_length
        if positions is not None and longest > positions:
            raise UserError(
                f"train.max_length = {longest}: the model has {positions} positions "
                "(model.max_length)"
            )
        if self.train.greedy_bleu and self.engine.zero_stage == 3:
            raise UserError(
                "train.greedy_bleu = true: needs engine.zero_stage 0, 1 or 2, is 3; set it to false"
            )
        check_stacks(self.model, self.sections, positions or longest)
        if self.tokenizer.kind == "wordpiece":
            raise UserError(
                "tokenizer.kind = 'wordpiece': gives no translation back as it is written; allowed "
                "are sentencepiece, byte_bpe, fairseq_bpe and pretrained"
            )
        self.search.for_scores()
        return self

    @property
    def sections(self) -> dict[str, AttentionSettings]:
        """The attention settings by section."""
        return {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}

    @property
    def task(self) -> str:
        """Its name in tables, such as en-de."""
        return "-".join(self.data.languages)

    @property
    def run_name(self) -> str:
        return self.name or f"{self.variant}-{self.task}-{self.seed}"
