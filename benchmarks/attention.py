"""Every path of the attention against PyTorch's fused kernel and against `dense`.

    python -m benchmarks.attention [--lengths 512,2048] [--cases full,band2_pre] [--paths slope]
                                   [--json] [--into benchmarks/attention.md]

8 heads of --head-dim, float32 on a CPU, bf16 on CUDA. ratio_to_sdpa is to full sdpa of the same
causality, the same batch; ratio_to_dense to the same case in the open. Below 1 is faster. Paths:
those of `attend`, banded_compiled, and auto. peak_mib is by how much memory grows beyond the
inputs; peak_to_io that and the inputs, over the inputs, outputs and gradients. compile_seconds is
what the first call took, apart from the times. Above 4,096 tokens nothing with T x T maps is timed.
What a path cannot do on this device is left out, and a line says why.
"""

from __future__ import annotations

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
from ala_encoder.errors import reason
from ala_encoder.heads import Head, parse_head
from ala_encoder.kernels.shifted import compiled
from ala_encoder.settings import paths as choosing
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

    @property
    def heads(self) -> list[Head]:
        return [parse_head(cell) for cell in self.options.get("heads", ["full"] * NUM_HEADS)]

    def setting(self, device: str, dtype: str, *, backward: bool = True) -> choosing.Case:
        """Return what the choice of a path depends on."""
        return choosing.Case(
            is_pre_softmax=self.options.get("mask_operator") == "pre_softmax",
            has_slopes=self.has_slopes,
            causal=self.causal,
            device=device,
            is_half=dtype != "float32",
            needs_gradient=backward,
        )

    def choice(self, device: str, dtype: str) -> str:
        """Return what `auto` takes and from which length, such as dense,sdpa@256."""
        setting = self.setting(device, dtype)
        return choosing.describe(choosing.plan(self.heads, setting), setting)


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
PATHS = tuple(dict.fromkeys(path for case in _ALL for path in (*case.paths, "auto")))
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Plan:
    """What is measured, and how often."""

    cases: Sequence[str]
    paths: Sequence[str]
    lengths: Sequence[int]
    tokens: int
    width: int
    dtype: str
    rounds: int
    device: str
    note: Callable[[str], None] = lambda _: None
    """Told what is left out, and why."""


def refusal(case: Case, path: str, setting: choosing.Case, length: int) -> str | None:
    """Say why a path of a case is left out, or None."""
    has_map = path == "dense" or (path == "sdpa" and "full" not in case.name)
    if length > _MAPS_UP_TO and (has_map or path == "auto"):
        return f"not timed above {_MAPS_UP_TO:,} tokens"
    if path == "flex" and setting.device == "cpu":
        return "on a CPU FlexAttention is a check, and has no backward pass"
    named = [known for known in choosing.PATHS if known == path.removesuffix("_compiled")]
    reasons = [choosing.refusal(known, head, setting) for known in named for head in case.heads]
    return next((why for why in reasons if why), None)


