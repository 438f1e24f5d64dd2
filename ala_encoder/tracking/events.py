"""The events of a run: metrics.jsonl in the run folder, the truth that MLflow mirrors.

For: writing the file so that a crash or a full disk costs at most the line being written, reading
it back, and the rule which of its points count.
Not for: MLflow (`tracking`), or deciding what to log (`runlog`).

A line is `{"event": KIND, "time": ms, ...}`, strict JSON; KIND is start, params, tags, metrics,
summary, dataset, artifact, note (what went wrong with the mirror) or end. A resumed run has several
starts.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

EVENTS = "metrics.jsonl"
_MAX_UNWRITTEN = 64 << 20


def events_from(path: Path, position: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (byte after the line, event) of each complete line from `position` on.

    A line torn by a crash is passed over as the event {"event": "torn"}.
    """
    with path.open("rb") as file:
        file.seek(position)
        for line in file:
            if not line.endswith(b"\n"):
                return
            position += len(line)
            try:
                event = json.loads(line)
                whole = "event" in event
            except (ValueError, TypeError):
                whole = False
            yield position, event if whole else {"event": "torn"}


class Points:
    """The metric points of a sequence of events, each (name, step) once.

    A run resumed from a checkpoint repeats the steps after it: the first value stands. A summary
    is a point at the last step, so that it is what MLflow shows for the run; it may correct a
    value already given for that step. A non-finite value becomes `<name>_nonfinite` = 1.
    """

    def __init__(self, last: Mapping[str, tuple[int, float]] | None = None, step: int = 0) -> None:
        self.last = {name: (int(at), float(value)) for name, (at, value) in (last or {}).items()}
        self.step = step

    def add(self, event: Mapping[str, Any]) -> list[tuple[str, int, float]]:
        """Return the new points (name, step, value) of a metrics or summary event."""
        final = event["event"] == "summary"
        if not final:
            self.step = max(self.step, event["step"])
        new = []
        for name, value in event["values"].items():
            if value is None:
                name, value = f"{name}_nonfinite", 1.0
            known = self.last.get(name)
            step = max(self.step, known[0] if known else 0) if final else event["step"]
            if known and (known == (step, value) if final else step <= known[0]):
                continue
            self.last[name] = (step, value)
            new.append((name, step, value))
        return new


def history(folder: Path) -> list[tuple[str, int, float]]:
    """Return the points (name, step, value) of a run folder, the same that MLflow is given."""
    points = Points()
    return [
        point
        for _, event in events_from(Path(folder) / EVENTS)
        if event["event"] in ("metrics", "summary")
        for point in points.add(event)
    ]


class Writer:
    """Appends lines; on a full disk keeps them, goes on, and writes them when there is room."""

    def __init__(self, path: Path, say: Callable[[str], object]) -> None:
        self._path, self._say = path, say
        self._lock = threading.Lock()
        self._unwritten = bytearray()
        self._time = 0
        self._complained = self._closed = False
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        # Held while the run lives, so that a replay can tell a living run from a killed one.
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{path}: another process has this log open; is the run still going on?")
        except OSError:  # a file system without locks
            pass
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self._unwritten += b"\n"

    def write(self, event: str, **fields: Any) -> None:
        with self._lock:
            if self._closed:
                return
            # A later time makes MLflow prefer a summary to a point of the same step.
            self._time = max(int(time.time() * 1000), self._time + (event == "summary"))
            line = json.dumps({"event": event, "time": self._time, **fields}, allow_nan=False)
            if len(self._unwritten) < _MAX_UNWRITTEN:
                self._unwritten += line.encode("ascii") + b"\n"
            self._flush()
            if event == "end":
                os.close(self._file)
                self._closed = True

    def _flush(self) -> None:
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._file, self._unwritten)]
        except OSError as error:
            if not self._complained:
                self._complained = True
                self._say(f"{self._path}: cannot write ({error}); the run goes on without its log")


def numbers(values: Mapping[str, float]) -> dict[str, Any]:
    """Return the fields of a metrics event: null in `values` and a word in `nonfinite` for NaN."""
    plain: dict[str, float | None] = {}
    nonfinite: dict[str, str] = {}
    for name, value in values.items():
        try:
            number = float(value)
        except OverflowError:  # an int beyond the range of floats
            number = math.inf if value > 0 else -math.inf
        finite = math.isfinite(number)
        plain[name] = number if finite else None
        if not finite:
            nonfinite[name] = str(number)
    return {"values": plain, **({"nonfinite": nonfinite} if nonfinite else {})}
