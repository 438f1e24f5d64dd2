"""Claims on scores; the referee is a plain loop, straight from each definition."""

from __future__ import annotations

import json
import math
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from ala_encoder.errors import UserError
from ala_encoder.metrics import (
    METRICS,
    Score,
    Undefined,
    accuracy,
    f1,
    finite,
    is_better,
    load_metric,
    matthews_correlation,
    pearson,
    scores,
    spearmanr,
)

ROOT = Path(__file__).resolve().parents[1]
OF_CLASSES = ["accuracy", "f1", "matthews_correlation"]
OF_NUMBERS = ["pearson", "spearmanr"]
correlations = pytest.mark.parametrize("correlation", [pearson, spearmanr])
Metric = Callable[[Sequence[float], Sequence[float]], float]


def loop_accuracy(predictions: Sequence[int], references: Sequence[int]) -> float:
    hits = 0
    for predicted, wanted in zip(predictions, references, strict=True):
        hits += predicted == wanted
    return hits / len(references)


def loop_f1(predictions: Sequence[int], references: Sequence[int], positive: int) -> float | None:
    """Harmonic mean of precision and recall, 0 when both are, None when neither has a value."""
    hit = false_alarm = miss = 0
    for predicted, wanted in zip(predictions, references, strict=True):
        if predicted == positive and wanted == positive:
            hit += 1
        elif predicted == positive:
            false_alarm += 1
        elif wanted == positive:
            miss += 1
    if hit == 0:
        return None if false_alarm + miss == 0 else 0.0
    precision, recall = hit / (hit + false_alarm), hit / (hit + miss)
    return 2 * precision * recall / (precision + recall)


def loop_matthews(predictions: Sequence[int], references: Sequence[int]) -> float:
    """Gorodkin's R_K as the covariances of one-hot columns, summed over classes."""
    classes = sorted({*predictions, *references})
    n = len(references)

    def covariance(a: Sequence[int], b: Sequence[int]) -> Fraction:
        total = Fraction(0)
        for k in classes:
            mean_a, mean_b = Fraction(a.count(k), n), Fraction(b.count(k), n)
            for u, v in zip(a, b, strict=True):
                total += ((u == k) - mean_a) * ((v == k) - mean_b)
        return total

    spread = covariance(predictions, predictions) * covariance(references, references)
    return float(covariance(predictions, references)) / math.sqrt(spread)


def loop_pearson(x: Sequence[float], y: Sequence[float]) -> float:
    """The definition in exact fractions, rounded at the end only."""
    a, b = [Fraction(v) for v in x], [Fraction(v) for v in y]
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    over = sum((u - mean_a) * (v - mean_b) for u, v in zip(a, b, strict=True))
    squared = over**2 / (sum((u - mean_a) ** 2 for u in a) * sum((v - mean_b) ** 2 for v in b))
    return math.sqrt(squared) * (-1 if over < 0 else 1)


def loop_ranks(values: Sequence[float]) -> list[float]:
    """The mean place of each value among all: those below it, and half of its other equals."""
    return [
        sum(other < value for other in values) + (sum(v == value for v in values) + 1) / 2
        for value in values
    ]


# ---- accuracy and F1 -----------------------------------------------------------------------------


def test_accuracy_and_f1_by_hand() -> None:
    predictions, references = [1, 1, 0, 0, 1], [1, 0, 1, 0, 1]
    assert accuracy(predictions, references) == 3 / 5
    assert f1(predictions, references) == 4 / 6  # TP 2, FP 1, FN 1
    assert f1(predictions, references, positive=0) == 2 / 4  # TP 1, FP 1, FN 1


def test_accuracy_and_f1_equal_a_plain_loop() -> None:
    generator = random.Random(0)
    undefined = 0
    for size in range(1, 34):
        for classes in (1, 2, 3):
            predictions = [generator.randrange(classes) for _ in range(size)]
            references = [generator.randrange(classes) for _ in range(size)]
            assert accuracy(predictions, references) == loop_accuracy(predictions, references)
            for positive in (0, 1):
                expected = loop_f1(predictions, references, positive)
                if expected is None:
                    undefined += 1
                    with pytest.raises(Undefined):
                        f1(predictions, references, positive)
                else:
                    found = f1(predictions, references, positive)
                    assert math.isclose(found, expected, rel_tol=1e-15, abs_tol=0)
    assert undefined > 30


