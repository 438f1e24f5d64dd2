"""slurm/submit.sh with a stand-in for sbatch, and `make test-slurm` where there is no cluster."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


# ---- submit.sh


def submitted(
    folder: Path,
    *words: str,
    sbatch: str = "echo $((100 + $(wc -l < calls)))",
    init: str = "runs/first",
    pipeline: str = "finetune_glue",
    **environ: str,
) -> tuple[int, str, list[str]]:
    """Run submit.sh with a stand-in for sbatch; returns exit code, what is said, sbatch's calls."""
    is_first = pipeline == "pretrain"
    config = "demo/full.yaml" if is_first else "glue/sst2.yaml"
    suite = {
        "name": "s", "pipeline": pipeline, "output": str(folder / "runs"),
        "vary": {"seed": [1]} if is_first else {"init": [init], "seed": [1, 2, 3]},
        "configs": [str(ROOT / "configs" / config)],
    }  # fmt: skip
    (folder / "suite.yaml").write_text(json.dumps(suite))
    (folder / "bin").mkdir()
    (folder / "calls").write_text("")
    stand_in = folder / "bin" / "sbatch"
    stand_in.write_text(f'#!/bin/bash\ncd {folder}\necho "$@" >> calls\n{sbatch}\n')
    stand_in.chmod(0o755)
    command = ["bash", ROOT / "slurm" / "submit.sh", "configs/demo/full.yaml"]
    given = words if "--" in words else (*words, "--")
    done = subprocess.run(
        [*command, folder / "suite.yaml", *given, "name=first", "output=runs"],
        cwd=folder, capture_output=True, text=True, check=False,
        env={"PATH": f"{folder}/bin:/usr/bin:/bin", "ALA_ENV": str(Path(sys.prefix)), **environ},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr, (folder / "calls").read_text().splitlines()


def test_a_dry_run_submits_nothing_and_shows_everything(tmp_path: Path) -> None:
    code, said, calls = submitted(tmp_path, ALA_SBATCH_EXTRA="--account=a")
    assert (code, calls) == (0, [])
    assert "--account=a slurm/pretrain.sbatch configs/demo/full.yaml" in said
    assert "--dependency=afterok:<pretrain> --array=0-2 slurm/suite.sbatch" in said
    assert "--dependency=afterok:<cells>" in said
    assert "nothing was submitted: add --go" in said


def test_each_stage_waits_for_the_one_before_and_gets_the_sites_own_words(tmp_path: Path) -> None:
    words = ("--go", "--at-once", "2", "--", "seed=5")
    code, said, calls = submitted(tmp_path, *words, ALA_SBATCH_EXTRA="--account=a --qos=b")
    assert code == 0, said
    end = f"--nodes=1 --ntasks-per-node=1 slurm/table.sbatch {tmp_path / 'suite.yaml'}"
    common = "--parsable --kill-on-invalid-dep=yes --account=a --qos=b"
    suite = tmp_path / "suite.yaml"
    assert calls == [
        f"{common} slurm/pretrain.sbatch configs/demo/full.yaml seed=5 name=first output=runs",
        f"{common} --dependency=afterok:101 --array=0-2%2 slurm/suite.sbatch {suite}",
        f"{common} --dependency=afterok:102 {end}",
    ]
    assert [line for line in said.splitlines() if "job 10" in line] == [
        "pretrain: job 101", "cells: job 102", "table: job 103",
    ]  # fmt: skip


def test_a_stage_that_sbatch_refuses_ends_the_submission(tmp_path: Path) -> None:
    code, _, calls = submitted(tmp_path, "--go", sbatch="echo no such account >&2; exit 1")
    assert code == 1
    assert len(calls) == 1


def test_jobs_that_stand_where_a_later_one_is_refused_are_named(tmp_path: Path) -> None:
    """On a federation sbatch tells ID;CLUSTER."""
    refused = 'case "$*" in *table*) exit 1 ;; esac; echo "$((100 + $(wc -l < calls)));here"'
    code, said, calls = submitted(tmp_path, "--go", sbatch=refused)
    assert (code, len(calls)) == (1, 3)
    assert "error: table was not submitted (above); jobs 101 102 were: `scancel 101 102`" in said
    assert "--dependency=afterok:102 " in calls[2]


@pytest.mark.parametrize(
    ("words", "environ", "told"),
    [
        (("--nonsense",), {}, "--nonsense: allowed are --go"),
        (("--go", "--at-once", "0"), {}, "--at-once 0: needs how many cells run at a time"),
        (("--at-once", "--go"), {}, "--at-once --go: needs how many"),
        (("--go", "--", "optim.lerning_rate=1"), {}, "optim.lerning_rate"),
        (("--go",), {"ALA_SBATCH_EXTRA": "--signal=USR1@9"}, "set SBATCH_SIGNAL=KIND@SECONDS"),
    ],
    ids=str,
)
def test_what_is_wrong_is_told_before_anything_is_submitted(
    words: tuple[str, ...], environ: dict[str, str], told: str, tmp_path: Path
) -> None:
    code, said, calls = submitted(tmp_path, *words, **environ)
    assert (code, calls) == (2, [])
    assert told in said


def test_a_cell_that_starts_from_another_run_than_the_first_stage_makes_is_named(
    tmp_path: Path,
) -> None:
    code, said, calls = submitted(tmp_path, "--go", init="runs/second")
    assert (code, calls) == (2, [])
    assert "cell sst2-second-1: init = runs/second, but the pretraining makes runs/first" in said


@pytest.mark.parametrize("words", [(), ("a.yaml",), ("--go", "a.yaml"), ("a.yaml", "--go")])
def test_without_both_configs_nothing_is_submitted(words: tuple[str, ...]) -> None:
    command = ["bash", ROOT / "slurm" / "submit.sh", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "needed are PRETRAIN.yaml SUITE.yaml" in done.stderr


def test_a_suite_of_pretrainings_is_no_second_stage(tmp_path: Path) -> None:
    code, said, calls = submitted(tmp_path, pipeline="pretrain")
    assert (code, calls) == (2, [])
    assert "error: pipeline = 'pretrain': what follows a pretraining is of" in said


def test_jobs_run_in_the_checkout_that_was_checked(tmp_path: Path) -> None:
    stand_in = 'echo "$ALA_HOME" >> homes; echo 7'
    code, said, _ = submitted(tmp_path, "--go", sbatch=stand_in, ALA_HOME=str(tmp_path))
    assert code == 0, said
    assert (tmp_path / "homes").read_text().splitlines() == [str(ROOT)] * 3


def test_the_environment_is_entered_as_in_a_job(tmp_path: Path) -> None:
    module = {"BASH_FUNC_module%%": '() { echo "module $*"; }'}
    code, said, _ = submitted(tmp_path, ALA_ENV=f"module:cuda {sys.prefix}", **module)
    assert code == 0, said
    assert said.startswith("module load cuda\n")
    (tmp_path / "again").mkdir()
    code, said, _ = submitted(tmp_path / "again", ALA_ENV="nowhere")
    assert (code, said.splitlines()[0][:24]) == (2, "error: ALA_ENV = nowhere")


# ---- make test-slurm


@pytest.mark.parametrize(
    ("stand_in", "told"),
    [
        ({"id": "echo 1000"}, "an emulated cluster needs root on Debian"),
        ({"id": "echo 0", "apt-get": "", "unshare": "exit 1"}, "may not make the namespaces"),
        (
            {"id": "echo 0", "apt-get": "exit 1", "unshare": "", "slurmctld": "exit 1"},
            "Slurm cannot be installed here",
        ),
    ],
    ids=["user", "container", "no packages"],
)
def test_where_no_cluster_can_be_had_one_line_says_so(
    stand_in: dict[str, str], told: str, tmp_path: Path
) -> None:
    for name, lines in stand_in.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "dirname", "readlink"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        [tmp_path / "bash", ROOT / "tests" / "slurm" / "run.sh"],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert told in done.stdout
