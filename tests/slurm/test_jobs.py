"""Jobs in arrays and in order on the emulated cluster, and the check of an allocation."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from ala_encoder.records import read_folder
from tests.slurm.cluster import PATIENCE, ROOT, Job, answer, mlflow, python, submit, until

pytestmark = pytest.mark.cluster


def all_ended() -> bool:
    return not answer("squeue", "-h", "-o", "%T")


def parents(home: Path, experiment: str) -> dict[str, str | None]:
    """Return the name of each of MLflow's runs of an experiment, and the name of its parent."""
    rows = mlflow(
        home,
        """
        select r.name, p.name from runs r join experiments e on e.experiment_id = r.experiment_id
        left join tags t on t.run_uuid = r.run_uuid and t.key = 'mlflow.parentRunId'
        left join runs p on p.run_uuid = t.value where e.name = ?
        """,
        experiment,
    )
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: row[1] for row in rows}


def test_g03_an_element_of_an_array_is_requeued_alone_and_a_rerun_completes_the_rest(
    home: Path,
) -> None:
    suite = {
        "name": "suite", "pipeline": "pretrain", "configs": [str(home / "toy.yaml")],
        "vary": {"seed": [1, 2], "model.dropout": [0.0, 0.1, 0.2]},
        "settings": ["train.steps=12", "tracking.experiment=suite"],
        "output": str(home / "suite"),
        "tracking": {"uri": f"sqlite:///{home}/mlflow.db", "experiment": "suite"},
    }  # fmt: skip
    (home / "suite.yaml").write_text(json.dumps(suite))
    array = submit(home, "suite.sbatch", home / "suite.yaml", sbatch=("--array=0-5%2",))
    killed, signalled = (home / "suite" / f"toy-1-{dropout}" for dropout in (0.1, 0.0))
    element = Job(f"{array.number}_0", array.log)
    until(lambda: (signalled / "metrics.jsonl").exists(), array.said())
    answer("scancel", "--signal=USR1", f"{element.fields()['JobId']}.0")
    until(lambda: (killed / "metrics.jsonl").exists(), array.said())
    answer("scancel", f"{array.number}_1")
    until(all_ended, "the array ends", 2 * PATIENCE)
    assert (element.state, element.restarts) == ("COMPLETED", 1)
    others = [Job(f"{array.number}_{number}", array.log) for number in range(1, 6)]
    assert [other.restarts for other in others] == [0] * 5
    plan = json.loads(python("pipelines.suite", home / "suite.yaml", "dry_run=true", "--json"))
    assert plan["left"] == [1]
    again = submit(home, "suite.sbatch", home / "suite.yaml", sbatch=("--array=0-1",))
    until(all_ended, "the rerun ends")
    assert read_folder(killed)[0].status == "FINISHED", again.said()
    submit(home, "table.sbatch", home / "suite.yaml").wait()
    report = (home / "suite" / "suite" / "report.md").read_text(encoding="utf-8")
    assert report.count(" 1, 2 |") == 3
    cells = {f"toy-{seed}-{dropout}": "suite" for seed in (1, 2) for dropout in (0.0, 0.1, 0.2)}
    assert parents(home, "suite") == {"suite": None, **cells}
    assert mlflow(home, "select status from runs where name = 'suite'") == [("FINISHED",)]


def submitted(home: Path, name: str, *words: str) -> dict[str, Job]:
    """Call submit.sh for pretraining and two fine-tunings; returns its jobs by stage."""
    suite = {
        "name": name, "pipeline": "finetune_glue", "configs": [str(home / "task.yaml")],
        "vary": {"init": [str(home / "runs" / name)], "seed": [1, 2]},
        "output": str(home / name),
        "tracking": {"uri": f"sqlite:///{home}/mlflow.db", "experiment": name},
        "settings": [f"tracking.experiment={name}"],
    }  # fmt: skip
    (home / f"{name}.yaml").write_text(json.dumps(suite))
    extra = f"--gpus-per-node=1 --cpus-per-task=1 --output={home}/{name}-%x-%j.out"
    command = ["slurm/submit.sh", home / "toy.yaml", home / f"{name}.yaml"]
    command += [*(word for word in words if word.startswith("--")), "--", f"name={name}"]
    command += [word for word in words if not word.startswith("--")]
    said = answer("env", f"ALA_SBATCH_EXTRA={extra}", *command)
    found = re.findall(r"^(\w+): job (\d+)$", said, re.MULTILINE)
    return {stage: Job(id_, home / f"{name}-{stage}-{id_}.out") for stage, id_ in found}


def test_stages_follow_one_another_to_a_table(home: Path) -> None:
    assert submitted(home, "dry") == {}
    assert all_ended()
    jobs = submitted(home, "staged", "--go", "train.steps=5")
    assert list(jobs) == ["pretrain", "cells", "table"]
    jobs["table"].wait(seconds=2 * PATIENCE)
    report = (home / "staged" / "staged" / "report.md").read_text(encoding="utf-8")
    assert " 1, 2 |" in report
    assert parents(home, "staged") == {
        "staged": None, "task-staged-1": "staged", "task-staged-2": "staged",
    }  # fmt: skip


def test_a_stage_that_fails_stops_those_after_it(home: Path) -> None:
    jobs = submitted(home, "broken", "--go", f"tokenizer.path={home}/nowhere")
    until(all_ended, "all stages end")
    assert [jobs[stage].state for stage in ("pretrain", "cells", "table")] == [
        "FAILED", "CANCELLED", "CANCELLED",
    ]  # fmt: skip


def test_doctor_checks_an_allocation_in_a_minute(home: Path) -> None:
    job = submit(home, "doctor.sh", home / "runs", sbatch=("--nodes=2",))
    job.wait()
    said = job.said()
    for words in (
        "nodes node1 node2; ranks 2, 1 a node; port 2",
        "ranks 2 met in",
        "sum over ranks of 16 MB",
        f"run folder {home}/runs:",
        "USR2 came to all ranks within",  # the end of the time sends USR1
        "KillWait",
        "all is well",
    ):
        assert words in said, said


def test_a_compute_node_reaches_nobody_but_the_cluster() -> None:
    """So that every job of these tests has shown that it needs no network."""
    reach = "import socket; socket.create_connection(('1.1.1.1', 443), timeout=5)"
    words = ["srun", "--nodes=1", "python3", "-c", reach]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert "Network is unreachable" in done.stderr
