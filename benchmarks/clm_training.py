"""Training of causal language models against one another: what a bias costs in a whole step.

    python -m benchmarks.clm_training [--configs A.yaml,B.yaml,…] [--steps 4] [--json]
                                      [--into benchmarks/clm_training.md]

Forward, loss over the vocabulary, backward, clipping and AdamW as `training` makes them, on random
tokens: all configs read the same. They take turns, some steps each. ratio: of the first config's
time, below 1 is slower; tokens are those of a step of the config.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ala_encoder import causal_lm, ranks
from ala_encoder import engine as engines
from ala_encoder.attention import Attention
from ala_encoder.batches import Position, step_batches
from ala_encoder.errors import UserError
from ala_encoder.models import CausalLM
from ala_encoder.settings.experiment import PretrainRun
from ala_encoder.settings.loader import load
from ala_encoder.settings.model import CausalModel
from ala_encoder.settings.train import split_batch
from ala_encoder.training import plan_of
from benchmarks import harness

CONFIGS = ",".join(
    f"configs/small/{name}.yaml" for name in ("clm", "clm_distbias", "clm_gated_distbias")
)
TOKENS = 1 << 17
GPT2 = 50_257
"""Pieces of a tokenizer whose size the settings do not tell."""


class Trained:
    """A model in training."""

    def __init__(self, run: PretrainRun) -> None:
        assert isinstance(run.model, CausalModel)
        self.run, self.split = run, split_batch(run.train, ranks.world_size())
        vocab_size = run.tokenizer.vocab_size or GPT2
        ids = np.random.default_rng(0).integers(0, vocab_size, TOKENS).astype(np.uint32)
        examples = causal_lm.blocks(ids, run.data.length, "train")
        torch.manual_seed(run.seed)
        model = CausalLM(run.model, run.sections["decoder"], vocab_size)
        self.engine = engines.Engine(model, run, self.split)
        self.batches = step_batches(
            examples, plan_of(run, examples), Position(), rank=ranks.rank(),
            world_size=ranks.world_size(), split=self.split,
        )  # fmt: skip

    @property
    def tokens(self) -> int:
        """Tokens of a step, of all ranks."""
        return self.run.train.batch_size * self.run.data.length

    @property
    def path(self) -> str:
        """How attention of the first layer is computed."""
        return next(m.path for m in self.engine.module.modules() if isinstance(m, Attention))

    def steps(self, number: int) -> None:
        """Make some steps."""
        self.engine.train()
        for _ in range(number):
            batch = next(self.batches)
            for place, inputs in enumerate(batch.micro_batches, 1):
                loss, _ = causal_lm.losses(self.engine, inputs)
                is_last = place == len(batch.micro_batches)
                self.engine.backward(loss, batch.count, is_last=is_last)
            assert self.engine.step(1e-4).applied


def records(configs: Sequence[Path], steps: int, rounds: int) -> list[dict[str, Any]]:
    """Time all configs in turn."""
    runs = [load(path, [], PretrainRun) for path in configs]
    wrong = [path for path, run in zip(configs, runs, strict=True) if run.objective != "clm"]
    if wrong:
        raise UserError(f"{wrong[0]}: not a causal language model (objective: clm)")
    trained = [Trained(run) for run in runs]
    functions: dict[Path, Callable[[], object]] = {
        path: partial(each.steps, steps) for path, each in zip(configs, trained, strict=True)
    }
    times = harness.interleaved(functions, rounds=rounds)
    found = []
    for path, each in zip(configs, trained, strict=True):
        ratio, least, largest = times[configs[0]].ratio_to(times[path])
        found.append(
            {
                "config": str(path),
                "parameters": sum(p.numel() for p in each.engine.module.parameters()),
                "path": each.path,
                "length": each.run.data.length,
                "tokens_a_second": each.tokens * steps / times[path].seconds,
                "ratio": ratio,
                "ratio_least": least,
                "ratio_largest": largest,
            }
        )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or with --json a list of records; a mistake is one line and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    parser = harness.Parser(__doc__)
    parser.add_argument("--configs", type=harness.several(Path), default=CONFIGS)
    parser.add_argument("--steps", type=harness.whole(1000), default=4, help="of a turn")
    parser.add_argument("--rounds", type=harness.whole(1000), default=15)
    parser.add_argument("--json", action="store_true", help="print records for programs")
    parser.add_argument("--into", type=harness.report, help="file whose results are replaced")
    given = parser.read(argv)
    engines.start()
    try:
        found = records(given.configs, given.steps, given.rounds)
    except UserError as error:
        parser.error(str(error))
    finally:
        engines.stop()
    heading = harness.heading("benchmarks.clm_training", argv)
    text = f"{heading}\n\n{harness.table(_HEAD, [_cells(entry) for entry in found])}"
    harness.tell(text, heading, found, given)
    return 0


_HEAD = ("config", "parameters", "attention", "tokens", "tokens/s", "ratio", "(least, largest)")


def _cells(entry: dict[str, Any]) -> list[str]:
    return [
        entry["config"],
        f"{entry['parameters']:,}",
        entry["path"],
        f"{entry['length']:,}",
        f"{entry['tokens_a_second']:,.0f}",
        f"{entry['ratio']:.3f}",
        f"({entry['ratio_least']:.3f}, {entry['ratio_largest']:.3f})",
    ]


if __name__ == "__main__":
    sys.exit(main())
