"""A job on the emulated cluster: submit it, wait for what it logs, signal it, read what is left."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "tests" / "slurm" / "slurmci.sh"
PATIENCE = 300.0
"""Seconds that anything may take: imports of two ranks on two cores, or a node's failure."""
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}


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

        def arrived() -> bool:
            state = self.state
            assert state in wanted or state not in ENDED, f"{state}: {self.said()[-3000:]}"
            return state in wanted

        until(arrived, f"job {self.number} {wanted}: {self.said()[-3000:]}", seconds)


def submit(folder: Path, script: str, *words: object, sbatch: tuple[str, ...] = ()) -> Job:
    """Submit a script of slurm/, its log in a folder."""
    log = folder / f"{script}-{len(list(folder.glob('*.out')))}.out"
    command = ["sbatch", "--parsable", f"--output={log}", "--cpus-per-task=1", *sbatch]
    return Job(answer(*command, f"slurm/{script}", *words), log)


def pretrain(home: Path, name: str, *words: str, sbatch: tuple[str, ...] = ("--nodes=2",)) -> Job:
    """Submit the toy as a run of that name."""
    words = (f"name={name}", *words)
    return submit(home, "pretrain.sbatch", home / "toy.yaml", *words, sbatch=sbatch)


def python(*words: object) -> str:
    """Run a pipeline on the login host."""
    return answer(sys.executable, "-m", *words, seconds=PATIENCE)


# ---- what is left of a run


def run_of(home: Path, name: str) -> Path:
    return home / "runs" / name


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


def steps(run: Path) -> list[int]:
    """Return the steps whose loss was logged, in the order of the log."""
    return [step for step, _ in losses(run)]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "export" / "model.safetensors")


def assert_bitwise(run: Path, other: Path) -> None:
    """Weights and losses of two runs are the same to the last bit, no step missing or twice."""
    ours, theirs = weights(run), weights(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert losses(run) == losses(other)


def mlflow(home: Path, question: str, *values: str) -> list[tuple[str, ...]]:
    """Ask MLflow's database, which the first run makes."""
    with sqlite3.connect(home / "mlflow.db") as database:
        if not database.execute("select 1 from sqlite_master where name = 'tags'").fetchall():
            return []
        return list(database.execute(question, values).fetchall())


def statuses(home: Path, name: str) -> list[str]:
    """Return the status of each of MLflow's runs of a name."""
    return [row[0] for row in mlflow(home, "select status from runs where name = ?", name)]


def tags(home: Path, name: str) -> dict[str, str]:
    """Return the tags of MLflow's one run of a name."""
    found = mlflow(
        home,
        "select key, value from tags join runs using (run_uuid) where name = ?",
        name,
    )
    return {row[0]: row[1] for row in found}


# ---- ranks as processes, which the login host sees


def ranks(name: str) -> list[int]:
    """Return the processes of the ranks of a run."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:2] == [b"slurm/rank.py"] and f"name={name}".encode() in words:
            found.append(int(place.name))
    return sorted(found)


def held(name: str) -> bool:
    """Tell whether there are ranks of a run, and all hold USR1 back, as while they import."""
    found = ranks(name)
    try:
        lines = [Path(f"/proc/{pid}/status").read_text().splitlines() for pid in found]
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for text in lines for line in text if "SigBlk" in line]
    return bool(masks) and all(mask >> (signal.SIGUSR1 - 1) & 1 for mask in masks)


# ---- what ends a start


def goes_on(job: Job, act: Callable[[], object]) -> None:
    """Do what interrupts a job, and wait until it is requeued, once."""
    before = job.restarts
    act()
    until(lambda: job.restarts > before, f"requeue: {job.said()[-2000:]}")
    assert job.restarts == before + 1


def at_step(home: Path, name: str, step: int, job: Job) -> None:
    def arrived() -> bool:
        there = steps(run_of(home, name))[-1:] >= [step]
        assert there or job.state not in ENDED, f"{job.state}: {job.said()[-3000:]}"
        return there

    until(arrived, f"step {step} of {name}")


def one_rank(name: str, number: signal.Signals) -> None:
    """Signal one rank, here the one that was started last."""
    os.kill(ranks(name)[-1], number)


def time_runs_out(job: Job) -> None:
    """Have the time of a job end. Slurm looks every 30 s, for which these steps are too short.

    So the ranks stand still until then: Slurm's own signal also lets them go on.
    """
    job.signal("STOP")
    hours, minutes, _ = map(int, job.fields()["RunTime"].split(":"))
    answer("scontrol", "update", f"jobid={job.number}", f"timelimit={60 * hours + minutes + 2}")
