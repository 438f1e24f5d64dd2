"""Signals at exact moments of a run on two ranks, two processes that leave signalled.json.

A moment is a place of the run where the test's own code is called: the validation, a loss, the
examples, or torch.save and torch.load as a file system that takes its time. There a rank sends
itself a signal, or its whole process group, and two more follow.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ala_encoder import checkpoint, ranks, signals
from ala_encoder import engine as engines
from ala_encoder.batches import Examples
from ala_encoder.command import leave
from ala_encoder.engine import processes
from ala_encoder.errors import UserError
from ala_encoder.tracking import EVENTS
from ala_encoder.training import Loop
from tests.launched import small

SECTIONS: dict[str, Any] = {
    "model": {"dropout": 0.1},
    "train": {"steps": 6, "eval_every": 3, "save_every": 4, "keep_checkpoints": 3},
}
MOMENTS = {
    "before_the_first_step": ("USR1", 0),
    "restore": ("TERM", 1),
    "first_step": ("USR2", 1),
    "micro_batch": ("USR1", 1),
    "waiting_for_data": ("TERM", 0),
    "evaluation": ("USR2", 0),
    "mlflow_stall": ("USR2", 0),
    "save": ("USR1", 1),
    "last_save": ("TERM", 1),
    "group_with_four_workers": ("USR1", 0),
}
"""Moment → the signal and the rank that it comes to."""
EARLIER = 2
"""The step from which a restore goes on."""


class Sender:
    """Sends the signal once, when it has been called often enough."""

    def __init__(self, name: str, to: int, *, calls: int = 1, group: bool = False) -> None:
        self.number, self.is_sent = signal.Signals[f"SIG{name}"], False
        self.calls = calls if ranks.rank() == to else 0
        self.group = group

    def __call__(self) -> None:
        self.calls -= 1
        if self.calls == 0:
            for number in (self.number, signal.SIGTERM, self.number):
                if self.group:
                    os.killpg(0, number)
                else:
                    os.kill(os.getpid(), number)
            time.sleep(0.2)  # the other rank goes on as far as it can


class Watched:
    """Examples that tell when a batch is put together."""

    def __init__(self, examples: Examples, tell: Callable[[], None]) -> None:
        self._examples, self._tell = examples, tell

    def __len__(self) -> int:
        return len(self._examples)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._examples, name)

    def collate(self, *arguments: Any) -> Any:
        self._tell()
        return self._examples.collate(*arguments)


def telling(function: Callable[..., Any], tell: Callable[[], None]) -> Callable[..., Any]:
    def told(*arguments: Any, **named: Any) -> Any:
        tell()
        return function(*arguments, **named)

    return told


def arm(job: Loop, moment: str, name: str, to: int) -> None:
    """Have a signal sent at a moment of this job."""
    goal = job.goal
    per_step = job.split.accumulation
    if moment == "before_the_first_step":
        Sender(name, to)()
    elif moment in ("first_step", "micro_batch", "mlflow_stall", "group_with_four_workers"):
        calls = 1 if moment == "first_step" else 4 * per_step + 1
        send = Sender(name, to, calls=calls, group=moment.startswith("group"))
        job.goal = replace(goal, losses=telling(goal.losses, send))
    elif moment == "waiting_for_data":
        job.goal = replace(goal, examples=Watched(goal.examples, Sender(name, to, calls=9)))
    elif moment == "evaluation":
        job.goal = replace(goal, evaluate=telling(goal.evaluate, Sender(name, to, calls=2)))
    else:  # each rank writes its random state in each save, and reads it in a restore
        what = "load" if moment == "restore" else "save"
        send = Sender(name, to, calls=2 if moment == "last_save" else 1)
        given = getattr(torch, what)

        def slow(*arguments: Any, **named: Any) -> Any:
            if any("random_" in str(argument) for argument in arguments):
                send()
            return given(*arguments, **named)

        setattr(torch, what, slow)


def start(moment: str, folder: Path, home: Path, **train: Any) -> str:
    """Train until a signal ends it or to the end; returns how it ended."""
    workers = {"num_workers": 4} if moment == "group_with_four_workers" else {}
    run = small.settings(**{**SECTIONS, "train": {**SECTIONS["train"], **workers, **train}})
    silent = socket.create_server(("127.0.0.1", 0))  # takes what comes, and never answers
    uri = f"http://127.0.0.1:{silent.getsockname()[1]}" if moment == "mlflow_stall" else None
    job = small.loop(run, folder, home, uri=uri)
    kept = torch.save, torch.load
    try:
        with silent, signals.listening(), job.log:
            if moment in MOMENTS:
                arm(job, moment, *MOMENTS[moment])
            outcome = job.fit()
            ranks.check_signals()  # as the evaluation of the export does
            return "finished" if outcome.finished else "stopped"
    except signals.Asked as asked:
        return str(asked)
    finally:
        torch.save, torch.load = kept


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "weights.pt")  # type: ignore[no-any-return]


def finish(folder: Path, home: Path) -> None:
    """Go on to the end, and keep the weights there."""
    job = small.loop(small.settings(**SECTIONS), folder, home)
    small.fit(job)
    state = job.engine.full_state()
    ranks.on_main(lambda: torch.save(state, folder / "weights.pt"))


def logged(folder: Path) -> list[tuple[int, float]]:
    """Return (step, loss) as they stand in the log, whatever comes twice."""
    lines = (folder / EVENTS).read_text(encoding="utf-8").splitlines()
    values = [
        e for e in map(json.loads, lines) if e["event"] == "metrics" and "loss" in e["values"]
    ]
    return [(event["step"], event["values"]["loss"]) for event in values]


def case(moment: str, home: Path) -> dict[str, Any]:
    folder = home / moment
    if moment == "restore":
        start("", folder, home, stop_after=EARLIER)
    began = time.monotonic()
    ended = start(moment, folder, home)
    seconds = time.monotonic() - began
    newest = checkpoint.newest(folder / "checkpoints")
    left = sorted(path.name for path in (folder / "checkpoints").iterdir())
    finish(folder, home)
    whole, ours = weights(home / "whole"), weights(folder)
    return {
        "ended": ended,
        "seconds": seconds,
        "newest": newest and newest.name,
        "left": left,
        "weights": all(torch.equal(ours[key], whole[key]) for key in whole),
        "losses": logged(folder) == logged(home / "whole"),
    }


def two_views(home: Path) -> str | None:
    """Return the newest checkpoint where rank 1's node does not see all of the last one yet."""
    folder = home / f"view_{ranks.rank()}"
    shutil.copytree(home / "whole" / "checkpoints", folder)
    last = max(checkpoint.steps(folder).values())
    if ranks.rank() == 1:
        (last / "random_00001.pt").write_bytes(b"")
    found = checkpoint.newest(folder)
    return found and found.name


