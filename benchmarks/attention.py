"""Every path of the attention against PyTorch's fused kernel and against `dense`.

    python -m benchmarks.attention [--lengths 512,2048] [--cases full,band2_pre] [--json]

8 heads of --head-dim, float32 on a CPU, bf16 on CUDA. ratio_to_sdpa is to full sdpa of the same
causality, the same batch; ratio_to_dense to the same case in the open. Below 1 is faster. Paths:
those of `attend`, banded_compiled, and auto. peak_mib is by how much memory grows beyond the
inputs; peak_to_io that and the inputs, over the inputs, outputs and gradients. compile_seconds is
what the first call took, apart from the times. Above 4,096 tokens nothing with T x T maps is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder import attend
from ala_encoder.kernels.shifted import compiled
from benchmarks import harness

NUM_HEADS, HEAD_DIM = 8, 64
_MAPS_UP_TO = 4096
"""Tokens up to which T x T maps are timed, and auto, which has no choice left above."""


@dataclass(frozen=True)
class Case:
    """What is computed: the options of `attend`, and the paths that can."""

    name: str
    paths: tuple[str, ...]
    options: dict[str, Any]
    groups: int = NUM_HEADS
    has_slopes: bool = False

    @property
    def causal(self) -> bool:
        return bool(self.options.get("causal", False))


_BAND2 = ["band2"] * NUM_HEADS
_PRE = {"heads": _BAND2, "mask_operator": "pre_softmax"}
_FUSED = ("flex", "sdpa", "dense")
_ALL = [
    Case("full", ("sdpa", "flex", "dense"), {}),
    Case("full_causal", ("sdpa", "flex", "dense"), {"causal": True}),
    Case("band2_pre", ("banded", "banded_compiled", *_FUSED), _PRE),
    Case("band2_post", ("banded", "dense"), {"heads": _BAND2}),
    Case("band2_post_shared8", ("banded", "dense"), {"heads": ["band2#a"] * 8}, groups=1),
    Case("gated_distbias_causal", ("slope", *_FUSED), {"causal": True}, has_slopes=True),
    Case("gated_distbias_bidirectional", ("slope", *_FUSED), {}, has_slopes=True),
]
CASES = {case.name: case for case in _ALL}


class Drawn:
    """Inputs of one case and length, and what is timed on them."""

    def __init__(self, case: Case, length: int, batch: int, width: int, *, backward: bool) -> None:
        self.case, self.backward, self.length = case, backward, length
        device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.bfloat16 if device == "cuda" else torch.float32

        def draw(heads: int) -> Tensor:
            x = torch.randn(batch, heads, length, width, device=device, dtype=dtype)
            return x.requires_grad_(backward)

        self.full = [draw(NUM_HEADS) for _ in range(3)]
        self.own = [draw(case.groups), draw(case.groups), self.full[2]]
        if case.has_slopes:  # a gate of about one half on alpha = .01
            gate = 0.01 * torch.rand(batch, NUM_HEADS, length, device=device)
            self.own.append(gate.requires_grad_(backward))

    def functions(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield each path of the case that is measured at this length, and auto."""
        for path in (*self.case.paths, "auto"):
            if path == "flex" and not torch.cuda.is_available():
                continue  # it has no backward pass on a CPU, and its forward pass is a check
            has_map = path == "dense" or (path == "sdpa" and "full" not in self.case.name)
            if self.length <= _MAPS_UP_TO or not (has_map or path == "auto"):
                yield path, partial(self._run, partial(self._attend, path), self.own)

    def reference(self) -> None:
        """Run full sdpa of the same causality."""
        causal = self.case.causal
        self._run(partial(F.scaled_dot_product_attention, is_causal=causal), self.full)

    def _attend(self, path: str, q: Tensor, k: Tensor, v: Tensor, *slopes: Tensor) -> Tensor:
        if path == "banded_compiled":
            return compiled()(q, k, v, range(-2, 3))
        options = dict(self.case.options)
        if slopes:
            options["slopes"] = slopes[0]
        return attend(q, k, v, path=path, **options)

    def _run(self, forward: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
        if not self.backward:
            with torch.no_grad():
                forward(*inputs)
            return
        out = forward(*inputs)
        torch.autograd.grad(out, inputs, torch.ones_like(out))

    @property
    def mib(self) -> tuple[float, float]:
        """MiB of the inputs, and of inputs, output and gradients together."""
        given = sum(x.numel() * x.element_size() for x in self.own)
        out = self.full[0].numel() * self.full[0].element_size()
        gradients = given + out if self.backward else 0
        return given / 2**20, (given + out + gradients) / 2**20


def records(
    names: Sequence[str], lengths: Sequence[int], tokens: int, width: int, rounds: int
) -> Iterator[dict[str, Any]]:
    """Time every case, pass and length, all cases of a length in turn; one record a path."""
    for length in lengths:
        for backward in (False, True):
            torch.compiler.reset()  # so that the first call shows what compiling costs
            batch = max(1, tokens // length)
            drawn = {
                name: Drawn(CASES[name], length, batch, width, backward=backward) for name in names
            }
            found = {(name, path): run for name in names for path, run in drawn[name].functions()}
            timed = found | {
                ("sdpa", str(one.case.causal)): one.reference for one in drawn.values()
            }
            first = {key: harness.seconds(run) for key, run in timed.items()}
            times = harness.interleaved(timed, rounds=rounds)
            for name, path in found:
                one, taken = drawn[name], times[name, path]
                ratio, low, high = taken.ratio_to(times["sdpa", str(one.case.causal)])
                dense = times.get((name, "dense"))
                peak = harness.peak_mib(found[name, path])
                given, total = one.mib
                is_compiled = path == "banded_compiled"
                yield {
                    "path": path,
                    "case": name,
                    "pass": "forward_backward" if backward else "forward",
                    "length": length,
                    "batch": batch,
                    "seconds": taken.seconds,
                    "ratio_to_sdpa": ratio,
                    "ratio_to_sdpa_least": low,
                    "ratio_to_sdpa_largest": high,
                    "ratio_to_dense": None if dense is None else taken.ratio_to(dense)[0],
                    "peak_mib": peak,
                    "peak_to_io": (peak + given) / total,
                    "compile_seconds": first[name, path] if is_compiled else None,
                }


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or with --json a list of records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lengths", default="128,512,2048", help="comma-separated token counts")
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated names")
    parser.add_argument("--tokens", type=int, default=8192, help="of a batch: texts times length")
    parser.add_argument("--head-dim", type=int, default=HEAD_DIM)
    parser.add_argument("--rounds", type=int, default=harness.ROUNDS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    names = given.cases.split(",")
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"--cases: {unknown[0]!r}; allowed are {', '.join(CASES)}")
    lengths = [int(length) for length in given.lengths.split(",")]
    found = list(records(names, lengths, given.tokens, given.head_dim, given.rounds))
    environment = ", ".join(f"{key} {value}" for key, value in harness.environment().items())
    if given.json:
        print(environment, file=sys.stderr)
        print(json.dumps(found, allow_nan=False))
        return 0
    print(environment, end="\n\n")
    head = (
        "case",
        "pass",
        "length",
        "path",
        "ms",
        "to sdpa",
        "(least, largest)",
        "to dense",
        "MiB",
        "to in, out, grad",
    )
    print(harness.table(head, [_cells(record) for record in found]))
    return 0


def _cells(record: dict[str, Any]) -> list[str]:
    dense = record["ratio_to_dense"]
    return [
        record["case"],
        record["pass"],
        str(record["length"]),
        record["path"],
        f"{1e3 * record['seconds']:.1f}",
        f"{record['ratio_to_sdpa']:.2f}",
        f"({record['ratio_to_sdpa_least']:.2f}, {record['ratio_to_sdpa_largest']:.2f})",
        "-" if dense is None else f"{dense:.2f}",
        f"{record['peak_mib']:.1f}",
        f"{record['peak_to_io']:.2f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