def test_f1_is_zero_and_defined_when_every_positive_is_missed() -> None:
    assert f1([0, 0], [0, 1]) == 0.0
    assert f1([1, 0], [0, 0]) == 0.0


def test_arrays_and_lists_score_alike() -> None:
    predictions, references = np.array([1, 0, 1], np.uint8), np.array([1, 1, 1], np.int32)
    assert accuracy(predictions, references) == accuracy([1, 0, 1], [1, 1, 1]) == 2 / 3
    assert f1(predictions, references) == f1([1.0, 0.0, 1.0], [True, True, True]) == 4 / 5  # type: ignore[list-item]


def test_counts_that_differ_are_refused_with_both() -> None:
    with pytest.raises(UserError, match="3 predictions and 2 references"):
        accuracy([1, 1, 1], [1, 1])


def test_scores_of_several_columns_are_refused_rather_than_broadcast() -> None:
    with pytest.raises(UserError, match=r"predictions of shape \(3, 1\)"):
        accuracy(np.array([[1], [0], [1]]), [1, 0, 1])


@pytest.mark.parametrize("label", [-1, -100, 1.5, math.nan, math.inf, -math.inf, 1e300, "1", None])
@pytest.mark.parametrize("side", ["predictions", "references"])
def test_d05_only_class_numbers_enter_a_metric(label: object, side: str) -> None:
    bad, good = [0, label, 1], [0, 1, 1]
    pair = (bad, good) if side == "predictions" else (good, bad)
    for name in OF_CLASSES:
        with pytest.raises(UserError, match=rf"{side} hold .* allowed are 0, 1"):
            METRICS[name](*pair)
    if (label, side) != (-1, "predictions"):  # the mark of logits that are not finite
        with pytest.raises(UserError):
            scores(["accuracy"], *pair)


def test_a_prediction_without_finite_logits_leaves_every_class_metric_undefined() -> None:
    lost = Score(None, "2 of 3 rows have logits that are not finite")
    assert scores(OF_CLASSES, [-1, 1, -1], [0, 1, 1]) == dict.fromkeys(OF_CLASSES, lost)
    for references in ([0, 1, -1], [0, 1]):
        with pytest.raises(UserError):
            scores(["accuracy"], [-1, 1, -1], references)
    assert scores(["pearson"], [-1, 1, 0], [-1, 1, 0])["pearson"].value == pytest.approx(1.0)


# ---- what has no value ---------------------------------------------------------------------------


def test_a04_an_unlabelled_split_is_refused_with_a_reason() -> None:
    for references in (None, [-1, -1, -1], np.full(3, -1)):
        missing = Score(None, "the split has no labels to compare 3 predictions with")
        found = scores(["accuracy", "f1"], [1, 0, 1], references)
        assert found == {"accuracy": missing, "f1": missing}


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        (0, 0, {"accuracy": 1.0, "f1": None}),
        (1, 1, {"accuracy": 1.0, "f1": 1.0}),
        (0, 1, {"accuracy": 0.0, "f1": 0.0}),
    ],
)
def test_a12_one_example_is_scored_or_reported_as_undefined(
    prediction: int, reference: int, expected: dict[str, float | None]
) -> None:
    found = scores(["accuracy", "f1"], [prediction], [reference])
    assert {name: score.value for name, score in found.items()} == expected
    for name, score in found.items():
        told = "neither predicted nor present" in (score.reason or "")
        assert told == (score.value is None), name
    json.dumps(found, allow_nan=False)


def test_a12_no_example_is_undefined_for_every_metric() -> None:
    found = scores(list(METRICS), [], [])
    assert list(found) == list(METRICS)
    assert all(s.value is None and s.reason and not s.note for s in found.values())


def test_an_unknown_metric_is_refused_with_the_nearest() -> None:
    for function in (load_metric, lambda name: scores([name], [1], [1])):
        with pytest.raises(UserError, match=r"'acuracy': .*did you mean 'accuracy'"):
            function("acuracy")


