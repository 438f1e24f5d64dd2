"""A model under DeepSpeed: exact gradients, updates of finite ones alone, full weights.

For: turning a model and settings into something that takes (loss sum, global count) and updates
only when the gradient is finite. Not for: the loop (`training`) or folders (`checkpoint`).

Gradient of the global token mean: DeepSpeed averages gradients over ranks and does not know counts,
so each loss sum is multiplied by world_size / global_count and its own division by the accumulation
steps is turned off: then the step equals one big batch, whatever the split.
"""

from __future__ import annotations

import contextlib
import copy
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from ala_encoder import optim, ranks
from ala_encoder.batches import model_inputs
from ala_encoder.blocks import checkpoint_activations
from ala_encoder.engine.configuration import choose_precision, deepspeed_config
from ala_encoder.engine.processes import device, has_cuda
from ala_encoder.errors import RunStopped, UserError, reason
from ala_encoder.memory import keep_freed_memory
from ala_encoder.settings.experiment import TrainingRun
from ala_encoder.settings.train import BatchSplit


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
        """Return the model's logits; tensors are moved to the device, `labels` stay behind.

        Raises signals.Asked in an evaluation, on all ranks.
        """
        if not self.module.training:
            ranks.check_signals()
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
