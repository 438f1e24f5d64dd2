"""Parity of a text's bits so far: what none of the distance biases teaches a model to go on with.

    python -m benchmarks.parity [--biases alibi,t5] [--trained 8] [--lengths 8,16,64] [--json]
                                [--into benchmarks/parity.md]

The limitation that Chi et al. name (arXiv 2212.10356): models with these biases extrapolate on
text, and fail here at once. A small causal model (3 layers of 64, 4 heads) reads bits drawn evenly
and tells at each place whether the number of ones up to there is odd. It is trained on texts of
--trained bits for --steps steps of 64 texts, and asked about longer ones.

accuracy: of the parity of a whole text, over --texts texts; first, beyond: of all places up to the
training length, and after it. Guessing gives .5. loss: of the last 50 steps of training, in nats;
guessing gives ln 2 = .693. Nothing here is timed, so a busy machine changes no number.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ala_encoder.models import CausalLM
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import CausalModel
from benchmarks import harness

BIASES: dict[str, dict[str, Any]] = {
    "none": {},
    "learned": {},
    "sinusoidal": {},
    "rotary": {},
    "alibi": {},
    "window": {"width": 6},
    "sandwich": {"dim": 64},
    "kerple_log": {},
    "kerple_power": {},
    "t5": {},
    "distbias": {"alpha_init": 0.1},
    "gated_distbias": {"alpha_init": 0.1},
    "multiscale_distbias": {"ranges": [2, 6], "alpha_init": 0.1},
}
POSITIONS = ("none", "learned", "sinusoidal", "rotary")
_BATCH, _RATE, _SEED = 64, 1e-3, 1337


def build(name: str, trained: int) -> CausalLM:
    """Return an untrained model over two tokens."""
    torch.manual_seed(_SEED)
    positions = name if name in POSITIONS else "none"
    model = CausalModel.model_validate({
        "family": "causal", "dim": 64, "num_layers": 3, "num_heads": 4, "ffn_dim": 256,
        "positions": positions, "max_length": trained if positions == "learned" else None,
        "tied_embeddings": False, "dropout": 0.0,
    })  # fmt: skip
    biases = [] if name in POSITIONS else [{"kind": name, **BIASES[name]}]
    return CausalLM(model, AttentionSettings.model_validate({"biases": biases}), 2)


def drawn(texts: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return bits and the parity of those so far: int [N, T] twice."""
    bits = torch.randint(0, 2, (texts, length), generator=generator)
    return bits, bits.cumsum(1) % 2


def train(model: CausalLM, length: int, steps: int) -> float:
    """Train on the parities of all places; return the mean loss of the last 50 steps, in nats."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    generator = torch.Generator().manual_seed(_SEED)
    losses: list[float] = []
    for step in range(1, steps + 1):
        decay = 0.55 + 0.45 * math.cos(math.pi * step / steps)  # to a tenth
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1.0, step / 50) * decay
        bits, parity = drawn(_BATCH, length, generator)
        loss = F.cross_entropy(model(bits).flatten(0, 1), parity.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return statistics.fmean(losses[-50:])


@torch.no_grad()
def accuracies(model: CausalLM, length: int, trained: int, texts: int) -> dict[str, float | None]:
    """Return the part of right answers at the last place, up to the training length, beyond."""
    bits, parity = drawn(texts, length, torch.Generator().manual_seed(_SEED + length))
    right = (model(bits).argmax(-1) == parity).double()
    beyond = right[:, trained:]
    return {
        "accuracy": right[:, -1].mean().item(),
        "first": right[:, :trained].mean().item(),
        "beyond": beyond.mean().item() if beyond.numel() else None,
    }


def records(
    names: Sequence[str], trained: int, lengths: Sequence[int], steps: int, texts: int
) -> Iterator[dict[str, Any]]:
    """Train each model and ask it at each length; learned positions end where training did."""
    for name in names:
        model, start = build(name, trained), time.perf_counter()
        loss = train(model, trained, steps)
        about = {"bias": name, "trained": trained, "loss": loss}
        print(f"{name}: loss {loss:.3f}, {time.perf_counter() - start:.0f} s", file=sys.stderr)
        for length in lengths:
            if name != "learned" or length <= trained:
                found = accuracies(model.eval(), length, trained, texts)
                yield {**about, "length": length, **found}


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or with --json a list of records; a mistake is one line and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    parser = harness.Parser(__doc__)
    number = harness.whole(2**16)
    names = harness.several(harness.one_of(BIASES))
    parser.add_argument("--biases", type=names, default=",".join(BIASES), help="names")
    parser.add_argument("--trained", type=number, default=8, help="bits of a training text")
    parser.add_argument("--lengths", type=harness.several(number), default="8,16,64")
    parser.add_argument("--steps", type=number, default=500)
    parser.add_argument("--texts", type=number, default=2000, help="of each length, to be asked")
    parser.add_argument("--json", action="store_true", help="print records for programs")
    parser.add_argument("--into", type=harness.report, help="file whose results are replaced")
    given = parser.read(argv)
    torch.set_num_threads(1)  # for so little work threads only wait for one another
    found = list(records(given.biases, given.trained, given.lengths, given.steps, given.texts))
    heading = harness.heading("benchmarks.parity", argv)
    rows = [[str(r["bias"]), f"{r['loss']:.3f}", str(r["length"]), *_shares(r)] for r in found]
    harness.tell(f"{heading}\n\n{harness.table(_HEAD, rows)}", heading, found, given)
    return 0


_HEAD = ("bias", "loss", "length", "accuracy", "first", "beyond")


def _shares(record: dict[str, Any]) -> list[str]:
    shares = (record[name] for name in _HEAD[3:])
    return ["-" if share is None else f"{share:.3f}" for share in shares]


if __name__ == "__main__":
    sys.exit(main())