# ---- Matthews correlation ------------------------------------------------------------------------


def test_matthews_by_hand() -> None:
    # TP 2, FP 1, FN 1, TN 1: (2·1 - 1·1) / √(3·3·2·2)
    assert matthews_correlation([1, 1, 0, 0, 1], [1, 0, 1, 0, 1]) == 1 / 6
    assert matthews_correlation([0, 1, 2, 2], [0, 1, 2, 2]) == 1.0
    assert matthews_correlation([1, 0, 1, 0], [0, 1, 0, 1]) == -1.0
    # class numbers as large as they come need no table of their size
    assert matthews_correlation([0, 2**31 - 1], [0, 2**31 - 1]) == 1.0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_matthews_equals_the_covariances_of_classes_and_scikit_learn() -> None:
    from sklearn.metrics import matthews_corrcoef

    generator, scored = random.Random(1), 0
    for size in range(2, 34):
        for classes in (2, 3, 5):
            predictions = [generator.randrange(classes) for _ in range(size)]
            references = [generator.randrange(classes) for _ in range(size)]
            found = matthews_correlation(predictions, references)
            assert -1 <= found <= 1
            referee = float(matthews_corrcoef(references, predictions))
            assert math.isclose(found, referee, rel_tol=1e-12, abs_tol=1e-12)
            if len({*predictions}) > 1 and len({*references}) > 1:
                scored += 1
                expected = loop_matthews(predictions, references)
                assert math.isclose(found, expected, rel_tol=1e-14, abs_tol=1e-15)
    assert scored > 80


@pytest.mark.parametrize(
    ("predictions", "references", "what"),
    [
        ([1, 1, 1, 1], [1, 0, 1, 1], "all 4 predictions are of class 1"),
        ([0, 1, 0], [2, 2, 2], "all 3 references are of class 2"),
        ([1, 1], [1, 1], "all 2 predictions are of class 1"),
        ([0], [1], "all 1 predictions are of class 0"),
    ],
)
def test_a11_a_single_class_is_a_matthews_correlation_of_zero_with_a_note_on_every_path(
    predictions: list[int], references: list[int], what: str
) -> None:
    name = "matthews_correlation"
    assert matthews_correlation(predictions, references) == 0.0
    found = scores(["accuracy", name], predictions, references)
    assert found[name] == Score(0.0, note=f"0 by rule: {what}")
    assert found["accuracy"].note is None
    metric = load_metric(name).compute(predictions=predictions, references=references)
    assert metric == {name: 0.0, f"{name}_note": f"0 by rule: {what}"}


def test_a_zero_that_was_computed_has_no_note() -> None:
    found = scores(["matthews_correlation"], [0, 1, 0, 1], [0, 0, 1, 1])
    assert found == {"matthews_correlation": Score(0.0)}


# ---- Pearson and Spearman ------------------------------------------------------------------------


def test_correlations_by_hand() -> None:
    assert pearson([1, 2, 3], [2, 4, 6]) == spearmanr([1, 2, 3], [2, 4, 600]) == 1.0
    assert pearson([1, 2, 3], [1, 0, -1]) == -1.0
    # centred -1, 0, 1 and -1, 1, 0: 1 / √(2·2)
    assert math.isclose(pearson([1, 2, 3], [5, 7, 6]), 0.5, rel_tol=1e-15)
    # ranks 1.5, 1.5, 3, 4 and 1, 2, 3, 4: 4.5 / √(4.5·5)
    assert math.isclose(spearmanr([7, 7, 8, 9], [1, 2, 3, 4]), math.sqrt(0.9), rel_tol=1e-15)
    assert spearmanr([0.0, -0.0, 1.0], [3, 3, 4]) == 1.0


