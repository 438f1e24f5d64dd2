"""Dropout against its definition: what is kept, how much, by how much it is scaled."""

from __future__ import annotations

import math

import pytest
import torch

from ala_encoder.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.999])
def test_entries_are_zeroed_with_probability_p_and_the_others_scaled(p: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(500, 401) + 10
    found = Dropout(p)(x)
    zeros = (found == 0).double().mean().item()
    assert abs(zeros - p) < 5 * math.sqrt(p * (1 - p) / x.numel()) + 2**-17
    kept = found != 0
    assert torch.allclose(found[kept], x[kept] / (1 - p), rtol=2**-16 / (1 - p))


def test_the_mean_is_kept_although_p_is_rounded() -> None:
    torch.manual_seed(1)
    found = Dropout(0.1)(torch.ones(2_000_000)).double()
    assert found.mean().item() == pytest.approx(1.0, abs=5 * math.sqrt(0.1 / 0.9 / 2_000_000))


def test_entries_are_dropped_independently() -> None:
    """Four entries come out of one word of 64 bits."""
    torch.manual_seed(2)
    kept = (Dropout(0.5)(torch.ones(200_000, 4)) != 0).double()
    assert (torch.corrcoef(kept.T) - torch.eye(4)).abs().max() < 5 / math.sqrt(200_000)
    later = torch.corrcoef(torch.stack([kept[:-1, 3], kept[1:, 0]]))[0, 1]
    assert later.abs() < 5 / math.sqrt(200_000)


def test_the_gradient_passes_where_the_entry_did() -> None:
    x = torch.randn(3, 5, 7, requires_grad=True)
    found = Dropout(0.3)(x)
    (grad,) = torch.autograd.grad(found.sum(), x)
    assert torch.allclose(grad * x, found)


def test_a_mask_follows_from_the_generator_alone() -> None:
    x, dropout = torch.randn(5, 7), Dropout(0.5)
    state = torch.get_rng_state()
    first, second = dropout(x), dropout(x)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.1, False), (1e-9, True)])
def test_nothing_is_drawn_or_changed_where_nothing_is_dropped(p: float, training: bool) -> None:
    x, state = torch.randn(5, 7), torch.get_rng_state()
    assert torch.equal(Dropout(p).train(training)(x), x)
    assert p or torch.equal(torch.get_rng_state(), state)


def test_all_may_be_dropped_and_nothing_given() -> None:
    assert not Dropout(1.0)(torch.ones(3, 3)).any()
    assert Dropout(0.5)(torch.ones(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_type_stays(dtype: torch.dtype) -> None:
    assert Dropout(0.5)(torch.ones(9, dtype=dtype)).dtype == dtype
