"""Jobs on an emulated cluster of two nodes, started as a user starts them.

`make test-slurm` runs this inside `tests/slurm/slurmci.sh run`: real sbatch, srun, requeue and node
failure, CPU ranks, a toy model. What it needs (root on Debian) is looked at there.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ala_encoder.generated import generated_text
from ala_encoder.records import read_folder
from tests.slurm.cluster import (
    CLUSTER,
    Job,
    answer,
    losses,
    python,
    steps,
    submit,
    until,
)

pytestmark = pytest.mark.cluster

TOY: dict[str, Any] = {
    "variant": "toy",
    "seed": 7,
    "model": {
        "family": "encoder", "dim": 32, "num_layers": 2, "num_heads": 4, "ffn_dim": 64,
        "max_length": 32, "dropout": 0.1,
    },
    "encoder": {"layout": "full", "biases": [{"kind": "gated_distbias"}]},
    "optim": {"learning_rate": 3e-3, "warmup_steps": 3},
    "train": {
        "steps": 30, "batch_size": 64, "micro_batch_size": 1, "log_every": 1, "eval_every": 10,
        "save_every": 10,
    },
}  # fmt: skip


@pytest.fixture(scope="session")
def home() -> Any:
    """A folder that all nodes see: a config, its tokenizer and its text."""
    folder = Path(os.environ["SLURMCI_DIR"]) / "home"
    folder.mkdir()
    os.environ.update(OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu")
    documents = generated_text(1, 40)
    for name, part in (("train", documents[:36]), ("valid", documents[36:])):
        text = "\n\n".join("\n".join(document) for document in part)
        (folder / f"{name}.txt").write_text(f"{text}\n", encoding="utf-8")
    source = {"kind": "files", **{n: [str(folder / f"{n}.txt")] for n in ("train", "valid")}}
    toy = {
        **TOY,
        "output": str(folder / "runs"),
        "tokenizer": {
            "kind": "wordpiece", "path": str(folder / "tokenizer"), "vocab_size": 300,
        },
        "data": {"path": str(folder / "text"), "source": source, "length": 32},
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db", "experiment": "toy"},
    }  # fmt: skip
    (folder / "toy.yaml").write_text(json.dumps(toy))
    python("pipelines.train_tokenizer", folder / "toy.yaml")
    python("pipelines.prepare_data", folder / "toy.yaml")
    yield folder
    shutil.rmtree(folder)


def pretrain(home: Path, name: str, *words: str, sbatch: tuple[str, ...] = ("--nodes=2",)) -> Job:
    return submit(home, "pretrain", home / "toy.yaml", f"name={name}", *words, sbatch=sbatch)


def run_of(home: Path, name: str) -> Path:
    return home / "runs" / name


def weights(home: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(run_of(home, name) / "export" / "model.safetensors")


def assert_bitwise(home: Path, name: str, other: str) -> None:
    """Weights and losses of two runs are the same to the last bit, no step missing or twice."""
    ours, theirs = weights(home, name), weights(home, other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert losses(run_of(home, name)) == losses(run_of(home, other))


def mlflow_runs(home: Path, name: str) -> list[tuple[str, str]]:
    """Return (id, status) of MLflow's runs of a name."""
    with sqlite3.connect(home / "mlflow.db") as database:
        found = database.execute("select run_uuid, status from runs where name = ?", (name,))
        return list(found.fetchall())


def interrupted(home: Path, job: Job, name: str, step: int, signal: str) -> None:
    """Signal the job when it has logged a step, and wait until it is requeued."""
    before = job.restarts
    until(lambda: steps(run_of(home, name))[-1:] >= [step], f"step {step}: {job.said()[-2000:]}")
    job.signal(signal)
    until(lambda: job.restarts > before, f"requeue after {signal}: {job.said()[-2000:]}")


@pytest.fixture(scope="session")
def unbroken(home: Path) -> Path:
    """The toy by srun on two nodes, from start to end."""
    job = pretrain(home, "unbroken")
    job.wait()
    said = job.said()
    assert "nodes node1 node2; ranks 2, 1 a node; port 2" in said
    return run_of(home, "unbroken")


@pytest.mark.parametrize("launcher", ["deepspeed", "deepspeed-slurm"])
def test_both_launchers_give_the_losses_of_two_ranks_here(
    launcher: str, home: Path, unbroken: Path
) -> None:
    job = pretrain(home, launcher, sbatch=("--nodes=2", f"--export=ALL,ALA_LAUNCHER={launcher}"))
    job.wait()
    assert_bitwise(home, launcher, "unbroken")


