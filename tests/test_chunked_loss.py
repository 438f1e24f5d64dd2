"""The chunked loss: against all logits at once, float64, loops; what it holds; what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder import chunked_loss
from ala_encoder.chunked_loss import chunked_cross_entropy, losses_and_ranks
from ala_encoder.objectives import IGNORE
from benchmarks.tensors import Tensors
from tests.test_causal import batch, build

ROWS, VOCAB, DIM = 70, 301, 32


@pytest.fixture(autouse=True, params=[1, 7, 70, 1000])
def _rows_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row at a time, chunks that do not come out even, one chunk."""
    monkeypatch.setattr(chunked_loss, "_ELEMENTS", request.param * VOCAB)


def given(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, a vocabulary and labels, some of them ignored."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, DIM, dtype=torch.float64, generator=draw)
    weight = 0.3 * torch.randn(VOCAB, DIM, dtype=torch.float64, generator=draw)
    labels = torch.randint(0, VOCAB, (ROWS,), generator=draw)
    labels[[0, 3, 4, 60]] = IGNORE
    return x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), labels


def plain(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    logits = x @ weight.T
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(precise, labels, ignore_index=IGNORE, reduction="sum")


def apart(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


# Value and gradient


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 5e-3),
                        (torch.float16, 5e-4)],
)  # fmt: skip
def test_value_and_gradient_are_those_of_all_logits_and_of_float64(
    dtype: torch.dtype, most: float
) -> None:
    x, weight, labels = given(dtype)
    loss = chunked_cross_entropy(x, weight, labels)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    found = torch.autograd.grad(0.7 * loss, (x, weight))
    assert [grad.dtype for grad in found] == [dtype, dtype]
    assert (found[0][labels == IGNORE] == 0).all()
    for reference in (dtype, torch.float64):
        theirs = [tensor.detach().to(reference).requires_grad_() for tensor in (x, weight)]
        other = plain(theirs[0], theirs[1], labels)
        assert loss.item() == pytest.approx(other.item(), rel=most)
        expected = torch.autograd.grad(0.7 * other, theirs)
        assert all(apart(*pair) < most for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", [(3, 9), (1, 1)])
def test_a_models_loss_is_that_of_its_logits(tied: bool, shape: tuple[int, int]) -> None:
    built = build(tied_embeddings=tied).double()
    ids, segments = (tensor[: shape[0], : shape[1]] for tensor in batch())
    labels = torch.where(segments > 0, ids.roll(-1, 1), IGNORE)
    rows = built(ids, segments).flatten(0, 1)
    expected = F.cross_entropy(rows, labels.flatten(), ignore_index=IGNORE, reduction="sum")
    grads = torch.autograd.grad(expected, list(built.parameters()), allow_unused=True)
    loss = built(ids, segments, next_ids=labels)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-14)
    found = torch.autograd.grad(loss, list(built.parameters()), allow_unused=True)
    for ours, theirs in zip(found, grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_half_precision_keeps_the_gradient_of_what_is_improbable() -> None:
    """In fp16 a probability below 6e-8 is 0 unless the loss scale is on it."""
    x = torch.zeros(1, 2, dtype=torch.float16)
    x[0, 0] = 4.0
    weight = torch.zeros(VOCAB, 2, dtype=torch.float16)
    weight[0, 0] = 5.0
    weight.requires_grad_()
    loss = chunked_cross_entropy(x, weight, torch.tensor([0])) * 2.0**16
    (found,) = torch.autograd.grad(loss, weight)
    p = torch.tensor(-20.0).exp() / (1 + (VOCAB - 1) * torch.tensor(-20.0).exp())
    assert found[1:, 0].tolist() == pytest.approx([float(4 * p * 2.0**16)] * (VOCAB - 1), rel=1e-3)


def test_nothing_that_is_not_needed_is_computed() -> None:
    x, weight, labels = given()
    with torch.no_grad():
        assert not chunked_cross_entropy(x, weight, labels).requires_grad
    (dx,) = torch.autograd.grad(chunked_cross_entropy(x, weight.detach(), labels), x)
    (dw,) = torch.autograd.grad(chunked_cross_entropy(x.detach(), weight, labels), weight)
    both = torch.autograd.grad(chunked_cross_entropy(x, weight, labels), (x, weight))
    assert torch.equal(dx, both[0]) and torch.equal(dw, both[1])
    nothing = chunked_cross_entropy(x, weight, torch.full_like(labels, IGNORE))
    assert nothing.item() == 0
    assert all((g == 0).all() for g in torch.autograd.grad(nothing, (x, weight)))
    assert chunked_cross_entropy(x[:0], weight, labels[:0]).item() == 0


def test_a_loss_that_is_not_a_number_is_told() -> None:
    x, weight, labels = given()
    with torch.no_grad():
        x[5, 0] = float("nan")
    loss = chunked_cross_entropy(x, weight, labels)
    assert loss.isnan()
    assert torch.autograd.grad(loss, weight)[0].isnan().all()


def test_a_second_derivative_is_refused() -> None:
    x, weight, labels = given()
    loss = chunked_cross_entropy(x, weight, labels)
    once = torch.autograd.grad(loss, x, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(loss, x, retain_graph=True)[0], once)
    with pytest.raises(RuntimeError, match="create_graph=True: second derivatives need the logits"):
        torch.autograd.grad(loss, x, create_graph=True)


# Memory


def test_no_tensor_of_all_logits_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, labels = given(torch.float32)
    monkeypatch.setattr(chunked_loss, "_ELEMENTS", 7 * VOCAB)
    for loss in (chunked_cross_entropy, losses_and_ranks):
        with Tensors() as seen:
            total = loss(x, weight, labels)
            if loss is chunked_cross_entropy:
                total.backward()
        assert seen.largest <= max(7 * VOCAB, weight.numel()) * 4
        assert seen.peak < ROWS * VOCAB * 4 * 2


def test_sixteen_texts_of_512_take_a_quarter_of_the_memory_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted on torch's device without memory: all logits would take 4.9 GB."""
    monkeypatch.setattr(chunked_loss, "_ELEMENTS", 1 << 25)
    peaks: dict[Any, int] = {}
    for loss in (plain, chunked_cross_entropy):
        x = torch.empty(16 * 512, 512, device="meta", requires_grad=True)
        weight = torch.empty(50_257, 512, device="meta", requires_grad=True)
        labels = torch.empty(16 * 512, dtype=torch.int64, device="meta")
        with Tensors() as seen:
            loss(x, weight, labels).backward()
        peaks[loss] = seen.peak
    assert peaks[plain] > 4.9e9
    assert peaks[chunked_cross_entropy] < 0.1 * peaks[plain]


# Each loss, and its rank


@torch.no_grad()
def test_each_loss_and_rank_are_those_of_a_loop() -> None:
    x, weight, labels = given()
    weight[17] = weight[5]  # equal logits
    labels[10:12] = torch.tensor([5, 17])
    nll, rank = losses_and_ranks(x.view(2, 35, DIM), weight, labels.view(2, 35)).flatten(1)
    for row in range(ROWS):
        if labels[row] == IGNORE:
            assert (nll[row], rank[row]) == (0, 0)
            continue
        logits = (x[row] @ weight.T).tolist()
        wanted = int(labels[row])
        order = sorted(range(VOCAB), key=lambda index: (-logits[index], index))
        assert order.index(wanted) == rank[row]
        by_hand = F.cross_entropy(x[row] @ weight.T, labels[row]).item()
        assert nll[row].item() == pytest.approx(by_hand, rel=1e-12)


def test_equal_logits_are_no_hit_but_for_one_and_nan_is_none() -> None:
    labels = torch.arange(6)
    _, rank = losses_and_ranks(torch.zeros(6, DIM), torch.zeros(VOCAB, DIM), labels)
    assert rank.tolist() == [0, 1, 2, 3, 4, 5]
    broken = torch.full((6, DIM), float("nan"))
    nll, rank = losses_and_ranks(broken, torch.ones(VOCAB, DIM), labels)
    assert nll.isnan().all() and (rank == VOCAB).all()


def test_ranks_are_in_float32_whatever_the_precision() -> None:
    x, weight, labels = given(torch.bfloat16)
    found = losses_and_ranks(x, weight, labels)
    assert found.dtype == torch.float32 and not found.requires_grad
