"""Signals that ask a run to save everything and leave, as Slurm sends them before a time limit.

For: a flag, which a handler sets and `ranks.check_signals` reads where every rank comes by.
Further signals change nothing, and those of a start that is not listening yet are kept back.
Not for: what is saved (`training`), the requeue (`slurm/`).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ASKING = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
_received: list[str] = []
_is_listening = False


class Asked(Exception):
    """A signal has come to a rank; the text names it and the ranks."""


@contextmanager
def listening() -> Iterator[None]:
    """Take the signals, held ones first, in the main thread until the block ends.

    After it they are held again if they were: a late one must not end what has saved everything.
    """
    global _is_listening
    earlier = {number: signal.signal(number, _note) for number in ASKING}
    _received.clear()
    _is_listening = True
    held = signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
    try:
        yield
    finally:
        _is_listening = False
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        for number, handler in earlier.items():
            signal.signal(number, handler)


def hold() -> None:
    """Keep signals back from now on, also in the program that this process may become.

    So none ends a rank that is still importing. Call it before there are threads.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)


def release() -> None:
    """Let the signals through again, for work that has nothing to save."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)


def is_listening() -> bool:
    """Tell whether signals are taken, on all ranks alike."""
    return _is_listening


def received() -> tuple[str, ...]:
    """Return the names of the signals that have come to this process, in order."""
    return tuple(_received)


def ignore(_worker: int = 0) -> None:
    """Let a process that helps a rank outlive the signals: the rank decides when it ends."""
    for number in ASKING:
        signal.signal(number, signal.SIG_IGN)


def _note(number: int, _frame: FrameType | None) -> None:
    _received.append(signal.Signals(number).name)
