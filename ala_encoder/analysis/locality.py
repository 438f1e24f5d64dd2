"""How local attention weights are: expected distance, mass nearby, entropy; and their averages.

For: the metrics of Adaptive Locality Attention on weights that a model hands out (`capture`), a
number for each query, and `LocalityMeter`, which averages them by layer, head and place of the
query. Not for: getting the weights (`capture`), statistics over runs (`statistics`).

The metrics take weights [..., Q, K] of queries i and keys j and return [..., Q], in float32 or
better. A query with nothing to see, padding too, has weights of 0 and gets 0: leave it out of an
average.

stated: E|i − j| = sum_j A_ij |i − j| and mass within w = sum of A_ij over |i − j| <= w, of rows
that sum to 1. A mask after the softmax (`post_softmax`) leaves rows that sum to less, and these
sums would then call a head near because little is left of it. ours: a row is divided by its sum
first, which changes nothing where that is 1, and how much is left is told as `weight`.
`normalised=False` gives the stated sums as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ala_encoder.analysis.capture import Captured, capture
from ala_encoder.batches import Inputs
from ala_encoder.errors import UserError

WIDTHS = (32, 64)
"""The w of Adaptive Locality Attention's local mass."""


def expected_distance(
    weights: Tensor, distance: Tensor | None = None, *, normalised: bool = True
) -> Tensor:
    """Return E|i − j| = sum_j w_ij |i − j|, in tokens: [..., Q, K] → [..., Q].

    distance: |i − j| of each pair where it is not that of rows and columns, broadcastable to the
    weights; normalised: w_ij over the sum of its row.
    """
    weights = _prepared(weights, normalised)
    mean: Tensor = (weights * _distance(weights, distance)).sum(-1)
    return mean


def local_mass(
    weights: Tensor, width: int, distance: Tensor | None = None, *, normalised: bool = True
) -> Tensor:
    """Return the weight at |i − j| <= width: [..., Q, K] → [..., Q]; see `expected_distance`."""
    weights = _prepared(weights, normalised)
    return weights.masked_fill(_distance(weights, distance) > width, 0.0).sum(-1)


def entropy(weights: Tensor, *, normalised: bool = True) -> Tensor:
    """Return −sum_j w_ij ln w_ij in nats, where 0 ln 0 is 0: [..., Q, K] → [..., Q]."""
    entropies: Tensor = torch.special.entr(_prepared(weights, normalised)).sum(-1)
    return entropies


def _prepared(weights: Tensor, normalised: bool) -> Tensor:
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    if not normalised:
        return weights
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1.0)


def _distance(weights: Tensor, given: Tensor | None) -> Tensor:
    """Return |i − j| in the dtype of the weights: [Q, K] unless given."""
    if given is None:
        queries, keys = (torch.arange(n, device=weights.device) for n in weights.shape[-2:])
        given = (keys - queries[:, None]).abs()
    return given.to(weights.dtype)


# ---------------------------------------------------------------------------------------------
# Averages
# ---------------------------------------------------------------------------------------------

Found = TypeVar("Found")
_Metrics = dict[str, tuple[Tensor, Tensor]]
"""By name values and which of them count, bool: both [B, H, Q]."""
_Sums = dict[str, tuple[Tensor, Tensor]]
"""By name sums and numbers of values: both float64 [H, P]."""


@dataclass(frozen=True, eq=False)
class Averages:
    """Sums of some metrics over the queries of one section, kept apart by layer, head and place.

    Each method returns means by metric, None where no query was counted.
    """

    sums: Mapping[str, Tensor]
    """float64 [L, H, P], P places of a query in its document."""
    counts: Mapping[str, Tensor]
    """Queries that were counted, likewise: real ones, and for metrics of weights those that see
    something."""

    def mean(self) -> dict[str, Any]:
        """Over all layers, heads and queries, each query once."""
        return self._means(lambda x: x.sum())

    def by_layer(self) -> dict[str, Any]:
        """Lists of L numbers."""
        return self._means(lambda x: x.sum((1, 2)))

    def by_head(self) -> dict[str, Any]:
        """Lists of L lists of H numbers."""
        return self._means(lambda x: x.sum(2))

    def by_position(self) -> dict[str, Any]:
        """Lists of P numbers, the first those of a document's first token."""
        return self._means(lambda x: x.sum((0, 1)))

    def _means(self, kept: Any) -> dict[str, Any]:
        return {
            name: _or_none((kept(total) / kept(self.counts[name])).tolist())
            for name, total in self.sums.items()
        }


def _or_none(value: Any) -> Any:
    if isinstance(value, list):
        return [_or_none(one) for one in value]
    return value if math.isfinite(value) else None


