"""Checkpoints of a run: complete or absent, found by looking, the same losses after a resume.

For: `checkpoints/step_0000100/` with DeepSpeed's files, each rank's random state and `state.json`.
All is written into a temporary folder and renamed once every rank has finished, so a folder with
its final name is whole. Not for: weights that others load (`export`).
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from pathlib import Path
from typing import Any

import torch

from ala_encoder import ranks
from ala_encoder.engine import Engine
from ala_encoder.errors import UserError
from ala_encoder.files import read_json, write_json

_NAME = re.compile(r"step_(\d+)")


def save(engine: Engine, folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint of all ranks and return its folder; call it on all ranks.

    state: whatever the loop needs besides weights, optimizer and random state, as plain JSON.
    """
    final = folder / f"step_{step:07d}"
    word = uuid.uuid4().hex[:8]
    if ranks.broadcast(_is_complete(final)):
        return final
    aside = folder / f"{final.name}.tmp-{ranks.broadcast(word)}"
    if ranks.is_main():
        aside.mkdir(parents=True)
        if final.exists():  # damaged: the run fell back to an older one and came here again
            os.replace(final, folder / f"{final.name}.tmp-old-{word}")
    ranks.barrier()
    engine.save(aside)
    torch.save(engine.random_state(), aside / f"random_{ranks.rank():05d}.pt")
    ranks.barrier()
    if ranks.is_main():
        sizes = {
            str(path.relative_to(aside)): path.stat().st_size
            for path in sorted(aside.rglob("*"))
            if path.is_file()
        }
        whole = {**state, "world_size": ranks.world_size(), "files": sizes}
        write_json(aside / "state.json", whole)
        _sync(aside)
        os.replace(aside, final)
        _sync_folder(folder)
    ranks.barrier()
    return final


def load(engine: Engine, folder: Path) -> dict[str, Any]:
    """Restore engine and random state from a checkpoint and return its `state`; on all ranks."""
    state = read_json(folder / "state.json")
    engine.load(folder)
    random = torch.load(folder / f"random_{ranks.rank():05d}.pt", weights_only=True)
    engine.set_random_state(random)
    return state


def newest(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, or None; the same answer on every rank.

    Raises UserError when folders are there but none is complete: a run never silently starts anew.
    """
    found = steps(folder) if ranks.is_main() else {}
    complete = next((path for path in reversed(found.values()) if _is_complete(path)), None)
    path, count = ranks.broadcast((complete, len(found)))
    if count and path is None:
        raise UserError(
            f"{folder}: none of {count} checkpoints is complete; repair them, or start again "
            "with train.from_scratch=true"
        )
    return path  # type: ignore[no-any-return]


def steps(folder: Path) -> dict[int, Path]:
    """Return the checkpoints of a folder by step, in numeric order."""
    names = {path: _NAME.fullmatch(path.name) for path in folder.glob("step_*")}
    return dict(sorted((int(match[1]), path) for path, match in names.items() if match))


def check_resumable(state: dict[str, Any], identity: dict[str, Any], folder: Path) -> None:
    """Raise UserError, naming the setting, when a checkpoint belongs to another run."""
    if state["world_size"] != ranks.world_size():
        raise UserError(
            f"{folder}: saved by {state['world_size']} ranks, this run has {ranks.world_size()}"
        )
    for key, value in identity.items():
        if state["identity"].get(key) != value:
            raise UserError(
                f"{folder}: {key} was {state['identity'].get(key)!r}, now {value!r}; keep it, "
                "choose another `name`, or set train.from_scratch=true"
            )


def rotate(folder: Path, keep: int) -> None:
    """Delete all but the `keep` newest complete checkpoints; on rank 0."""
    complete = [step for step, path in steps(folder).items() if _is_complete(path)]
    for step in complete[:-keep]:
        doomed = folder / f"step_{step:07d}"
        aside = doomed.with_name(f"{doomed.name}.tmp-old")
        os.replace(doomed, aside)
        shutil.rmtree(aside)
    for leftover in folder.glob("step_*.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _is_complete(folder: Path) -> bool:
    try:
        sizes: dict[str, int] = read_json(folder / "state.json")["files"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (UserError, KeyError, AttributeError, OSError):
        return False


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
