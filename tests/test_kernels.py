"""Paths of attention: `dense` against a double loop, `sdpa` against `dense`, hostile masks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ala_encoder import kernels
from ala_encoder.heads import parse_head
from ala_encoder.kernels import Visibility

INF = float("inf")
DIM = 4

SEGMENTS = {
    "none": None,
    "right padding": [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]],
    "left padding": [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]],
    "all padding": [[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]],
    "two documents": [[1, 1, 2, 2, 2], [1, 1, 1, 2, 0]],
}
GROUPS = {"own": None, "two groups": (0, 1, 0), "one group": (0, 0, 0)}
BIASES = ("none", "by head", "by query", "hidden")
CELLS = ("prev1", "band1", "full")


def segments(name: str) -> Tensor | None:
    rows = SEGMENTS[name]
    return None if rows is None else torch.tensor(rows)


def pairs_of(rows: Tensor | None) -> Tensor | None:
    return Visibility.of(rows).pairs(5, 5, torch.device("cpu"))


def offsets(length: int) -> Tensor:
    return torch.arange(length)[None, :] - torch.arange(length)[:, None]


def keep_of(length: int) -> Tensor:
    return torch.stack([parse_head(cell).allows(offsets(length)) for cell in CELLS])


def bias_of(name: str, length: int, heads: int = 3) -> Tensor | None:
    distance = offsets(length).abs().float()
    slopes = torch.linspace(0.1, 0.9, heads)[:, None, None]
    if name == "none":
        return None
    if name == "by head":
        return -slopes * distance
    if name == "by query":
        gates = torch.rand(2, heads, length, 1, generator=torch.Generator().manual_seed(1))
        return -gates * slopes * distance
    hidden = torch.zeros(3, length, length).masked_fill(~keep_of(length), -INF)
    return -slopes * distance + hidden


def draw(num_groups: int, heads: int = 3, length: int = 5, batch: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(batch, n, length, DIM, generator=generator).requires_grad_()
        for n in (num_groups, num_groups, heads)
    ]


def by_hand(
    q: Tensor, k: Tensor, v: Tensor, *,
    bias: Tensor | None, visible: Tensor | None, groups: Any, keep: Tensor | None,
) -> Tensor:  # fmt: skip
    """softmax(q·k/√d + bias, hidden keys out) · keep, times v, in float64, straight from it."""
    batch, heads, keys, dim = v.shape
    queries = q.shape[2]
    shape = (batch, heads, queries, keys)
    bias = torch.zeros(shape) if bias is None else bias.expand(shape)
    visible = torch.ones(shape, dtype=torch.bool) if visible is None else visible.expand(shape)
    out = torch.zeros(batch, heads, queries, dim, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            g = h if groups is None else groups[h]
            for i in range(queries):
                scores = {
                    j: sum(
                        q[b, g, i, c].item() * k[b, g, j, c].item() for c in range(dim)
                    ) / math.sqrt(dim) + bias[b, h, i, j].item()
                    for j in range(keys)
                    if visible[b, h, i, j] and bias[b, h, i, j] != -INF
                }  # fmt: skip
                total = sum(math.exp(score) for score in scores.values())
                for j, score in scores.items():
                    if keep is None or keep[h, i, j]:
                        weight = math.exp(score) / total
                        out[b, h, i] += weight * v[b, h, j].detach().double()
    return out


@pytest.mark.parametrize("padding", SEGMENTS)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("operator", ["keep", "no keep"])
def test_dense_equals_a_double_loop_over_the_equation(
    padding: str, bias: str, groups: str, operator: str
) -> None:
    q, k, v = draw(3 if GROUPS[groups] is None else 1 + max(GROUPS[groups]))
    given = {
        "bias": bias_of(bias, 5),
        "visible": pairs_of(segments(padding)),
        "groups": GROUPS[groups],
    }
    keep = keep_of(5) if operator == "keep" else None
    mixed, weights = kernels.dense(q, k, v, **given, keep=keep)
    expected = by_hand(q, k, v, **given, keep=keep)
    torch.testing.assert_close(mixed.double(), expected, atol=2e-6, rtol=0)
    torch.testing.assert_close(weights @ v, mixed, atol=1e-6, rtol=0)
    assert weights.shape == (2, 3, 5, 5)
    exact, _ = kernels.dense(q.double(), k.double(), v.double(), **given, keep=keep)
    torch.testing.assert_close(exact, expected, atol=1e-14, rtol=0)


def test_dense_takes_more_keys_than_queries() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 5, DIM), torch.randn(2, 3, 7, DIM), torch.randn(2, 3, 7, DIM)
    for queries, keys in (
        ([[1, 1, 1, 0, 0], [1] * 5], [[1, 1, 1, 1, 1, 0, 0], [0] * 7]),
        ([[1, 1, 2, 2, 0], [3] * 5], [[0, 2, 2, 1, 1, 1, 3], [1] * 7]),
    ):
        seen = Visibility.across(torch.tensor(queries), torch.tensor(keys), 5, 7)
        given = {"bias": None, "visible": seen.pairs(5, 7, q.device), "groups": None}
        expected = by_hand(q, k, v, **given, keep=None)
        dense, _ = kernels.dense(q, k, v, **given)
        torch.testing.assert_close(dense.double(), expected, atol=2e-6, rtol=0)
        sdpa = kernels.sdpa(q, k, v, visibility=seen)
        torch.testing.assert_close(sdpa.double(), expected, atol=2e-6, rtol=0)


def test_renormalising_after_keep_would_be_noticed() -> None:
    q, k, v = draw(3)
    given = {"bias": None, "visible": None, "groups": None}
    mixed, weights = kernels.dense(q, k, v, **given, keep=keep_of(5))
    expected = by_hand(q, k, v, **given, keep=keep_of(5))
    torch.testing.assert_close(mixed.double(), expected, atol=2e-6, rtol=0)
    broken = (weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)) @ v
    assert (broken.double() - expected).abs().max() > 0.1


def test_keep_is_not_the_same_model_as_hiding_before_the_softmax() -> None:
    q, k, v = draw(3)
    keep = keep_of(5)
    after, _ = kernels.dense(q, k, v, keep=keep)
    before, _ = kernels.dense(q, k, v, bias=torch.zeros(keep.shape).masked_fill(~keep, -INF))
    assert (after[:, :2] - before[:, :2]).abs().max() > 0.1
    torch.testing.assert_close(after[:, 2], before[:, 2], atol=1e-6, rtol=0)


def values_and_gradients(
    path: str, leaves: list[Tensor], rows: Tensor | None = None, **given: Any
) -> list[Tensor]:
    """Return the output and the gradient of every leaf for one fixed incoming gradient."""
    seen, length = Visibility.of(rows), leaves[0].shape[2]
    if path == "dense":
        visible = seen.pairs(length, length, leaves[0].device)
        out, _ = kernels.dense(*leaves[:3], visible=visible, **given)
    else:
        out = kernels.sdpa(*leaves[:3], visibility=seen, **given)
    incoming = torch.randn(out.shape, generator=torch.Generator().manual_seed(7))
    return [out.detach(), *torch.autograd.grad((out * incoming).sum(), leaves)]


@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 127, 128, 129])
@pytest.mark.parametrize("heads", [3, 5])
def test_sdpa_equals_dense_in_value_and_gradient(length: int, heads: int) -> None:
    padded = torch.ones(2, length, dtype=torch.long)
    padded[1, (length + 1) // 2 :] = 0
    packed = torch.ones(2, length, dtype=torch.long)
    packed[0, length // 3 :] = 2
    all_groups = (None, tuple(h % 2 for h in range(heads)))
    for rows in (None, padded, packed, padded * 0):
        for groups in all_groups:
            for with_bias in (False, True):
                leaves = draw(heads if groups is None else 2, heads, length)
                given: dict[str, Any] = {"rows": rows, "groups": groups}
                if with_bias:
                    bias = bias_of("by query", length, heads)
                    assert bias is not None
                    leaves.append(bias.requires_grad_())
                    hidden = torch.zeros(length, length)
                    given["bias"] = bias + hidden.masked_fill(offsets(length).abs() >= 40, -INF)
                dense = values_and_gradients("dense", leaves, **given)
                sdpa = values_and_gradients("sdpa", leaves, **given)
                for a, b in zip(dense, sdpa, strict=True):
                    assert torch.isfinite(a).all()
                    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("path", ["dense", "sdpa"])
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("padding", SEGMENTS)
def test_rows_with_nothing_to_see_give_exactly_0_and_finite_gradients(
    path: str, bias: str, padding: str
) -> None:
    leaves = draw(3)
    added = bias_of(bias, 5)
    if added is not None:
        leaves.append(added.requires_grad_())
    rows = segments(padding)
    out, *gradients = values_and_gradients(path, leaves, rows, bias=added)
    assert torch.isfinite(out).all() and all(torch.isfinite(g).all() for g in gradients)
    if rows is not None:
        for tensor in (out, *gradients[:3]):
            assert (tensor.transpose(1, 2)[rows == 0] == 0).all()
    if bias == "hidden":
        assert (out[:, 0, 0] == 0).all(), "prev1 has no key for the first token"


@pytest.mark.parametrize("path", ["dense", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_e04_strong_biases_and_two_masks_together_stay_finite(
    path: str, dtype: torch.dtype
) -> None:
    leaves = [t.detach().to(dtype).requires_grad_() for t in draw(3)]
    window = torch.zeros(5, 5).masked_fill(offsets(5).abs() >= 2, -INF)
    local = torch.zeros(3, 5, 5).masked_fill(~keep_of(5), -INF)
    bias = -60.0 * offsets(5).abs() + window + local
    rows = segments("left padding")
    given = {"bias": bias, "visible": pairs_of(rows), "groups": None}
    out, *gradients = values_and_gradients(path, leaves, rows, bias=bias)
    assert torch.isfinite(out).all() and all(torch.isfinite(g).all() for g in gradients)
    expected = by_hand(*(t.detach().float() for t in leaves), **given, keep=None)
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=0)


def test_combine_fills_once_and_opens_only_the_empty_rows() -> None:
    bias = torch.tensor([[0.0, -1.0, -INF], [-INF, -INF, -2.0], [-3.0, -4.0, -5.0]])
    visible = torch.tensor([[True, False, True], [True, True, False], [True, True, True]])
    mask, empty = kernels.combine(bias, visible)
    assert mask is not None and empty is not None
    assert mask.tolist() == [[0.0, -INF, -INF], [0.0, 0.0, 0.0], [-3.0, -4.0, -5.0]]
    assert empty.tolist() == [[False], [True], [False]]
    only_visible, _ = kernels.combine(None, torch.tensor([[True, False], [False, False]]))
    assert only_visible is not None
    assert only_visible.tolist() == [[True, False], [True, True]]
    assert kernels.combine(None, None) == (None, None)


def rows_of(pairs: Tensor | None) -> list[str]:
    assert pairs is not None
    return ["".join(str(int(v)) for v in row) for row in pairs[0, 0].tolist()]


def test_equal_segments_see_each_other_and_padding_sees_nothing() -> None:
    rows = torch.tensor([[1, 2, 2, 0, 0]])
    seen = Visibility.of(rows)
    assert rows_of(pairs_of(rows)) == ["10000", "01100", "01100", "00000", "00000"]
    assert seen.real is not None and seen.blind is not None
    assert seen.real.tolist() == (~seen.blind).tolist() == [[True, True, True, False, False]]
    assert pairs_of(None) is None and Visibility.of(None).blind is None
    causal = Visibility.of(rows, causal=True).pairs(5, 5, torch.device("cpu"))
    assert rows_of(causal) == ["10000", "01000", "01100", "00000", "00000"]
    plain = Visibility.of(None, causal=True).pairs(3, 3, torch.device("cpu"))
    assert rows_of(plain) == ["100", "110", "111"]


def test_across_two_texts_a_query_sees_its_own_document_or_nothing() -> None:
    queries, keys = torch.tensor([[1, 2, 3, 0]]), torch.tensor([[2, 2, 0, 1, 0]])
    seen = Visibility.across(queries, keys, 4, 5)
    pairs = seen.pairs(4, 5, torch.device("cpu"))
    assert rows_of(pairs) == ["00010", "11000", "00000", "00000"]
    assert seen.blind is not None and seen.blind.tolist() == [[False, False, True, True]]
    one = Visibility.across(None, keys, 2, 5)
    assert rows_of(one.pairs(2, 5, torch.device("cpu"))) == ["00010", "00010"]
    places = seen.places(4, 5, torch.device("cpu"))
    assert [x[y > 0].tolist() for x, y in zip(places, (queries, keys), strict=True)] == [
        [0, 0, 0], [0, 1, 0]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "documents"),
    [
        ([[1, 1, 0], [0, 0, 1]], False), ([[2, 2, 2], [0, 0, 0]], False),
        ([[1, 1, 1], [1, 2, 2]], True), ([[1, 0, 2]], True),
    ],
)  # fmt: skip
def test_padding_is_told_from_documents(rows: list[list[int]], documents: bool) -> None:
    assert Visibility.of(torch.tensor(rows)).has_documents is documents


@pytest.mark.parametrize("groups", [(0, 0, 0), (0, 1, 0), (1, 0, 1)])
@pytest.mark.parametrize("bias", ["none", "by head"])
def test_heads_of_one_group_equal_heads_with_copies_of_it(groups: Any, bias: str) -> None:
    q, k, v = draw(1 + max(groups))
    shared = values_and_gradients("dense", [q, k, v], groups=groups, bias=bias_of(bias, 5))
    copies = [t[:, list(groups)].detach().requires_grad_() for t in (q, k)]
    out, q_grad, k_grad, v_grad = values_and_gradients("dense", [*copies, v], bias=bias_of(bias, 5))
    summed = [torch.zeros(q.shape).index_add(1, torch.tensor(groups), g) for g in (q_grad, k_grad)]
    for a, b in zip(shared, [out, *summed, v_grad], strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_dropout_drops_weights_and_keeps_their_mean() -> None:
    torch.manual_seed(0)
    q, k = torch.zeros(1, 1, 200, DIM), torch.zeros(1, 1, 200, DIM)
    v = torch.ones(1, 1, 200, DIM)
    out, weights = kernels.dense(q, k, v, dropout=0.5)
    assert out.std() > 0.01 and out.mean().item() == pytest.approx(1.0, abs=0.02)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, 200))


def test_e05_a_bias_keeps_far_distances_apart_in_bf16() -> None:
    """With equal keys the weights are the softmax of the bias, worked out here in float64."""
    length, slope = 24, 2.0**-3
    q = torch.zeros(1, 1, 1, DIM, dtype=torch.bfloat16)
    k = torch.zeros(1, 1, length, DIM, dtype=torch.bfloat16)
    bias = -slope * torch.arange(1000, 1000 + length, dtype=torch.float32)[None, None, None]
    values = torch.eye(length, dtype=torch.bfloat16)[None, None]
    expected = bias[0, 0, 0].double().softmax(-1)
    out = kernels.sdpa(q, k, values, bias=bias)[0, 0, 0].double()
    torch.testing.assert_close(out, expected, rtol=2**-7, atol=0.0)
    rounded = bias.to(torch.bfloat16)[0, 0, 0].double().softmax(-1)
    assert ((rounded / expected - 1).abs() > 0.1).any(), "a bias in bf16 would have failed this"
