"""Ranks and their devices: torch.distributed up and down, through DeepSpeed.

For: a launcher's processes, or one plain process. Not for: reading ranks (`ranks`), the model.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch

from ala_encoder import ranks
from ala_encoder.errors import UserError, reason

_SHM = "deepspeed_shm_comm"
_COLLECTIVE_TIMEOUT = timedelta(seconds=600)


def start(cache: Path = Path(".cache")) -> None:
    """Bring up torch.distributed through DeepSpeed, under a launcher or in one plain process."""
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str((cache / "torch_extensions").resolve()))
    if not has_cuda():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # or it warns that it found no other
    # DeepSpeed 0.19 uses names that torch 2.13 deprecates; no user of this project can change it.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    with _quiet_imports():
        import deepspeed
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if torch.distributed.is_initialized():
        return
    _share_cores()
    is_alone = "RANK" not in os.environ
    if is_alone:
        # One process needs no port; DeepSpeed would look for mpi4py if these were not set.
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        backend = "nccl" if has_cuda() else "gloo"
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    if has_cuda():
        torch.cuda.set_device(_gpu(ranks.local_rank(), torch.cuda.device_count()))
    else:
        # Its ranks wait for ever for one whose memory is another machine's.
        _shared_memory(needed=1 < ranks.world_size() == ranks.local_world_size())
    with contextlib.redirect_stdout(io.StringIO()):
        deepspeed.init_distributed(timeout=_COLLECTIVE_TIMEOUT, verbose=False)
    _refuse_strangers()
    shared_buffer(ranks.rank()).unlink(missing_ok=True)


def _gpu(local_rank: int, visible: int) -> int:
    """Return which of the visible GPUs a rank takes; it may be shown its own alone (Slurm does)."""
    if visible > 1 and local_rank >= visible:
        raise UserError(f"local rank {local_rank}: {visible} GPUs are visible; start a rank a GPU")
    return local_rank if visible > 1 else 0


def shared_buffer(rank: int) -> Path:
    """Return the file of shared memory that DeepSpeed's collectives of a rank are given.

    DeepSpeed never deletes it, and each start on another port takes 66 MiB more of a machine's
    memory. Once all ranks of the machine have mapped it, its name is not needed.
    """
    where = "_".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    return Path(f"/dev/shm/deepspeed_allreduce_buffer_{os.getuid()}_{where}_{rank}")


def _refuse_strangers() -> None:
    """Raise UserError when a rank of another job has come in by the same port."""
    tokens = ranks.gather(os.environ.get("ALA_JOB_TOKEN", ""))
    if len(set(tokens)) > 1:
        raise UserError(
            f"ranks of several jobs met at {os.environ.get('MASTER_ADDR')}:"
            f"{os.environ.get('MASTER_PORT')}: {', '.join(sorted(set(tokens)))}; start them again"
        )


def has_cuda() -> bool:
    """Tell whether to compute on a GPU; DS_ACCELERATOR=cpu keeps to the processor."""
    return os.environ.get("DS_ACCELERATOR", "cuda") == "cuda" and torch.cuda.is_available()


def device() -> torch.device:
    """Return where this rank computes."""
    return torch.device("cuda" if has_cuda() else "cpu")


def stop() -> None:
    """Leave the process group, so that a clean end is a silent one."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _share_cores() -> None:
    """Give each rank of a machine its part of the cores, unless OMP_NUM_THREADS says otherwise."""
    if "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(max(1, cores // ranks.local_world_size()))


def _shared_memory(*, needed: bool) -> None:
    """Build DeepSpeed's shared-memory collectives once, under a lock; go without on failure.

    A killed build leaves torch's own lock file behind, on which every later start waits for ever.
    Whoever holds our lock (which the kernel drops with its process) knows that nobody builds, so
    any such file is stale.
    """
    import deepspeed.ops
    from deepspeed.accelerator import get_accelerator

    if not needed or not deepspeed.ops.__compatible_ops__.get(_SHM, False):
        deepspeed.ops.__compatible_ops__[_SHM] = False
        return
    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "ala_build.lock").open("w") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        _clear_stale_locks(folder)
        if not list(folder.glob(f"**/{_SHM}*.so")):
            print(
                "building DeepSpeed's shared-memory collectives, once, about a minute …",
                file=sys.stderr,
                flush=True,
            )
        try:
            with contextlib.redirect_stdout(sys.stderr):
                get_accelerator().create_op_builder("ShareMemCommBuilder").load(verbose=False)
        except (RuntimeError, OSError, ImportError) as error:
            print(
                f"cannot build DeepSpeed's shared-memory collectives ({reason(error)}); "
                "going on with gloo alone, slower",
                file=sys.stderr,
                flush=True,
            )
            deepspeed.ops.__compatible_ops__[_SHM] = False


def _clear_stale_locks(folder: Path) -> None:
    """Delete the lock files of builds that were killed; only for whoever holds our own lock."""
    for stale in folder.glob("**/lock"):
        stale.unlink()


@contextlib.contextmanager
def _quiet_imports() -> Iterator[None]:
    """DeepSpeed's import warns about things no user of this project can change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
