"""DeepSpeed's configuration, and the arithmetic of a run.

For: the keys that the settings own, written over the user's. Not for: which keys a user may write
(`settings.engine`).
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from ala_encoder.engine.processes import has_cuda
from ala_encoder.errors import UserError
from ala_encoder.settings.engine import EngineSettings
from ala_encoder.settings.experiment import TrainingRun
from ala_encoder.settings.train import BatchSplit


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
