"""A small masked-language-model run out of parts of the library, on generated text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ala_encoder import ranks, runs
from ala_encoder.batches import Examples
from ala_encoder.engine import Engine
from ala_encoder.evaluation import masked_lm_scores
from ala_encoder.examples import training_blocks, validation_blocks
from ala_encoder.generated import generated_text
from ala_encoder.goal import Goal
from ala_encoder.models import MaskedLM
from ala_encoder.progress import Outcome
from ala_encoder.settings.experiment import PretrainRun
from ala_encoder.settings.loader import check
from ala_encoder.settings.tokenizer import WordPieceSettings
from ala_encoder.settings.train import split_batch
from ala_encoder.tokenizer import Tokenizer, load, train
from ala_encoder.tracking import EVENTS, NullLog, RunInfo, RunLog, null_log
from ala_encoder.training import Loop

SETTINGS: dict[str, Any] = {
    "variant": "small",
    "seed": 7,
    "model": {
        "family": "encoder", "dim": 32, "num_layers": 3, "num_heads": 4, "ffn_dim": 64,
        "max_length": 32, "dropout": 0.0,
    },
    "encoder": {
        "heads": [
            ["band2#a", "prev1#a", "full#a", "full"],
            ["band2#a", "prev1#a", "full#a", "full"],
            ["full", "band2", "full#b", "full#b"],
        ],
        "biases": [{"kind": "gated_distbias"}],
    },
    "tokenizer": {"path": "unused"},
    "data": {"path": "unused", "source": {"kind": "embedded"}, "length": 32},
    "optim": {"learning_rate": 3e-3, "warmup_steps": 3},
    "train": {"steps": 20, "batch_size": 15, "micro_batch_size": 4, "log_every": 1},
}  # fmt: skip
VALIDATION = 300
"""Tokens at the front that are held out."""


def settings(**sections: Any) -> PretrainRun:
    """Return the small run's settings with some keys of some sections changed."""
    data = {
        key: dict(value) if isinstance(value, dict) else value for key, value in SETTINGS.items()
    }
    for name, changes in sections.items():
        changed = {**data.get(name, {}), **changes} if isinstance(changes, dict) else changes
        data[name] = changed
    return check(data, PretrainRun)


def text() -> list[str]:
    """Return a little generated text, the same on every rank."""
    return [paragraph for document in generated_text(1, 12) for paragraph in document]


def data(home: Path) -> tuple[Tokenizer, NDArray[np.uint16]]:
    """Train a tokenizer on the text (on rank 0) and return it with the tokens."""
    if ranks.is_main() and not (home / "tokenizer").exists():
        home.mkdir(parents=True, exist_ok=True)
        (home / "text.txt").write_text("\n".join(text()), encoding="utf-8")
        wanted = WordPieceSettings(path=home / "tokenizer", vocab_size=300)
        train(wanted, text()).save(wanted.path)
    ranks.barrier()
    tokenizer = load(home / "tokenizer")
    tokens = np.array([t for row in tokenizer.encode_batch(text()) for t in row], dtype=np.uint16)
    return tokenizer, tokens


def model(run: PretrainRun, vocab_size: int) -> MaskedLM:
    """Return the model with the weights its seed gives."""
    torch.manual_seed(run.seed)
    return MaskedLM(run.model, run.encoder, vocab_size)


def loop(
    run: PretrainRun,
    folder: Path,
    home: Path,
    examples: Examples | None = None,
    uri: str | None = None,
) -> Loop:
    """Return a loop that is ready to `fit`, logging to folder/metrics.jsonl and MLflow at `uri`."""
    tokenizer, tokens = data(home)
    split = split_batch(run.train, ranks.world_size())
    engine = Engine(model(run, tokenizer.vocab_size), run, split)
    valid = validation_blocks(tokens[:VALIDATION], run.data, tokenizer)
    if examples is None:
        examples = training_blocks(tokens[VALIDATION:], run.data, tokenizer, run.seed)
    goal = Goal(
        examples=examples,
        evaluate=lambda forward: masked_lm_scores(forward, valid, 8),
        identity=runs.identity(run, tokenizer, "text"),
    )
    folder.mkdir(parents=True, exist_ok=True)
    log: RunLog | NullLog = null_log()
    if ranks.is_main():
        log = RunLog(folder, RunInfo(folder.name, "test", {}), uri=uri, enabled=uri is not None)
    return Loop(engine, goal, run, split, folder, log)


def fit(job: Loop) -> Outcome:
    """Fit and close the log, so that another loop can go on in the same folder."""
    with job.log:
        return job.fit()


def metrics(folder: Path, name: str) -> dict[int, Any]:
    """Return a metric by step out of a run's log; a repeated step keeps its last value."""
    found = {}
    for line in (folder / EVENTS).read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "metrics" and name in event["values"]:
            found[event["step"]] = event["values"][name]
    return found


def losses(folder: Path) -> dict[int, float]:
    """Return the training loss by step."""
    return metrics(folder, "loss")
