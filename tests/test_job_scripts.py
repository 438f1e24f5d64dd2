"""The job scripts with stand-ins for Slurm's commands: what they run, and who is requeued."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
JOBS = sorted((ROOT / "slurm").glob("*.sbatch"))
SCRIPTS = [*JOBS, *(ROOT / "slurm" / name for name in ("submit.sh", "doctor.sh"))]


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


rank = _module(ROOT / "slurm" / "rank.py")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_tells_how_it_is_used(script: Path) -> None:
    told = subprocess.run(
        ["bash", script, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert script.name in told
    assert "#SBATCH" not in told
    assert told.count("\n") < 15


@pytest.mark.parametrize("script", JOBS, ids=lambda path: path.name)
def test_g08_g10_scripts_signal_the_ranks_append_their_log_and_may_be_requeued(
    script: Path,
) -> None:
    words = script.read_text(encoding="utf-8")
    saves = script.stem in rank.SAVES  # without B:, which would stay with the shell
    assert ("#SBATCH --signal=USR1@" in words) == saves
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
    shutil.rmtree(commands, ignore_errors=True)
    commands.mkdir()
    calls.write_text("")
    for name in ("bash", "date", "mkdir", "rm"):
        found = shutil.which(name)
        assert found is not None
        (commands / name).symlink_to(found)
    if scontrol is not None:
        words = f'#!/bin/bash\nif [ "$1" = requeue ]; then echo "$2" >> {calls}; fi\n{scontrol}\n'
        (commands / "scontrol").write_text(words)
        (commands / "scontrol").chmod(0o755)
    done = subprocess.run(
        [commands / "bash", "-c", f"source {ROOT}/slurm/lib.sh; ala_requeue"],
        cwd=folder, capture_output=True, text=True, check=False,
        env={"PATH": str(commands), "SLURM_JOB_ID": "78", "ALA_SIGNAL": "USR1@300", **environ},
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


def running(seconds: float) -> str:
    """A stand-in for scontrol: the job runs and has so many seconds left."""
    end = datetime.now() + timedelta(seconds=seconds)
    return f"echo JobState=RUNNING EndTime={end.isoformat(timespec='seconds')} Deadline=N/A"


def test_r12_a_job_whose_time_runs_out_again_and_again_is_requeued_three_times(
    tmp_path: Path,
) -> None:
    for count in range(4):
        again = {"SLURM_RESTART_COUNT": str(count)} if count else {}
        code, said, jobs = requeue(tmp_path, running(290), **again)
        assert (code, jobs) == ((0, ["78"]) if count < 3 else (85, [])), said
    assert "the time has run out 4 times (ALA_TIME_OUTS=3): submit the same command again" in said
    assert requeue(tmp_path, running(290), ALA_TIME_OUTS="5")[0] == 0  # a new job counts anew


def test_a_preemption_is_no_time_out_and_is_not_counted(tmp_path: Path) -> None:
    for count in range(6):
        code, said, jobs = requeue(tmp_path, running(3600), SLURM_RESTART_COUNT=str(count))
        assert (code, jobs) == (0, ["78"])
        assert "run out" not in said


# ---- the command lines

SHOW = """
printf '%s\\n' "$@"
env | grep -E '^(MASTER_|ALA_SIGNAL|ALA_TASKS|ALA_JOB)'
"""


def started(
    folder: Path, *words: str, script: str = "pretrain.sbatch", **environ: str
) -> tuple[int, list[str], str]:
    """Start a job script with stand-ins.

    Returns its exit code, srun's words and environment, and standard error.
    """
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    stand_ins = {
        "srun": SHOW,
        "deepspeed": f"echo deepspeed; {SHOW}",
        "scontrol": 'if [ "$2" = hostnames ]; then echo n1; echo n2; fi',
        "apptainer": "exit 1",
        "conda": "echo 'conda() { echo \"conda $*\"; }'",
    }
    for name, lines in stand_ins.items():
        (commands / name).write_text(f"#!/bin/bash\n{lines}\n")
        (commands / name).chmod(0o755)
    env = {
        "PATH": f"{commands}:/usr/bin:/bin", "SLURM_JOB_ID": "78", "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "4", "SLURM_CPUS_PER_TASK": "7",
        "SLURM_SUBMIT_DIR": str(ROOT), "ALA_ENV": str(Path(sys.prefix)), **environ,
    }  # fmt: skip
    done = subprocess.run(
        ["bash", ROOT / "slurm" / script, *words],
        cwd=folder, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_g12_srun_gets_ranks_and_cores_and_the_first_line_names_them(tmp_path: Path) -> None:
    code, lines, error = started(tmp_path, "c.yaml", "optim.learning_rate=2e-4")
    assert code == 0, error
    assert lines[0].startswith("nodes n1 n2; ranks 8, 4 a node; port 2")
    assert lines[0].endswith("job 78, start 1")
    assert lines[1:9] == [
        "--ntasks-per-node=4", "--cpus-per-task=7", "--kill-on-bad-exit=1",
        "python", "slurm/rank.py", "pretrain", "c.yaml", "optim.learning_rate=2e-4",
    ]  # fmt: skip
    assert {"MASTER_ADDR=n1", "ALA_JOB_TOKEN=78.0", "ALA_SIGNAL=USR1@300"} <= set(lines)


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (
            "pyxis:nvcr.io#a/b:1",
            f"--container-image=nvcr.io#a/b:1 --container-mounts={ROOT}:{ROOT} "
            f"--container-workdir={ROOT} --cpus-per-task=7 --kill-on-bad-exit=1 "
            "python slurm/rank.py pretrain c.yaml",
        ),
        (
            f"apptainer:{__file__}",
            "--cpus-per-task=7 --kill-on-bad-exit=1 "
            f"apptainer exec --nv --bind {ROOT} --pwd {ROOT} {__file__} "
            "python slurm/rank.py pretrain c.yaml",
        ),
    ],
    ids=["pyxis", "apptainer"],
)
def test_ranks_start_in_the_container(container: str, words: str, tmp_path: Path) -> None:
    code, lines, error = started(tmp_path, "c.yaml", ALA_CONTAINER=container)
    assert code == 0, error
    assert words in " ".join(lines)


def test_deepspeeds_own_slurm_launcher_gets_hosts_and_sruns_words(tmp_path: Path) -> None:
    environ = {"ALA_LAUNCHER": "deepspeed-slurm", "ALA_ENV": str(venv(tmp_path, "empty"))}
    code, lines, error = started(tmp_path, "c.yaml", **environ)
    assert code == 0, error
    assert lines[lines.index("--launcher") + 1] == "slurm"
    hosts = Path(lines[lines.index("--hostfile") + 1])
    assert hosts.read_text() == "n1 slots=4\nn2 slots=4\n"
    assert "--ntasks-per-node=4 --cpus-per-task=7 --kill-on-bad-exit=1" in lines


def venv(folder: Path, name: str) -> Path:
    """A folder that is an environment with this Python, and with nothing else on PATH."""
    (folder / name / "bin").mkdir(parents=True)
    python = folder / name / "bin" / "python"
    python.write_text(f'#!/bin/bash\necho "{name}" >&2\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return folder / name


def test_environments_are_entered_in_order(tmp_path: Path) -> None:
    given = f"module:cuda conda:some {venv(tmp_path, 'mine')}"
    module = {"BASH_FUNC_module%%": '() { echo "module $*"; }'}
    code, lines, error = started(tmp_path, "c.yaml", ALA_ENV=given, **module)
    assert code == 0, error
    assert lines[:2] == ["module load cuda", "conda activate some"]
    assert error.splitlines()[0] == "mine"  # python, asked for a port


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"ALA_ENV": "nowhere"}, "ALA_ENV = nowhere: no environment there"),
        ({"ALA_ENV": "module:x"}, "ALA_ENV: module load x failed"),
        ({"ALA_CONTAINER": "docker:x"}, "ALA_CONTAINER = docker:x: allowed are pyxis:IMAGE and"),
        ({"ALA_CONTAINER": "apptainer:x.sif"}, "ALA_CONTAINER = apptainer:x.sif: no such file"),
        ({"ALA_LAUNCHER": "mpi"}, "ALA_LAUNCHER = mpi: allowed are srun, deepspeed"),
        ({"SBATCH_SIGNAL": "INT@30"}, "SBATCH_SIGNAL = INT@30: allowed are USR1, USR2 and TERM"),
        ({"SBATCH_SIGNAL": "USR1"}, "SBATCH_SIGNAL = USR1: allowed are"),
        ({"SLURM_GPUS_ON_NODE": "8"}, "8 GPUs a node but 4 ranks: give sbatch --ntasks-per-node=8"),
        ({"SLURM_JOB_ID": ""}, "no Slurm job: submit this with sbatch"),
    ],
    ids=str,
)
def test_a_mistake_in_the_environment_is_one_line_and_exit_code_2(
    environ: dict[str, str], told: str, tmp_path: Path
) -> None:
    code, _, error = started(tmp_path, "c.yaml", **environ)
    assert code == 2
    assert f"error: {told}" in error


def test_the_signal_of_sbatchs_environment_is_what_the_ranks_are_told(tmp_path: Path) -> None:
    assert "ALA_SIGNAL=USR2@900" in started(tmp_path, "c.yaml", SBATCH_SIGNAL="B:USR2@900")[1]
    assert not [
        line
        for line in started(tmp_path, "runs/x", script="evaluate.sbatch")[1]
        if "ALA_SIGNAL" in line
    ]
