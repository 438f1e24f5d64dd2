"""Timing of functions against one another: taking turns, after a warm-up, as medians and ratios.

For: every benchmark here, with its command line and the files its tables go into. Machines are
noisy, so a time alone says little: all functions run once in each round, and a ratio is the median
over rounds of the ratio within a round.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import shlex
import statistics
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from ala_encoder.errors import UserError, nearest, reason, shown
from ala_encoder.files import write_text
from ala_encoder.memory import keep_freed_memory

K = TypeVar("K")
T = TypeVar("T")
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


# The command line, and files of results


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line, the nearest match in them, and exit code 2."""

    def __init__(self, description: str | None) -> None:
        super().__init__(
            description=description,
            formatter_class=argparse.RawTextHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        line = UserError(f"{message.removeprefix('argument ')}; see --help")
        self.exit(2, f"error: {line}\n")

    def read(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse what is given."""
        given, unknown = self.parse_known_args(argv)
        if unknown:
            word = unknown[0]
            options = [*self._option_string_actions]
            self.error(f"{word}: no such option{nearest(word.partition('=')[0], options)}")
        return given


def whole(most: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from 1 to `most`."""

    def read(text: str) -> int:
        if not text.strip().isdecimal() or len(text) > 20 or not 1 <= int(text) <= most:
            raise ArgumentTypeError(f"{shown(text)}: allowed are whole numbers from 1 to {most:,}")
        return int(text)

    return read


def one_of(allowed: Collection[str]) -> Callable[[str], str]:
    """Return a reader of one of some names."""

    def read(text: str) -> str:
        if text not in allowed:
            names = ", ".join(allowed)
            near = nearest(text, allowed)
            raise ArgumentTypeError(f"{shown(text)}: allowed are {names}{near}")
        return text

    return read


def several(read: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Return a reader of comma-separated values, each once."""
    return lambda text: list(dict.fromkeys(read(part) for part in text.split(",")))


def report(text: str) -> Path:
    """Read the path of a file that has a place for results of this device (`put`)."""
    path, marks = Path(text), _marks()
    try:
        with path.open("r+", encoding="utf-8") as file:  # so that it can be written too
            lines = file.read().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentTypeError(f"{text}: cannot be changed: {reason(error)}") from None
    if any(lines.count(mark) != 1 for mark in marks):
        raise ArgumentTypeError(f"{text}: needs a line {marks[0]!r} and a line {marks[1]!r}, once")
    return path


def put(path: Path, text: str) -> None:
    """Replace what stands between the marks of this device in a file of results."""
    start, end = _marks()
    before, rest = path.read_text(encoding="utf-8").split(f"{start}\n")
    write_text(path, f"{before}{start}\n\n{text}\n\n{end}{rest.partition(end)[2]}")


def tell(text: str, heading: str, found: Sequence[Any], given: argparse.Namespace) -> None:
    """Print results and put them into a file, as --json and --into of `given` say."""
    if given.into is not None:
        put(given.into, text)
    if given.json:
        print(heading, file=sys.stderr)
        print(json.dumps(found, allow_nan=False))
    else:
        print(text)


def _marks() -> tuple[str, str]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return f"<!-- measured on {device} -->", f"<!-- end of measured on {device} -->"


def heading(module: str, argv: Sequence[str]) -> str:
    """Return the command that measured something, and what its numbers depend on."""
    words = [w for n, w in enumerate(argv) if "--into" not in (w.partition("=")[0], argv[n - 1])]
    command = shlex.join(["python", "-m", module, *words])
    return f"`{command}`\n\n" + ", ".join(f"{k} {v}" for k, v in environment().items())
