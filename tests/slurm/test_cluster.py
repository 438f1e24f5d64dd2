"""Runs on an emulated cluster of two nodes, started as a user starts them.

`make test-slurm` runs this inside `tests/slurm/slurmci.sh run`: real sbatch, srun, requeue and node
failure, CPU ranks, a toy model. What it needs (root on Debian) is looked at there.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ala_encoder.files import read_json
from tests.slurm.cluster import (
    CLUSTER,
    answer,
    assert_bitwise,
    at_step,
    goes_on,
    held,
    one_rank,
    pretrain,
    python,
    run_of,
    statuses,
    steps,
    tags,
    time_runs_out,
    until,
)

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("launcher", ["deepspeed", "deepspeed-slurm"])
def test_both_launchers_give_the_losses_of_two_ranks_here(
    launcher: str, home: Path, unbroken: Path
) -> None:
    job = pretrain(home, launcher, sbatch=("--nodes=2", f"--export=ALL,ALA_LAUNCHER={launcher}"))
    if launcher == "deepspeed":  # which hands signals on by itself, and must not die of them
        at_step(home, launcher, 5, job)
        goes_on(job, lambda: job.signal("USR1"))
    job.wait()
    assert_bitwise(run_of(home, launcher), unbroken)


def test_two_local_ranks_give_the_same_losses(home: Path, unbroken: Path) -> None:
    local = ["--num_gpus", 2, "--module", "pipelines.pretrain", home / "toy.yaml", "name=local"]
    python("deepspeed.launcher.runner", *local)
    assert_bitwise(run_of(home, "local"), unbroken)


def test_r13_five_requeues_one_by_the_end_of_the_time_are_one_run(
    home: Path, unbroken: Path
) -> None:
    """Of the ranks while they import, the batch script, the end of the time, one rank, all."""
    job, name = pretrain(home, "requeued"), "requeued"
    until(lambda: held(name), f"ranks: {job.said()}")
    goes_on(job, lambda: job.signal("USR1"))
    at_step(home, name, 5, job)
    goes_on(job, lambda: answer("scancel", "--batch", "--signal=USR2", job.number))
    at_step(home, name, 10, job)
    goes_on(job, lambda: time_runs_out(job))
    answer("scontrol", "update", f"jobid={job.number}", "timelimit=60")
    at_step(home, name, 16, job)
    goes_on(job, lambda: one_rank(name, signal.SIGTERM))
    at_step(home, name, 22, job)
    goes_on(job, lambda: job.signal("TERM"))
    job.wait()
    run, said = run_of(home, name), job.said()
    assert_bitwise(run, unbroken)
    assert steps(run) == list(range(1, 31))
    assert statuses(home, name) == ["FINISHED"]
    assert tags(home, name)["restart"] == "5"
    assert said.count("goes on from there") == 5  # the log was appended to
    assert said.count("the time has run out, 1 of at most 3 times") == 1
    assert "start 6" in said


def test_scancel_ends_as_killed_and_is_not_requeued(home: Path) -> None:
    job = pretrain(home, "cancelled", "train.steps=100000")
    at_step(home, "cancelled", 1, job)
    until(lambda: statuses(home, "cancelled") == ["RUNNING"], "MLflow's run")
    answer("scancel", job.number)
    job.wait("CANCELLED")
    until(lambda: statuses(home, "cancelled") == ["KILLED"], "KILLED in MLflow")
    assert job.restarts == 0


def test_g16_a_node_that_fails_is_survived(home: Path, unbroken: Path) -> None:
    job = pretrain(home, "failed", "train.save_every=5", sbatch=("--nodes=1",))
    at_step(home, "failed", 7, job)
    node = job.fields()["NodeList"]
    goes_on(job, lambda: answer(CLUSTER, "node-kill", node))
    answer(CLUSTER, "node-start", node)
    job.wait()
    assert steps(run_of(home, "failed"))[-1] == 30
    assert "resuming" in job.said()
    assert statuses(home, "failed") == ["FINISHED"]


def test_g16_a_run_on_two_nodes_survives_the_end_of_the_one_without_its_script(
    home: Path,
) -> None:
    job = pretrain(home, "halved", "train.save_every=5")
    at_step(home, "halved", 7, job)
    assert job.fields()["BatchHost"] == "node1"
    goes_on(job, lambda: answer(CLUSTER, "node-kill", "node2"))
    answer(CLUSTER, "node-start", "node2")
    job.wait()
    assert "resuming" in job.said()
    assert steps(run_of(home, "halved"))[-1] == 30
    assert statuses(home, "halved") == ["FINISHED"]


def test_r12_no_progress_between_two_requeues_stops(home: Path) -> None:
    job = pretrain(home, "stuck", "train.batch_size=8000", sbatch=("--nodes=1",))
    for start in range(1, 4):  # three, where the second signal comes within a minute
        until(lambda n=start: job.said().count("precision") >= n, job.said())
        job.signal("USR1")
        until(lambda n=start: job.restarts >= n or job.state == "FAILED", job.said())
        if job.state == "FAILED":
            break
    job.wait("FAILED")
    assert job.restarts in (1, 2)
    assert job.fields()["ExitCode"] == "1:0"
    assert "nothing was done since the start before" in job.said()


def test_r11_a_lead_that_is_too_short_is_refused_at_the_third_step_and_all_is_saved(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_SIGNAL", "USR2@1")
    job = pretrain(home, "late", "train.batch_size=256", sbatch=("--nodes=1",))
    job.wait("FAILED")
    assert (job.fields()["ExitCode"], job.restarts) == ("2:0", 0)
    said = next(line for line in job.said().splitlines() if line.startswith("error: "))
    assert "USR2 is to come 1 s before" in said
    assert "submit with SBATCH_SIGNAL=USR2@" in said
    assert statuses(home, "late") == ["FAILED"]
    kept = run_of(home, "late") / "checkpoints" / "step_0000003" / "state.json"
    assert read_json(kept)["loop"]["step"] == 3