def rounded(value: Any) -> Any:
    """Return numbers in dicts and lists, however deep, to six digits: what a report needs."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


@dataclass(frozen=True, eq=False)
class Locality:
    """What `LocalityMeter` found in one section."""

    model: Averages
    uniform: Averages
    """Of equal weights on all visible keys, for comparison; one layer, one head."""
    alphas: list[list[list[float]]]
    """Slopes of each learned distance bias, each scale one, by layer and head."""

    def record(self) -> dict[str, Any]:
        """Return all as JSON can say it, numbers to six digits."""
        record: dict[str, Any] = rounded({
            "mean": self.model.mean(),
            "uniform": self.uniform.mean(),
            "queries": int(self.model.counts["weight"][0, 0].sum()),
            "by_layer": self.model.by_layer(),
            "by_head": self.model.by_head(),
            "by_position": self.model.by_position(),
            "alphas": self.alphas,
        })  # fmt: skip
        return record


class LocalityMeter:
    """Averages what `capture` shows it: give `see` to `capture`, then ask for `sections`.

    Metrics: expected_distance, mass@w of each width, entropy (all of rows divided by their sum),
    weight (the sum of a row, below 1 under a mask after the softmax), and gate where there are
    gates (of several scales, their mean). A query with nothing to see has no part in the first
    three.
    """

    def __init__(self, widths: Sequence[int] = WIDTHS) -> None:
        """Raises UserError for a width below 0."""
        if any(width < 0 for width in widths):
            raise UserError(f"widths = {list(widths)}: allowed are 0 and above")
        self.widths = tuple(dict.fromkeys(widths))
        self._found: dict[str, dict[int, _Sums]] = {}
        self._uniform: dict[str, dict[int, _Sums]] = {}
        self._alphas: dict[str, dict[int, list[list[float]]]] = {}

    def see(self, seen: Captured) -> None:
        """Add a layer's attention on a batch; raises UserError where it is not finite."""
        if not bool(torch.isfinite(seen.weights).all()):
            raise UserError(f"{seen.section}: layer {seen.layer}: weights that are not finite")
        real = seen.real[:, None].expand(seen.weights.shape[:3])
        metrics = self._metrics(seen, seen.weights) | {"weight": (seen.weights.sum(-1), real)}
        if seen.gates:
            metrics["gate"] = torch.stack(seen.gates).mean(0), real
        _add(self._found, seen, metrics)
        alphas = self._alphas.setdefault(seen.section, {})
        alphas[seen.layer] = [alpha.tolist() for alpha in seen.alphas]
        if seen.layer == 0:
            equal = (seen.visible & seen.real[:, None, :, None]).float()
            _add(self._uniform, seen, self._metrics(seen, equal))

    def sections(self) -> dict[str, Locality]:
        """Return what was found in each section."""
        return {
            name: Locality(
                _averages(self._found[name]),
                _averages(self._uniform[name]),
                [list(scale) for scale in zip(*_in_order(self._alphas[name]), strict=True)],
            )
            for name in self._found
        }

    def _metrics(self, seen: Captured, weights: Tensor) -> _Metrics:
        total = weights.sum(-1)
        sees = seen.real[:, None].expand(total.shape) & (total > 0)
        weights, distance = _prepared(weights, normalised=True), seen.distance
        found = {
            "expected_distance": expected_distance(weights, distance, normalised=False),
            **{
                f"mass@{width}": local_mass(weights, width, distance, normalised=False)
                for width in self.widths
            },
            "entropy": entropy(weights, normalised=False),
        }
        return {name: (values, sees) for name, values in found.items()}


def _add(found: dict[str, dict[int, _Sums]], seen: Captured, metrics: _Metrics) -> None:
    own = found.setdefault(seen.section, {}).setdefault(seen.layer, {})
    for name, (values, counted) in metrics.items():
        new = _by_place(values, counted, seen.places)
        if name in own:
            new = _sum(own[name][0], new[0]), _sum(own[name][1], new[1])
        own[name] = new


def _averages(layers: dict[int, _Sums]) -> Averages:
    rows = _in_order(layers)
    sums, counts = (
        {name: torch.stack([row[name][part] for row in rows]) for name in rows[0]}
        for part in (0, 1)
    )
    return Averages(sums, counts)


def _in_order(layers: Mapping[int, Found]) -> list[Found]:
    return [layers[layer] for layer in sorted(layers)]


def _by_place(values: Tensor, counted: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return sums and numbers of the values [B, H, Q] that count, by place: float64 [H, P]."""
    heads = values.shape[1]
    where = places.flatten()
    size = int(where.max()) + 1
    both = []
    for x in (values.double().masked_fill(~counted, 0.0), counted.double()):
        rows = x.transpose(0, 1).reshape(heads, -1)
        both.append(rows.new_zeros(heads, size).index_add_(1, where, rows).cpu())
    return both[0], both[1]


def _sum(a: Tensor, b: Tensor) -> Tensor:
    """Add [H, P] to [H, P'], the shorter as if it went on with 0."""
    long, short = (a, b) if a.shape[1] >= b.shape[1] else (b, a)
    long = long.clone()
    long[:, : short.shape[1]] += short
    return long


def locality(
    model: nn.Module, batches: Iterable[Inputs], widths: Sequence[int] = WIDTHS
) -> dict[str, Locality]:
    """Return `LocalityMeter.sections` of a model on some batches; raises UserError as both do."""
    meter = LocalityMeter(widths)
    capture(model, batches, meter.see)
    return meter.sections()
