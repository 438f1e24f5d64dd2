"""Timing of functions against one another: taking turns, after a warm-up, as medians and ratios.

For: every benchmark here. Machines are noisy, so a time alone says little: all functions run once
in each round, and a ratio is the median over rounds of the ratio within a round.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch

from ala_encoder.memory import keep_freed_memory

K = TypeVar("K")
ROUNDS = 7
_PACKAGES = ("torch", "numpy", "transformers", "ala-encoder")


@dataclass(frozen=True)
class Times:
    """Seconds of one function, one for each round."""

    rounds: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.rounds)

    def ratio_to(self, other: Times) -> tuple[float, float, float]:
        """Return the median, least and largest ratio to `other` within a round."""
        ratios = [a / b for a, b in zip(self.rounds, other.rounds, strict=True)]
        return statistics.median(ratios), min(ratios), max(ratios)


def interleaved(
    functions: Mapping[K, Callable[[], object]], *, rounds: int = ROUNDS, warm_up: int = 1
) -> dict[K, Times]:
    """Run every function once a round, in turn; the first `warm_up` rounds do not count."""
    keep_freed_memory()  # as a training does
    taken: dict[K, list[float]] = {name: [] for name in functions}
    for number in range(warm_up + rounds):
        for name, function in functions.items():
            time_taken = seconds(function)
            if number >= warm_up:
                taken[name].append(time_taken)
    return {name: Times(tuple(values)) for name, values in taken.items()}


def seconds(function: Callable[[], object]) -> float:
    """Run a function once and return the seconds it took."""
    start = time.perf_counter()
    function()
    synchronise()
    return time.perf_counter() - start


def synchronise() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_mib(function: Callable[[], object]) -> float:
    """Return by how many MiB memory grows at most while `function` runs.

    On a CPU what earlier work has freed is given back first: used again, it would not be seen.
    """
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        synchronise()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # sets VmHWM back to VmRSS
    before = _status("VmRSS")
    function()
    return (_status("VmHWM") - before) / 2**10


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])


def environment() -> dict[str, Any]:
    """Return what the numbers depend on: hardware, threads, versions, date."""
    on_gpu = torch.cuda.is_available()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if on_gpu else _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, padded so that it reads as plain text too."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(x.ljust(w) for x, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