def test_correlations_equal_exact_fractions_and_scipy() -> None:
    from scipy import stats

    generator = np.random.default_rng(2)
    for size in range(3, 34):
        x, y = generator.normal(size=size), generator.normal(size=size)
        if size % 2:
            x, y = x.round(), generator.integers(0, 6, size) / 1.0  # many ties
        if len({*x}) == 1 or len({*y}) == 1:
            continue
        a, b = x.tolist(), y.tolist()
        exact = loop_pearson(a, b), loop_pearson(loop_ranks(a), loop_ranks(b))
        for function, expected, referee in zip(
            (pearson, spearmanr), exact, (stats.pearsonr(x, y), stats.spearmanr(x, y)), strict=True
        ):
            assert math.isclose(function(a, b), expected, rel_tol=1e-13, abs_tol=1e-15)
            assert math.isclose(function(a, b), float(referee.statistic), abs_tol=1e-12)


@pytest.mark.parametrize(
    ("scale", "shift"),
    [(1e300, 0.0), (1e-300, 0.0), (5e-324, 0.0), (1e-9, 1e6), (2.0**-45, 1.0), (1e307, -1e308)],
)
def test_extreme_numbers_have_their_exact_correlation(scale: float, shift: float) -> None:
    """Squares of these overflow, vanish or cancel; a warning would be an error here."""
    generator = np.random.default_rng(3)
    x = (generator.integers(1, 9, 20) * scale + shift).tolist()
    y = generator.normal(size=20).tolist()
    for a, b in ((x, y), (y, x), (x, x)):
        found = pearson(a, b)
        assert math.isclose(found, loop_pearson(a, b), rel_tol=1e-12) and -1 <= found <= 1
        assert math.isclose(
            spearmanr(a, b), loop_pearson(loop_ranks(a), loop_ranks(b)), rel_tol=1e-12
        )


def test_r21_the_order_of_the_examples_changes_no_digit() -> None:
    generator = np.random.default_rng(4)
    numbers = generator.normal(size=(2, 333)) * [[1e3], [1.0]]
    classes = generator.integers(0, 4, (2, 333))
    for name, function in METRICS.items():
        x, y = numbers if name in OF_NUMBERS else classes
        for _ in range(20):
            order = generator.permutation(333)
            assert function(x[order], y[order]) == function(x, y)


@correlations
@pytest.mark.parametrize(
    ("predictions", "references", "reason"),
    [
        ([2.5] * 5, [0, 1, 2, 3, 4], "all 5 predictions are 2.5: no correlation"),
        ([0.1, 0.2], [3.0, 3.0], "all 2 references are 3: no correlation"),
        ([1e300] * 3, [0, 1, 2], "all 3 predictions are 1e"),
        ([0.1, math.nan, 0.3], [1, 2, 3], "1 of 3 predictions are not finite"),
        ([math.inf, -math.inf, 0.3], [1, 2, 3], "2 of 3 predictions are not finite"),
    ],
)
def test_a09_a_correlation_without_a_value_has_a_reason_and_is_never_best(
    correlation: Metric, predictions: list[float], references: list[float], reason: str
) -> None:
    with pytest.raises(Undefined, match=reason):
        correlation(predictions, references)
    name = correlation.__name__
    score = scores([name], predictions, references)[name]
    assert score.value is None and reason in (score.reason or "") and score.note is None
    assert not is_better(score.value, -0.9, "max")
    found = load_metric(name).compute(predictions=predictions, references=references)
    assert found == {name: None, f"{name}_undefined": score.reason}


@correlations
@pytest.mark.parametrize("prediction", [2.0, math.nan])
def test_a12_one_example_has_no_correlation(correlation: Metric, prediction: float) -> None:
    with pytest.raises(Undefined, match="needs 2 examples, there is 1"):
        correlation([prediction], [2.0])


@correlations
def test_a04_numbers_without_labels_are_an_unlabelled_split_and_some_are_a_mistake(
    correlation: Metric,
) -> None:
    name = correlation.__name__
    for references in (None, [math.nan] * 3, np.full(3, np.nan), [-1.0] * 3):
        missing = Score(None, "the split has no labels to compare 3 predictions with")
        assert scores([name], [0.1, 0.2, 0.3], references) == {name: missing}
    for gap in (math.nan, math.inf):
        with pytest.raises(UserError, match="1 of 3 references are not finite"):
            scores([name], [0.1, 0.2, 0.3], [1.0, gap, 2.0])


