"""Signals set a flag, and every rank raises at the next place where all ask."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ala_encoder import checkpoint, command, ranks, runs, signals
from ala_encoder.errors import RunSaved, RunStopped, UserError
from ala_encoder.files import read_json, write_json
from ala_encoder.lead import Lead
from ala_encoder.settings.experiment import PretrainRun
from ala_encoder.tracking.runlog import null_log
from tests.launched import signalled, small
from tests.test_launch import free_port

ROOT = Path(__file__).resolve().parents[1]


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", signals.ASKING)
def test_a_signal_is_told_at_the_next_check_and_not_before(number: signal.Signals) -> None:
    with signals.listening():
        ranks.check_signals()
        send(number)
        with pytest.raises(signals.Asked, match=rf"{number.name} on rank 0"):
            ranks.check_signals()


def test_g04_further_signals_change_nothing() -> None:
    with signals.listening():
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM):
            send(number)
        with pytest.raises(signals.Asked, match=r"SIGTERM and SIGUSR1 on rank 0"):
            ranks.check_signals()


def test_what_came_before_is_forgotten_and_handlers_are_given_back() -> None:
    earlier = [signal.getsignal(number) for number in signals.ASKING]
    with signals.listening():
        send(signal.SIGUSR1)
    assert [signal.getsignal(number) for number in signals.ASKING] == earlier
    with signals.listening():
        ranks.check_signals()
    ranks.check_signals()


@pytest.mark.parametrize(
    ("error", "code"), [(RunSaved("saved"), 85), (RunStopped("no progress"), 1)]
)
def test_a_run_that_was_asked_to_leave_ends_with_a_code_of_its_own(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    def main(_: PretrainRun) -> None:
        raise error

    words = ["configs/small/books.yaml"]
    assert command.run(main, PretrainRun, "", argv=words) == code
    assert str(error) in capsys.readouterr().err


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(("seconds", "starts"), [(61.0, 2), (0.0, 3)])
def test_r12_a_start_that_did_nothing_is_the_last_unless_its_signal_was_the_one_befores(
    seconds: float, starts: int, tmp_path: Path
) -> None:
    """scancel tries on while a job is put back, so a signal may come to the next start."""
    left = tmp_path / "left.json"
    for number in range(1, starts + 1):
        error = RunSaved if number < starts else RunStopped
        with pytest.raises(error, match="USR1 on rank 0"):
            runs._leave(tmp_path, null_log(), signals.Asked("USR1 on rank 0"))
        told = read_json(left)
        write_json(left, {**told, "times": [time - seconds for time in told["times"]]})


# ---- a start that is not listening yet

STARTING = """
import os, signal, sys
from ala_encoder import ranks, signals
signals.hold()
os.kill(os.getpid(), signal.SIGUSR1)
if len(sys.argv) > 1:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
with signals.listening():
    try:
        ranks.check_signals()
    except signals.Asked as asked:
        print(asked)
os.kill(os.getpid(), signal.SIGTERM)
print("saved")
"""
TAKING = """
from ala_encoder import ranks, signals
with signals.listening():
    try:
        ranks.check_signals()
    except signals.Asked as asked:
        print(asked)
"""


def python(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_signal_to_a_start_that_imports_is_kept_and_one_after_the_end_changes_nothing() -> None:
    done = python("-c", STARTING)
    assert (done.returncode, done.stdout) == (0, "SIGUSR1 on rank 0\nsaved\n"), done.stderr


def test_a_signal_that_is_kept_reaches_the_pipeline_that_a_cell_of_a_suite_becomes() -> None:
    done = python("-c", STARTING, "-c", TAKING)
    assert (done.returncode, done.stdout) == (0, "SIGUSR1 on rank 0\n"), done.stderr


# ---- exact moments, on two ranks


LEFT_OVER = {"SLURM_JOB_ID": "78", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two processes found for every moment of tests/launched/signalled.py.

    They are started as in an allocation, whose variables tell of another number of ranks.
    """
    home = tmp_path_factory.mktemp("signalled")
    common = {
        **os.environ, **LEFT_OVER, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
        "TORCH_EXTENSIONS_DIR": str(ROOT / ".cache" / "torch_extensions"),
    }  # fmt: skip
    words = [sys.executable, "-m", "tests.launched.signalled", str(home)]
    started = []
    for rank in ("0", "1"):
        with (home / f"{rank}.log").open("w") as log:
            env = {**common, "RANK": rank, "LOCAL_RANK": rank}
            started.append(subprocess.Popen(words, cwd=ROOT, env=env, stdout=log, stderr=log))
    try:
        codes = [process.wait(timeout=400) for process in started]
    finally:
        for process in started:
            process.kill()
    said = [(home / f"{rank}.log").read_text()[-3000:] for rank in (0, 1)]
    assert codes == [0, 0], "\n".join(said)
    read: dict[str, Any] = json.loads((home / "signalled.json").read_text())
    return read


