"""The job scripts with stand-ins for Slurm's commands: what they run, and who is requeued."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
JOBS = sorted((ROOT / "slurm").glob("*.sbatch"))
SCRIPTS = [*JOBS, *sorted((ROOT / "slurm").glob("*.sh"))]


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
    assert script.name in told or script.stem in ("lib", "node")  # which nobody starts
    assert "#SBATCH" not in told
    assert 2 < told.count("\n") < 25


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
    files = [*SCRIPTS, *(ROOT / "tests" / "slurm").glob("*.sh")]
    files.append(ROOT / ".ci" / "run")
    for path in files:
        subprocess.run(["bash", "-n", path], check=True)
    if shellcheck is not None:
        subprocess.run([shellcheck, "-x", *files], cwd=ROOT, check=True)


def requeue(folder: Path, scontrol: str | None, **environ: str) -> tuple[int, str, list[str]]:
    """Run what follows a save, with a stand-in for scontrol; None: there is none.

    Returns the exit code, what is said, and what was done: jobs requeued, pauses.
    """
    commands, calls = folder / "bin", folder / "calls"
    shutil.rmtree(commands, ignore_errors=True)
    commands.mkdir()
    calls.write_text("")
    (commands / "sleep").write_text(f"#!{shutil.which('bash')}\necho slept >> {calls}\n")
    (commands / "sleep").chmod(0o755)
    for name in ("bash", "date", "grep", "mkdir", "rm"):
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
    code, said, jobs = requeue(tmp_path, "echo JobId=78 JobState=RUNNING")
    assert (code, jobs) == (0, ["78"])
    assert "job 78 is requeued" in said


def test_g03_of_an_array_the_element_is_requeued_alone(tmp_path: Path) -> None:
    element = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3"}
    assert requeue(tmp_path, "echo JobId=78 JobState=RUNNING", **element)[2] == ["77_3"]


def test_g03_of_an_array_the_elements_own_state_counts(tmp_path: Path) -> None:
    """The array's number, which its last element has, brings a line of each."""
    lines = (
        "JobId=79 ArrayJobId=78 ArrayTaskId=3 JobState=COMPLETED",
        "JobId=78 ArrayJobId=78 ArrayTaskId=9 JobState=RUNNING",
    )
    element = {"SLURM_ARRAY_JOB_ID": "78", "SLURM_ARRAY_TASK_ID": "9"}
    told = "; ".join(f"echo {line}" for line in lines)
    assert requeue(tmp_path, told, **element)[2] == ["78_9"]


@pytest.mark.parametrize("state", ["CANCELLED", "PREEMPTED", "COMPLETING", "TIMEOUT"])
def test_g04_what_slurm_ends_or_requeues_by_itself_is_left_to_it(
    state: str, tmp_path: Path
) -> None:
    code, said, jobs = requeue(tmp_path, f"echo JobId=78 JobState={state}")
    assert (code, jobs) == (85, [])
    assert f"not requeued, Slurm says {state}" in said


@pytest.mark.parametrize(
    "scontrol", [None, "exit 1", '[ "$1" != requeue ] && echo JobId=78 JobState=RUNNING']
)
def test_without_a_working_scontrol_all_is_saved_and_the_exit_code_says_submit_again(
    scontrol: str | None, tmp_path: Path
) -> None:
    code, said, done = requeue(tmp_path, scontrol)
    assert code == 85
    assert "submit the same command again" in said
    assert done.count("slept") == (0 if scontrol is None else 2)  # of three attempts


def test_a_scontrol_whose_server_is_busy_is_asked_again(tmp_path: Path) -> None:
    busy = f'[ "$(grep -c slept {tmp_path}/calls)" -ge 2 ] && echo JobId=78 JobState=RUNNING'
    code, said, done = requeue(tmp_path, busy)
    assert (code, done) == (0, ["slept", "slept", "78"]), said


def running(seconds: float, preempted: str = "None") -> str:
    """A stand-in for scontrol: the job runs and has so many seconds left.

    Dates are what `date` reads only with the format that Slurm calls standard.
    """
    end = (datetime.now() + timedelta(seconds=seconds)).isoformat(timespec="seconds")
    told = f"JobId=78 JobState=RUNNING PreemptTime={preempted} EndTime=$end Deadline=N/A"
    return f'end=soon; [ "${{SLURM_TIME_FORMAT:-}}" != standard ] || end={end}; echo "{told}"'


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


