"""The run's own log: metrics.jsonl in the run folder, which MLflow only mirrors.

For: rank 0 of a training or evaluation. Each call appends one line of strict JSON and returns; a
child process (`python -m ala_encoder.tracking`) follows the file and copies it into MLflow, so that
a slow or missing server, or MLflow's own import (seconds), never holds the training.
Not for: talking to MLflow (that is `mirror`), other ranks (they take `null_log()`).
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ala_encoder.errors import UserError
from ala_encoder.tracking.address import checked_uri, public_uri
from ala_encoder.tracking.events import EVENTS, Writer, numbers

AWAY_SECONDS = 2.0
"""What an absent store may cost at exit."""
DRAIN_SECONDS = 10.0
"""What copying the rest may cost at exit when the store answers."""
START_SECONDS = 30.0
"""What a run shorter than MLflow's import waits for it at exit: local work, no store's fault."""
RUN_ID_SECONDS = 10.0


@dataclass(frozen=True)
class RunInfo:
    """What names a run and what it was started with."""

    run_name: str
    """variant-task-seed"""
    experiment: str
    params: Mapping[str, Any]
    """Flat: variant, seed, task, params/total, ..., and the flattened settings."""
    tags: Mapping[str, str] = field(default_factory=dict)
    parent_run_id: str | None = None


# ---- the mirror process


class _Mirror:
    """The child process that copies metrics.jsonl into MLflow, and what it last reported."""

    def __init__(
        self,
        folder: Path,
        uri: str,
        system_metrics: bool,
        say: Callable[[str], object],
        note: Callable[[str], object],
    ) -> None:
        self._folder, self._say, self._note = folder, say, note
        self._store = public_uri(uri)
        self._remote = not uri.startswith("sqlite")
        self.run_id: str | None = None
        self.known = threading.Event()
        """Set when the run id, or that there will be none for now, is known."""
        self._reported = threading.Event()
        self._state = "probing" if self._remote else "starting"
        self._since = self._connected = time.monotonic()
        self._away_said = self._given_up = False
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        # The address goes by the environment: it may hold a password, and arguments are public.
        environment = {**os.environ, "MLFLOW_TRACKING_URI": uri, "PYTHONPATH": path}
        command = [sys.executable, "-m", "ala_encoder.tracking", str(folder), str(os.getpid())]
        command += ["system-metrics"] if system_metrics else []
        with (folder / "mlflow.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                bufsize=0,  # a buffer's lock, held by the reading thread, would be copied by a fork
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # a Ctrl-C is for the training, which then tells us
            )
        self._reader = threading.Thread(target=self._read, name="mlflow-reports", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Take in the child's reports until it ends; runs in a thread."""
        assert self._process.stdout is not None
        rest = b""
        while chunk := os.read(self._process.stdout.fileno(), 1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
        if self._state != "done" and not self._given_up:
            self._away("the mirroring process ended; see mlflow.log in the run folder")
        self.known.set()
        self._reported.set()

    def _take(self, report: dict[str, Any]) -> None:
        self._since = time.monotonic()
        if self._state in ("probing", "starting"):
            self._connected = self._since
        self._state = report["state"]
        self.run_id = report.get("run_id", self.run_id)
        if report.get("refused"):
            self._note(report["refused"])
        if self._state == "away":
            self._away(report["error"])
        if self._state == "up" and self._away_said:
            self._away_said = False
            self._say(f"MLflow at {self._store} answers again")
        if self._state in ("away", "up"):
            self.known.set()
        self._reported.set()

    def _away(self, error: str) -> None:
        self._state = "away"
        if not self._away_said:
            self._away_said = True
            text = f"MLflow at {self._store} is away ({error})"
            self._note(text)
            self._say(f"{text}; the run goes on, its log is {self._folder / EVENTS}")

    def finish(self, status: str) -> None:
        """Wait for the rest to be copied, within the limits above; then end the process."""
        assert self._process.stdin is not None
        asked, hurry = time.monotonic(), status == "KILLED"
        try:
            with contextlib.suppress(OSError):
                self._process.stdin.write(status.encode())
                self._process.stdin.close()
            while self._process.poll() is None and time.monotonic() < self._deadline(asked, hurry):
                self._reported.clear()
                self._reported.wait(0.05)
        finally:
            if self._process.poll() is None:
                self._given_up = True
                self._process.kill()
            done = self._process.wait() == 0
            self._reader.join(1.0)
            assert self._process.stdout is not None
            if not self._reader.is_alive():
                self._process.stdout.close()
        if not done:
            self._say(
                f"MLflow at {self._store} has not got all of {self._folder}; "
                f"`python -m pipelines.track {self._folder}` sends the rest"
            )

    def _deadline(self, asked: float, hurry: bool) -> float:
        if self._state in ("probing", "away"):
            return asked + AWAY_SECONDS
        if self._state == "starting":
            return asked + (AWAY_SECONDS if hurry else START_SECONDS)
        most = max(asked, self._connected) + DRAIN_SECONDS
        # A server's silence is not told from its absence; a local file is only slow.
        return min(max(asked, self._since) + AWAY_SECONDS, most) if self._remote else most


# ---- the run log


class RunLog:
    """The log of one run: lines in `<folder>/metrics.jsonl`, mirrored by MLflow.

    Resuming is opening the same folder again: the same MLflow run goes on. A context manager: the
    status is FINISHED, FAILED after an exception, KILLED after Ctrl-C or an exit by a signal
    (codes above 128); the exception goes on.

    Raises `UserError` for an impossible store address and a folder that cannot be written. No
    other call raises for what happens to the store or the disk.
    """

    def __init__(
        self,
        folder: Path,
        info: RunInfo,
        *,
        uri: str | None,
        enabled: bool = True,
        system_metrics: bool = True,
        say: Callable[[str], object] = print,
    ) -> None:
        store = checked_uri(uri) if enabled else None
        self.folder = Path(folder).absolute()
        self._closed = False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._writer = Writer(self.folder / EVENTS, say)
        except OSError as error:
            raise UserError(f"{self.folder}: cannot keep a log here ({error})") from error
        self._mirror: _Mirror | None = None
        tags = {"mlflow.user": _user(), "mlflow.source.name": sys.argv[0], **info.tags}
        if info.parent_run_id:
            tags["mlflow.parentRunId"] = info.parent_run_id
        self._writer.write(
            "start",
            run_name=info.run_name,
            experiment=info.experiment,
            params=_texts(info.params),
            tags=_texts(tags),
        )
        if store is None:
            return
        try:
            self._mirror = _Mirror(self.folder, store, system_metrics, say, self._note)
        except OSError as error:  # no memory or no processes left: the training matters more
            self._note(f"cannot start the mirroring process ({error})")
            say(f"MLflow: cannot start the mirroring process ({error}); the run goes on")

    @property
    def run_id(self) -> str | None:
        """MLflow's id of this run; waits up to 10 s for it, None when MLflow is away or off."""
        if self._mirror is None:
            return None
        self._mirror.known.wait(RUN_ID_SECONDS)
        return self._mirror.run_id

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers of a step; NaN and infinities are kept by name, and flagged in MLflow."""
        if values:
            self._writer.write("metrics", step=int(step), **numbers(values))

    def summary(self, values: Mapping[str, float]) -> None:
        """Log the final numbers of the run (eval_loss, ...), which tables of runs show."""
        if values:
            self._writer.write("summary", **numbers(values))

    def params(self, values: Mapping[str, Any]) -> None:
        """Log parameters known only now; one that had another value becomes a drift tag."""
        self._writer.write("params", values=_texts(values))

    def set_tag(self, key: str, value: str) -> None:
        """Set or change a tag."""
        self._writer.write("tags", values=_texts({key: value}))

    def dataset(
        self, name: str, source: str, digest: str, profile: Mapping[str, Any], context: str
    ) -> None:
        """Log an input: where it came from, its digest, its counts, and its use (training, ...)."""
        plain = json.loads(json.dumps(profile, default=str), parse_constant=str)
        self._writer.write(
            "dataset", name=name, source=source, digest=digest, profile=plain, context=context
        )

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Have MLflow keep a copy of a file or folder, as it is when MLflow gets to it."""
        full = Path(path).absolute()
        inside = full.is_relative_to(self.folder)
        kept = full.relative_to(self.folder) if inside else full
        self._writer.write("artifact", path=str(kept), folder=folder)

    def close(self, status: str) -> None:
        """Write the last event and let MLflow catch up; a second call does nothing.

        status: FINISHED, FAILED or KILLED. Waits up to 10 s while the store answers, 2 s when it
        is away, and up to 30 s for MLflow to be imported in a run that lasted only seconds.
        """
        assert status in ("FINISHED", "FAILED", "KILLED"), status
        if self._closed:
            return
        self._closed = True
        self._writer.write("end", status=status)
        if self._mirror is not None:
            self._mirror.finish(status)

    def _note(self, text: str) -> None:
        self._writer.write("note", text=text)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(_status(error))


class NullLog:
    """The log of the ranks that keep none."""

    run_id: str | None = None

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Do nothing."""

    def summary(self, values: Mapping[str, float]) -> None:
        """Do nothing."""

    def params(self, values: Mapping[str, Any]) -> None:
        """Do nothing."""

    def set_tag(self, key: str, value: str) -> None:
        """Do nothing."""

    def dataset(
        self, name: str, source: str, digest: str, profile: Mapping[str, Any], context: str
    ) -> None:
        """Do nothing."""

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Do nothing."""

    def close(self, status: str) -> None:
        """Do nothing."""

    def __enter__(self) -> NullLog:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def null_log() -> NullLog:
    """Return the log that does nothing."""
    return NullLog()


def _status(error: BaseException | None) -> str:
    if error is None:
        return "FINISHED"
    if isinstance(error, KeyboardInterrupt):
        return "KILLED"
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return "FINISHED"
        by_signal = isinstance(error.code, int) and (error.code < 0 or error.code > 128)
        return "KILLED" if by_signal else "FAILED"
    return "FAILED"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user number without a name
        return str(os.getuid())


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: json.dumps(value, default=str)
        if isinstance(value, (dict, list, tuple))
        else str(value)
        for key, value in values.items()
    }
