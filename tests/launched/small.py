"""A small masked-language-model run out of parts of the library, on generated text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ala_encoder import ranks
from ala_encoder.engine import Engine
from ala_encoder.evaluation import masked_lm_scores
from ala_encoder.examples import MaskedBlocks, training_blocks, validation_blocks
from ala_encoder.generated import generated_text
from ala_encoder.models import MaskedLM
from ala_encoder.settings.experiment import PretrainRun
from ala_encoder.settings.loader import check
from ala_encoder.settings.train import split_batch
from ala_encoder.tokenizer import Tokenizer
from ala_encoder.tracking import EVENTS, RunInfo, RunLog, null_log
from ala_encoder.training import Goal, Loop

SETTINGS: dict[str, Any] = {
    "variant": "small",
    "seed": 7,
    "model": {
        "family": "encoder", "dim": 32, "num_layers": 3, "num_heads": 4, "ffn_dim": 64,
        "max_length": 32, "dropout": 0.0,
    },
    "encoder": {
        "heads": [["band2#a", "prev1#a", "full#a", "full"]] * 2 + [["full", "band2", "full#b", "full#b"]],
        "biases": [{"kind": "gated_distbias"}],
    },
    "tokenizer": {"path": "unused"},
    "data": {"path": "unused", "source": {"kind": "embedded"}, "length": 32},
    "optim": {"learning_rate": 3e-3, "warmup_steps": 3},
    "train": {"steps": 20, "batch_size": 15, "micro_batch_size": 4, "log_every": 1},
}


def settings(**sections: dict[str, Any]) -> PretrainRun:
    """Return the small run's settings with some keys of some sections changed."""
    data = {key: dict(value) if isinstance(value, dict) else value for key, value in SETTINGS.items()}
    for name, changes in sections.items():
        data[name] = {**data.get(name, {}), **changes}
    return check(data, PretrainRun)


def text() -> list[str]:
    """Return a little generated text, the same on every rank."""
    return [paragraph for document in generated_text(1, 12) for paragraph in document]


def data(folder: Path) -> tuple[Tokenizer, np.ndarray]:
    """Train a tokenizer on the text (on rank 0) and return it with the tokens."""
    if ranks.is_main() and not (folder / "tokenizer").exists():
        (folder / "text.txt").write_text("\n".join(text()), encoding="utf-8")
        Tokenizer.train([folder / "text.txt"], vocab_size=300).save(folder / "tokenizer")
    ranks.barrier()
    tokenizer = Tokenizer.load(folder / "tokenizer")
    tokens = np.array([t for row in tokenizer.encode_batch(text()) for t in row], dtype=np.uint16)
    return tokenizer, tokens


def loop(
    run: PretrainRun,
    folder: Path,
    name: str,
    change: Callable[[MaskedBlocks], MaskedBlocks] = lambda blocks: blocks,
) -> Loop:
    """Return a loop that is ready to `fit`, logging to folder/name/metrics.jsonl."""
    tokenizer, tokens = data(folder)
    torch.manual_seed(run.seed)
    split = split_batch(run.train, ranks.world_size())
    engine = Engine(MaskedLM(run.model, run.encoder, tokenizer.vocab_size), run, split)
    valid = validation_blocks(tokens[:300], run.data, tokenizer)
    goal = Goal(
        examples=change(training_blocks(tokens[300:], run.data, tokenizer, run.seed)),
        evaluate=lambda forward: masked_lm_scores(forward, valid, 8),
        identity={"seed": run.seed},
    )
    log = null_log()
    if ranks.is_main():
        log = RunLog(folder / name, RunInfo(name, "test", {}), uri=None, enabled=False)
    (folder / name).mkdir(parents=True, exist_ok=True)
    return Loop(engine, goal, run, split, folder / name, log)


def losses(folder: Path) -> dict[int, float]:
    """Return the training loss by step of a run folder; a repeated step keeps its last value."""
    import json

    found = {}
    for line in (folder / EVENTS).read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "metrics" and "loss" in event["values"]:
            found[event["step"]] = event["values"]["loss"]
    return found