def synced(home: Path) -> list[str]:
    """Return what this rank syncs in a save, where each rank has a node of its own."""
    job = small.loop(small.settings(**SECTIONS), home / "synced", home)
    kept, paths = os.fsync, []

    def noting(handle: int) -> None:
        paths.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        kept(handle)

    os.environ["LOCAL_RANK"], given = "0", os.environ["LOCAL_RANK"]
    os.fsync = noting
    with job.log:
        checkpoint.save(job.engine, home / "synced", 1, {})
    os.fsync, os.environ["LOCAL_RANK"] = kept, given
    return paths


def strangers() -> str:
    """Return what ranks of two jobs, here only by name, are told when they have met."""
    os.environ["ALA_JOB_TOKEN"] = f"7{ranks.rank()}.0"
    try:
        processes._refuse_strangers()
    except UserError as error:
        return str(error)
    finally:
        del os.environ["ALA_JOB_TOKEN"]
    return ""


def main(home: Path) -> None:
    os.setpgid(0, 0)  # what is sent to the group reaches this rank and its workers alone
    torch.set_num_threads(1)
    engines.start(home)
    finish(home / "whole", home)
    found: dict[str, Any] = {moment: case(moment, home) for moment in MOMENTS}
    found["two_views"] = ranks.gather(two_views(home))
    found["synced"] = ranks.gather(synced(home))
    found["strangers"] = ranks.gather(strangers())
    if ranks.is_main():
        (home / "signalled.json").write_text(json.dumps(found), encoding="utf-8")
    engines.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave(0)