def test_two_local_ranks_give_the_same_losses(home: Path, unbroken: Path) -> None:
    local = ["--num_gpus", 2, "--module", "pipelines.pretrain", home / "toy.yaml", "name=local"]
    python("deepspeed.launcher.runner", *local)
    assert_bitwise(home, "local", "unbroken")


def test_r13_five_requeues_are_one_run(home: Path, unbroken: Path) -> None:
    job = pretrain(home, "requeued")
    for number, signal in enumerate(("USR1", "USR2", "TERM", "USR1", "USR1")):
        interrupted(home, job, "requeued", 3 + 5 * number, signal)
    job.wait()
    assert job.restarts == 5
    assert_bitwise(home, "requeued", "unbroken")
    assert [status for _, status in mlflow_runs(home, "requeued")] == ["FINISHED"]
    assert steps(run_of(home, "requeued")) == list(range(1, 31))
    assert job.said().count("goes on from there") == 5  # the log was appended to
    assert "start 6" in job.said()


def test_scancel_ends_as_killed_and_is_not_requeued(home: Path) -> None:
    job = pretrain(home, "cancelled", "train.steps=100000")
    until(lambda: steps(run_of(home, "cancelled")), job.said())
    answer("scancel", job.number)
    job.wait("CANCELLED")
    status = lambda: [s for _, s in mlflow_runs(home, "cancelled")] == ["KILLED"]  # noqa: E731
    until(status, "KILLED in MLflow")
    assert job.restarts == 0


def test_g16_a_node_that_fails_is_survived(home: Path, unbroken: Path) -> None:
    job = pretrain(home, "failed", "train.save_every=5", sbatch=("--nodes=1",))
    until(lambda: steps(run_of(home, "failed"))[-1:] >= [7], job.said())
    node = job.fields()["NodeList"]
    answer(CLUSTER, "node-kill", node)
    until(lambda: job.restarts == 1, "requeue by Slurm")
    answer(CLUSTER, "node-start", node)
    job.wait()
    assert steps(run_of(home, "failed"))[-1] == 30
    assert "resuming" in job.said()
    assert [s for _, s in mlflow_runs(home, "failed")] == ["FINISHED"]


def test_r12_no_progress_between_two_requeues_stops(home: Path) -> None:
    words = ("train.steps=100000", "train.batch_size=100000")
    job = pretrain(home, "stuck", *words, sbatch=("--nodes=1",))
    for _ in range(2):
        before = job.said().count("precision")
        until(lambda seen=before: job.said().count("precision") > seen, job.said())
        job.signal("USR1")
        until(lambda: job.restarts or job.state == "FAILED", job.said())
    job.wait("FAILED")
    assert job.restarts == 1
    assert "nothing was done since the start before" in job.said()


def test_g03_an_element_of_an_array_is_requeued_alone_and_a_rerun_completes_the_rest(
    home: Path,
) -> None:
    suite = {
        "name": "suite", "pipeline": "pretrain", "configs": [str(home / "toy.yaml")],
        "vary": {"seed": [1, 2], "model.dropout": [0.0, 0.1, 0.2]},
        "settings": ["train.steps=12"], "output": str(home / "suite"),
        "tracking": {"uri": f"sqlite:///{home}/mlflow.db", "experiment": "suite"},
    }  # fmt: skip
    (home / "suite.yaml").write_text(json.dumps(suite))
    job = submit(home, "suite", home / "suite.yaml", sbatch=("--array=0-5%2",))
    killed = home / "suite" / "toy-1-0.1"
    until(lambda: (killed / "metrics.jsonl").exists(), "cell 1 begins")
    answer("scancel", f"{job.number}_1")
    ended = lambda: "RUNNING" not in (a := answer("squeue", "-h", "-o", "%T")) and "PEND" not in a  # noqa: E731
    until(ended, "the array ends", 300)
    plan = json.loads(python("pipelines.suite", home / "suite.yaml", "dry_run=true", "--json"))
    assert plan["left"] == [1]
    again = submit(home, "suite", home / "suite.yaml", sbatch=("--array=1",))
    until(ended, "the rerun ends")
    assert read_folder(killed)[0].status == "FINISHED", again.said()
    submit(home, "table", home / "suite.yaml").wait()
    report = (home / "suite" / "suite" / "report.md").read_text(encoding="utf-8")
    assert report.count(" 1, 2 |") == 3
