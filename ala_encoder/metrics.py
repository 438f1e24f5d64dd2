"""Scores of predictions.

For: the official GLUE metrics (Wang et al. 2018, arXiv:1804.07461) as plain functions, the rule
for "best so far", and the same metrics as `evaluate.Metric` objects that need no network.
Not for: losses with a gradient (`objectives`), perplexity (`language_model`), or reading data.

One rule for what has no value: a function raises `Undefined`, `scores` gives None and the reason.
A score is never NaN. Sums are exact (of whole numbers, or `math.fsum`), so that no order of the
examples changes a digit. Plain functions need numpy only; `evaluate` is imported by `load_metric`.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ala_encoder.errors import UserError, nearest

if TYPE_CHECKING:
    import evaluate

_Values = Sequence[float] | npt.NDArray[Any]
_Floats = npt.NDArray[np.float64]


class Undefined(ValueError):
    """The metric has no value for this input; its text is the reason."""


def accuracy(predictions: _Values, references: _Values) -> float:
    """Return the share of predictions that equal their reference, in 0..1.

    Both are class numbers, shape (N,). Raises Undefined for N = 0, UserError for labels that are
    no class numbers (-1 and other marks of "no label" included) or counts that differ.
    """
    predicted, wanted = _pairs(predictions, references)
    return int((predicted == wanted).sum()) / len(wanted)


def f1(predictions: _Values, references: _Values, positive: int = 1) -> float:
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


def matthews_correlation(predictions: _Values, references: _Values) -> float:
    """Return the Matthews correlation of any number of classes, in -1..1.

    R_K = (c s - Σ p_k t_k) / √((s² - Σ p_k²)(s² - Σ t_k²)) with s examples, c of them right, and
    p_k, t_k how often class k is predicted and present (Gorodkin 2004; for two classes Matthews
    1975). 0.0 where one side has a single class, which `scores` notes. Both are class numbers,
    shape (N,); raises as `accuracy` does.
    """
    predicted, wanted = _pairs(predictions, references)
    if _single_class(predicted, wanted):
        return 0.0
    p, t, s = Counter(predicted.tolist()), Counter(wanted.tolist()), len(wanted)
    covariance = int((predicted == wanted).sum()) * s - sum(p[k] * t[k] for k in t)
    spreads = [s * s - sum(number * number for number in side.values()) for side in (p, t)]
    return covariance / math.sqrt(spreads[0] * spreads[1])


def pearson(predictions: _Values, references: _Values) -> float:
    """Return Pearson's correlation r = Σ x y / √(Σ x² Σ y²) of the centred sides, in -1..1.

    Both are numbers, shape (N,), of any size that a float64 has. Raises Undefined for N < 2, a
    prediction that is not finite, or a constant side; UserError for references that are not
    finite, for what is no number, or counts that differ.
    """
    return _correlation(*_number_pairs(predictions, references))


def spearmanr(predictions: _Values, references: _Values) -> float:
    """Return Spearman's correlation: Pearson's of the ranks, equal values sharing the mean rank.

    Arguments and errors are those of `pearson`.
    """
    predicted, wanted = _number_pairs(predictions, references)
    return _correlation(_ranks(predicted), _ranks(wanted))


METRICS: dict[str, Callable[[_Values, _Values], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews_correlation": matthews_correlation,
    "pearson": pearson,
    "spearmanr": spearmanr,
}
"""The official metrics by the names Hugging Face gives them."""


class Score(NamedTuple):
    """A metric's value, or None and the reason; the note says what a 0 by rule stands for."""

    value: float | None
    reason: str | None = None
    note: str | None = None


def scores(
    names: Sequence[str], predictions: _Values, references: _Values | None
) -> dict[str, Score]:
    """Return each named metric's score.

    `predictions` and `references` are class numbers, or for `pearson` and `spearmanr` numbers,
    shape (N,); references of None, or all -1, or all NaN, are an unlabelled split, on which every
    metric is undefined; so is every class metric where a predicted class is -1, which stands for
    logits that are not finite. Values are finite. Raises UserError for an unknown name, and as the
    metrics do.
    """
    functions = {name: _function(name) for name in names}
    if references is None or _unlabelled(np.asarray(references)):
        reason = f"the split has no labels to compare {len(predictions)} predictions with"
        return dict.fromkeys(functions, Score(None, reason))
    found = {}
    lost = int((np.asarray(predictions) == -1).sum())
    for name, function in functions.items():
        if lost and name not in ("pearson", "spearmanr"):
            _same_number(np.asarray(predictions), _classes("references", references))
            reason = f"{lost} of {len(predictions)} rows have logits that are not finite"
            found[name] = Score(None, reason)
            continue
        try:
            value, note = function(predictions, references), None
        except Undefined as error:
            found[name] = Score(None, str(error))
            continue
        if name == "matthews_correlation":
            single = _single_class(*_pairs(predictions, references))
            note = f"0 by rule: {single}" if single else None
        found[name] = Score(value, note=note)
    return found


