"""Training of translation against a plain loop over transformers: same weights, same sentences.

    python -m benchmarks.nmt_training [--sizes small,base] [--batch-tokens 2048] [--json]

An epoch of generated pairs, forward, backward and AdamW, float32, dropout .1 everywhere but in
attention, label smoothing .1. Lengths are spread as those of Multi30k in 3,000 subwords: 5 to 64
tokens, 17 on average, a target longer or shorter than its source. Both sides see every pair once,
so the target tokens are the same; the parts of their epochs take turns.

- ours: `engine`, with batches of at most `batch-tokens` tokens of a side, padding counted.
- theirs: `MarianMTModel` and what `Trainer` is made of: its grouping by the length of the source
  (50 batches are sorted at once), as many batches, of equal numbers of sentences,
  `DataCollatorForSeq2Seq`, `LabelSmoother`, fused AdamW.

Ratios are of target tokens a second, ours to theirs: above 1 is faster.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ala_encoder import engine as engines
from ala_encoder import hub
from ala_encoder.batches import Position, StepBatch, step_batches
from ala_encoder.models import Seq2Seq
from ala_encoder.objectives import IGNORE, smoothed_cross_entropy
from ala_encoder.parallel_corpus import Pairs
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.loader import check
from ala_encoder.settings.model import EncoderDecoderModel
from ala_encoder.settings.train import split_batch
from ala_encoder.settings.translation import TranslationRun
from ala_encoder.training import plan_of
from ala_encoder.translation import TranslationPairs
from benchmarks import harness

BASE = EncoderDecoderModel(
    family="encoder_decoder", norm="post", attention_bias=True, output_bias=True
)
"""Transformer-base as Marian has it."""
MODELS = {
    "base": BASE,
    "small": BASE.model_copy(update={"dim": 128, "num_decoder_layers": 2, "ffn_dim": 512}),
    "tiny": BASE.model_copy(
        update={"dim": 16, "num_layers": 1, "num_decoder_layers": 1, "ffn_dim": 32}
    ),
}
"""small: configs/nmt_small; tiny: for tests."""
VOCAB = {"base": 32_768, "small": 3000, "tiny": 64}
LONGEST, EPSILON, RATE, EOS = 64, 0.1, 1e-4, 0
PLAIN = dict.fromkeys(("encoder", "decoder", "cross"), AttentionSettings())


def drawn(number: int, vocab_size: int) -> Pairs:
    """Return pairs of random tokens, eos at the end of each side."""
    draw = np.random.default_rng(0)
    both, each = draw.normal(2.77, 0.3, (number, 1)), draw.normal(0.0, 0.15, (number, 2))
    ends = np.exp(both + each).round().clip(5, LONGEST).astype(np.int64).cumsum(0)
    src, trg = (draw.integers(1, vocab_size - 1, last) for last in ends[-1])
    src[ends[:, 0] - 1] = trg[ends[:, 1] - 1] = EOS
    return Pairs(src, trg, ends[:, 0], ends[:, 1])


@dataclass
class Padding:
    """Tokens of a side, and the places that they took."""

    real: int = 0
    places: int = 0

    def add(self, segments: torch.Tensor) -> None:
        self.real += int((segments != 0).sum())
        self.places += segments.numel()

    @staticmethod
    def of(parts: Iterable[Padding]) -> float:
        """Return the share of the places that was padding."""
        real, places = map(sum, zip(*((part.real, part.places) for part in parts), strict=True))
        return 1.0 - real / places


@dataclass
class Seen:
    """What a side has been through."""

    loss: float = 0.0
    """Summed over target tokens."""
    targets: int = 0
    padding: tuple[Padding, Padding] = field(default_factory=lambda: (Padding(), Padding()))
    """Of sources and targets."""

    def add(self, loss: torch.Tensor, labels: torch.Tensor, source: torch.Tensor) -> None:
        """Count a batch; loss: its sum; source: 0 at padding."""
        real = labels != IGNORE
        self.loss += float(loss.detach())
        self.targets += int(real.sum())
        self.padding[0].add(source)
        self.padding[1].add(real)


class Ours:
    """Steps by the engine, as `training` makes them."""

    def __init__(
        self, model: EncoderDecoderModel, vocab_size: int, pairs: Pairs, batch_tokens: int
    ) -> None:
        run = check(_settings(model, batch_tokens), TranslationRun)
        ids: Any = SimpleNamespace(bos_id=vocab_size - 1, pad_id=vocab_size - 1, eos_id=EOS)
        self.examples = TranslationPairs(pairs, ids, name="train", max_length=LONGEST)
        self.plan, self.split = plan_of(run, self.examples), split_batch(run.train, 1)
        built = Seq2Seq(model, PLAIN, vocab_size)
        assert built.output_bias is not None
        built.output_bias.requires_grad_(False)  # which `MarianMTModel` does not train
        self.engine = engines.Engine(built, run, self.split)
        self.share = torch.full((vocab_size,), 1 / vocab_size)

    def batches(self) -> Iterator[StepBatch]:
        """Yield the batches of one epoch after another."""
        return step_batches(
            self.examples, self.plan, Position(), rank=0, world_size=1, split=self.split
        )

    def step(self, batch: StepBatch, seen: Seen) -> None:
        """Train on a batch."""
        self.engine.train()
        (inputs,) = batch.micro_batches
        labels = inputs["labels"]
        loss, _ = smoothed_cross_entropy(self.engine(inputs), labels, EPSILON, self.share)
        self.engine.backward(loss, batch.count, is_last=True)
        assert self.engine.step(RATE).applied
        seen.add(loss, labels, inputs["src_segments"])


class Theirs:
    """Steps of a plain loop over `MarianMTModel`."""

    def __init__(
        self, model: EncoderDecoderModel, start: Seq2Seq, pairs: Pairs, num_batches: int
    ) -> None:
        from transformers import DataCollatorForSeq2Seq, MarianMTModel
        from transformers.trainer_pt_utils import LabelSmoother

        pad, self.num_batches = start.vocab_size - 1, num_batches
        config = hub.config_of("marian", model, start.vocab_size)
        config.pad_token_id = config.decoder_start_token_id = pad
        self.model: Any = MarianMTModel(config)
        state = hub.to_hub("marian", start.state_dict(), model, PLAIN, "seq2seq")
        self.model.load_state_dict(state, strict=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, fused=True)
        self.smoother = LabelSmoother(EPSILON)
        self.collate = DataCollatorForSeq2Seq(_padder(start.vocab_size), self.model)
        sides = [pairs.pair(number) for number in range(len(pairs))]
        self.examples: Any = [
            {"input_ids": src.tolist(), "labels": trg.tolist()} for src, trg in sides
        ]

    def batches(self) -> Iterator[Any]:
        """Yield the batches of one epoch after another."""
        from transformers import trainer_pt_utils

        grouped: Any = trainer_pt_utils.get_length_grouped_indices
        lengths = [len(example["input_ids"]) for example in self.examples]
        rows = -(-len(lengths) // self.num_batches)
        while True:
            order = grouped(lengths, rows, mega_batch_mult=50)
            batches: Any = np.array_split(order, self.num_batches)
            random.shuffle(batches)
            yield from DataLoader(self.examples, batch_sampler=batches, collate_fn=self.collate)

    def step(self, batch: Any, seen: Seen) -> None:
        """Train on a batch."""
        self.model.train()
        labels = batch["labels"]
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        loss = self.smoother(self.model(**inputs, use_cache=False), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        seen.add(loss * (labels != IGNORE).sum(), labels, batch["attention_mask"])


def _settings(model: EncoderDecoderModel, batch_tokens: int) -> dict[str, Any]:
    nothing = {"kind": "files", "src": ["unused"], "trg": ["unused"]}
    return {
        "variant": "benchmark",
        "model": model.model_dump(mode="json"),
        "tokenizer": {"kind": "sentencepiece", "path": "unused", "vocab_size": 64},
        "data": {
            "path": "unused", "src_lang": "en", "trg_lang": "de", "train": nothing,
            "valid": nothing,
        },
        "optim": {"learning_rate": RATE, "clip_grad_norm": 0.0},
        "train": {"epochs": 1, "batch_tokens": batch_tokens, "max_length": LONGEST},
        "engine": {"precision": "float32"},
    }  # fmt: skip


def _padder(vocab_size: int) -> Any:
    """Return a tokenizer for the collator, which only pads by it."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({str(n): n for n in range(vocab_size)}, unk_token="1"))
    make: Any = PreTrainedTokenizerFast
    made = make(tokenizer_object=words, pad_token=str(vocab_size - 1))
    made.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"] = True
    return made


