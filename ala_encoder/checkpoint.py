"""Checkpoints of a run: complete or absent, found by looking, the same losses after a resume.

For: `checkpoints/step_0000100/` with DeepSpeed's files, each rank's random state and `state.json`.
All is written into a temporary folder and renamed once every rank has finished, so a folder with
its final name is whole. On a shared file system a node may see late what another wrote: each node
syncs its own files, and what all of them see decides. Not for: weights that others load (`export`).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import uuid
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ala_encoder import ranks
from ala_encoder.engine import Engine, read_data
from ala_encoder.errors import UserError
from ala_encoder.files import read_json, write_json, writing

_NAME = re.compile(r"step_(\d+)")


def save(engine: Engine, folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint of all ranks and return its folder; call it on all ranks.

    state: whatever the loop needs besides weights, optimizer and random state, as plain JSON.
    Raises UserError on a rank that cannot write its part; earlier checkpoints are as they were.
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
    try:
        with writing(final):
            engine.save(aside)
            torch.save(engine.random_state(), aside / f"random_{ranks.rank():05d}.pt")
    except UserError as error:
        shutil.rmtree(aside, ignore_errors=True)  # the log needs room to tell of it
        if ranks.local_rank() != 0:  # others, who may have room, would not tell of it
            print(f"rank {ranks.rank()}: error: {error}", file=sys.stderr, flush=True)
        raise
    ranks.barrier()
    if ranks.local_rank() == 0:
        _sync(aside)
    sizes = _largest(ranks.gather(_sizes(aside) if ranks.local_rank() == 0 else {}))
    if ranks.is_main():
        whole = {**state, "world_size": ranks.world_size(), "files": sizes}
        write_json(aside / "state.json", whole)
        os.replace(aside, final)
        _sync_folder(folder)
    ranks.barrier()
    return final


def load(engine: Engine, folder: Path) -> dict[str, Any]:
    """Restore engine and random state from a checkpoint and return its `state`; on all ranks.

    Raises UserError, on all ranks, when a file would run code.
    """
    state = read_json(folder / "state.json")
    ranks.on_main(lambda: _refuse_code(folder))
    engine.load(folder)
    engine.set_random_state(read_data(folder / f"random_{ranks.rank():05d}.pt"))
    return state


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint that every rank finds complete, or None; on all ranks.

    Raises UserError when folders are there but none is complete: a run never silently starts anew.
    """
    found = steps(folder)
    seen = ranks.gather({step: path.name for step, path in found.items() if _is_complete(path)})
    most = max(ranks.gather(len(found)))
    common = set.intersection(*(set(names.items()) for names in seen))
    if most and not common:
        raise UserError(
            f"{folder}: none of {most} checkpoints is complete; repair them, or start again "
            "with train.from_scratch=true"
        )
    return folder / max(common)[1] if common else None


def steps(folder: Path) -> dict[int, Path]:
    """Return the checkpoints of a folder by step, in numeric order."""
    names = {path: _NAME.fullmatch(path.name) for path in folder.glob("step_*")}
    return dict(sorted((int(match[1]), path) for path, match in names.items() if match))


def check_resumable(state: dict[str, Any], identity: dict[str, Any], folder: Path) -> None:
    """Raise UserError, naming the setting, when a checkpoint belongs to another run."""
    size, saved = state.get("world_size"), state.get("identity")
    if size != ranks.world_size():
        raise UserError(f"{folder}: saved by {size} ranks, this run has {ranks.world_size()}")
    for key, value in identity.items():
        old = saved.get(key) if isinstance(saved, dict) else None
        if old != value:
            raise UserError(
                f"{folder}: {key} was {old!r}, now {value!r}; keep it, "
                "choose another `name`, or set train.from_scratch=true"
            )


def rotate(folder: Path, keep: int) -> None:
    """Delete all but the `keep` newest complete checkpoints; on rank 0."""
    complete = [path for path in steps(folder).values() if _is_complete(path)]
    for doomed in complete[:-keep]:
        if doomed.is_symlink():  # what it leads to is not ours
            doomed.unlink()
            continue
        aside = doomed.with_name(f"{doomed.name}.tmp-old")
        os.replace(doomed, aside)
        shutil.rmtree(aside, ignore_errors=True)  # NFS keeps a file that somebody still reads
    for leftover in folder.glob("step_*.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _refuse_code(folder: Path) -> None:
    """Raise UserError for a file of any rank that would run code.

    Each rank's own reading refuses it too, but alone: the others would wait for that rank.
    """
    for path in sorted(folder.rglob("*.pt")):
        read_data(path, mmap=zipfile.is_zipfile(path))  # mapped, only what is not a tensor is read


def _is_complete(folder: Path) -> bool:
    try:
        promised = read_json(folder / "state.json")["files"].items()
        return bool(promised <= _sizes(folder).items())
    except (UserError, KeyError, AttributeError, TypeError, OSError):
        return False


def _sizes(folder: Path) -> dict[str, int]:
    """Return the size of each file in a folder by its path in there; nothing outside is seen."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_size for path in paths}


def _largest(sizes: Sequence[dict[str, int]]) -> dict[str, int]:
    """Return the size of each file of several views: a late one is smaller, or lacks it."""
    names = {name for view in sizes for name in view}
    return {name: max(view.get(name, 0) for view in sizes) for name in sorted(names)}


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