@correlations
@pytest.mark.parametrize("bad", [[1.0, "2"], [1.0, None], [1 + 2j, 1.0]])
def test_only_numbers_of_one_column_and_equal_count_are_correlated(
    correlation: Metric, bad: list[Any]
) -> None:
    for pair in ((bad, [1.0, 2.0]), ([1.0, 2.0], bad)):
        with pytest.raises(UserError, match="allowed are numbers"):
            correlation(*pair)
    with pytest.raises(UserError, match=r"predictions of shape \(2, 1\)"):
        correlation(np.ones((2, 1)), [1.0, 2.0])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="3 predictions and 2 references"):
        correlation([1.0, 2.0, 3.0], [1.0, 2.0])


# ---- best so far ---------------------------------------------------------------------------------


def best_of(history: Sequence[float | None], mode: str) -> tuple[float | None, int | None]:
    best, at = None, None
    for step, value in enumerate(history, start=1):
        if is_better(value, best, mode):  # type: ignore[arg-type]
            best, at = value, step
    return best, at


def test_a14_nan_is_never_best() -> None:
    nan = math.nan
    assert best_of([nan, 0.5, 0.7, nan], "max") == (0.7, 3)
    assert best_of([nan, 0.5, 0.7, nan], "min") == (0.5, 2)
    assert is_better(0.1, nan, "max") and is_better(0.1, nan, "min")
    # the naive compare keeps the first NaN for ever
    assert not any(value > nan for value in (0.5, 0.7))


@pytest.mark.parametrize("mode", ["max", "min"])
def test_a_missing_or_infinite_value_is_never_best(mode: str) -> None:
    assert best_of([None, math.inf, -math.inf, 0.0, None, math.inf], mode) == (0.0, 4)
    assert best_of([None, math.nan], mode) == (None, None)


def test_a_tie_keeps_the_earlier() -> None:
    assert best_of([0.5, 0.7, 0.7], "max") == (0.7, 2)
    assert best_of([0.5, 0.4, 0.4], "min") == (0.4, 2)


def test_what_is_not_finite_is_none() -> None:
    given = {"a": 0.0, "b": math.nan, "c": -math.inf, "d": None, "e": 1e308}
    assert finite(given) == {"a": 0.0, "b": None, "c": None, "d": None, "e": 1e308}


# ---- evaluate ------------------------------------------------------------------------------------


def test_reading_and_scoring_never_import_evaluate() -> None:
    code = (
        "import sys; from ala_encoder import glue, metrics; metrics.scores(['f1'], [1], [1]);"
        "heavy = {'evaluate', 'datasets', 'torch', 'transformers', 'deepspeed', 'mlflow'};"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_evaluate_metrics_work_offline_and_write_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a metric reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    import evaluate

    # after the import, whose own libraries may make temporary folders
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path / "metrics"))

    predictions, references = [1, 1, 0, 0, 1], [1, 0, 1, 0, 1]
    for name, function in METRICS.items():
        metric = load_metric(name)
        assert isinstance(metric, evaluate.Metric) and metric.name == name
        expected = {name: function(predictions, references)}
        assert metric.compute(predictions=predictions, references=references) == expected
        # batch by batch, arrays, and again after an error: the same
        with pytest.raises(ValueError, match=r"predictions \(1\) and references \(2\)"):
            metric.compute(predictions=[1], references=[1, 0])
        for label in (1.7, -2) if name in OF_CLASSES else ():
            with pytest.raises(UserError, match=f"predictions hold {label}"):
                metric.compute(predictions=[label], references=[1])
        metric.add_batch(predictions=np.array(predictions[:2]), references=np.array(references[:2]))
        metric.add_batch(predictions=predictions[2:], references=references[2:])
        assert metric.compute() == expected
    undefined = load_metric("f1").compute(predictions=[0], references=[0])
    assert undefined["f1"] is None and "neither predicted" in undefined["f1_undefined"]
    both = evaluate.combine([load_metric("accuracy"), load_metric("f1")])
    assert both.compute(predictions=[1, 0], references=[1, 1]) == {"accuracy": 0.5, "f1": 2 / 3}
    assert list(tmp_path.iterdir()) == []
