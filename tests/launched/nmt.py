"""A tiny translation run out of parts of the library; started by a launcher, it runs on all ranks.

Then, with a folder: ZeRO 0 and 2 whole, and interrupted and resumed, and a run that is to learn its
pairs by heart; rank 0 leaves nmt.json there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from ala_encoder import (
    averaging,
    held_out,
    parallel_corpus,
    ranks,
    runs,
    translation,
    translation_scores,
)
from ala_encoder import engine as engines
from ala_encoder.command import leave
from ala_encoder.engine import Engine
from ala_encoder.engine.processes import shared_buffer
from ala_encoder.goal import Goal, of_logits
from ala_encoder.models import Seq2Seq
from ala_encoder.settings.loader import check
from ala_encoder.settings.train import split_batch
from ala_encoder.settings.translation import TranslationRun
from ala_encoder.tokenizer import Tokenizer, load, train
from ala_encoder.tracking import NullLog, RunInfo, RunLog, null_log
from ala_encoder.training import Loop
from tests import pairs
from tests.launched import small

MODEL: dict[str, Any] = {
    "family": "encoder_decoder", "dim": 32, "num_layers": 2, "num_decoder_layers": 2,
    "num_heads": 4, "ffn_dim": 64, "dropout": 0.0,
}  # fmt: skip
TRAIN: dict[str, Any] = {
    "steps": 12, "batch_tokens": 180, "micro_batch_tokens": 60, "max_length": 60,
    "eval_every": 4, "save_every": 4, "log_every": 1, "average_checkpoints": 2,
}  # fmt: skip


def plain_settings(home: Path, **sections: Any) -> dict[str, Any]:
    """Return the tiny run's settings over the dozen pairs of `tests.pairs`, some changed."""
    data: dict[str, Any] = {
        "variant": "tiny",
        "seed": 7,
        "output": str(home / "runs"),
        "model": MODEL,
        "tokenizer": {"kind": "byte_bpe", "path": str(home / "tokenizer"), "vocab_size": 360},
        "data": pairs.settings(home).model_dump(mode="json"),
        "optim": {"learning_rate": 3e-3, "warmup_steps": 4, "weight_decay": 0.0},
        "train": TRAIN,
        "search": {"beam_size": 2, "max_extra_tokens": 10},
        "tracking": {"enabled": False},
    }
    for name, changes in sections.items():
        old = data.get(name)
        data[name] = {**old, **changes} if isinstance(old, dict) else changes
    return data


def settings(home: Path, **sections: Any) -> TranslationRun:
    """Return them checked; the files of text are written by rank 0."""
    return check(ranks.on_main(lambda: plain_settings(home, **sections)), TranslationRun)


def tokenizer_of(run: TranslationRun) -> Tokenizer:
    """Train the tokenizer on all pairs (on rank 0) and return it."""
    path = run.tokenizer.path
    if ranks.is_main() and not path.exists():
        train(run.tokenizer, [text for pair in pairs.PAIRS for text in pair]).save(path)
    ranks.barrier()
    return load(path)


def loop(run: TranslationRun, folder: Path) -> Loop:
    """Return a loop that is ready to fit, logging to folder/metrics.jsonl."""
    tokenizer = tokenizer_of(run)
    manifest = parallel_corpus.prepare(run.data, tokenizer, say=lambda text: None)
    found = parallel_corpus.open_pairs(run.data.path, manifest, tokenizer)
    examples = translation.TranslationPairs(
        found["train"], tokenizer, name="train", max_length=run.train.max_length
    )
    splits = held_out.of_corpus(run.data, manifest, found, tokenizer, None)
    scoring = translation_scores.Scoring(splits, run.search, 100, run.task, "tiny")
    split = split_batch(run.train, ranks.world_size())
    torch.manual_seed(run.seed)
    model = Seq2Seq(run.model, run.sections, tokenizer.vocab_size)
    goal = Goal(
        examples=examples,
        evaluate=lambda engine: scoring.validate(engine, translate=run.train.greedy_bleu),
        identity=runs.identity(run, tokenizer, manifest.digest),
        best_metric="eval_loss",
        best_mode="min",
        losses=of_logits(translation.smoothing(tokenizer, run.train.label_smoothing)),
    )
    folder.mkdir(parents=True, exist_ok=True)
    log: RunLog | NullLog = null_log()
    if ranks.is_main():
        log = RunLog(folder, RunInfo(folder.name, "test", {}), uri=None, enabled=False)
    return Loop(Engine(model, run, split), goal, run, split, folder, log)


def by_heart(home: Path) -> float:
    """Return BLEU of the training pairs, beam 4, after many epochs of them."""
    known = [list(side) for side in zip(*pairs.PAIRS[:8], strict=True)]
    valid = ranks.on_main(lambda: pairs.files(home, "valid_known", *known))
    run = settings(
        home,
        data={"path": str(home / "known"), "valid": valid, "test": None},
        model={"dim": 64, "ffn_dim": 128, "init_std": 0.08},
        train={"steps": 120, "eval_every": 0, "save_every": 0, "average_checkpoints": None},
        search={"beam_size": 4},
    )
    job = loop(run, home / "by_heart")
    small.fit(job)
    job.engine.eval()
    tokenizer = load(run.tokenizer.path)
    manifest, found = translation.prepared(run.data, tokenizer)
    part = held_out.of_corpus(run.data, manifest, found, tokenizer, None)["valid"]
    scores, _ = translation_scores.scored_translations(job.engine, part, run.search)
    return scores["eval_bleu"].value or 0.0


def main(home: Path) -> None:
    engines.start()
    found: dict[str, Any] = {"world_size": ranks.world_size()}
    ranks.barrier()
    found["left"] = [str(path) for path in map(shared_buffer, range(2)) if path.exists()]
    for stage in (0, 2):
        run = settings(home, engine={"zero_stage": stage})
        whole = loop(run, home / f"whole{stage}")
        small.fit(whole)
        parts = home / f"parts{stage}"
        first = settings(home, engine={"zero_stage": stage}, train={"stop_after": 6})
        small.fit(loop(first, parts))
        second = loop(run, parts)
        small.fit(second)
        states = [job.engine.full_state() for job in (whole, second)]
        if ranks.is_main():
            means = [averaging.mean(f / "weights", 12, 2) for f in (whole.folder, parts)]
            found[str(stage)] = {
                **{name: small.metrics(whole.folder, name) for name in ("loss", "eval_loss")},
                "resumed": small.losses(parts),
                "same": all(torch.equal(states[0][n], states[1][n]) for n in states[0]),
                "averaged": [names for _, names in means],
                "same_mean": all(torch.equal(means[0][0][n], means[1][0][n]) for n in states[0]),
            }
    found["by_heart"] = by_heart(home)
    if ranks.is_main():
        (home / "nmt.json").write_text(json.dumps(found), encoding="utf-8")
    engines.stop()


if __name__ == "__main__":
    main(Path(next(word for word in sys.argv[1:] if not word.startswith("--"))))
    leave(0)
