"""The only file that knows DeepSpeed: processes, precision, ZeRO, exact gradients, full weights.

For: turning a model and settings into something that takes (loss sum, global count) and updates
only when the gradient is finite. Not for: the loop (`training`) or folders (`checkpoint`).

Gradient of the global token mean: DeepSpeed averages gradients over ranks and does not know counts,
so each loss sum is multiplied by world_size / global_count and its own division by the accumulation
steps is turned off: then the step equals one big batch, whatever the split.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import io
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from ala_encoder import optim, ranks
from ala_encoder.batches import model_inputs
from ala_encoder.blocks import checkpoint_activations
from ala_encoder.errors import RunStopped, UserError, reason
from ala_encoder.memory import keep_freed_memory
from ala_encoder.settings.engine import EngineSettings
from ala_encoder.settings.experiment import TrainingRun
from ala_encoder.settings.train import BatchSplit

_SHM = "deepspeed_shm_comm"
_COLLECTIVE_TIMEOUT = timedelta(seconds=600)


@dataclass(frozen=True)
class Update:
    """What an optimizer step did."""

    applied: bool
    grad_norm: float
    """Global norm before clipping; inf when the gradient was not finite."""
    loss_scale: float
    """fp16's dynamic scale; 1 in other precisions."""


class Engine:
    """A model under DeepSpeed."""

    def __init__(self, model: nn.Module, run: TrainingRun, split: BatchSplit) -> None:
        """Raises UserError for a precision the device does not have or a key DeepSpeed refuses."""
        import deepspeed

        self.precision = choose_precision(run.engine)
        if run.engine.activation_checkpointing:
            checkpoint_activations(model)
        self.config = deepspeed_config(run, split, ranks.world_size(), self.precision)
        self._is_plain = run.engine.zero_stage == 0 and self.precision == "float32"
        self._device = device()
        if self._device.type == "cpu":
            keep_freed_memory()
        try:
            deepspeed.DeepSpeedConfig(copy.deepcopy(self.config))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise UserError(f"deepspeed: {key}: {first['msg']} ({error.title})") from error
        except (deepspeed.DeepSpeedConfigError, ValueError, TypeError) as error:
            raise UserError(f"deepspeed: {reason(error)}") from error
        self._engine = deepspeed.initialize(
            model=model.to(self._device),
            optimizer=_optimizer(model, run),
            config=copy.deepcopy(self.config),
        )[0]

    @property
    def module(self) -> nn.Module:
        module: nn.Module = self._engine.module
        return module

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the model's logits; tensors are moved to the device, `labels` stay behind."""
        logits: Tensor = self._engine(**model_inputs(inputs, self._device))
        return logits

    def train(self) -> None:
        self._engine.train()

    def eval(self) -> None:
        self._engine.eval()

    def backward(self, loss_sum: Tensor, global_count: int, *, is_last: bool) -> None:
        """Add the gradient of loss_sum / global_count; `is_last` ends the accumulation."""
        scaled = loss_sum * (ranks.world_size() / global_count)
        self._engine.backward(scaled, scale_wrt_gas=False)
        if not is_last:
            self._engine.step()

    def step(self, learning_rate: float) -> Update:
        """Clip and update; a gradient that is not finite on any rank changes nothing."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        if self._is_plain:
            return self._step_plain()
        optimizer = self._engine.optimizer
        scale = float(optimizer.loss_scale) if self.precision == "fp16" else 1.0
        try:
            self._engine.step()
        except Exception as error:  # DeepSpeed has no narrower type for it
            if self.precision == "fp16" and "loss scale" in str(error):
                raise RunStopped(f"the gradient is not finite at any scale: {error}") from None
            raise
        if bool(getattr(optimizer, "overflow", False)):
            return Update(False, math.inf, scale)
        norm = float(self._engine.get_global_grad_norm())
        # At ZeRO 0 in fp16 DeepSpeed keeps the norm of the scaled gradient.
        is_scaled = self.precision == "fp16" and hasattr(optimizer, "fp32_groups")
        return Update(True, norm / scale if is_scaled else norm, scale)

    def _step_plain(self) -> Update:
        """ZeRO 0 in float32 would apply a NaN, so the norm is taken before the update.

        Gradients are already summed over ranks here, so every rank decides alike.
        """
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if math.isfinite(norm):
            self._engine.step()
            return Update(True, norm, 1.0)
        self._engine.zero_grad()
        self._engine.micro_steps += 1  # what its step() would have counted
        self._engine.skipped_steps += 1
        return Update(False, math.inf, 1.0)

    def full_state(self) -> dict[str, Tensor]:
        """Return every weight in float32 on the CPU, gathered from all ranks; call it on all.

        Masters are taken where DeepSpeed keeps them, so a bf16 run exports what it trained.
        """
        from deepspeed.utils import safe_get_full_fp32_param

        state: dict[str, Tensor] = {}
        kept = self._masters()
        for name, parameter in self.module.named_parameters():
            master = kept.get(parameter)
            if master is None and parameter.requires_grad:
                master = safe_get_full_fp32_param(parameter)
            with _gathered(parameter, needed=master is None):
                value = parameter if master is None else master
                if ranks.is_main():
                    shape = getattr(parameter, "ds_shape", parameter.shape)
                    state[name] = value.detach().float().cpu().reshape(shape).clone()
        return state

    def _masters(self) -> dict[nn.Parameter, Tensor]:
        """Return the masters that DeepSpeed's accessor does not know: bf16 and fp16 at ZeRO 0."""
        optimizer = self._engine.optimizer
        if not hasattr(optimizer, "fp32_groups"):
            return {}
        pairs = zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True)
        return {p: master for low, full in pairs for p, master in zip(low, full, strict=True)}

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state of all ranks into `folder`; call it on all ranks."""
        self._engine.save_checkpoint(str(folder), tag="deepspeed", save_latest=False)

    def load(self, folder: Path) -> None:
        """Read back what `save` wrote, at the same world size, precision and ZeRO stage.

        The optimizer's hyperparameters stay those of this run's settings. DeepSpeed itself would
        unpickle anything, so it is given our reader; raises UserError as that does.
        """
        self._engine.checkpoint_engine.load = read_data
        groups = self._engine.optimizer.param_groups
        own = [{key: group[key] for key in ("betas", "eps", "weight_decay")} for group in groups]
        loaded, _ = self._engine.load_checkpoint(str(folder), tag="deepspeed")
        assert loaded is not None, f"DeepSpeed found nothing in {folder}"
        for group, values in zip(self._engine.optimizer.param_groups, own, strict=True):
            group.update(values)

    def random_state(self) -> dict[str, Tensor]:
        """Return this rank's generator states as plain tensors."""
        states = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state()
        return states

    def set_random_state(self, states: Mapping[str, Tensor]) -> None:
        """Restore what `random_state` returned."""
        torch.set_rng_state(states["cpu"])
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"])