def record(size: str, number: int, batch_tokens: int, parts: int) -> dict[str, Any]:
    """Time an epoch of both sides, cut into parts, in turn, after a step each."""
    model, vocab_size = MODELS[size], VOCAB[size]
    torch.manual_seed(0)
    random.seed(0)
    pairs = drawn(number, vocab_size)
    ours = Ours(model, vocab_size, pairs, batch_tokens)
    built: Any = ours.engine.module
    num_batches = ours.plan.batches_per_epoch
    parts = min(parts, num_batches)
    theirs = Theirs(model, built, pairs, num_batches)
    sides: dict[str, Any] = {"ours": ours, "theirs": theirs}
    seen = {name: [Seen() for _ in range(parts)] for name in sides}

    def part(name: str, numbers: Iterator[int], batches: Iterator[Any]) -> None:
        place = next(numbers)
        for _ in range(num_batches * (place + 1) // parts - num_batches * place // parts):
            sides[name].step(next(batches), seen[name][place])

    for side in sides.values():
        side.step(next(side.batches()), Seen())  # warms up
    times = harness.interleaved(
        {
            name: partial(part, name, iter(range(parts)), side.batches())
            for name, side in sides.items()
        },
        rounds=parts,
        warm_up=0,
    )
    return {
        "size": size,
        "sentences": number,
        "batch_tokens": batch_tokens,
        "batches": num_batches,
        **_compared(times, seen),
    }


def _compared(
    times: Mapping[str, harness.Times], seen: Mapping[str, Sequence[Seen]]
) -> dict[str, Any]:
    """Return the numbers of both sides and their ratios; within a part by their target tokens."""
    targets = {name: sum(part.targets for part in parts) for name, parts in seen.items()}
    assert targets["ours"] == targets["theirs"]
    rates = {
        name: [s.targets / t for s, t in zip(seen[name], times[name].rounds, strict=True)]
        for name in times
    }
    ratios = [a / b for a, b in zip(rates["ours"], rates["theirs"], strict=True)]
    found: dict[str, Any] = {"target_tokens": targets["ours"]}
    for name, parts in seen.items():
        found[name] = {
            "tokens_a_second": targets[name] / sum(times[name].rounds),
            "losses": [part.loss / part.targets for part in parts],
            "padding": [Padding.of(part.padding[side] for part in parts) for side in (0, 1)],
        }
    ratio = statistics.median(ratios)
    return {**found, "ratio": ratio, "ratio_least": min(ratios), "ratio_largest": max(ratios)}


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or with --json a list of records; a mistake is one line and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    parser = harness.Parser(__doc__)
    sizes, tokens = harness.one_of(MODELS), harness.whole(2**20)
    parser.add_argument("--sizes", type=harness.several(sizes), default="small")
    parser.add_argument("--batch-tokens", type=harness.several(tokens), default="2048")
    parser.add_argument("--sentences", type=harness.whole(1_000_000), default=10_000)
    parser.add_argument("--parts", type=harness.whole(1000), default=10, help="of the epoch")
    parser.add_argument("--json", action="store_true", help="print records for programs")
    parser.add_argument("--into", type=harness.report, help="file whose results are replaced")
    given = parser.read(argv)
    engines.start()
    try:
        found = [
            record(size, given.sentences, batch_tokens, given.parts)
            for size in given.sizes
            for batch_tokens in given.batch_tokens
        ]
    finally:
        engines.stop()
    heading = harness.heading("benchmarks.nmt_training", argv)
    text = f"{heading}\n\n{harness.table(_HEAD, [_cells(entry) for entry in found])}"
    harness.tell(text, heading, found, given)
    return 0


_HEAD = ("model", "batch tokens", "batches", "ours/s", "theirs/s", "ratio", "(least, largest)",
         "padding", "theirs", "loss", "theirs")  # fmt: skip


def _cells(entry: dict[str, Any]) -> list[str]:
    def percent(shares: Sequence[float]) -> str:
        return ", ".join(f"{share:.0%}" for share in shares)

    ours, theirs = entry["ours"], entry["theirs"]
    return [
        entry["size"],
        f"{entry['batch_tokens']:,}",
        str(entry["batches"]),
        f"{ours['tokens_a_second']:,.0f}",
        f"{theirs['tokens_a_second']:,.0f}",
        f"{entry['ratio']:.2f}",
        f"({entry['ratio_least']:.2f}, {entry['ratio_largest']:.2f})",
        percent(ours["padding"]),
        percent(theirs["padding"]),
        f"{ours['losses'][-1]:.3f}",
        f"{theirs['losses'][-1]:.3f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
