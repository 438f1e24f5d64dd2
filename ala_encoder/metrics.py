"""Scores of predictions, and the floor and the perplexity of language models.

For: the official GLUE metrics (Wang et al. 2018, arXiv:1804.07461) as plain functions, the rule
for "best so far", and the same metrics as `evaluate.Metric` objects that need no network.
Not for: losses with a gradient (`objectives`), or reading data (`glue`).

One rule for what has no value: a function raises `Undefined`, `scores` gives None and the reason.
A score is never NaN. Plain functions need numpy only; `evaluate` is imported by `load_metric`.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ala_encoder.errors import UserError, nearest

if TYPE_CHECKING:
    import evaluate

_Classes = Sequence[int] | npt.NDArray[np.integer[Any]]


class Undefined(ValueError):
    """The metric has no value for this input; its text is the reason."""


def accuracy(predictions: _Classes, references: _Classes) -> float:
    """Return the share of predictions that equal their reference, in 0..1.

    Both are class numbers, shape (N,). Raises Undefined for N = 0, UserError for labels that are
    no class numbers (-1 and other marks of "no label" included) or counts that differ.
    """
    predicted, wanted = _pairs(predictions, references)
    return int((predicted == wanted).sum()) / len(wanted)


def f1(predictions: _Classes, references: _Classes, positive: int = 1) -> float:
    """Return F1 of one class: 2 TP / (2 TP + FP + FN), in 0..1 (van Rijsbergen 1979).

    Both are class numbers, shape (N,). Raises Undefined when `positive` is neither predicted nor
    present (0/0) or N = 0, UserError as `accuracy` does.
    """
    predicted, wanted = _pairs(predictions, references)
    predicted_positive, present = predicted == positive, wanted == positive
    found = int(predicted_positive.sum()) + int(present.sum())  # 2 TP + FP + FN
    if found == 0:
        raise Undefined(
            f"F1 of class {positive}: it is neither predicted nor present in {len(wanted)} examples"
        )
    return 2 * int((predicted_positive & present).sum()) / found


METRICS: dict[str, Callable[[_Classes, _Classes], float]] = {"accuracy": accuracy, "f1": f1}


def scores(
    names: Sequence[str], predictions: _Classes, references: _Classes | None
) -> tuple[dict[str, float | None], dict[str, str]]:
    """Return each named metric's value, and for each that is undefined (None) the reason.

    `predictions` and `references` are class numbers, shape (N,); references of None, or all -1,
    are an unlabelled split, on which every metric is undefined. Both dicts are strict JSON.
    Raises UserError for an unknown name, and as `accuracy` does.
    """
    functions = {name: _function(name) for name in names}
    if references is None or (len(references) and bool((np.asarray(references) == -1).all())):
        reason = f"the split has no labels to compare {len(predictions)} predictions with"
        return dict.fromkeys(functions), dict.fromkeys(functions, reason)
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for name, function in functions.items():
        try:
            values[name] = function(predictions, references)
        except Undefined as error:
            values[name], reasons[name] = None, str(error)
    return values, reasons


def is_better(new: float | None, best: float | None, mode: Literal["max", "min"]) -> bool:
    """Return whether `new` replaces `best`: a tie keeps the earlier one.

    None, NaN and infinities are never best, and any finite value replaces them.
    """
    assert mode in ("max", "min"), mode
    if new is None or not math.isfinite(new):
        return False
    if best is None or not math.isfinite(best):
        return True
    return new > best if mode == "max" else new < best


def perplexity(loss_sum: float, count: int) -> float:
    """Return exp(loss_sum / count), the perplexity per target; infinity where that overflows.

    `loss_sum` is the summed negative log-likelihood in nats over `count` targets: sums, never
    means of batches, so that no batch weighs more than its targets. Raises Undefined when there is
    no target or the sum is NaN.
    """
    if count <= 0 or math.isnan(loss_sum):
        raise Undefined(f"perplexity of a loss of {loss_sum} over {count} targets")
    try:
        return math.exp(loss_sum / count)
    except OverflowError:
        return math.inf


class Unigram:
    """The floor of a masked language model: token frequencies alone, with add-one smoothing.

    p(v) = (counts[v] + 1) / (sum(counts) + V)    (Laplace; Jurafsky & Martin, ch. 3)
    """

    def __init__(self, counts: npt.NDArray[np.integer[Any]]) -> None:
        """Fit on `counts`, shape (V,): how often each token of the vocabulary was in training."""
        counts = np.asarray(counts)
        assert counts.ndim == 1 and counts.size and counts.dtype.kind in "iu", counts.shape
        assert int(counts.min()) >= 0, "a negative count"
        total = int(counts.sum(dtype=np.int64)) + len(counts)
        self.log_probabilities: npt.NDArray[np.float64] = np.log(counts + 1.0) - math.log(total)

    def loss(self, tokens: npt.ArrayLike) -> float:
        """Return the mean negative log-likelihood of held-out target `tokens`, in nats per token.

        `tokens` are ids in 0..V-1 of any shape; padding and unchosen positions are left out by the
        caller. Counted before they are weighed, so that no order or cut changes the value. Raises
        Undefined when there is none, UserError for an id outside the vocabulary.
        """
        ids = np.asarray(tokens).reshape(-1)
        if ids.size == 0:
            raise Undefined("unigram loss of no token")
        assert ids.dtype.kind in "iu", ids.dtype
        low, high, size = int(ids.min()), int(ids.max()), len(self.log_probabilities)
        if low < 0 or high >= size:
            outside = low if low < 0 else high
            raise UserError(f"unigram loss: token id {outside}, allowed are 0..{size - 1}")
        counts = np.bincount(ids.astype(np.int64), minlength=size)
        return -float(counts @ self.log_probabilities) / ids.size


def load_metric(name: str) -> evaluate.Metric:
    """Return the metric `name` as an `evaluate.Metric`: offline, in memory, nothing on disk.

    `.compute(predictions=, references=)` gives {name: value}; an undefined metric is None and has
    its reason beside it under `NAME_undefined`. Importing `evaluate` takes 5 to 14 s when cold.
    Raises UserError for an unknown name; `compute` raises as `accuracy` does.
    """
    _function(name)
    import datasets
    import evaluate

    class _Local(evaluate.Metric):  # type: ignore[misc]  # evaluate ships no types
        def _info(self) -> evaluate.MetricInfo:
            # int64 would cut 1.7 to 1 without a word, before we could refuse it
            number = datasets.Value("float64")
            return evaluate.MetricInfo(
                description=f"{name} of class numbers, computed by ala_encoder.metrics",
                citation="",
                inputs_description="predictions, references: class numbers, N each",
                features=datasets.Features({"predictions": number, "references": number}),
            )

        def _compute(self, predictions: list[float], references: list[float]) -> dict[str, Any]:
            values, reasons = scores([name], predictions, references)  # type: ignore[arg-type]
            return {**values, **{f"{key}_undefined": why for key, why in reasons.items()}}

    # evaluate derives a metric's name from its class
    _Local.__name__ = _Local.__qualname__ = name.capitalize()
    # its constructor makes a folder even for a metric in memory; nothing is ever put there
    with tempfile.TemporaryDirectory(prefix="ala_encoder-metric-") as folder:
        return _Local(keep_in_memory=True, cache_dir=folder)


def _function(name: str) -> Callable[[_Classes, _Classes], float]:
    if name not in METRICS:
        raise UserError(
            f"metric {name!r}: allowed are {', '.join(METRICS)}{nearest(name.lower(), METRICS)}"
        )
    return METRICS[name]


def _pairs(
    predictions: _Classes, references: _Classes
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    predicted, wanted = _classes("predictions", predictions), _classes("references", references)
    if len(predicted) != len(wanted):
        raise UserError(
            f"metric: {len(predicted)} predictions and {len(wanted)} references, allowed are equal "
            "counts"
        )
    if not len(wanted):
        raise Undefined("there is no example")
    return predicted, wanted


def _classes(what: str, values: _Classes) -> npt.NDArray[np.int64]:
    array = np.asarray(values)
    # (N, 1) against (N,) would broadcast to N x N and still give a number
    if array.ndim != 1:
        raise UserError(f"metric: {what} of shape {array.shape}, allowed is one class each: (N,)")
    if array.dtype.kind in "iubf":
        # infinities and NaN fail these as well
        good = (array >= 0) & (array < 2**31) & (array == np.floor(array))
    else:
        good = np.zeros(len(array), dtype=bool)
    wrong = array[~good]
    if len(wrong):
        raise UserError(
            f"metric: {what} hold {wrong[0]!s}; {len(wrong)} of {len(array)} values are no class "
            "number, allowed are 0, 1, ..."
        )
    return array.astype(np.int64)
