"""A fork server: each child resumes a run and is killed at another moment of its second save.

Started in a plain process with a folder; leaves killed.json there. The server has the heavy
libraries imported but no process group, so that a fork is safe and a crash point costs a second. A
crash point is the k-th time that Python opens, makes, renames or deletes something in the
checkpoints.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from ala_encoder import checkpoint
from ala_encoder import engine as engines
from tests.launched import small

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
SECTIONS: dict[str, Any] = {
    "model": {"dropout": 0.1},
    "train": {"steps": 6, "save_every": 2, "keep_checkpoints": 1},
}


def train(folder: Path, home: Path, stop_after: int | None = None) -> None:
    sections = {**SECTIONS, "train": {**SECTIONS["train"], "stop_after": stop_after}}
    engines.start(home)
    job = small.loop(small.settings(**sections), folder, home)
    small.fit(job)
    torch.save(job.engine.full_state(), folder / "weights.pt")


def kill_at(point: int, folder: Path) -> None:
    """Have this process killed at an event of the checkpoints folder, after step 2 was saved."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in EVENTS or str(folder / "checkpoints") not in str(arguments[0]):
            return
        if event == "open" and arguments[1] in ("r", "rb"):
            return
        seen += 1
        if seen == point:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def in_child(work: Any, *arguments: Any) -> int:
    """Run `work` in a fork and return its exit status, −9 when it was killed."""
    child = os.fork()
    if child == 0:
        try:
            work(*arguments)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed(point: int, folder: Path, home: Path) -> None:
    kill_at(point, folder)
    train(folder, home, stop_after=4)


def main(home: Path) -> None:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("deepspeed")
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    small.data(home)
    whole, start = home / "whole", home / "start"
    assert in_child(train, whole, home) == 0
    assert in_child(train, start, home, 2) == 0
    found = []
    point = 1
    while True:
        folder = home / f"point{point}"
        shutil.copytree(start, folder)
        status = in_child(killed, point, folder, home)
        newest = checkpoint.newest(folder / "checkpoints")
        left = sorted(path.name for path in (folder / "checkpoints").iterdir())
        assert in_child(train, folder, home) == 0
        same = all(
            torch.equal(tensor, expected)
            for tensor, expected in zip(
                *(torch.load(f / "weights.pt").values() for f in (folder, whole)), strict=True
            )
        )
        found.append({
            "point": point,
            "status": status,
            "newest": newest and newest.name,
            "left": left,
            "after": sorted(path.name for path in (folder / "checkpoints").iterdir()),
            "losses": small.losses(folder) == small.losses(whole),
            "weights": same,
        })  # fmt: skip
        if status == 0:
            break
        point += 1
    (home / "killed.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
