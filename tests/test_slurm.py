"""Slurm's variables as ranks, node lists of every form, ports; the scripts' own words."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from ala_encoder.errors import UserError
from ala_encoder.slurm import PORTS, expand, free_port, rank_variables, tasks_on

ROOT = Path(__file__).resolve().parents[1]
JOBS = sorted((ROOT / "slurm").glob("*.sbatch"))
SCRIPTS = [*JOBS, *(ROOT / "slurm" / name for name in ("submit.sh", "doctor.sh"))]
TASK = {
    "SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1", "SLURM_NODEID": "2",
    "SLURM_STEP_NODELIST": "n[09-11]", "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
    "MASTER_PORT": "20001",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", "node1"),
        ("nodeA,nodeB[001,003],nodeC", "nodeA nodeB001 nodeB003 nodeC"),
        ("n[09-11]", "n09 n10 n11"),
        ("r[1-2]n[08-09]x,a", "r1n08x r1n09x r2n08x r2n09x a"),
        ("gpu[1,3-4,007]", "gpu1 gpu3 gpu4 gpu007"),
        ("a.b-c_d", "a.b-c_d"),
    ],
)
def test_g01_node_lists_are_expanded_as_slurm_does(text: str, names: str) -> None:
    assert expand(text) == names.split()


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,,b", "n[", "n]", "n[]", "n[1", "n[3-1]", "n[1-2-3]", "n[a]", "a b", "n[[1]]",
     "n[-1]", "n[1-999999999]", "a[1-1000]b[1-1000]"],
)  # fmt: skip
def test_what_is_no_node_list_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match="node list"):
        expand(text)


def test_r20_a_thousand_malformed_node_lists_end_in_names_or_one_line() -> None:
    draw = random.Random(0)
    for _ in range(1000):
        text = "".join(draw.choice("ab19[],-. \n") for _ in range(draw.randint(0, 30)))
        try:
            assert all(expand(text))
        except UserError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("per_node", "tasks"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,3(x2)", [1, 3, 3])]
)
def test_tasks_of_a_node_are_read_out_of_slurms_counts(per_node: str, tasks: list[int]) -> None:
    assert [tasks_on(per_node, node) for node in range(len(tasks))] == tasks
    with pytest.raises(UserError, match="tells nothing of this node"):
        tasks_on(per_node, len(tasks))


def test_a_task_of_srun_is_a_rank() -> None:
    assert rank_variables(TASK) == {
        "RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "n09",
    }  # fmt: skip


def test_ranks_of_another_launcher_that_are_not_slurms_are_named() -> None:
    assert rank_variables({**TASK, "RANK": "5"})["RANK"] == "5"
    with pytest.raises(UserError, match="WORLD_SIZE = 2 by another launcher, 6 by Slurm"):
        rank_variables({**TASK, "WORLD_SIZE": "2"})


@pytest.mark.parametrize("name", sorted(TASK))
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(UserError, match=rf"{name}: missing"):
        rank_variables({key: value for key, value in TASK.items() if key != name})


def test_g13_a_port_that_is_taken_is_passed_over() -> None:
    first = free_port(7)
    assert first in PORTS
    with socket.socket() as taken:
        taken.bind(("", first))
        taken.listen()
        assert free_port(7) != first


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_tells_how_it_is_used(script: Path) -> None:
    told = subprocess.run(
        ["bash", script, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert script.name in told
    assert "#SBATCH" not in told
    assert told.count("\n") < 15


@pytest.mark.parametrize("script", JOBS, ids=lambda path: path.name)
def test_g08_g10_g12_scripts_signal_the_ranks_append_their_log_and_may_be_requeued(
    script: Path,
) -> None:
    words = script.read_text(encoding="utf-8")
    assert "#SBATCH --signal=USR1@" in words  # without B:, which would stay with the shell
    assert "#SBATCH --open-mode=append" in words
    assert "#SBATCH --requeue" in words
    assert "learning_rate" not in words.split("#SBATCH")[-1]


def test_scripts_are_clean() -> None:
    shellcheck = shutil.which("shellcheck")
    files = [*SCRIPTS, *(ROOT / "slurm").glob("*.sh")]
    for path in files:
        subprocess.run(["bash", "-n", path], check=True)
    if shellcheck is not None:
        subprocess.run([shellcheck, "-x", *files], cwd=ROOT, check=True)


def requeue(folder: Path, scontrol: str | None, **environ: str) -> tuple[int, str, list[str]]:
    """Run what follows a save, with a stand-in for scontrol; None: there is none.

    Returns the exit code, what is said, and the jobs that were requeued.
    """
    commands, calls = folder / "bin", folder / "calls"
    commands.mkdir()
    calls.write_text("")
    for name in ("bash", "grep", "cat"):
        found = shutil.which(name)
        assert found is not None
        (commands / name).symlink_to(found)
    if scontrol is not None:
        words = f'#!/bin/bash\nif [ "$1" = requeue ]; then echo "$2" >> {calls}; fi\n{scontrol}\n'
        (commands / "scontrol").write_text(words)
        (commands / "scontrol").chmod(0o755)
    done = subprocess.run(
        [commands / "bash", "-c", "source slurm/lib.sh; ala_requeue"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PATH": str(commands), "SLURM_JOB_ID": "78", **environ},
    )  # fmt: skip
    return done.returncode, done.stdout, calls.read_text().split()


def test_after_a_save_a_running_job_is_requeued_once(tmp_path: Path) -> None:
    code, said, jobs = requeue(tmp_path, "echo JobState=RUNNING")
    assert (code, jobs) == (0, ["78"])
    assert "job 78 is requeued" in said


def test_g03_of_an_array_the_element_is_requeued_alone(tmp_path: Path) -> None:
    element = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3"}
    assert requeue(tmp_path, "echo JobState=RUNNING", **element)[2] == ["77_3"]


@pytest.mark.parametrize("state", ["CANCELLED", "PREEMPTED", "COMPLETING", "TIMEOUT"])
def test_g04_what_slurm_ends_or_requeues_by_itself_is_left_to_it(
    state: str, tmp_path: Path
) -> None:
    code, said, jobs = requeue(tmp_path, f"echo JobState={state}")
    assert (code, jobs) == (85, [])
    assert f"not requeued, Slurm says {state}" in said


@pytest.mark.parametrize(
    "scontrol", [None, "exit 1", '[ "$1" != requeue ] && echo JobState=RUNNING']
)
def test_without_a_working_scontrol_all_is_saved_and_the_exit_code_says_submit_again(
    scontrol: str | None, tmp_path: Path
) -> None:
    code, said, _ = requeue(tmp_path, scontrol)
    assert code == 85
    assert "submit the same command again" in said
