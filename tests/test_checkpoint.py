"""Checkpoints: complete or absent, whatever ends a save and whatever happens to the files."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ala_encoder import checkpoint
from ala_encoder.errors import UserError
from ala_encoder.files import read_json, write_json
from ala_encoder.training import Loop
from tests.launched import small

pytestmark = pytest.mark.usefixtures("started")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def job(home: Path, tmp_path: Path) -> Any:
    """A small run after its first step."""
    made = small.loop(small.settings(train={"stop_after": 1}), tmp_path / "run", home)
    with made.log:
        yield made


def save(job: Loop, folder: Path, *steps: int) -> list[Path]:
    return [checkpoint.save(job.engine, folder, step, {"loop": {"step": step}}) for step in steps]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# ---- the commit


def test_a_checkpoint_lists_its_files_with_sizes(job: Loop, tmp_path: Path) -> None:
    (path,) = save(job, tmp_path / "c", 100)
    state = read_json(path / "state.json")
    assert path.name == "step_0000100"
    assert state["world_size"] == 1
    assert state["loop"] == {"step": 100}
    sizes = {str(file.relative_to(path)): file.stat().st_size for file in files(path)}
    del sizes["state.json"]
    assert state["files"] == sizes
    assert {"random_00000.pt", "deepspeed/mp_rank_00_model_states.pt"} <= sizes.keys()
    assert names(tmp_path / "c") == ["step_0000100"]


def test_a_disk_that_is_full_is_one_line_and_leaves_the_older_one_newest(
    job: Loop, tmp_path: Path
) -> None:
    """What torch says of it does not name the file, nor that there is no room."""
    (older,) = save(job, tmp_path, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(UserError, match=rf"^{tmp_path}/step_0000002: cannot be written: "):
            save(job, tmp_path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert checkpoint.newest(tmp_path) == older
    assert "step_0000002" not in " ".join(names(tmp_path))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_exception_inside_the_save_leaves_the_older_one_newest(
    moment: str, job: Loop, tmp_path: Path
) -> None:
    folder = tmp_path / "c"
    (older,) = save(job, folder, 1)
    write = job.engine.save

    def failing(path: Path) -> None:
        if moment == "after":
            write(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    job.engine.save = failing  # type: ignore[method-assign,assignment]
    with pytest.raises(UserError, match=r"step_0000002: cannot be written: No space left"):
        save(job, folder, 2)
    assert names(folder) == ["step_0000001"]
    assert checkpoint.newest(folder) == older
    assert list(checkpoint.steps(folder)) == [1]
    job.engine.save = write  # type: ignore[method-assign]
    (newer,) = save(job, folder, 2)
    assert checkpoint.newest(folder) == newer
    checkpoint.rotate(folder, 2)
    assert names(folder) == ["step_0000001", "step_0000002"]


def test_r2_a_kill_at_every_file_operation_of_a_save_loses_nothing(tmp_path: Path) -> None:
    """SIGKILL at each of them: a complete checkpoint is newest, and a restart is bitwise whole."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "tests.launched.killed", tmp_path],
        cwd=ROOT, env=environment, check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    found = json.loads((tmp_path / "killed.json").read_text(encoding="utf-8"))
    *killed, whole = found
    assert [case["status"] for case in killed] == [-9] * len(killed)
    assert whole["status"] == 0
    assert len(killed) >= 10
    newest = [case["newest"] for case in found]
    assert newest == sorted(newest)  # from one moment on, the new one
    assert set(newest) == {"step_0000002", "step_0000004"}
    assert sum("tmp-" in name for case in killed for name in case["left"]) >= 5
    for case in found:
        assert case["losses"], case
        assert case["weights"], case
        assert case["after"] == ["step_0000006"], case


def test_what_one_node_sees_late_is_promised_as_another_wrote_it() -> None:
    views = [{"a": 7, "b": 0}, {"b": 9, "c": 0}]
    assert checkpoint._largest(views) == {"a": 7, "b": 9, "c": 0}


def test_saving_the_same_step_twice_keeps_the_first(job: Loop, tmp_path: Path) -> None:
    (first,) = save(job, tmp_path / "c", 3)
    before = {path: path.stat().st_mtime_ns for path in files(first)}
    save(job, tmp_path / "c", 3)
    assert {path: path.stat().st_mtime_ns for path in files(first)} == before


