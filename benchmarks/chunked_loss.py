"""The loss over a vocabulary a chunk of rows at a time, against all logits at once.

    python -m benchmarks.chunked_loss [--texts 1,4,16] [--vocab 50257] [--json]
                                      [--into benchmarks/chunked_loss.md]

Loss and gradients of hidden states and of the vocabulary matrix, float32: `chunked_loss` against
`cross_entropy` of logits that are all there. tensors: the most bytes of tensors at once, counted
without computing; peak: by how much memory grows at most, of the process on a CPU; part: ours of
theirs. ratio: of the time, below 1 is faster. loss, dx, dW: relative differences, of gradients as
vectors. What the plain loss has no memory for is counted alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.chunked_loss import chunked_cross_entropy
from benchmarks import harness
from benchmarks.tensors import Tensors

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
_PLAIN_COPIES = 3
"""Tensors of the logits' size that the plain loss holds at once: they, softmax and gradient."""


def plain_loss(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Return the summed loss of all logits."""
    return F.cross_entropy(x @ weight.T, labels, reduction="sum")


_LOSSES: dict[str, Loss] = {"chunked": chunked_cross_entropy, "plain": plain_loss}


def given(rows: int, vocab: int, dim: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, a vocabulary matrix and labels."""
    torch.manual_seed(1337)
    x = torch.randn(rows, dim, device=device).requires_grad_()
    weight = (0.02 * torch.randn(vocab, dim, device=device)).requires_grad_()
    return x, weight, torch.randint(0, vocab, (rows,), device=device)


def results(loss: Loss, tensors: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
    """Return the loss and both gradients."""
    total = loss(*tensors)
    return [total.detach(), *torch.autograd.grad(total, tensors[:2])]


def counted(texts: int, length: int, vocab: int, dim: int) -> dict[str, Any]:
    """Return the size of a case, and the most MiB of tensors that both losses hold."""
    tensors = given(texts * length, vocab, dim, "meta")
    found: dict[str, Any] = {"texts": texts, "length": length, "vocab": vocab, "dim": dim}
    for name, loss in _LOSSES.items():
        with Tensors() as made:
            results(loss, tensors)
        found[f"{name}_tensors_mib"] = made.peak / 2**20
    return found


def measured(texts: int, length: int, vocab: int, dim: int, rounds: int) -> dict[str, Any]:
    """Measure both losses: memory, time, differences."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensors = given(texts * length, vocab, dim, device)
    runs = {name: partial(results, loss, tensors) for name, loss in _LOSSES.items()}
    # before malloc is told to keep what is freed
    peaks = {name: harness.peak_mib(run) for name, run in runs.items()}
    times = harness.interleaved(runs, rounds=rounds)
    ratio, least, largest = times["chunked"].ratio_to(times["plain"])
    pairs = zip(*(run() for run in runs.values()), strict=True)
    changes = [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs]
    return {
        "seconds": times["chunked"].seconds, "plain_seconds": times["plain"].seconds,
        "ratio": ratio, "ratio_least": least, "ratio_largest": largest,
        "peak_mib": peaks["chunked"], "plain_peak_mib": peaks["plain"],
        **dict(zip(("loss", "dx", "dw"), changes, strict=True)),
    }  # fmt: skip


def has_room(texts: int, length: int, vocab: int) -> bool:
    """Tell whether there is memory for the plain loss: else a CPU ends some process."""
    if torch.cuda.is_available():
        return True
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 2**10
    return _PLAIN_COPIES * texts * length * vocab * 4 + 2**30 < free


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or with --json a list of records; a mistake is one line and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    parser = harness.Parser(__doc__)
    parser.add_argument("--texts", type=harness.several(harness.whole(4096)), default="1,4,16")
    parser.add_argument("--length", type=harness.whole(2**20), default=512)
    parser.add_argument("--vocab", type=harness.whole(2**20), default=50_257)
    parser.add_argument("--dim", type=harness.whole(2**14), default=512)
    parser.add_argument("--rounds", type=harness.whole(1000), default=harness.ROUNDS)
    parser.add_argument("--json", action="store_true", help="print records for programs")
    parser.add_argument("--into", type=harness.report, help="file whose results are replaced")
    given = parser.read(argv)
    found = []
    for texts in given.texts:
        case = counted(texts, given.length, given.vocab, given.dim)
        if has_room(texts, given.length, given.vocab):
            case |= measured(texts, given.length, given.vocab, given.dim, given.rounds)
        found.append(case)
    heading = harness.heading("benchmarks.chunked_loss", argv)
    table = harness.table(list(_COLUMNS), [_cells(entry) for entry in found])
    harness.tell(f"{heading}\n\n{table}", heading, found, given)
    return 0


def _part(ours: str, theirs: str) -> Callable[[dict[str, Any]], str]:
    return lambda r: f"{r[ours] / r[theirs]:.2f}" if r[theirs] else "-"


_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "texts": lambda r: str(r["texts"]),
    "length": lambda r: str(r["length"]),
    "vocab": lambda r: f"{r['vocab']:,}",
    "tensors MiB": lambda r: f"{r['chunked_tensors_mib']:,.0f}",
    "plain": lambda r: f"{r['plain_tensors_mib']:,.0f}",
    "part": _part("chunked_tensors_mib", "plain_tensors_mib"),
    "peak MiB": lambda r: f"{r['peak_mib']:,.0f}",
    "plain peak": lambda r: f"{r['plain_peak_mib']:,.0f}",
    "peak part": _part("peak_mib", "plain_peak_mib"),
    "ms": lambda r: f"{1e3 * r['seconds']:.0f}",
    "plain ms": lambda r: f"{1e3 * r['plain_seconds']:.0f}",
    "ratio": lambda r: f"{r['ratio']:.2f}",
    "(least, largest)": lambda r: f"({r['ratio_least']:.2f}, {r['ratio_largest']:.2f})",
    "loss": lambda r: f"{r['loss']:.0e}",
    "dx": lambda r: f"{r['dx']:.0e}",
    "dW": lambda r: f"{r['dw']:.0e}",
}
_NUM_COUNTED = 6
"""Columns that are there without measuring."""


def _cells(entry: dict[str, Any]) -> list[str]:
    is_measured = "ratio" in entry
    return [
        show(entry) if is_measured or number < _NUM_COUNTED else "-"
        for number, show in enumerate(_COLUMNS.values())
    ]


if __name__ == "__main__":
    sys.exit(main())