@pytest.mark.launch
@pytest.mark.parametrize("moment", signalled.MOMENTS)
def test_r11_g05_a_signal_at_any_moment_saves_once_and_the_run_goes_on_bitwise(
    moment: str, found: dict[str, Any]
) -> None:
    """Each is followed by two more; the last one comes to the rank's group, its workers too."""
    case, (name, rank) = found[moment], signalled.MOMENTS[moment]
    names = " and ".join(sorted({"SIGTERM", f"SIG{name}"}))
    assert case["ended"] == f"{names} on rank {rank}"
    assert case["seconds"] < 30
    step = {
        "before_the_first_step": 0, "first_step": 0, "restore": signalled.EARLIER, "evaluation": 3,
        "last_save": 6,
    }.get(moment, 4)  # fmt: skip
    assert case["newest"] == f"step_{step:07d}"
    assert not [name for name in case["left"] if "tmp" in name]
    assert case["weights"] and case["losses"]


@pytest.mark.launch
def test_the_newest_checkpoint_is_one_that_every_rank_sees_whole(found: dict[str, Any]) -> None:
    assert found["two_views"] == ["step_0000004"] * 2  # rank 0 sees step 6 too


@pytest.mark.launch
def test_every_node_syncs_what_its_ranks_wrote(found: dict[str, Any]) -> None:
    for rank, names in enumerate(found["synced"]):
        assert f"random_{rank:05d}.pt" in names


@pytest.mark.launch
def test_g13_ranks_of_two_jobs_that_met_behind_one_port_refuse_each_other(
    found: dict[str, Any],
) -> None:
    assert found["strangers"][0] == found["strangers"][1]
    assert "ranks of several jobs met at 127.0.0.1:" in found["strangers"][0]
    assert "70.0, 71.0" in found["strangers"][0]


# ---- the lead


def lead(monkeypatch: pytest.MonkeyPatch, signal: str, *steps: float, save: float) -> Lead:
    monkeypatch.setenv("ALA_SIGNAL", signal)
    made = Lead()
    for seconds in steps:
        made.stepped(seconds)
    made.saved(save)
    return made


def test_r11_a_lead_too_short_for_twice_a_step_and_a_save_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lead(monkeypatch, "USR1@8", 60, 1, 2, save=2).check()  # the first step compiles
    with pytest.raises(UserError) as told:
        lead(monkeypatch, "USR2@7", 60, 1, 2, save=2).check()
    for part in ("USR2", "7 s before", "step took 2.0 s", "save 2.0 s", "SBATCH_SIGNAL=USR2@8"):
        assert part in str(told.value)


@pytest.mark.parametrize("restarts", ["1", "7"])
def test_a_requeued_job_whose_lead_is_too_short_goes_on_with_a_note(
    restarts: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    lead(monkeypatch, "USR2@7", 60, 1, 2, save=2).check()
    assert "note: USR2 is to come 7 s before" in capsys.readouterr().err
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    with pytest.raises(UserError, match="USR2 is to come 7 s before"):
        lead(monkeypatch, "USR2@7", 60, 1, 2, save=2).check()


def test_a_lead_that_becomes_too_short_is_told_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = lead(monkeypatch, "USR1@8", 60, 1, 2, save=2)
    assert made.is_due()
    made.check()
    assert not made.is_due()
    made.saved(5)
    made.check()
    assert "note: USR1 is to come 8 s before" in capsys.readouterr().err
    made.check()
    assert not capsys.readouterr().err  # it has been told
    made.saved(50)
    made.check()
    assert "and twice both is 104 s" in capsys.readouterr().err


def test_without_a_signal_nothing_is_measured_and_another_kind_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = lead(monkeypatch, "", 60, 60, 60, save=60)
    assert not made.is_due()
    made.check()
    with pytest.raises(UserError, match="ALA_SIGNAL = 'INT@30': allowed are USR1, USR2 and TERM"):
        lead(monkeypatch, "INT@30", save=0)


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(("signal", "refused"), [("USR1@300", False), ("USR1@0", True)])
def test_a_run_measures_itself_early_and_changes_nothing_by_it(
    signal: str, refused: bool, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small.settings(train={"steps": 5})
    small.fit(small.loop(settings, tmp_path / "plain", home))
    monkeypatch.setenv("ALA_SIGNAL", signal)
    job = small.loop(settings, tmp_path / "run", home)
    if refused:
        with pytest.raises(UserError, match="USR1 is to come 0 s before"):
            small.fit(job)
        newest = checkpoint.newest(tmp_path / "run" / "checkpoints")
        assert newest is not None and newest.name == "step_0000003"
        return
    small.fit(job)
    assert small.losses(tmp_path / "run") == small.losses(tmp_path / "plain")
    assert sorted(checkpoint.steps(tmp_path / "run" / "checkpoints")) == [3, 5]
