"""One rank of slurm/doctor.sh: collectives between the nodes, the run folder, a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

# The checkout's code, whatever is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ala_encoder import engine, ranks, signals, slurm
from ala_encoder.command import leave
from ala_encoder.errors import UserError

MEGABYTES = 256
"""What is written; and what is summed over ranks, 16 times, is a sixteenth of it."""


def main(folder: Path) -> None:
    """Print what each check finds, on rank 0."""
    os.environ.update(slurm.rank_variables(os.environ))
    with signals.listening():
        began = time.perf_counter()
        engine.start()
        ranks.say(f"ranks {ranks.world_size()} met in {time.perf_counter() - began:.1f} s")
        _sum()
        ranks.on_main(lambda: _write(folder))
        _signal()
        engine.stop()


def _sum() -> None:
    import torch

    numbers = torch.ones(MEGABYTES // 16 * 2**18, device=engine.device())
    torch.distributed.all_reduce(numbers)
    began = time.perf_counter()
    for _ in range(4):
        torch.distributed.all_reduce(numbers)
    if numbers.is_cuda:
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / 4
    if float(numbers[0]) != ranks.world_size() ** 5:
        raise UserError("a sum over ranks is wrong")
    ranks.say(f"sum over ranks of {MEGABYTES // 16} MB: {seconds:.3f} s on {engine.device().type}")


def _write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path, block = folder / f".doctor-{os.getpid()}", os.urandom(2**20)
    began = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(MEGABYTES):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    ranks.say(f"run folder {folder}: {MEGABYTES / seconds:.0f} MB a second, written and synced")


def _signal() -> None:
    """Have every rank told as at the end of the time, and see whether all are."""
    # Slurm's own may come at any time: the lead that was asked for may be longer than this job.
    own = os.environ.get("ALA_SIGNAL", "USR1@0").partition("@")[0]
    number = signal.SIGUSR2 if own == "USR1" else signal.SIGUSR1
    name = number.name.removeprefix("SIG")
    ranks.barrier()
    began = time.perf_counter()
    if ranks.is_main():
        step = f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"
        # It is a process of the step too, and would die of what it sends.
        command = ["scancel", f"--signal={name}", step]
        subprocess.run(command, check=True, preexec_fn=signals.ignore)
    while number.name not in signals.received() and time.perf_counter() - began < 30:
        time.sleep(0.01)
    waited = ranks.gather(time.perf_counter() - began)
    deaf = [number for number, seconds in enumerate(waited) if seconds >= 30]
    if deaf:
        raise UserError(f"{name} came to all ranks but {deaf}: a run would not be saved in time")
    ranks.say(f"{name} came to all ranks within {max(waited):.2f} s")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        leave(2)
    leave(0)
