"""Claims on perplexity and its floor; the referee is a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ala_encoder.errors import UserError
from ala_encoder.language_model import Unigram, perplexity
from ala_encoder.metrics import Undefined


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
