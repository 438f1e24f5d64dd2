"""Settings of the training loop: how long, in which batches, what is saved and when."""

from __future__ import annotations

from typing import Literal

from ala_encoder.errors import UserError
from ala_encoder.settings.base import NonNegativeInt, PositiveInt, Section


class TrainSettings(Section):
    """Length, batches and rhythm of a run. Give `steps` or `epochs`, not both."""

    steps: PositiveInt | None = None
    """Optimizer steps."""
    epochs: PositiveInt | None = None
    """Passes over the data, counted in updates."""
    batch_size: PositiveInt
    """Examples in one optimizer step, over all ranks and accumulation steps."""
    micro_batch_size: PositiveInt | None = None
    """Examples a rank computes at once."""
    gradient_accumulation_steps: PositiveInt | None = None
    """Micro-batches a rank adds up before a step."""
    eval_batch_size: PositiveInt = 64
    """Examples a rank evaluates at once."""
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


class BatchSplit(Section):
    """One global batch cut into world_size x accumulation pieces of at most `micro` examples."""

    micro: PositiveInt
    accumulation: PositiveInt


def split_batch(train: TrainSettings, world_size: int) -> BatchSplit:
    """Derive what was left open of batch = micro x accumulation x world size.

    The missing factors are the smallest that hold the batch; a batch that does not fill them is
    cut unevenly and normalised exactly. Raises UserError when all three are given and their
    product is not the batch.
    """
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