def read_data(path: Path | str, map_location: Any = "cpu", *, mmap: bool = False) -> Any:
    """Return what a checkpoint's file holds: tensors, plain values and DeepSpeed's own records.

    Raises UserError for a file that cannot be read, would run code or is damaged; none of it is
    run.
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    records = [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
    try:
        with torch.serialization.safe_globals(records):
            return torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
    except MemoryError:  # says nothing about the file
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from None
    except Exception as error:  # whoever wrote the file chooses what its reading raises
        name = re.search(r"GLOBAL ([\w.]+)", str(error))
        found = f"it asks for {name[1]}" if name else type(error).__name__
        raise UserError(
            f"{path}: holds code or is damaged ({found}); nothing of it was run, "
            "delete its checkpoint to resume from the one before"
        ) from None


def _gathered(parameter: nn.Parameter, *, needed: bool) -> contextlib.AbstractContextManager[Any]:
    """Make a frozen parameter whole that ZeRO-3 has parted; its optimizer keeps no master of it."""
    if not needed or not hasattr(parameter, "ds_id"):
        return contextlib.nullcontext()
    import deepspeed

    gathered: contextlib.AbstractContextManager[Any] = deepspeed.zero.GatheredParameters(
        [parameter]
    )
    return gathered


def _optimizer(model: nn.Module, run: TrainingRun) -> torch.optim.Optimizer:
    if run.engine.offload_optimizer == "cpu" and has_cuda():
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        settings = run.optim
        cpu_adam: torch.optim.Optimizer = DeepSpeedCPUAdam(
            optim.parameter_groups(model, settings.weight_decay),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            adamw_mode=True,
        )
        return cpu_adam
    return optim.adamw(model, run.optim)


def choose_precision(settings: EngineSettings) -> str:
    """Return float32, bf16 or fp16; raises UserError where the device has no such arithmetic."""
    has_bf16 = has_cuda() and torch.cuda.is_bf16_supported(including_emulation=False)
    if settings.precision == "auto":
        return "bf16" if has_bf16 else "float32"
    if settings.precision == "bf16" and has_cuda() and not has_bf16:
        raise UserError("engine.precision = 'bf16': this GPU has none; allowed: float32, fp16")
    if settings.precision == "fp16" and not has_cuda():
        raise UserError("engine.precision = 'fp16': needs CUDA; allowed here: float32, bf16")
    return settings.precision


def deepspeed_config(
    run: TrainingRun, split: BatchSplit, world_size: int, precision: str
) -> dict[str, Any]:
    """Return the whole DeepSpeed configuration: the user's keys, and those the settings own."""
    assert not isinstance(run.deepspeed, str), "the settings read the file"
    config = copy.deepcopy(run.deepspeed or {})
    zero: dict[str, Any] = {"stage": run.engine.zero_stage}
    if run.engine.offload_optimizer == "cpu":
        zero["offload_optimizer"] = {"device": "cpu"}
        config.setdefault("zero_force_ds_cpu_optimizer", has_cuda())
    if run.engine.offload_parameters == "cpu":
        zero["offload_param"] = {"device": "cpu"}
    own = {
        "train_micro_batch_size_per_gpu": split.micro,
        "gradient_accumulation_steps": split.accumulation,
        "train_batch_size": split.micro * split.accumulation * world_size,
        # DeepSpeed 0.19 clips at 1.0 when the key is left out; 0 turns it off.
        "gradient_clipping": run.optim.clip_grad_norm,
        "zero_optimization": zero,
        "fp16": {"enabled": precision == "fp16"},
        "bf16": {"enabled": precision == "bf16"},
    }
    for key, value in own.items():
        if isinstance(value, dict):
            value = {**config.get(key, {}), **value}
        config[key] = value
    return config


# ---------------------------------------------------------------------------------------------
# Processes
# ---------------------------------------------------------------------------------------------


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
        torch.cuda.set_device(ranks.local_rank())
    else:
        _shared_memory(needed=not is_alone)
    with contextlib.redirect_stdout(io.StringIO()):
        deepspeed.init_distributed(timeout=_COLLECTIVE_TIMEOUT, verbose=False)


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
