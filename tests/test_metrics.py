"""Claims on scores; the referee is a plain loop, straight from each definition."""

from __future__ import annotations

import json
import math
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from ala_encoder.errors import UserError
from ala_encoder.metrics import (
    METRICS,
    Undefined,
    Unigram,
    accuracy,
    f1,
    is_better,
    load_metric,
    perplexity,
    scores,
)

ROOT = Path(__file__).resolve().parents[1]


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
    for function in METRICS.values():
        with pytest.raises(UserError, match=rf"{side} hold .* allowed are 0, 1"):
            function(*pair)
    with pytest.raises(UserError):
        scores(["accuracy"], *pair)


# ---- what has no value ---------------------------------------------------------------------------


def test_a04_an_unlabelled_split_is_refused_with_a_reason() -> None:
    for references in (None, [-1, -1, -1], np.full(3, -1)):
        values, reasons = scores(["accuracy", "f1"], [1, 0, 1], references)
        assert values == {"accuracy": None, "f1": None}
        assert reasons["f1"] == "the split has no labels to compare 3 predictions with"
        json.dumps([values, reasons], allow_nan=False)


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
    values, reasons = scores(["accuracy", "f1"], [prediction], [reference])
    assert values == expected
    assert set(reasons) == {name for name, value in expected.items() if value is None}
    assert "neither predicted nor present" in reasons.get("f1", "neither predicted nor present")
    json.dumps([values, reasons], allow_nan=False)


def test_a12_no_example_is_undefined_for_every_metric() -> None:
    values, reasons = scores(list(METRICS), [], [])
    assert values == {"accuracy": None, "f1": None}
    assert set(reasons) == set(values)


def test_an_unknown_metric_is_refused_with_the_nearest() -> None:
    for function in (load_metric, lambda name: scores([name], [1], [1])):
        with pytest.raises(UserError, match=r"'acuracy': .*did you mean 'accuracy'"):
            function("acuracy")


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


# ---- perplexity ----------------------------------------------------------------------------------


def test_d06_perplexity_weighs_targets_not_batches() -> None:
    batches = [[1.0, 1.0, 1.0, 1.0], [9.0]]
    total = sum(sum(batch) for batch in batches)
    count = sum(len(batch) for batch in batches)
    assert math.isclose(perplexity(total, count), math.exp(2.6), rel_tol=1e-15)
    mean_of_means = sum(sum(batch) / len(batch) for batch in batches) / len(batches)
    assert mean_of_means == 5.0 and perplexity(total, count) < math.exp(mean_of_means)


def test_perplexity_is_infinite_where_it_overflows() -> None:
    assert perplexity(0.0, 5) == 1.0
    assert math.isclose(perplexity(7 * math.log(50), 7), 50)
    assert perplexity(1e6, 1) == math.inf
    assert perplexity(math.inf, 3) == math.inf


@pytest.mark.parametrize(("loss_sum", "count"), [(0.0, 0), (1.0, -1), (math.nan, 4)])
def test_perplexity_of_nothing_or_nan_is_undefined(loss_sum: float, count: int) -> None:
    with pytest.raises(Undefined):
        perplexity(loss_sum, count)


# ---- the unigram floor ---------------------------------------------------------------------------


def test_unigram_by_hand() -> None:
    floor = Unigram(np.array([3, 0, 1, 0]))
    np.testing.assert_allclose(np.exp(floor.log_probabilities), np.array([4, 1, 2, 1]) / 8)
    expected = -(math.log(4 / 8) + math.log(1 / 8)) / 2
    assert math.isclose(floor.loss([0, 3]), expected)


def test_unigram_equals_a_plain_loop_in_any_order_and_type() -> None:
    generator = np.random.default_rng(0)
    counts = generator.integers(0, 50, size=97)
    tokens = generator.integers(0, 97, size=501)
    total = int(counts.sum()) + 97
    expected = -sum(math.log((int(counts[t]) + 1) / total) for t in tokens) / len(tokens)
    floor = Unigram(counts)
    assert math.isclose(floor.loss(tokens), expected, rel_tol=1e-13)
    assert floor.loss(np.sort(tokens)) == floor.loss(tokens)
    for dtype in (np.uint8, np.uint16, np.uint64, np.int32):
        assert floor.loss(tokens.astype(dtype).reshape(3, 167)) == floor.loss(tokens)


def test_unigram_without_training_tokens_is_uniform() -> None:
    assert math.isclose(Unigram(np.zeros(11, int)).loss([0, 10]), math.log(11))


@pytest.mark.parametrize("token", [-1, -100, 4])
def test_d05_an_ignored_or_unknown_token_is_refused_by_the_floor(token: int) -> None:
    with pytest.raises(UserError, match=rf"token id {token}, allowed are 0\.\.3"):
        Unigram(np.ones(4, int)).loss([0, token])
    with pytest.raises(Undefined):
        Unigram(np.ones(4, int)).loss([])


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
        for label in (1.7, -1):
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