# ---- damage


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": truncate,
    "empty": empty,
    "missing": Path.unlink,
}
FILES = ("deepspeed/mp_rank_00_model_states.pt", "random_00000.pt", "state.json")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_r7_a_damaged_newest_is_passed_over_for_the_one_before(
    damage: str, file: str, job: Loop, tmp_path: Path
) -> None:
    folder = tmp_path / "c"
    older, newer = save(job, folder, 1, 2)
    assert checkpoint.newest(folder) == newer
    if (file, damage) == ("state.json", "truncated"):
        DAMAGES[damage](newer / file)
        truncate(newer / file)  # the last byte is only the line's end
    else:
        DAMAGES[damage](newer / file)
    assert checkpoint.newest(folder) == older


@pytest.mark.parametrize(
    "state", ["[]", "{}", '{"files": []}', '{"files": {"gone": 1}}', '{"files": null}', "\0"]
)
def test_a_state_that_makes_no_sense_is_damage(state: str, job: Loop, tmp_path: Path) -> None:
    older, newer = save(job, tmp_path / "c", 1, 2)
    (newer / "state.json").write_text(state)
    assert checkpoint.newest(tmp_path / "c") == older


def test_r7_none_complete_is_an_error_and_not_a_fresh_start(home: Path, tmp_path: Path) -> None:
    run = small.settings(train={"steps": 4, "save_every": 2})
    small.fit(small.loop(run, tmp_path, home))
    for path in (tmp_path / "checkpoints").glob("*/random_00000.pt"):
        path.unlink()
    with pytest.raises(UserError) as caught:
        small.fit(small.loop(run, tmp_path, home))
    assert "none of 2 checkpoints is complete" in str(caught.value)
    assert "train.from_scratch=true" in str(caught.value)
    assert list(small.losses(tmp_path)) == [1, 2, 3, 4]


def test_no_checkpoint_at_all_is_a_fresh_start(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "nowhere") is None
    (tmp_path / "step_0000003.tmp-12345678").mkdir()
    (tmp_path / "step_x").mkdir()
    assert checkpoint.newest(tmp_path) is None


def test_a_run_that_fell_back_replaces_the_damaged_checkpoint(home: Path, tmp_path: Path) -> None:
    run = small.settings(train={"steps": 6, "save_every": 2, "keep_checkpoints": 9})
    small.fit(small.loop(run, tmp_path, home))
    before = small.losses(tmp_path)
    last = tmp_path / "checkpoints" / "step_0000006"
    truncate(last / "random_00000.pt")
    assert checkpoint.newest(tmp_path / "checkpoints") == last.with_name("step_0000004")
    small.fit(small.loop(run, tmp_path, home))
    assert checkpoint.newest(tmp_path / "checkpoints") == last
    assert small.losses(tmp_path) == before
    assert names(tmp_path / "checkpoints") == [f"step_000000{step}" for step in (2, 4, 6)]


# ---- order and rotation


def test_r9_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (1000, 900, 100000000, 2):
        path = tmp_path / f"step_{step}"
        path.mkdir()
        write_json(path / "state.json", {"files": {}})
    assert list(checkpoint.steps(tmp_path)) == [2, 900, 1000, 100000000]
    assert checkpoint.newest(tmp_path) == tmp_path / "step_100000000"
    shutil.rmtree(tmp_path / "step_100000000")
    assert checkpoint.newest(tmp_path) == tmp_path / "step_1000"


