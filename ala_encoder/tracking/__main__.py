"""The child process of `RunLog`: follows a run folder into MLflow until the run ends.

For: `python -m ala_encoder.tracking FOLDER PID [system-metrics]`, with the store's address in
MLFLOW_TRACKING_URI. Not for: use by hand (`pipelines.track` replays a folder).

It reports its state as lines of JSON on standard output. It outlives signals, since the training
decides when to end; when the training is gone without a word it sends the rest, marks the run
KILLED and ends.

System metrics, every 10 s (MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL) and once at the end, are those
of the whole machine of rank 0: `system/` cpu_utilization_percentage, system_memory_usage_*, disk_*
of `/`, network_*_megabytes since the start, and gpu_N_* where nvidia-ml-py is installed. They are
not in metrics.jsonl; samples taken while the store is away are lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ala_encoder.errors import reason
from ala_encoder.tracking.mirror import LOCK, Mirror, Report
from ala_encoder.tracking.store import locked

_POLL_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 30.0


class _Bell:
    """Rings when the run says how it ends, on standard input, or when its process is gone."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._told = False

    @property
    def status(self) -> str:
        # An end of file is a death too, whether it or the new parent is noticed first.
        return (os.read(0, 64).decode() if self._told else "") or "KILLED"

    @property
    def rung(self) -> bool:
        return self._told or os.getppid() != self._parent

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.rung and (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([0], [], [], min(left, _POLL_SECONDS))
            self._told = bool(ready)


class _Machine:
    """MLflow's own gauges; one that fails ends the sampling, never the mirroring."""

    def __init__(self, mirror: Mirror, wanted: bool, report: Report) -> None:
        self._mirror, self._report = mirror, report
        self._gauges: Any = None
        self._due = 0.0
        if wanted:
            self._read()  # processor use is counted from the reading before

    def sample(self, now: bool) -> None:
        if self._gauges and (now or time.monotonic() >= self._due) and (values := self._read()):
            self._mirror.sample(values)

    def _read(self) -> dict[str, float]:
        try:
            if self._gauges is None:
                from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

                self._gauges = SystemMetricsMonitor(  # type: ignore[no-untyped-call]
                    self._mirror.run_id
                )
            self._due = time.monotonic() + self._gauges.sampling_interval
            self._gauges.collect_metrics()
            values = {
                name: float(value) for name, value in self._gauges.aggregate_metrics().items()
            }
            for gauge in self._gauges.monitors:
                gauge.clear_metrics()
            return values
        except Exception as error:
            self._gauges = None
            self._report({"state": "up", "refused": f"no system metrics: {reason(error)}"})
            return {}


def follow(folder: Path, uri: str, parent: int, system_metrics: bool, report: Report) -> int:
    """Mirror a run folder until the run ends or its process `parent` is gone.

    Returns 0 when MLflow has everything, 1 when the store was away at the end. An error of the
    store is reported, and tried again after 1, 2, 4, ... 30 s.
    """
    bell = _Bell(parent)
    pause = 1.0
    with locked(folder / LOCK):  # the mirror of an earlier, killed process may still be at work
        while True:
            last_try = bell.rung
            try:
                mirror = Mirror(folder, uri, report)
                pause = 1.0
                machine = _Machine(mirror, system_metrics, report)
                while not (ending := bell.rung):
                    machine.sample(now=False)
                    mirror.send()
                    bell.wait(_POLL_SECONDS)
                machine.sample(now=ending)
                mirror.send()
                mirror.settle(bell.status)
                report({"state": "done"})
                return 0
            except Exception as error:  # no error of the store may reach the training
                report({"state": "away", "error": reason(error)})
            if last_try:
                return 1
            bell.wait(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)


def main() -> int:
    """Run the child process; returns its exit code."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    reports = os.dup(1)
    os.dup2(2, 1)  # what libraries print belongs into the log

    def report(fields: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            os.write(reports, json.dumps(fields).encode("ascii") + b"\n")

    folder, parent, *options = sys.argv[1:]
    uri = os.environ["MLFLOW_TRACKING_URI"]
    return follow(Path(folder), uri, int(parent), "system-metrics" in options, report)


if __name__ == "__main__":
    sys.exit(main())
