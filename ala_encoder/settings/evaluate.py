"""The settings of `evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ala_encoder.errors import UserError
from ala_encoder.settings.base import PositiveInt, Section
from ala_encoder.settings.loader import check
from ala_encoder.settings.model import check_reach
from ala_encoder.settings.search import SearchSettings
from ala_encoder.settings.task import RowSource, TaskSettings

ProtocolName = Literal["blocks", "sliding", "last_token"]
_FIXED_TOKENS = 2000


class Protocol(Section):
    """How a causal language model is scored, nothing left open; see `ala_encoder.protocols`."""

    name: ProtocolName = "blocks"
    lengths: tuple[int, ...]
    """Tokens that a window reads, for each score."""
    stride: int | None = None
    """Of sliding: tokens from a window to the next."""
    tokens: int | None = None
    """Of last_token: how many tokens are predicted."""

    def __str__(self) -> str:
        more = {"stride": self.stride, "tokens": self.tokens}
        given = "".join(f", {name} {value:,}" for name, value in more.items() if value is not None)
        return f"{self.name} at {' '.join(map(str, self.lengths))}{given}"


class EvaluateRun(RowSource):
    """Scores of an export: a language model's loss, a classifier's metrics, a translator's BLEU."""

    export: Path
    """An export folder, or a run folder that has one."""
    split: str | None = None
    """None: valid for a language model, every dev split for a classifier (test, without one), valid
    and test for a translation model."""
    task: str | None = None
    """Another GLUE task with the same classes, such as ax for a classifier of mnli."""
    path: Path | None = None
    """Other data than the export was made with: a prepared corpus, or a folder of tables."""
    batch_size: PositiveInt = 64
    protocol: ProtocolName | None = None
    """Of a causal language model: windows that touch, windows that overlap (`stride`), or a fixed
    set of tokens after exactly `length` others (`tokens`). None: blocks, as in its training."""
    length: PositiveInt | None = None
    """Of a causal language model: the tokens it reads at once; none: those of its training."""
    lengths: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = None
    """Several of these in place of one; scores are named NAME/LENGTH."""
    stride: PositiveInt | None = None
    """Of `protocol: sliding`: tokens from a window to the next; none: half of the least length."""
    tokens: PositiveInt | None = None
    """Of `protocol: last_token`: how many are predicted, the same for every model; none: 2,000."""
    prune: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Of a language model, in place of the export's `encoder.prune`: what a query's attention
    weights may lose in sum; what that changes at most becomes part of the scores."""
    search: SearchSettings | None = None
    """Of a translation model: what is given here is in place of the run's own."""
    test_set: str | None = None
    """Of a translation model, in place of valid and test: a test set by sacreBLEU's name, such as
    wmt14/full, fetched once; or name two texts by `files.src` and `files.trg`."""
    compound_split_bleu: bool = False
    """Of a translation model: also the tokenised BLEU that the literature has of WMT'14
    English-German, in which a-b is three words. It is not comparable with BLEU."""
    output: Path | None = None
    """Folder of SPLIT.json and predictions; none: eval/ beside the export, or for other data, with
    `prune` or another protocol eval-DATA-DIGEST/, of all, so that no scores replace others."""

    @model_validator(mode="after")
    def _fits(self) -> EvaluateRun:
        for name, needed in (("stride", "sliding"), ("tokens", "last_token")):
            if getattr(self, name) is not None and self.protocol != needed:
                raise UserError(f"{name}: does nothing without protocol = {needed!r}")
        lengths = self.lengths or ()
        if lengths and self.length is not None:
            raise UserError("length and lengths are both given: keep one")
        if len(set(lengths)) < len(lengths):
            raise UserError(f"lengths = {list(lengths)}: one of them is there twice")
        return self

    def causal_protocol(self, length: int, positions: int | None) -> Protocol:
        """Return how a causal language model is scored that was trained on `length` tokens.

        positions: learned ones, None: none are. Raises UserError for a length beyond them.
        """
        lengths = self.lengths or (self.length or length,)
        check_reach("length" if self.lengths is None else "lengths", lengths, positions)
        if self.protocol == "sliding":
            stride = self.stride or max(1, min(lengths) // 2)
            return Protocol(name="sliding", lengths=lengths, stride=stride)
        if self.protocol == "last_token":
            tokens = self.tokens or _FIXED_TOKENS
            return Protocol(name="last_token", lengths=lengths, tokens=tokens)
        return Protocol(lengths=lengths)

    @model_validator(mode="after")
    def _one_translation(self) -> EvaluateRun:
        if self.search is not None:
            self.search.for_scores()
        return self

    def task_data(self, own: TaskSettings) -> TaskSettings:
        """Return a classifier's own data settings with what is given here in their place.

        They are equal to `own` where nothing else is to be scored. Raises UserError for what does
        not fit together.
        """
        data = own.model_dump(mode="json")
        if self.task is not None and self.task != own.task:
            data |= {"task": self.task, "columns": None, "files": None, "config": None}
            data["max_train_examples"] = 0
        if self.path is not None or self.dataset is not None:
            keep = {"task", "columns", "length", "on_bad_row"}
            data = {key: value for key, value in data.items() if key in keep}
            data |= self.model_dump(mode="json", include={"path", "dataset", "config", "revision"})
        if self.files:
            data["files"] = self.files
        return check(data, TaskSettings)
