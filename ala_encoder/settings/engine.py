"""Settings of the DeepSpeed engine, and which of DeepSpeed's own keys they own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ala_encoder.errors import UserError, nearest
from ala_encoder.files import read_json
from ala_encoder.settings.base import Section


class EngineSettings(Section):
    """How the model is spread and in which precision it is trained."""

    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    """auto: bf16 on CUDA devices that have it, float32 elsewhere."""
    activation_checkpointing: bool = False
    """Recompute each block in the backward pass instead of keeping its activations."""
    offload_optimizer: Literal["none", "cpu"] = "none"
    offload_parameters: Literal["none", "cpu"] = "none"


OWNED_KEYS: dict[str, str] = {
    "train_batch_size": "train.batch_size",
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
    "gradient_accumulation_steps": "train.gradient_accumulation_steps",
    "gradient_clipping": "optim.clip_grad_norm",
    "optimizer": "optim",
    "scheduler": "optim.schedule",
    "steps_per_print": "train.log_every",
    "zero_optimization.stage": "engine.zero_stage",
    "zero_optimization.offload_optimizer.device": "engine.offload_optimizer",
    "zero_optimization.offload_param.device": "engine.offload_parameters",
    "fp16.enabled": "engine.precision",
    "bf16.enabled": "engine.precision",
    "bfloat16.enabled": "engine.precision",
    "activation_checkpointing": "engine.activation_checkpointing",
}
"""DeepSpeed key → the setting that decides it."""

REFUSED_KEYS: dict[str, str] = {
    "gradient_allreduce_op": "the gradient is always the mean over all targets of the batch",
    "managed_gradient_accumulation": "the loop itself ends an accumulation",
    "sequence_parallel_size": "every rank takes other examples",
    "data_parallel_size": "every rank takes other examples",
    "vocabulary_size": "it is the tokenizer's and has no effect there",
    "zero_optimization.compute_grad_norm": "a gradient that is not finite must be noticed",
    "bf16.check_grad_overflow": "a gradient that is not finite must be noticed",
    "torch_autocast": "the precision is engine.precision",
    "dataloader_drop_last": "no example is dropped",
    "data_efficiency": "the order of the data is the plan's",
    "pipeline": "the model is not cut into stages",
    "expert_parallel": "the model has no experts",
    "checkpoint.load_universal": "a run resumes at the world size and ZeRO stage it was saved at",
}
"""DeepSpeed key → why it cannot be set: it would change what a step is, without a word."""

KNOWN_KEYS = frozenset(
    """activation_checkpointing aio autotuning bf16 bfloat16 checkpoint comet comms_logger
    communication_data_type compile csv_monitor data_types datastates_ckpt disable_allgather
    disable_python_gc dump_state flops_profiler fp16 gradient_accumulation_steps
    gradient_clipping gradient_predivide_factor hybrid_engine log_level memory_breakdown
    optimizer prescale_gradients scheduler seq_parallel_communication_data_type
    steps_per_print tensor_parallel tensorboard timers train_batch_size
    train_micro_batch_size_per_gpu use_data_before_expert_parallelism wall_clock_breakdown
    wandb weight_quantization zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
    zero_optimization""".split()  # noqa: SIM905
)
"""DeepSpeed 0.19's other top-level keys; it ignores any more, so they are refused here."""


def read_deepspeed(value: dict[str, Any] | str) -> dict[str, Any]:
    """Return the user's DeepSpeed keys from a mapping or a JSON file.

    Raises UserError for a file that cannot be read, for a key that the settings own, for one that
    cannot be set or does not exist, and for a key given twice.
    """
    config = read_json(Path(value)) if isinstance(value, str) else value
    for key, owner in OWNED_KEYS.items():
        node: Any = config
        *sections, last = key.split(".")
        for section in sections:
            node = node.get(section, {})
            if not isinstance(node, dict):
                raise UserError(f"{section} = {json.dumps(node)}: allowed is a map")
        if node.get(last) is not None:
            raise UserError(f"{key} = {json.dumps(node[last])}: set {owner} instead")
    for key, reason in REFUSED_KEYS.items():
        section, _, last = key.rpartition(".")
        if last in (config.get(section, {}) if section else config):
            raise UserError(f"{key}: cannot be set, {reason}")
    for key in config:
        if key not in KNOWN_KEYS:
            raise UserError(f"{key}: DeepSpeed has no such key{nearest(key, KNOWN_KEYS)}")
    return config
