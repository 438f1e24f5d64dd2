"""Settings of the training loop: how long, in which batches, what is saved and when."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from ala_encoder.errors import UserError
from ala_encoder.settings.base import NonNegativeInt, PositiveInt, Probability, Section


class Rhythm(Section):
    """Length and rhythm of a run, whatever its batches hold; abstract.

    Give `steps` or `epochs`, not both.
    """

    steps: PositiveInt | None = None
    """Optimizer steps."""
    epochs: PositiveInt | None = None
    """Passes over the data, counted in updates."""
    eval_every: NonNegativeInt = 0
    """Steps between validations; 0 means at each epoch's end (epochs) or at the end (steps).
    The start and the end are validated in any case."""
    save_every: NonNegativeInt = 0
    """Steps between checkpoints; 0 means one at the end."""
    keep_checkpoints: PositiveInt = 2
    """How many of the newest checkpoints stay; the best weights stay besides."""
    log_every: PositiveInt = 10
    """Steps between logged points."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What a non-finite gradient does: stop at once, or skip (at most 3 in a row)."""
    num_workers: NonNegativeInt = 0
    """Background processes that assemble batches for each rank; 0: in the training process."""
    from_scratch: bool = False
    """Start again even where checkpoints exist; without it a run resumes from its newest."""
    stop_after: PositiveInt | None = None
    """End after this many steps with a checkpoint, as if the time were up; resume goes on."""
    patience: PositiveInt | None = None
    """End when the score that picks the best weights has not become better for so many steps; none:
    never. Only a run that picks some has it."""
    average_checkpoints: PositiveInt | None = None
    """Export the mean of the weights of so many of the last steps that save, the end among them, or
    of all where there are fewer; none: the best weights, or the last."""

    @model_validator(mode="after")
    def _several_saved(self) -> Rhythm:
        if self.average_checkpoints is not None and not self.save_every:
            raise UserError("average_checkpoints: needs save_every, or one step alone is saved")
        return self

    @model_validator(mode="after")
    def _patience_acts(self) -> Rhythm:
        if self.patience is not None and self.steps is not None:
            if not self.eval_every:
                raise UserError("patience: does nothing without eval_every")
            if self.patience >= self.steps:
                raise UserError(f"patience = {self.patience}: does nothing in {self.steps} steps")
        return self


class TrainSettings(Rhythm):
    """Length, batches and rhythm of a run. Give `steps` or `epochs`, not both."""

    batch_size: PositiveInt
    """Examples in one optimizer step, over all ranks and accumulation steps."""
    micro_batch_size: PositiveInt | None = None
    """Examples a rank computes at once."""
    gradient_accumulation_steps: PositiveInt | None = None
    """Micro-batches a rank adds up before a step."""
    eval_batch_size: PositiveInt = 64
    """Examples a rank evaluates at once."""


class TokenTrainSettings(Rhythm):
    """Training of translation in batches of tokens, padding counted: rows x the longest sentence of
    either side. Give `steps` or `epochs`, not both."""

    batch_tokens: PositiveInt
    """Most tokens of a side in one optimizer step, over all ranks and accumulation steps."""
    micro_batch_tokens: PositiveInt | None = None
    """Most tokens of a side that a rank computes at once; none: its whole share of the batch. How
    many micro-batches make a step follows."""
    eval_batch_tokens: PositiveInt = 4096
    """Most tokens of a side that a rank evaluates at once; a longer pair is a batch of its own."""
    max_length: PositiveInt = 256
    """Most tokens of a side, eos counted: longer pairs are dropped from training, and counted."""
    label_smoothing: Probability = 0.1
    """Part of a target's probability that is spread over all entries a target could be; losses are
    reported without."""
    greedy_bleu: bool = True
    """Whether validation also translates, greedily. Unless checkpoints are averaged, the weights of
    best BLEU are then exported, else those of least loss."""

    @model_validator(mode="after")
    def _fits_together(self) -> TokenTrainSettings:
        micro = self.micro_batch_tokens
        for name, room in (("batch_tokens", self.batch_tokens), ("micro_batch_tokens", micro)):
            if room is not None and self.max_length > room:
                raise UserError(
                    f"max_length = {self.max_length}: a pair may be longer than {name} = {room}"
                )
        if micro is not None and micro > self.batch_tokens:
            raise UserError(
                f"micro_batch_tokens = {micro}: more than batch_tokens {self.batch_tokens}"
            )
        return self


class BatchSplit(Section):
    """One global batch cut into world_size x accumulation pieces of at most `micro` units."""

    micro: PositiveInt
    accumulation: PositiveInt
    unit: Literal["examples", "tokens"] = "examples"
    """tokens: padding counted; the pieces of a batch then have equal numbers of examples."""


def split_batch(train: Rhythm, world_size: int) -> BatchSplit:
    """Derive what was left open of batch = micro x accumulation x world size.

    The missing factors are the smallest that hold the batch; a batch that does not fill them is
    cut unevenly and normalised exactly. Raises UserError when all three are given and their
    product is not the batch.
    """
    if isinstance(train, TokenTrainSettings):
        return _split_tokens(train, world_size)
    assert isinstance(train, TrainSettings)
    batch, micro = train.batch_size, train.micro_batch_size
    accumulation = train.gradient_accumulation_steps
    if micro is not None and accumulation is not None:
        product = micro * accumulation * world_size
        if product != batch:
            raise UserError(
                f"train.batch_size = {batch}, but micro_batch_size {micro} x "
                f"gradient_accumulation_steps {accumulation} x {world_size} ranks = {product}: "
                "change one, or leave one out"
            )
    elif micro is not None:
        accumulation = -(-batch // (micro * world_size))
    else:
        accumulation = accumulation or 1
        micro = -(-batch // (accumulation * world_size))
    return BatchSplit(micro=micro, accumulation=accumulation)


def _split_tokens(train: TokenTrainSettings, world_size: int) -> BatchSplit:
    """Return the fewest accumulation steps in which no batch makes a piece larger than `micro`.

    A batch whose longest sentence has n tokens has at most batch // n rows, a piece micro // n.
    """
    batch, micro = train.batch_tokens, train.micro_batch_tokens
    if micro is None:
        return BatchSplit(micro=-(-batch // world_size), accumulation=1, unit="tokens")
    pieces = max(-(-(batch // n) // (micro // n)) for n in range(1, train.max_length + 1))
    return BatchSplit(micro=micro, accumulation=-(-pieces // world_size), unit="tokens")
