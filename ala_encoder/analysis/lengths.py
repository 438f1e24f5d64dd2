"""Length extrapolation of many causal models: losses of the same tokens after more and more text.

For: `compare`, from what `evaluate` has written into run folders with a protocol. Not for: scoring
(`protocols`), which measures one model.

What is side by side was scored by one protocol on one set of target tokens. A length is held
against the length of the model's training, token by token: with d = nll at the length − nll at the
training length, the difference is mean(d), and its standard error sd(d) / sqrt(n). ours: a model
*holds* at a length whose difference is at most 2 standard errors, or whose perplexity is at most
5 % above. Standard errors take tokens as independent, which fixed tokens far apart nearly are and
those of `blocks` and `sliding` are not.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ala_encoder.analysis.statistics import Aggregate, aggregate
from ala_encoder.files import read_json
from ala_encoder.records import Record, RunSummary

_ERRORS = 2.0
_FACTOR = 1.05


def targets_digest(tokens: NDArray[Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return a digest of which tokens of which text were predicted.

    arrays: of `protocols.Found`; without positions all tokens but the first were. Digits of SHA-256
    over places (int64) and ids (uint32), little-endian.
    """
    places = arrays.get("positions", np.arange(1, len(tokens)))
    digest = hashlib.sha256(places.astype("<i8").tobytes())
    digest.update(tokens[places].astype("<u4").tobytes())
    return digest.hexdigest()[:16]


class _Key(NamedTuple):
    """What numbers must have in common to be compared."""

    protocol: str
    stride: int | None
    tokens: int | None
    data: str
    split: str
    targets: str


@dataclass(frozen=True)
class AtLength:
    """A model's score at one length."""

    length: int
    loss: Aggregate
    """Nats, over the target tokens."""
    difference: Aggregate | None
    """Each token's loss less that at the training length; None at that length itself, and where
    the training length was not scored."""

    @property
    def perplexity(self) -> float | None:
        """exp of the mean loss; None where that is not finite."""
        mean = self.loss.mean
        return math.exp(mean) if mean is not None and mean < 700.0 else None

    @property
    def holds(self) -> bool | None:
        """Whether the loss is no more than 2 standard errors or 5 % of perplexity above that at
        the training length; None where there is no difference."""
        if self.difference is None:
            return None
        mean, se = self.difference.mean, self.difference.se
        if mean is None:
            return False
        return mean <= math.log(_FACTOR) or (se is not None and mean <= _ERRORS * se)


@dataclass(frozen=True)
class ByLength:
    """A run's scores, the shortest length first."""

    run: RunSummary
    trained: int | None
    """The training length; None: the run's log does not tell."""
    scores: tuple[AtLength, ...]

    def at(self, length: int) -> AtLength | None:
        """Return the score at a length, where there is one."""
        return next((score for score in self.scores if score.length == length), None)

    @property
    def holds_to(self) -> int | None:
        """The longest length up to which the model holds at every length beyond the training
        length; None where it does at none, or nothing was compared."""
        held = None
        for score in self.scores:
            if self.trained is None or score.length <= self.trained:
                continue
            if not score.holds:
                break
            held = score.length
        return held


@dataclass(frozen=True)
class LengthTable:
    """Runs that were scored by one protocol on the same tokens, in the order of the report."""

    protocol: str
    """Its name and numbers, such as `last_token, 2,000 tokens`."""
    name: str
    """`last_token`, or `last_token-2` of the second such table."""
    about: str
    """Split, data and a digest of which tokens were predicted."""
    targets: int
    runs: tuple[ByLength, ...]

    @property
    def is_fixed(self) -> bool:
        """Tell whether each target comes after exactly as many tokens as the length says."""
        return self.protocol.startswith("last_token")

    @property
    def lengths(self) -> list[int]:
        """Return all lengths, the shortest first."""
        return sorted({score.length for run in self.runs for score in run.scores})

    def records(self) -> Iterator[Record]:
        """Yield NAME_loss/LENGTH with its standard error, NAME_perplexity/LENGTH, and
        NAME_loss_difference/LENGTH with its own."""
        for model in self.runs:
            for score in model.scores:
                apart = score.difference or Aggregate(0, None, None, 1, None)
                values = {
                    "loss": score.loss.mean,
                    "loss_standard_error": score.loss.se,
                    "perplexity": score.perplexity,
                    "loss_difference": apart.mean,
                    "loss_difference_standard_error": apart.se,
                }
                run, n = model.run, score.loss.n
                for name, value in values.items():
                    if value is not None:
                        metric = f"{self.name}_{name}/{score.length}"
                        yield Record(run.run, run.variant, run.task, run.seed, metric, None,
                                     value, n, True)  # fmt: skip


