"""A job on the emulated cluster: submit it, wait for what it logs, signal it, read what is left."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "tests" / "slurm" / "slurmci.sh"
PATIENCE = 300.0
"""Seconds that anything may take: imports of two ranks on two cores, or a node's failure."""


def answer(*command: object, seconds: float = 60) -> str:
    """Run a command and return what it prints."""
    words = list(map(str, command))
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.strip()


def until(true: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait for what is true and return it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


@dataclass(frozen=True)
class Job:
    """A submitted job."""

    number: str
    log: Path

    def fields(self) -> dict[str, str]:
        words = answer("scontrol", "show", "job", self.number, "-o").split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    @property
    def state(self) -> str:
        return self.fields()["JobState"]

    @property
    def restarts(self) -> int:
        return int(self.fields()["Restarts"])

    def signal(self, name: str) -> None:
        """Signal the ranks, as the end of the time does."""
        answer("scancel", "--signal", name, self.number)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""

    def wait(self, *states: str, seconds: float = PATIENCE) -> None:
        wanted = states or ("COMPLETED",)
        ended = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}

        def arrived() -> bool:
            state = self.state
            assert state in wanted or state not in ended, f"{state}: {self.said()[-3000:]}"
            return state in wanted

        until(arrived, f"job {self.number} {wanted}: {self.said()[-3000:]}", seconds)


def submit(folder: Path, script: str, *words: object, sbatch: tuple[str, ...] = ()) -> Job:
    """Submit a script of slurm/, its log in a folder."""
    log = folder / f"{script}-{len(list(folder.glob('*.out')))}.out"
    command = ["sbatch", "--parsable", f"--output={log}", "--cpus-per-task=1", *sbatch]
    number = answer(*command, f"slurm/{script}.sbatch", *words)
    return Job(number, log)


def steps(run: Path) -> list[int]:
    """Return the steps whose loss was logged, in the order of the log."""
    return [step for step, _ in losses(run)]


def losses(run: Path) -> list[tuple[int, float]]:
    """Return (step, loss) in the order of the log."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("}")]
    return [
        (event["step"], event["values"]["loss"])
        for event in events
        if event["event"] == "metrics" and "loss" in event["values"]
    ]


def python(*words: object) -> str:
    """Run a pipeline on the login host."""
    return answer(sys.executable, "-m", *words, seconds=PATIENCE)
