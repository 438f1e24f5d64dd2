"""The memory that a piece of work takes, whatever the process took before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROCESS = Path("/proc/self")


@contextmanager
def at_most(bytes_: int) -> Iterator[None]:
    """Raise AssertionError when resident memory rises by more than this inside the block.

    The kernel's high-water mark is set back first: it would be of the process's whole life.
    """
    (PROCESS / "clear_refs").write_text("5")
    before = _status("VmRSS")
    yield
    rise = _status("VmHWM") - before
    assert rise <= bytes_, f"{rise:,} bytes, allowed are {bytes_:,}"


def _status(key: str) -> int:
    lines = (PROCESS / "status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024