def length_tables(runs: Sequence[RunSummary]) -> tuple[list[LengthTable], list[str]]:
    """Return the tables of what runs were scored by protocols, and what is in none and why.

    Blocks of the length that a run was trained on are what every run is scored on: no table.

    Raises UserError for a file that cannot be read.
    """
    groups: dict[_Key, list[tuple[RunSummary, dict[int, NDArray[np.float32]]]]] = {}
    left_out: list[str] = []
    for run in runs:
        found: dict[_Key, dict[int, NDArray[np.float32]]] = {}
        for path in sorted(run.folder.glob("eval*/*.json")) if run.folder else ():
            record = read_json(path)
            if "protocol" not in record:
                continue
            arrays = path.with_suffix(".safetensors")
            if why := _unfit(record, arrays):
                left_out.append(f"{run.run}: {path.parent.name}/{path.name}: {why}")
                continue
            found.setdefault(_key(record), {}).update(_losses(arrays, record["protocol"]))
        for key, losses in found.items():
            groups.setdefault(key, []).append((run, losses))
    tables: list[LengthTable] = []
    for key, some in sorted(groups.items(), key=lambda group: _order(group[0])):
        if not _is_plain(key, some):
            number = sum(table.name.partition("-")[0] == key.protocol for table in tables)
            name = key.protocol + (f"-{number + 1}" if number else "")
            tables.append(_table(key, name, some))
    return tables, left_out


def _is_plain(
    key: _Key, some: Sequence[tuple[RunSummary, Mapping[int, NDArray[np.float32]]]]
) -> bool:
    """Tell whether it is all as in training: blocks of each run's own length and no other."""
    return key.protocol == "blocks" and all(
        [str(length) for length in losses] == [run.settings.get("data.length")]
        for run, losses in some
    )


def _unfit(record: Mapping[str, Any], arrays: Path) -> str | None:
    if record.get("prune") is not None:
        return "was scored with `prune`, which is another model"
    is_pruned = any(name.partition("/")[0] == "prune_computed" for name in record["scores"])
    if is_pruned and "prune" not in record:
        return "does not tell whether `prune` is the model's own; evaluate it again"
    if not arrays.is_file() or "targets" not in record:
        return "tells no losses of single tokens, or not of which; evaluate it again"
    return None


def _key(record: Mapping[str, Any]) -> _Key:
    how = record["protocol"]
    names = record["data"], record["split"], record["targets"]
    return _Key(how["name"], how["stride"], how["tokens"], *names)


def _order(key: _Key) -> tuple[str, ...]:
    first = "" if key.protocol == "last_token" else key.protocol  # the source's protocol
    return (first, *map(str, key))


def _losses(path: Path, protocol: Mapping[str, Any]) -> dict[int, NDArray[np.float32]]:
    from safetensors.numpy import load_file

    arrays = load_file(path)
    lengths: list[int] = protocol["lengths"]
    return {n: arrays[f"nll/{n}" if len(lengths) > 1 else "nll"] for n in lengths}


def _table(
    key: _Key, name: str, some: Sequence[tuple[RunSummary, Mapping[int, NDArray[np.float32]]]]
) -> LengthTable:
    stride = "" if key.stride is None else f", stride {key.stride:,}"
    tokens = "" if key.tokens is None else f", {key.tokens:,} tokens"
    return LengthTable(
        protocol=f"{key.protocol}{stride}{tokens}",
        name=name,
        about=f"{key.split} of {key.data}, targets {key.targets[:8]}",
        targets=len(next(iter(some[0][1].values()))),
        runs=tuple(_by_length(run, losses) for run, losses in some),
    )


def _by_length(run: RunSummary, losses: Mapping[int, NDArray[np.float32]]) -> ByLength:
    told = run.settings.get("data.length", "")
    trained = int(told) if told.isdecimal() else None
    start = None if trained is None else losses.get(trained)
    scores = []
    for length in sorted(losses):
        nll = losses[length].astype(np.float64)
        apart = (
            None
            if start is None or length == trained
            else aggregate(nll - start.astype(np.float64))
        )
        scores.append(AtLength(length, aggregate(nll), apart))
    return ByLength(run, trained, tuple(scores))