def finite(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return values with None for what is not finite, since JSON has no NaN."""
    return {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in values.items()
    }


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


def load_metric(name: str) -> evaluate.Metric:
    """Return the metric `name` as an `evaluate.Metric`: offline, in memory, nothing on disk.

    `.compute(predictions=, references=)` gives {name: value}; an undefined metric is None and has
    its reason beside it under `NAME_undefined`, a note is under `NAME_note`. Importing `evaluate`
    takes 5 to 14 s when cold.
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
                description=f"{name}, computed by ala_encoder.metrics",
                citation="",
                inputs_description="predictions, references: numbers, N each",
                features=datasets.Features({"predictions": number, "references": number}),
            )

        def _compute(self, predictions: list[float], references: list[float]) -> dict[str, Any]:
            score = scores([name], predictions, references)[name]
            beside = {f"{name}_undefined": score.reason, f"{name}_note": score.note}
            return {name: score.value, **{key: text for key, text in beside.items() if text}}

    # evaluate derives a metric's name from its class
    _Local.__name__ = _Local.__qualname__ = name.capitalize()
    # its constructor makes a folder even for a metric in memory; nothing is ever put there
    with tempfile.TemporaryDirectory(prefix="ala_encoder-metric-") as folder:
        return _Local(keep_in_memory=True, cache_dir=folder)


def _function(name: str) -> Callable[[_Values, _Values], float]:
    if name not in METRICS:
        raise UserError(
            f"metric {name!r}: allowed are {', '.join(METRICS)}{nearest(name.lower(), METRICS)}"
        )
    return METRICS[name]


def _pairs(
    predictions: _Values, references: _Values
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    predicted, wanted = _classes("predictions", predictions), _classes("references", references)
    _same_number(predicted, wanted)
    if not len(wanted):
        raise Undefined("there is no example")
    return predicted, wanted


def _number_pairs(predictions: _Values, references: _Values) -> tuple[_Floats, _Floats]:
    predicted, wanted = _numbers("predictions", predictions), _numbers("references", references)
    _same_number(predicted, wanted)
    if not np.isfinite(wanted).all():
        bad = int((~np.isfinite(wanted)).sum())
        raise UserError(
            f"metric: {bad} of {len(wanted)} references are not finite; a split has all of its "
            "labels, or none"
        )
    if len(wanted) < 2:
        raise Undefined(f"a correlation needs 2 examples, there is {len(wanted) or 'none'}")
    # what a run that diverged predicts is no mistake of the user's
    if bad := int((~np.isfinite(predicted)).sum()):
        raise Undefined(f"{bad} of {len(predicted)} predictions are not finite")
    for what, side in (("predictions", predicted), ("references", wanted)):
        if (side == side[0]).all():
            raise Undefined(f"all {len(side)} {what} are {side[0]:g}: no correlation")
    return predicted, wanted


def _same_number(predicted: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> None:
    if len(predicted) != len(wanted):
        raise UserError(
            f"metric: {len(predicted)} predictions and {len(wanted)} references, allowed are equal "
            "counts"
        )


def _unlabelled(references: npt.NDArray[Any]) -> bool:
    marks = (references == -1, references != references)  # NaN alone differs from itself
    return bool(len(references)) and any(bool(np.all(mark)) for mark in marks)


def _single_class(predicted: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> str | None:
    for what, side in (("predictions", predicted), ("references", wanted)):
        if (side == side[0]).all():
            return f"all {len(side)} {what} are of class {side[0]}"
    return None


def _correlation(x: _Floats, y: _Floats) -> float:
    x, y = _centred(x), _centred(y)
    covariance = math.fsum((x * y).tolist())
    spread = math.sqrt(math.fsum((x * x).tolist()) * math.fsum((y * y).tolist()))
    return min(1.0, max(-1.0, covariance / spread))


def _centred(values: _Floats) -> _Floats:
    """Return values minus their mean, times a power of two: the largest lies in 0.5..1.

    Scaled before and after, so that neither 1e300 overflows nor 1e-300 vanishes in a square; the
    second subtraction takes out what rounding left in the first mean.
    """
    values = _scaled(values)
    for _ in range(2):
        values = values - math.fsum(values.tolist()) / len(values)
    return _scaled(values)


def _scaled(values: _Floats) -> _Floats:
    scaled: _Floats = np.ldexp(values, -math.frexp(float(np.abs(values).max()))[1])
    return scaled


def _ranks(values: _Floats) -> _Floats:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: _Floats = (np.cumsum(counts) - (counts - 1) / 2)[group]
    return ranks


def _numbers(what: str, values: _Values) -> _Floats:
    array = _column(what, values)
    if len(array) and array.dtype.kind not in "iubf":
        raise UserError(f"metric: {what} hold {array[0]!r}, allowed are numbers")
    return array.astype(np.float64)


def _column(what: str, values: _Values) -> npt.NDArray[Any]:
    array = np.asarray(values)
    # (N, 1) against (N,) would broadcast to N x N and still give a number
    if array.ndim != 1:
        raise UserError(f"metric: {what} of shape {array.shape}, allowed is one value each: (N,)")
    return array


def _classes(what: str, values: _Values) -> npt.NDArray[np.int64]:
    array = _column(what, values)
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
