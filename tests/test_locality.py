"""Metrics of locality by hand and against the values of a uniform causal map."""

from __future__ import annotations

import math

import pytest
import torch

from ala_encoder.analysis.locality import entropy, expected_distance, local_mass


def test_a_map_worked_out_by_hand() -> None:
    weights = torch.tensor([[1.0, 0, 0, 0], [0.25, 0.75, 0, 0], [0, 0, 0, 0], [0.5, 0, 0.25, 0.25]])
    assert expected_distance(weights).tolist() == [0.0, 0.25, 0.0, 1.75]
    assert local_mass(weights, 0).tolist() == [1.0, 0.75, 0.0, 0.25]
    assert local_mass(weights, 1).tolist() == [1.0, 1.0, 0.0, 0.5]
    assert local_mass(weights, 3).tolist() == [1.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_e12_hidden_keys_add_nothing_to_the_entropy(dtype: torch.dtype) -> None:
    weights = torch.tensor([[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0] * 4], dtype=dtype)
    found = entropy(weights)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(found.double(), torch.tensor([math.log(2), 0, 0]).double())


def test_a_uniform_causal_map_of_512_tokens() -> None:
    """The reference that Adaptive Locality Attention's numbers are read against."""
    weights = torch.ones(512, 512, dtype=torch.float64).tril()
    weights /= weights.sum(-1, keepdim=True)
    assert expected_distance(weights).mean().item() == pytest.approx(127.75)
    assert local_mass(weights, 32).mean().item() == pytest.approx(0.24026, abs=5e-6)
    assert local_mass(weights, 64).mean().item() == pytest.approx(0.38813, abs=5e-6)
    assert entropy(weights).mean().item() == pytest.approx(5.2462, abs=5e-5)


def test_more_keys_than_queries_count_from_the_first_of_both() -> None:
    assert expected_distance(torch.full((2, 3, 5), 0.2)).shape == (2, 3)
    assert expected_distance(torch.full((1, 5), 0.2)).item() == pytest.approx(2.0)
