"""Settings of the DeepSpeed engine, and which of DeepSpeed's own keys they own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from ala_encoder.errors import UserError, nearest
from ala_encoder.settings.base import Section


class EngineSettings(Section):
    """How the model is spread and in which precision it is trained."""

    zero_stage: Literal[0, 1, 2, 3] = 0
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


KNOWN_KEYS = frozenset(
    """activation_checkpointing aio amp autotuning bf16 bfloat16 checkpoint comms_logger
    communication_data_type compile compression_training csv_monitor comet curriculum_learning
    data_efficiency data_types dataloader_drop_last datastates_ckpt disable_allgather
    disable_python_gc dump_state eigenvalue elasticity expert_parallel flops_profiler fp16
    gradient_accumulation_steps gradient_allreduce_op gradient_clipping
    gradient_predivide_factor hybrid_engine log_level     memory_breakdown nebula optimizer pipeline prescale_gradients progressive_layer_drop
    scheduler seq_parallel_communication_data_type sparse_attention sparse_gradients
    steps_per_print tensor_parallel tensorboard timers torch_autocast train_batch_size
    train_micro_batch_size_per_gpu use_data_before_expert_parallelism wall_clock_breakdown wandb
    weight_quantization zenflow zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
    zero_optimization""".split()
)
"""DeepSpeed's top-level keys; it ignores others without a word, so they are refused here."""


def read_deepspeed(value: dict[str, Any] | str) -> dict[str, Any]:
    """Return the user's DeepSpeed keys from a mapping or a JSON file.

    Raises UserError for a file that cannot be read, for a key that the settings own, and for a
    key given twice.
    """
    config = _read_json(Path(value)) if isinstance(value, str) else value
    for key, owner in OWNED_KEYS.items():
        node: Any = config
        for part in key.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        if node is not None:
            raise UserError(f"{key} = {json.dumps(node)}: set {owner} instead")
    unknown = next((key for key in config if key not in KNOWN_KEYS), None)
    if unknown is not None:
        raise UserError(
            f"{unknown}: DeepSpeed has no such key{nearest(unknown, KNOWN_KEYS)}"
        )
    return config


def _read_json(path: Path) -> dict[str, Any]:
    def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise UserError(f"{path}: the key {twice!r} is given twice")
        return dict(pairs)

    try:
        config = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=refuse_twice)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} holds a {type(config).__name__}, not an object")
    return config