def test_r9_rotation_keeps_the_newest(job: Loop, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    save(job, folder, 900, 1000, 1100, 1200, 1300)
    checkpoint.rotate(folder, 2)
    assert list(checkpoint.steps(folder)) == [1200, 1300]
    checkpoint.rotate(folder, 5)
    assert list(checkpoint.steps(folder)) == [1200, 1300]


def test_rotation_counts_complete_ones_alone(job: Loop, tmp_path: Path) -> None:
    """With the two newest damaged, the two that can still be resumed stay."""
    folder = tmp_path / "c"
    paths = save(job, folder, 1, 2, 3, 4, 5)
    for path in paths[3:]:
        (path / "random_00000.pt").unlink()
    checkpoint.rotate(folder, 2)
    assert list(checkpoint.steps(folder)) == [2, 3, 4, 5]
    assert checkpoint.newest(folder) == paths[2]


def test_rotation_removes_leftovers(job: Loop, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    save(job, folder, 1)
    for left in ("step_0000002.tmp-abcdef01", "step_0000000.tmp-old"):
        (folder / left / "deepspeed").mkdir(parents=True)
        (folder / left / "deepspeed" / "half.pt").write_bytes(b"half")
    (folder / "notes.txt").write_text("mine")
    checkpoint.rotate(folder, 1)
    assert names(folder) == ["notes.txt", "step_0000001"]


def test_rotation_leaves_what_cannot_be_deleted_yet(
    job: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS does, which keeps a file that somebody has open."""
    folder = tmp_path / "c"
    save(job, folder, 1, 2)

    def refuse(*_: object, **named: object) -> None:
        raise OSError("Directory not empty")

    with monkeypatch.context() as busy:
        busy.setattr(os, "rmdir", refuse)
        checkpoint.rotate(folder, 1)
    assert list(checkpoint.steps(folder)) == [2]
    checkpoint.rotate(folder, 1)
    assert names(folder) == ["step_0000002"]


def test_rotation_takes_a_link_away_and_not_what_it_leads_to(job: Loop, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "c", tmp_path / "elsewhere"
    first, _ = save(job, folder, 1, 2)
    first.rename(elsewhere)
    first.symlink_to(elsewhere)
    checkpoint.rotate(folder, 1)
    assert names(folder) == ["step_0000002"]
    assert (elsewhere / "state.json").is_file()


def test_a_long_run_keeps_as_many_as_asked(home: Path, tmp_path: Path) -> None:
    sections = {"train": {"steps": 12, "save_every": 1, "keep_checkpoints": 3}}
    small.fit(small.loop(small.settings(**sections), tmp_path, home))
    assert list(checkpoint.steps(tmp_path / "checkpoints")) == [10, 11, 12]


# ---- what is restored


def test_another_world_size_is_refused_with_both_numbers(home: Path, tmp_path: Path) -> None:
    run = small.settings(train={"steps": 4, "stop_after": 3})
    small.fit(small.loop(run, tmp_path, home))
    path = tmp_path / "checkpoints" / "step_0000003" / "state.json"
    write_json(path, {**read_json(path), "world_size": 4})
    with pytest.raises(UserError, match="saved by 4 ranks, this run has 1"):
        small.fit(small.loop(run, tmp_path, home))


def _without(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    "change",
    [
        _without("loop"),
        _without("windows"),
        lambda state: {**state, "windows": []},
        lambda state: {**state, "windows": [[1.0]]},
        lambda state: {**state, "loop": [1]},
        lambda state: {**state, "loop": _without("position")(state["loop"])},
        lambda state: {**state, "loop": _without("best_step")(state["loop"])},
        lambda state: {**state, "loop": {**state["loop"], "stepp": 3}},
        lambda state: {**state, "loop": {**state["loop"], "step": "3"}},
        lambda state: {**state, "loop": {**state["loop"], "position": {"index": 1}}},
    ],
)
def test_a_state_that_was_edited_is_one_line(
    change: Callable[[dict[str, Any]], Any], home: Path, tmp_path: Path
) -> None:
    run = small.settings(train={"steps": 4, "stop_after": 3})
    small.fit(small.loop(run, tmp_path, home))
    path = tmp_path / "checkpoints" / "step_0000003" / "state.json"
    write_json(path, change(read_json(path)))
    with pytest.raises(UserError, match=r"step_0000003/state\.json: holds no state of a run \("):
        small.fit(small.loop(run, tmp_path, home))


def test_the_random_state_comes_back(job: Loop, tmp_path: Path) -> None:
    torch.manual_seed(3)
    torch.rand(5)
    (path,) = save(job, tmp_path / "c", 1)
    expected = torch.rand(7)
    torch.manual_seed(99)
    checkpoint.load(job.engine, path)
    assert torch.equal(torch.rand(7), expected)
    stored = torch.load(path / "random_00000.pt", weights_only=True)
    assert {name: tensor.dtype for name, tensor in stored.items()} == {"cpu": torch.uint8}


class _Canary:
    """Unpickled, it would leave a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_r19_a_planted_random_state_is_not_executed(job: Loop, tmp_path: Path) -> None:
    (path,) = save(job, tmp_path / "c", 1)
    torch.save({"cpu": _Canary(tmp_path / "canary")}, path / "random_00000.pt")
    with pytest.raises(UserError, match=r"random_00000\.pt: holds code"):
        checkpoint.load(job.engine, path)
    assert not (tmp_path / "canary").exists()
    torch.load(path / "random_00000.pt", weights_only=False)
    assert (tmp_path / "canary").exists()  # the plant would have worked