def test_a_preemption_with_a_grace_time_is_no_time_out_either(tmp_path: Path) -> None:
    """Slurm sets the end of the time to the end of the grace time."""
    for count in range(6):
        told = running(290, preempted="2026-01-31T01:02:03")
        code, said, jobs = requeue(tmp_path, told, SLURM_RESTART_COUNT=str(count))
        assert (code, jobs) == (0, ["78"])
        assert "run out" not in said


# ---- a signal to the batch script


SAVING = "trap 'kill $!; exit 85' USR1; touch there; sleep 60 & wait"
"""Ranks that save at once."""
SLOW = "read -r ranks < ranks; kill -USR1 $ranks; sleep 1"
"""A scancel that has signalled the ranks, and ends long after them."""


def test_the_code_of_ranks_that_end_while_the_signal_is_handed_on_is_kept(tmp_path: Path) -> None:
    code, said = job(tmp_path, srun=f"echo $$ > ranks; {SAVING}", scancel=SLOW)
    assert code == 85, said
    assert "all is saved; not requeued, Slurm says CANCELLED" in said


def test_a_signal_before_there_are_ranks_starts_none(tmp_path: Path) -> None:
    """As one that comes while an environment is entered."""
    code, said = job(tmp_path, srun="touch started", hostnames="touch there; sleep 2; echo n1")
    assert code == 85, said
    assert "SIGUSR1 came before the ranks: this start has done nothing" in said
    assert not (tmp_path / "started").exists()


def test_ranks_whose_step_slurm_does_not_know_yet_are_told_when_it_does(tmp_path: Path) -> None:
    scancel = f"if [ ! -e tried ]; then touch tried; exit 1; fi; {SLOW}"
    code, said = job(tmp_path, srun=f"echo $$ > ranks; {SAVING}", scancel=scancel)
    assert code == 85, said


@pytest.mark.parametrize("number", [10, 12])
def test_a_signal_that_ends_a_rank_before_its_first_line_has_the_job_requeued(
    number: int, tmp_path: Path
) -> None:
    srun = f"touch there; sleep 1; exit {128 + number}"
    code, said = job(tmp_path, srun=srun, scancel="exit 1", state="RUNNING")
    assert (code, (tmp_path / "requeued").read_text()) == (0, "78\n"), said
    assert "a signal ended a rank that had not begun" in said


def test_what_has_nothing_to_save_goes_on_to_its_end(tmp_path: Path) -> None:
    """Its ranks too: a signal to all of a job reaches whatever is about to become one."""
    srun = (
        'while [ "$1" != bash ]; do shift; done; exec "${@:1:4}" bash -c "'
        'touch there; for i in 1 2 3 4; do sleep .3; done; kill -USR1 \\$\\$; echo to its end"'
    )
    code, said = job(tmp_path, script="evaluate.sbatch", srun=srun)
    assert (code, "to its end" in said) == (0, True), said


NODE = """
import os, signal, sys
def save(*_):
    print("heard", flush=True)
    sys.exit(85)
signal.signal(signal.SIGUSR1, save)
open("there", "w").close()
while True:
    signal.pause()
"""


@pytest.mark.parametrize("words", ["-u -m pipelines.suite", "-m pipelines.pretrain"])
def test_a_node_of_deepspeed_hands_signals_on_to_ranks_and_to_cells_they_became(
    words: str, tmp_path: Path
) -> None:
    (tmp_path / "rank.py").write_text(NODE)
    commands = stand_ins(tmp_path, deepspeed=f"{sys.executable} rank.py {words} c.yaml")
    code, said = signalled(["bash", str(ROOT / "slurm" / "node.sh"), "suite"], commands, tmp_path)
    assert (code, said.count("heard")) == (85, 1), said


def job(
    folder: Path,
    script: str = "pretrain.sbatch",
    *,
    srun: str,
    scancel: str = "exit 1",
    hostnames: str = "echo n1",
    state: str = "CANCELLED",
) -> tuple[int, str]:
    """Run a job script with stand-ins, and signal it once its ranks are there.

    hostnames: what answers for the job's nodes; state: what Slurm says of the job. A requeue leaves
    the file `requeued`. Returns the exit code and what is said.
    """
    scontrol = f"""case "$1 $2" in
      "show hostnames") {hostnames} ;;
      "show job") echo JobId=78 JobState={state} ;;
      requeue*) echo "$2" > requeued ;;
    esac"""
    commands = stand_ins(folder, srun=srun, scancel=scancel, scontrol=scontrol)
    return signalled(["bash", str(folder / "slurm" / script), "c.yaml"], commands, folder)


