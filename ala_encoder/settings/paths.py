"""Which way of computing it each head of a layer takes, chosen from settings alone, without torch.

For: the paths (`ala_encoder.kernels`), what each of them cannot do, and the lengths from which one
beats another. All are equal in value and gradient to `dense`. Not for: the arithmetic (`kernels`).

- dense: everything, in the open; holds maps of size T x T.
- sdpa: PyTorch's fused kernel; nothing T x T unless there is a bias.
- slope: biases −a_i |i − j|, nothing T x T; on a CPU, and causal ones elsewhere.
- banded: local masks and narrow windows, nothing T x T.
- flex: FlexAttention, any bias, nothing T x T; CUDA, and only when asked for by name: its training
  has not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from ala_encoder.errors import UserError
from ala_encoder.heads import Head

Path = Literal["dense", "sdpa", "slope", "banded", "flex"]
Asked = Literal["auto", "dense", "sdpa", "slope", "banded", "flex"]
PATHS: tuple[Path, ...] = get_args(Path)

# Crossovers on a CPU (benchmarks/attention.md), in tokens: `auto` takes a path from there on.
SDPA_FROM, SDPA_CAUSAL_FROM = 256, 0
"""`sdpa` rather than `dense`, without biases; elsewhere than on a CPU always."""
SDPA_MASKED_FROM, SDPA_MASKED_CAUSAL_FROM = 512, 192
"""The same with biases or masks, which it takes as a map."""
SLOPE_FROM = 32
"""`slope`."""
BANDED_FROM, BANDED_PER_OFFSET = 96, 2
"""`banded` before the softmax: so many, and so many more for each offset that a head sees."""
BANDED_POST_FROM, BANDED_POST_PER_OFFSET = 320, 3
"""The same after the softmax, which needs the log-sum-exp over all keys as well; for each offset of
the widest head, since heads share what is computed."""
PRUNE_FROM = 1536
"""Tokens from which `prune` leaves keys out of `slope`: in less there is little to gain."""
COMPILED_FROM_STEPS = 2_000
"""Optimizer steps from which `compile: auto` compiles `banded` before the softmax: it takes about
15 seconds, once for all lengths, and then saves some milliseconds a layer and step."""


@dataclass(frozen=True)
class Case:
    """What the choice depends on beside the heads, the same for all heads of a layer."""

    is_pre_softmax: bool = False
    has_slopes: bool = False
    """Biases −a_i |i − j| are among the biases."""
    has_others: bool = False
    """Other biases are, a window not counted."""
    window: int | None = None
    """Width of the narrowest window: it hides keys at |i − j| >= width."""
    causal: bool = False
    cross: bool = False
    """Keys and values belong to another text."""
    dropout: bool = False
    device: str | None = None
    """"cpu", "cuda", …; None: not known yet, so it is no reason to refuse anything."""
    is_half: bool = False
    """bf16 or fp16."""
    needs_gradient: bool = True

    @property
    def has_bias(self) -> bool:
        return self.has_slopes or self.has_others or self.window is not None


@dataclass(frozen=True)
class Part:
    """Heads of a layer that are computed together."""

    heads: tuple[int, ...]
    ladder: tuple[tuple[int, Path], ...]
    """(length from which, path), rising; the first from 0."""
    has_scores: bool = True
    """False for pre-softmax heads of one key, whose weight is 1 whatever Q and K are."""

    def path(self, length: int) -> Path:
        """Return the path at a text length."""
        return [path for start, path in self.ladder if start <= length][-1]


def offsets(head: Head, case: Case) -> range | None:
    """Return every offset j − i that a head can see; None: no end is known."""
    low, high = None, None
    if head.is_local:
        low, high = head.offsets()[0], head.offsets()[-1]
    if case.window is not None:
        low = max(1 - case.window, 1 - case.window if low is None else low)
        high = min(case.window - 1, case.window - 1 if high is None else high)
    if low is None or high is None:
        return None
    return range(low, (min(high, 0) if case.causal else high) + 1)


def refusal(path: Path, head: Head, case: Case) -> str | None:
    """Say why a path cannot compute a head, or None when it can."""
    if path == "dense":
        return None
    if case.dropout:
        return "attention dropout is computed in the open"
    if head.is_local and not case.is_pre_softmax and path != "banded":
        return f"it never holds the weights that a post-softmax mask ({head}) multiplies"
    if path in ("slope", "banded", "flex") and case.cross:
        return "it needs queries and keys of one text"
    if path == "slope":
        return _slope_refusal(head, case)
    if path == "banded":
        return _banded_refusal(head, case)
    if path == "flex" and case.device is not None:
        if case.device not in ("cpu", "cuda"):
            return f"FlexAttention does not run on {case.device}"
        if case.device == "cpu" and case.needs_gradient:
            return "FlexAttention has no backward on a CPU"
    return None


def _slope_refusal(head: Head, case: Case) -> str | None:
    if head.is_local:
        return f"it sees every key, head {head} does not"
    if case.has_others or case.window is not None or not case.has_slopes:
        return "it carries biases -a|i - j| (distbias, gated_distbias, alibi), and those alone"
    if case.is_half:
        return "half precision cannot hold its columns"
    if not case.causal and case.device not in (None, "cpu"):
        return f"bidirectional attention does not run on {case.device}"
    return None


def _banded_refusal(head: Head, case: Case) -> str | None:
    if not head.is_local or case.is_pre_softmax:
        return f"head {head} sees every key" if offsets(head, case) is None else None
    if case.has_bias or case.causal:
        beside = "biases" if case.has_bias else "causality"
        return f"a post-softmax mask ({head}) beside {beside} needs all weights"
    if case.is_half:
        return "half precision cannot hold its columns"
    if case.device not in (None, "cpu"):
        return f"post-softmax masks do not run on {case.device}"
    return None


def plan(heads: Sequence[Head], case: Case, asked: str = "auto") -> tuple[Part, ...]:
    """Return the parts of a layer: its heads, grouped by how they are computed.

    asked: a path by name, or auto. Raises UserError when a path asked for by name cannot compute
    one of the heads.
    """
    check_path(asked, heads, case)
    return _plan(tuple(heads), case, asked)


@lru_cache(maxsize=4096)
def _plan(heads: tuple[Head, ...], case: Case, asked: str) -> tuple[Part, ...]:
    found: dict[tuple[tuple[tuple[int, Path], ...], bool], list[int]] = {}
    widest = max((len(head.offsets()) for head in heads if head.is_local), default=0)
    for place, head in enumerate(heads):
        named = [path for path in PATHS if path == asked]
        ladder = ((0, named[0]),) if named else _ladder(head, case, widest)
        is_free = case.is_pre_softmax and head.is_single_key and ladder == ((0, "banded"),)
        found.setdefault((ladder, not is_free), []).append(place)
    return tuple(Part(tuple(places), *key) for key, places in found.items())


@lru_cache(maxsize=4096)
def at_length(parts: tuple[Part, ...], length: int) -> tuple[Part, ...]:
    """Return the parts of a text length: all that are `dense` there are computed together."""
    dense = [part for part in parts if part.path(length) == "dense"]
    if len(dense) < 2:
        return parts
    heads = tuple(sorted(head for part in dense for head in part.heads))
    others = tuple(part for part in parts if part not in dense)
    return (Part(heads, ((0, "dense"),)), *others)


def _ladder(head: Head, case: Case, widest: int) -> tuple[tuple[int, Path], ...]:
    """Return the steps of `_preferred` that can be done; a step ends all that begin later."""
    steps: list[tuple[int, Path]] = [(0, "dense")]
    for start, path in _preferred(head, case, widest):
        if refusal(path, head, case) is None:
            steps = [step for step in steps if step[0] < start] + [(start, path)]
    return tuple(steps)


def _preferred(head: Head, case: Case, widest: int) -> Iterator[tuple[int, Path]]:
    """Yield what beats `dense`, and then what beats that, and from which length.

    widest: the most offsets that a local head of the layer sees.
    """
    yield _sdpa_from(head, case), "sdpa"
    yield SLOPE_FROM, "slope"
    seen = offsets(head, case)
    if case.is_pre_softmax and head.is_single_key:
        yield 0, "banded"
    elif head.is_local and not case.is_pre_softmax:
        yield BANDED_POST_FROM + BANDED_POST_PER_OFFSET * widest, "banded"
    elif seen is not None:
        yield BANDED_FROM + BANDED_PER_OFFSET * len(seen), "banded"


def _sdpa_from(head: Head, case: Case) -> int:
    if case.device != "cpu":
        return 0
    if case.has_bias or head.is_local:
        return SDPA_MASKED_CAUSAL_FROM if case.causal else SDPA_MASKED_FROM
    return SDPA_CAUSAL_FROM if case.causal else SDPA_FROM


def check_path(asked: str, heads: Sequence[Head], case: Case) -> None:
    """Raise UserError when a path asked for by name cannot compute one of the heads."""
    for path in PATHS:
        reasons = [refusal(path, head, case) for head in heads if path == asked]
        reason = next((reason for reason in reasons if reason), None)
        if reason is not None:
            can = [p for p in PATHS if not any(refusal(p, head, case) for head in heads)]
            allowed = ", ".join(["auto", *can])
            raise UserError(f"path = {asked!r}: {reason}; allowed here: {allowed}")


def check_prune(asked: str, heads: Sequence[Head], case: Case) -> None:
    """Raise UserError when no head can leave keys out."""
    reasons = [refusal("slope", head, case) for head in heads]
    reason = f"path = {asked!r} computes all"
    if asked in ("auto", "slope"):
        if not all(reasons):
            return
        reason = str(reasons[0])
    raise UserError(f"prune: leaves keys out on the path slope alone; {reason}")


def compiled_from(heads: Sequence[Head], case: Case, asked: str) -> int | None:
    """Return the least length at which `banded` computes a head before the softmax, which can be
    compiled; None: at none.
    """
    starts = [
        part.ladder[-1][0]
        for part in plan(heads, case, asked)
        if part.has_scores
        and part.ladder[-1][1] == "banded"
        and (case.is_pre_softmax or not heads[part.heads[0]].is_local)
    ]
    return min(starts, default=None)


def describe(parts: Sequence[Part], case: Case) -> str:
    """Return the choice as one word without spaces, such as 4xbanded+4xsdpa,slope@1024.

    That is: 4 heads on `banded`, 4 on `sdpa`, and these on `slope` from 1,024 tokens up.
    """
    words = []
    for part in parts:
        steps = [f"{path}@{start}" if start else path for start, path in part.ladder]
        count = f"{len(part.heads)}x" if len(parts) > 1 else ""
        words.append(count + ",".join(steps))
    return "+".join(words) + ("(dropout)" if case.dropout else "")