class Drawn:
    """Inputs of one case and length, and what is timed on them."""

    def __init__(self, case: Case, plan: Plan, length: int, *, backward: bool) -> None:
        self.case, self.plan, self.length, self.backward = case, plan, length, backward
        self.batch = max(1, plan.tokens // length)

        def draw(heads: int) -> Tensor:
            shape, dtype = (self.batch, heads, length, plan.width), DTYPES[plan.dtype]
            return torch.randn(shape, device=plan.device, dtype=dtype).requires_grad_(backward)

        self.full = [draw(NUM_HEADS) for _ in range(3)]
        self.own = [draw(case.groups), draw(case.groups), self.full[2]]
        if case.has_slopes:  # a gate of about one half on alpha = .01
            gate = 0.01 * torch.rand(self.batch, NUM_HEADS, length, device=plan.device)
            self.own.append(gate.requires_grad_(backward))

    def functions(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield each path of the case that is measured at this length, auto among them."""
        setting = self.case.setting(self.plan.device, self.plan.dtype, backward=self.backward)
        for path in (*self.case.paths, "auto"):
            if path not in self.plan.paths:
                continue
            why = refusal(self.case, path, setting, self.length)
            if why is None:
                yield path, partial(self._run, partial(self._attend, path), self.own)
            else:
                self.plan.note(f"{self.case.name} on {path}: {why}")

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


def records(plan: Plan) -> Iterator[dict[str, Any]]:
    """Time every case, pass and length, all cases of a length in turn; one record a path."""
    for length in plan.lengths:
        for backward in (False, True):
            yield from _records(plan, length, backward=backward)


def _records(plan: Plan, length: int, *, backward: bool) -> Iterator[dict[str, Any]]:
    torch.compiler.reset()  # so that the first call shows what compiling costs
    drawn = {name: Drawn(CASES[name], plan, length, backward=backward) for name in plan.cases}
    found = {(name, path): run for name in plan.cases for path, run in drawn[name].functions()}
    first = {key: _first(key, run, plan.note) for key, run in found.items()}
    timed = {key: run for key, run in found.items() if first[key] is not None}
    if not timed:
        return
    references = {("sdpa", str(one.case.causal)): one.reference for one in drawn.values()}
    times = harness.interleaved(timed | references, rounds=plan.rounds)
    for name, path in timed:
        one, taken = drawn[name], times[name, path]
        ratio, low, high = taken.ratio_to(times["sdpa", str(one.case.causal)])
        dense = times.get((name, "dense"))
        peak = harness.peak_mib(found[name, path])
        given, total = one.mib
        yield {
            "path": path,
            "case": name,
            "pass": "forward_backward" if backward else "forward",
            "length": length,
            "batch": one.batch,
            "dtype": plan.dtype,
            "seconds": taken.seconds,
            "ratio_to_sdpa": ratio,
            "ratio_to_sdpa_least": low,
            "ratio_to_sdpa_largest": high,
            "ratio_to_dense": None if dense is None else taken.ratio_to(dense)[0],
            "peak_mib": peak,
            "peak_to_io": (peak + given) / total,
            "compile_seconds": first[name, path] if path == "banded_compiled" else None,
        }


def _first(
    key: tuple[str, str], run: Callable[[], Any], note: Callable[[str], None]
) -> float | None:
    """Return the seconds of the first call; None, with a note, where it fails.

    One kernel that a device has not, or no memory for, must not cost all other numbers.
    """
    try:
        return harness.seconds(run)
    except (RuntimeError, ValueError) as error:
        note(f"{' on '.join(key)}: failed: {reason(error)}")
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or with --json a list of records; a mistake is one line and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    parser = harness.Parser(__doc__)
    most = 2**20
    lengths, size = harness.several(harness.whole(most)), harness.whole(most)
    cases, among = (harness.several(harness.one_of(names)) for names in (CASES, PATHS))
    device, dtype = ("cuda", "bfloat16") if torch.cuda.is_available() else ("cpu", "float32")
    parser.add_argument("--lengths", type=lengths, default="128,512,2048", help="token counts")
    parser.add_argument("--cases", type=cases, default=",".join(CASES), help="names")
    parser.add_argument("--paths", type=among, default=",".join(PATHS), help="names")
    parser.add_argument("--tokens", type=size, default=8192, help="of a batch: texts times length")
    parser.add_argument("--head-dim", type=harness.whole(1024), default=HEAD_DIM)
    parser.add_argument("--dtype", type=harness.one_of(DTYPES), default=dtype)
    parser.add_argument("--rounds", type=harness.whole(1000), default=harness.ROUNDS)
    parser.add_argument("--json", action="store_true", help="print records for programs")
    parser.add_argument("--into", type=harness.report, help="file whose results are replaced")
    given = parser.read(argv)
    left_out: dict[str, None] = {}
    plan = Plan(
        given.cases, given.paths, given.lengths, given.tokens, given.head_dim, given.dtype,
        given.rounds, device, left_out.setdefault,
    )  # fmt: skip
    found = list(records(plan))
    choices = [f"- {name}: {CASES[name].choice(device, given.dtype)}" for name in given.cases]
    notes = ["\n".join(["`auto` takes, from so many tokens on:", "", *choices])]
    notes += [f"left out: {text}" for text in left_out]
    if not found:
        why = f"no path of {', '.join(given.cases)} is {' or '.join(given.paths)}"
        why = next(iter(left_out), why)
        parser.error(f"--paths: nothing to measure: {why}")
    heading = harness.heading("benchmarks.attention", argv)
    table = harness.table(list(_COLUMNS), [[show(r) for show in _COLUMNS.values()] for r in found])
    text = "\n\n".join([heading, table, *notes])
    if given.into is not None:
        harness.put(given.into, text)
    if given.json:
        print(heading, *notes, sep="\n", file=sys.stderr)
        print(json.dumps(found, allow_nan=False))
    else:
        print(text)
    return 0


_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "case": lambda r: str(r["case"]),
    "pass": lambda r: str(r["pass"]),
    "length": lambda r: str(r["length"]),
    "batch": lambda r: str(r["batch"]),
    "path": lambda r: str(r["path"]),
    "ms": lambda r: f"{1e3 * r['seconds']:.1f}",
    "to sdpa": lambda r: f"{r['ratio_to_sdpa']:.2f}",
    "(least, largest)": lambda r: (
        f"({r['ratio_to_sdpa_least']:.2f}, {r['ratio_to_sdpa_largest']:.2f})"
    ),
    "to dense": lambda r: "-" if r["ratio_to_dense"] is None else f"{r['ratio_to_dense']:.2f}",
    "MiB": lambda r: f"{r['peak_mib']:.1f}",
    "to in, out, grad": lambda r: f"{r['peak_to_io']:.2f}",
}


if __name__ == "__main__":
    sys.exit(main())