def stand_ins(folder: Path, **lines: str) -> Path:
    """Make a checkout with the scripts, and commands beside it; returns the commands' folder."""
    (folder / "slurm").symlink_to(ROOT / "slurm")
    commands = folder / "bin"
    commands.mkdir()
    python = f'[ "$2" = nodes ] && echo n1 || exec {sys.executable} "$@"'
    for name, text in {"python": python, **lines}.items():
        (commands / name).write_text(f"#!/bin/bash\n{text}\n")
        (commands / name).chmod(0o755)
    return commands


def signalled(command: list[str], commands: Path, folder: Path) -> tuple[int, str]:
    """Run a script, send it USR1 once its ranks are there; returns its exit code and output."""
    env = {
        "PATH": f"{commands}:/usr/bin:/bin", "SLURM_JOB_ID": "78", "SLURM_JOB_NODELIST": "n1",
        "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS_PER_NODE": "1", "SLURM_NODEID": "0",
        "SLURM_SUBMIT_DIR": str(folder), "ALA_ENV": str(Path(sys.prefix)),
        "ALA_TASKS_PER_NODE": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "20000",
    }  # fmt: skip
    job = subprocess.Popen(
        command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        end = time.monotonic() + 30
        while not (folder / "there").exists() and time.monotonic() < end:
            time.sleep(0.05)
        job.send_signal(signal.SIGUSR1)
        said, _ = job.communicate(timeout=30)
    finally:
        job.kill()
    return job.returncode, said


# ---- the command lines

SHOW = """
printf '%s\\n' "$@"
env | grep -E '^(PATH|MASTER_|ALA_SIGNAL|ALA_TASKS|ALA_JOB)'
"""


def started(
    folder: Path, *words: str, script: str = "pretrain.sbatch", told: str = "", **environ: str
) -> tuple[int, list[str], str]:
    """Start a job script with stand-ins; `told` is what scontrol says of the job.

    Returns its exit code, srun's words and environment, and standard error.
    """
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    scripts = {
        "srun": SHOW,
        "deepspeed": f"echo deepspeed; {SHOW}",
        "scontrol": f'if [ "$2" = hostnames ]; then echo n1; echo n2; else echo "{told}"; fi',
        "apptainer": "exit 1",
        "conda": "echo 'conda() { echo \"conda $*\"; }'",
    }
    for name, lines in scripts.items():
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
    assert lines[1:10] == [
        "--ntasks-per-node=4", "--cpus-per-task=7", "--kill-on-bad-exit=1", "--wait=0",
        "python", "slurm/rank.py", "pretrain", "c.yaml", "optim.learning_rate=2e-4",
    ]  # fmt: skip
    assert {"MASTER_ADDR=n1", "ALA_JOB_TOKEN=78.0", "ALA_SIGNAL=USR1@300"} <= set(lines)


@pytest.mark.parametrize(
    ("told", "job"),
    [
        ("JobId=78 JobName=a Requeue=1 Restarts=0", "78, start 1"),
        ("JobId=78 JobName=a Requeue=1 Restarts=4", "78, start 5"),
        (
            "JobId=79 ArrayJobId=78 ArrayTaskId=3 JobName=a Restarts=6\n"
            "JobId=78 ArrayJobId=78 ArrayTaskId=9 JobName=a Restarts=0",
            "78_9, start 1",
        ),
        ("", "5_2, start 8"),
    ],
)
def test_what_sbatch_hands_on_from_a_job_that_it_was_called_in_is_not_believed(
    told: str, job: str, tmp_path: Path
) -> None:
    other = {
        "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2", "SLURM_RESTART_COUNT": "7",
    }  # fmt: skip
    code, lines, error = started(tmp_path, "c.yaml", told=told, **other)
    assert (code, lines[0].partition("; job ")[2]) == (0, job), error


def test_a_cell_is_the_element_of_this_jobs_own_array(tmp_path: Path) -> None:
    array = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3"}
    suite = {"script": "suite.sbatch", **array}
    code, lines, error = started(tmp_path, "s.yaml", **suite)
    assert code == 0, error
    assert "suite s.yaml cell=3" in " ".join(lines)
    code, _, error = started(tmp_path, "s.yaml", "cell=1", **suite)
    assert (code, "error: cell: is the number of the array's element" in error) == (2, True)
    code, _, error = started(tmp_path, "s.yaml", told="JobId=78 Restarts=0", **suite)
    assert (code, "error: no array: sbatch --array=0-N" in error) == (2, True)


def test_g12_a_task_that_starts_the_ranks_of_a_node_gets_the_cores_of_all(tmp_path: Path) -> None:
    code, lines, error = started(tmp_path, "c.yaml", ALA_LAUNCHER="deepspeed")
    assert code == 0, error
    assert lines[1:8] == [
        "--ntasks-per-node=1", "--ntasks=2", "--cpus-per-task=28", "--kill-on-bad-exit=1",
        "--wait=0", "bash", "slurm/node.sh",
    ]  # fmt: skip


def test_the_table_is_one_process_on_one_node_whatever_the_job_has(tmp_path: Path) -> None:
    environ = {"SLURM_GPUS_ON_NODE": "8", "SLURM_NTASKS_PER_NODE": "1"}
    code, lines, error = started(tmp_path, "s.yaml", script="table.sbatch", **environ)
    assert code == 0, error
    assert lines[:4] == ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpus-per-task=7"]
    assert "python -m pipelines.suite s.yaml table=true" in " ".join(lines)


def test_doctor_reads_its_lead_in_the_checkout_wherever_it_was_submitted(tmp_path: Path) -> None:
    code, lines, error = started(tmp_path, "runs", script="doctor.sh")
    assert code == 0, error
    assert "ALA_SIGNAL=USR1@300" in lines
    assert lines[-1].startswith("all is well. Jobs ask for USR1 300 s before their end")


def test_a_table_outside_a_job_is_one_line(tmp_path: Path) -> None:
    code, _, error = started(tmp_path, "s.yaml", script="table.sbatch", SLURM_JOB_ID="")
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith("error: no Slurm job: submit this with sbatch")


def test_g13_a_port_that_is_taken_is_passed_over(tmp_path: Path) -> None:
    def port() -> int:
        lines = started(tmp_path, "c.yaml")[1]
        return int(next(line for line in lines if line.startswith("MASTER_PORT=")).split("=")[1])

    first = port()
    assert 20_000 <= first < 30_000
    with socket.socket() as taken:
        taken.bind(("", first))
        taken.listen()
        assert port() != first


LOOK = """
import runpy, signal, sys
class Look:
    def find_spec(self, name, *_):
        if name in ("torch", "pipelines"):
            held = signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, [])
            print(name, held, signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN)
sys.meta_path.insert(0, Look())
sys.argv = ["slurm/rank.py", sys.argv[1], "--help"]
runpy.run_path("slurm/rank.py", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("pipeline", "how"),
    [("pretrain", "held back"), ("suite", "held back"), ("evaluate", "ignored")],
)
def test_a_rank_is_deaf_before_it_imports_anything_that_takes_its_time(
    pipeline: str, how: str
) -> None:
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", LOOK, pipeline],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seen = f"pipelines {how == 'held back'} {how == 'ignored'}"
    assert done.stdout.splitlines()[0] == seen, done.stderr


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (
            "pyxis:nvcr.io#a/b:1",
            "--cpus-per-task=7 --container-image=nvcr.io#a/b:1 "
            f"--container-mounts={ROOT}:{ROOT},/data:/data,/scratch:/runs "
            f"--container-workdir={ROOT} --kill-on-bad-exit=1 --wait=0 "
            "python slurm/rank.py pretrain c.yaml",
        ),
        (
            f"apptainer:{__file__}",
            "--cpus-per-task=7 --kill-on-bad-exit=1 --wait=0 "
            f"apptainer exec --nv --bind {ROOT} --bind /data:/data --bind /scratch:/runs "
            f"--pwd {ROOT} {__file__} "
            "python slurm/rank.py pretrain c.yaml",
        ),
    ],
    ids=["pyxis", "apptainer"],
)
def test_ranks_start_in_the_container(container: str, words: str, tmp_path: Path) -> None:
    mounts = "/data /scratch:/runs"
    code, lines, error = started(tmp_path, "c.yaml", ALA_CONTAINER=container, ALA_MOUNTS=mounts)
    assert code == 0, error
    assert words in " ".join(lines)


def test_a_job_in_a_container_needs_no_python_outside_of_it(tmp_path: Path) -> None:
    (tmp_path / "slurm").symlink_to(ROOT / "slurm")  # a checkout without .venv
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("#!/bin/bash\necho of the host >&2; exit 1\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    home = {"ALA_ENV": "", "SLURM_SUBMIT_DIR": str(tmp_path)}
    code, lines, error = started(tmp_path, "c.yaml", ALA_CONTAINER="pyxis:a/b", **home)
    assert (code, error) == (0, "")
    assert "python slurm/rank.py pretrain c.yaml" in " ".join(lines)
    for blank in ("", "  ", "\n"):
        code, _, error = started(tmp_path, "c.yaml", **{**home, "ALA_ENV": blank})
        assert (code, error.split(":")[:2]) == (2, ["error", " ALA_ENV = .venv"])


def test_deepspeeds_own_slurm_launcher_gets_hosts_and_sruns_words(tmp_path: Path) -> None:
    environ = {"ALA_LAUNCHER": "deepspeed-slurm", "ALA_ENV": str(venv(tmp_path, "empty"))}
    code, lines, error = started(tmp_path, "c.yaml", **environ)
    assert code == 0, error
    assert lines[lines.index("--launcher") + 1] == "slurm"
    hosts = Path(lines[lines.index("--hostfile") + 1])
    assert hosts.read_text() == "n1 slots=4\nn2 slots=4\n"
    assert "--ntasks-per-node=4 --cpus-per-task=7 --kill-on-bad-exit=1 --wait=0" in lines


def venv(folder: Path, name: str) -> Path:
    """A folder that is an environment with this Python, and with nothing else on PATH."""
    (folder / name / "bin").mkdir(parents=True)
    python = folder / name / "bin" / "python"
    python.write_text(f'#!/bin/bash\necho "{name}" >&2\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return folder / name


def test_environments_are_entered_in_order(tmp_path: Path) -> None:
    given = f"module:cuda conda:some {venv(tmp_path, 'mine')}"
    module = {"BASH_FUNC_module%%": '() { echo "module $*$of_a_module_that_reads_it"; }'}
    code, lines, error = started(tmp_path, "c.yaml", ALA_ENV=given, **module)
    assert code == 0, error
    assert lines[:2] == ["module load cuda", "conda activate some"]
    assert f"PATH={tmp_path}/mine/bin" in next(line for line in lines if line.startswith("PATH="))


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"ALA_ENV": "nowhere"}, "ALA_ENV = nowhere: no environment there"),
        ({"ALA_ENV": "module:x"}, "ALA_ENV: module load x failed"),
        ({"ALA_CONTAINER": "docker:x"}, "ALA_CONTAINER = docker:x: allowed are pyxis:IMAGE and"),
        ({"ALA_CONTAINER": "apptainer:x.sif"}, "ALA_CONTAINER = apptainer:x.sif: no such file"),
        (
            {"ALA_CONTAINER": "pyxis:x", "ALA_LAUNCHER": "deepspeed-slurm"},
            "ALA_LAUNCHER = deepspeed-slurm: calls srun by itself, not with ALA_CONTAINER = pyxis:",
        ),
        ({"ALA_LAUNCHER": "mpi"}, "ALA_LAUNCHER = mpi: allowed are srun, deepspeed"),
        ({"SBATCH_SIGNAL": "INT@30"}, "SBATCH_SIGNAL = INT@30: allowed are USR1, USR2 and TERM"),
        ({"SBATCH_SIGNAL": "USR1"}, "SBATCH_SIGNAL = USR1: allowed are"),
        ({"SLURM_GPUS_ON_NODE": "8"}, "8 GPUs a node but 4 ranks: give sbatch --ntasks-per-node=8"),
        ({"SLURM_JOB_ID": ""}, "no Slurm job: submit this with sbatch"),
        ({"ALA_TIME_OUTS": "3x"}, "ALA_TIME_OUTS = 3x: allowed are whole numbers"),
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
