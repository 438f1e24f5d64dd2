"""A small causal language model's run out of parts of the library, on generated text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ala_encoder import causal_lm, ranks, runs
from ala_encoder.engine import Engine
from ala_encoder.evaluation import Scored
from ala_encoder.goal import Goal
from ala_encoder.models import CausalLM
from ala_encoder.settings.experiment import PretrainRun
from ala_encoder.settings.loader import check
from ala_encoder.settings.train import split_batch
from ala_encoder.tracking import NullLog, RunInfo, RunLog, null_log
from ala_encoder.training import Loop
from tests.launched import small

SETTINGS: dict[str, Any] = {
    "variant": "tiny",
    "objective": "clm",
    "seed": 7,
    "model": {
        "family": "causal", "dim": 24, "num_layers": 2, "num_heads": 4, "ffn_dim": 48,
        "max_length": 16, "dropout": 0.0,
    },
    "decoder": {"biases": [{"kind": "gated_distbias", "alpha_init": 0.1}]},
    "tokenizer": {"path": "unused"},
    "data": {"path": "unused", "source": {"kind": "embedded"}, "length": 16},
    "optim": {"learning_rate": 3e-3, "warmup_steps": 2},
    "train": {"steps": 6, "batch_size": 11, "micro_batch_size": 2, "log_every": 1,
              "eval_batch_size": 3},
}  # fmt: skip
"""A batch of 11 in micro-batches of 2: uneven on two ranks and on one."""


def settings(**sections: Any) -> PretrainRun:
    """Return the settings with some keys of some sections changed."""
    data = {**SETTINGS}
    for name, changes in sections.items():
        data[name] = {**data.get(name, {}), **changes} if isinstance(changes, dict) else changes
    return check(data, PretrainRun)


def model(run: PretrainRun, vocab_size: int) -> CausalLM:
    """Return the model with the weights its seed gives."""
    torch.manual_seed(run.seed)
    return CausalLM(run.model, run.sections["decoder"], vocab_size)


def scores(trained: Scored, run: PretrainRun, home: Path) -> dict[str, float | None]:
    """Return the scores of the held-out text and what the biases do there."""
    tokenizer, tokens = small.data(home)
    held_out = tokens[: small.VALIDATION]
    windows = causal_lm.blocks(held_out, run.data.length, "valid")
    losses, observed = causal_lm.token_losses(trained, windows, run.train.eval_batch_size)
    about = causal_lm.Text.of(held_out, tokenizer, 200)
    return {**causal_lm.causal_lm_scores(losses, windows, about), **observed}


def loop(run: PretrainRun, folder: Path, home: Path) -> Loop:
    """Return a loop that is ready to fit, logging to folder/metrics.jsonl."""
    tokenizer, tokens = small.data(home)
    split = split_batch(run.train, ranks.world_size())
    goal = Goal(
        examples=causal_lm.blocks(tokens[small.VALIDATION :], run.data.length, "train"),
        evaluate=lambda engine: scores(engine, run, home),
        identity=runs.identity(run, tokenizer, "text"),
        losses=causal_lm.losses,
    )
    folder.mkdir(parents=True, exist_ok=True)
    log: RunLog | NullLog = null_log()
    if ranks.is_main():
        log = RunLog(folder, RunInfo(folder.name, "test", {}), uri=None, enabled=False)
    engine = Engine(model(run, tokenizer.vocab_size), run, split)
    return Loop(engine, goal, run, split, folder, log)
