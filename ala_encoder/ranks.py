"""Rank, world size and the few collectives the project needs; works in one plain process too.

For: reading what the launcher (deepspeed, torch.distributed.run, none) set, before and after
torch.distributed is up. Not for: starting it (`engine`) or moving weights (DeepSpeed).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from ala_encoder import signals
from ala_encoder.errors import UserError

Result = TypeVar("Result")


def _read(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    if not text.isdecimal():
        raise UserError(f"environment variable {name} = {text!r}: not a whole number")
    return int(text)


def rank() -> int:
    """Return this process's number among all, from RANK; 0 without a launcher."""
    number, size = _read("RANK", 0), world_size()
    if number >= size:
        raise UserError(f"environment variable RANK = {number}: allowed are 0 … {size - 1}")
    return number


def local_rank() -> int:
    """Return this process's number on its machine, from LOCAL_RANK."""
    return _read("LOCAL_RANK", 0)


def world_size() -> int:
    """Return the number of processes, from WORLD_SIZE; 1 without a launcher.

    Raises UserError for a WORLD_SIZE that came without a RANK: a lone process would train on its
    share of each batch as if others took the rest.
    """
    size = _read("WORLD_SIZE", 1)
    if size < 1:
        raise UserError("environment variable WORLD_SIZE = 0: allowed is 1 or more")
    if size > 1 and not os.environ.get("RANK"):
        raise UserError(
            f"environment variable WORLD_SIZE = {size} without RANK: unset it, or start "
            "all ranks with a launcher"
        )
    return size


def local_world_size() -> int:
    """Return the number of processes on this machine; the launchers name it differently."""
    return _read("LOCAL_WORLD_SIZE", _read("LOCAL_SIZE", world_size()))


def is_main() -> bool:
    """Tell whether this is rank 0, the only one that writes and prints."""
    return rank() == 0


def say(text: str) -> None:
    """Print a line on standard error, on rank 0 alone."""
    if is_main():
        print(text, file=sys.stderr, flush=True)


def _initialized() -> bool:
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_initialized())


def barrier() -> None:
    """Wait until every rank is here."""
    import torch.distributed as dist

    if _initialized():
        dist.barrier()


def on_main(work: Callable[[], Result]) -> Result:
    """Run `work` on rank 0 and return its result, or raise its exception, on every rank.

    So no rank waits in a collective for one that has already failed. The result must pickle.
    """
    result, error = None, None
    if is_main():
        try:
            result = work()
        except Exception as caught:
            error = caught
    result, error = broadcast((result, error))
    if error is not None:
        raise error
    return cast("Result", result)


def all_sum(values: Sequence[float]) -> list[float]:
    """Return the element-wise sum over ranks, in float64, equal on every rank."""
    import torch
    import torch.distributed as dist

    if not _initialized():
        return list(values)
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return [float(value) for value in total.tolist()]


def gather(value: Any) -> list[Any]:
    """Return the values of all ranks, in rank order, on every rank."""
    import torch.distributed as dist

    if not _initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def broadcast(value: Any) -> Any:
    """Return rank 0's value on every rank."""
    import torch.distributed as dist

    if not _initialized():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def check_signals() -> None:
    """Raise signals.Asked, on all ranks, when a signal has come to one of them; all call it."""
    if not signals.is_listening() or not all_sum([len(signals.received())])[0]:
        return
    found = gather(signals.received())
    told = [str(number) for number, some in enumerate(found) if some]
    names = sorted({name for some in found for name in some})
    raise signals.Asked(f"{' and '.join(names)} on rank{'s' * (len(told) > 1)} {', '.join(told)}")
