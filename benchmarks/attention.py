"""Every path of the attention against PyTorch's fused kernel and against `dense`.

    python -m benchmarks.attention [--lengths 512,2048] [--cases full,band2_pre] [--json]

8 heads of 64, float32 on a CPU, bf16 on CUDA. ratio_to_sdpa is to full sdpa of the same causality,
the same batch; ratio_to_dense to the same case in the open. Below 1 is faster.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder import attend
from benchmarks import harness

NUM_HEADS, HEAD_DIM = 8, 64
_DENSE_UP_TO = 4096  # a map of 8 heads at 16,384 tokens is 8 GiB


@dataclass(frozen=True)
class Case:
    """What is computed: the options of `attend`, and the paths that can."""

    paths: tuple[str, ...]
    options: dict[str, Any]
    groups: int = NUM_HEADS
    has_slopes: bool = False

    @property
    def causal(self) -> bool:
        return bool(self.options.get("causal", False))


CASES = {
    "full": Case(("sdpa", "dense"), {}),
    "full_causal": Case(("sdpa", "dense"), {"causal": True}),
    "band2_pre": Case(
        ("banded", "sdpa", "dense"),
        {"heads": ["band2"] * NUM_HEADS, "mask_operator": "pre_softmax"},
    ),
    "band2_post": Case(("banded", "dense"), {"heads": ["band2"] * NUM_HEADS}),
    "band2_post_shared8": Case(("banded", "dense"), {"heads": ["band2#a"] * NUM_HEADS}, groups=1),
    "gated_distbias_causal": Case(("slope", "sdpa", "dense"), {"causal": True}, has_slopes=True),
    "gated_distbias_bidirectional": Case(("slope", "sdpa", "dense"), {}, has_slopes=True),
}


def functions(
    case: Case, length: int, batch: int, *, backward: bool
) -> dict[str, Callable[[], Any]]:
    """Return what is timed: `reference` (full sdpa) and each path of the case, and `auto`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32

    def draw(heads: int) -> Tensor:
        x = torch.randn(batch, heads, length, HEAD_DIM, device=device, dtype=dtype)
        return x.requires_grad_(backward)

    q, k, v = draw(NUM_HEADS), draw(NUM_HEADS), draw(NUM_HEADS)
    own_q, own_k = draw(case.groups), draw(case.groups)
    inputs, options = [own_q, own_k, v], dict(case.options)
    if case.has_slopes:  # a gate of about one half on alpha = .01
        gate = 0.01 * torch.rand(batch, NUM_HEADS, length, device=device)
        options["slopes"] = gate.requires_grad_(backward)
        inputs.append(options["slopes"])

    def run(forward: Callable[[], Tensor], wanted: Sequence[Tensor]) -> None:
        if not backward:
            with torch.no_grad():
                forward()
            return
        out = forward()
        torch.autograd.grad(out, wanted, torch.ones_like(out))

    full = partial(F.scaled_dot_product_attention, q, k, v, is_causal=case.causal)
    found: dict[str, Callable[[], Any]] = {"reference": partial(run, full, (q, k, v))}
    for path in (*case.paths, "auto"):
        if path == "dense" and length > _DENSE_UP_TO:
            continue
        forward = partial(attend, own_q, own_k, v, path=path, **options)
        found[path] = partial(run, forward, inputs)
    return found


def records(
    names: Sequence[str], lengths: Sequence[int], batch: int, rounds: int
) -> list[dict[str, Any]]:
    """Time every case, pass and length; one record a path."""
    found = []
    for length in lengths:
        for name in names:
            for backward in (False, True):
                timed = functions(CASES[name], length, batch, backward=backward)
                times = harness.interleaved(timed, rounds=rounds)
                for path, taken in times.items():
                    if path == "reference":
                        continue
                    ratio, low, high = taken.ratio_to(times["reference"])
                    dense = times.get("dense")
                    found.append({
                        "path": path,
                        "case": name,
                        "pass": "forward_backward" if backward else "forward",
                        "length": length,
                        "seconds": taken.seconds,
                        "ratio_to_sdpa": ratio,
                        "ratio_to_sdpa_least": low,
                        "ratio_to_sdpa_largest": high,
                        "ratio_to_dense": None if dense is None else taken.ratio_to(dense)[0],
                        "peak_mib": harness.peak_mib(timed[path]),
                    })  # fmt: skip
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or with --json a list of records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lengths", default="128,512,2048", help="comma-separated token counts")
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated names")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=harness.ROUNDS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    names = given.cases.split(",")
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"--cases: {unknown[0]!r}; allowed are {', '.join(CASES)}")
    lengths = [int(length) for length in given.lengths.split(",")]
    found = records(names, lengths, given.batch, given.rounds)
    if given.json:
        print(json.dumps(found, allow_nan=False))
        return 0
    print(", ".join(f"{key} {value}" for key, value in harness.environment().items()), end="\n\n")
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
        f"{record['peak_mib']:.0f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
