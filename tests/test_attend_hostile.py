"""`attend` with what no one should give it, or nearly: against `dense` in float64, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ala_encoder.errors import UserError
from ala_encoder.functional import attend
from ala_encoder.kernels import lse, parts

CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "full, causal": {"causal": True},
    "slopes": {"slopes": 0.05},
    "slopes, causal": {"slopes": 0.05, "causal": True},
    "post": {"heads": ["band2", "prev1"]},
    "pre": {"heads": ["band2", "band5"], "mask_operator": "pre_softmax"},
    "one key": {"heads": ["prev1", "next1"], "mask_operator": "pre_softmax"},
}
FUSED = {"full": "sdpa", "slopes": "slope", "post": "banded", "pre": "banded", "one": "banded"}


def drawn(length: int, batch: int = 1, width: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(batch, 2, length, width, generator=generator) for _ in range(3)]


def run(case: str, texts: list[Tensor], **more: Any) -> list[Tensor]:
    """Return the output and the gradients of q, k, v and the slopes, on the case's own path."""
    given = {**CASES[case], **more}
    leaves = [x.detach().requires_grad_() for x in texts]
    if isinstance(given.get("slopes"), float):
        shape = leaves[2].shape[:3]
        given["slopes"] = torch.full(shape, given["slopes"], dtype=leaves[0].dtype)
    if "slopes" in given:
        given["slopes"] = given["slopes"].detach().requires_grad_()
        leaves.append(given["slopes"])
    given.setdefault("path", FUSED[case.split(",")[0].split()[0]])
    out = attend(*leaves[:3], **given)
    generator = torch.Generator().manual_seed(7)
    incoming = torch.randn(out.shape, generator=generator).to(out.dtype)
    grads = torch.autograd.grad((out * incoming).sum(), leaves, allow_unused=True)
    zero = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]
    return [out.detach(), *zero]


def distance(found: list[Tensor], exact: list[Tensor]) -> float:
    """Return the largest error, each relative to the largest number where that is above 1."""
    return max(
        float((a.double() - b.double()).abs().max() / b.abs().max().clamp(min=1.0))
        for a, b in zip(found, exact, strict=True)
    )


@pytest.mark.parametrize("length", [200, 640])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("numbers", [(1, 0), (1, 2), (3, 4)])
def test_large_logits_never_reach_padding_or_other_documents(
    case: str, length: int, numbers: tuple[int, int]
) -> None:
    """All of a document near −600, where what is hidden has to stay further below."""
    torch.manual_seed(0)
    direction = torch.ones(16) / 4
    q, k = (
        torch.randn(1, 2, length, 16) * 0.05 + sign * 49 * direction * torch.ones(length, 1)
        for sign in (1, -1)
    )
    k[:, :, length // 2 :] *= -1  # what is hidden would weigh everything
    q[:, :, length // 2 :] *= -1
    v = torch.randn(1, 2, length, 16)
    segments = torch.tensor(numbers).repeat_interleave(length // 2)[None]
    found = run(case, [q, k, v], segments=segments)
    exact = run(case, [x.double() for x in (q, k, v)], segments=segments, path="dense")
    assert distance(found[:1], exact[:1]) < 1e-3
    assert distance(found, exact) < 5e-3


@pytest.mark.parametrize("length", [100, 600])
@pytest.mark.parametrize("case", CASES)
def test_autocast_changes_nothing(case: str, length: int) -> None:
    segments = (torch.arange(length)[None] >= length // 3).int() + 1
    outside = run(case, drawn(length), segments=segments)
    texts = [x.requires_grad_() for x in drawn(length)]
    given = dict(CASES[case])
    if "slopes" in given:
        given["slopes"] = torch.full((1, 2, length), 0.05)
    with torch.autocast("cpu", torch.bfloat16):
        out = attend(*texts, **given, segments=segments)
    assert out.dtype == torch.float32
    assert distance([out.detach()], outside[:1]) < 1e-5


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("case", CASES)
def test_documents_may_be_numbered_in_any_integers(case: str, dtype: torch.dtype) -> None:
    numbers = torch.arange(60) // 5 % 250 + (0 if dtype == torch.uint8 else 2047)
    segments = numbers[None].to(dtype)
    exact = run(case, [x.double() for x in drawn(60)], segments=segments, path="dense")
    assert distance(run(case, drawn(60), segments=segments), exact) < 1e-5


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [100, 600])
def test_slopes_at_padding_never_matter(length: int, causal: bool) -> None:
    segments = (torch.arange(length)[None] < length - 9).int()
    slopes = torch.full((1, 2, length), 0.05)
    clean = run("slopes", drawn(length), causal=causal, segments=segments, slopes=slopes.clone())
    slopes[:, :, -9:] = float("nan")
    found = run("slopes", drawn(length), causal=causal, segments=segments, slopes=slopes)
    assert distance(found, clean) < 1e-6


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("batch", "length"), [(0, 7), (0, 700), (2, 0)])
def test_no_texts_and_empty_texts_give_nothing(case: str, batch: int, length: int) -> None:
    segments = torch.ones(batch, length, dtype=torch.int)
    found = run(case, drawn(length, batch), segments=segments)
    assert [x.shape for x in found[:4]] == [(batch, 2, length, 16)] * 4


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_a_wide_spread_of_log_sum_exps_costs_no_digits(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it the gradient of k is taken in the open; as a factor it would be lost."""
    q, k, v = drawn(640, width=64)
    q, k = q * scale**0.5, k * scale**0.5
    q[:, :, ::7] *= 10
    exact = run("post", [x.double() for x in (q, k, v)], path="dense")
    found = run("post", [q, k, v])
    assert distance(found, exact) < 3e-5 * scale
    monkeypatch.setattr(lse, "_SPREAD", 1e9)
    as_factor = distance(run("post", [q, k, v])[2:3], exact[2:3])
    assert scale == 1.0 or not as_factor < 1e-3


@pytest.mark.parametrize("length", [24, 600])
@pytest.mark.parametrize("case", ["slopes", "slopes, causal", "post", "pre"])
def test_a_second_derivative_is_refused(case: str, length: int) -> None:
    q, k, v = (x.requires_grad_() for x in drawn(length))
    given = {**CASES[case], "path": FUSED[case.split(",")[0]]}
    if "slopes" in given:
        given["slopes"] = torch.full((1, 2, length), 0.05)
    out = attend(q, k, v, **given)
    refused = r"second derivatives need path='dense'|is not implemented"
    with pytest.raises(RuntimeError, match=refused):
        (first,) = torch.autograd.grad(out.sum(), k, create_graph=True)
        torch.autograd.grad(first.cos().sum(), k)


def test_gradients_are_exact_in_float64() -> None:
    q, k, v = (x.double().requires_grad_() for x in drawn(6, width=3))
    slopes = torch.rand(1, 2, 6, dtype=torch.float64).mul_(0.1).requires_grad_()
    for causal in (True, False):
        assert torch.autograd.gradcheck(
            lambda q, k, v, a, causal=causal: attend(
                q, k, v, slopes=a, causal=causal, path="slope"
            ),
            (q, k, v, slopes),
        )


def _of_a_head(offset: Tensor) -> Tensor:
    return torch.tensor([0.5, -0.5])[:, None, None]


BIASES: list[Callable[[Tensor], Tensor]] = [
    _of_a_head,
    lambda offset: torch.tensor(0.3),
    lambda offset: torch.zeros(1),
    lambda offset: -0.1 * offset.abs().float(),
]


@pytest.mark.parametrize("number", range(len(BIASES)))
@pytest.mark.parametrize("path", ["banded", "sdpa", "flex"])
def test_a_bias_of_any_shape_that_broadcasts_is_taken(path: str, number: int) -> None:
    given = {**CASES["pre"], "bias": BIASES[number]}
    with torch.no_grad():
        found = attend(*drawn(40), **given, path=path)
        exact = attend(*(x.double() for x in drawn(40)), **given, path="dense")
    assert distance([found], [exact]) < 1e-5


@pytest.mark.parametrize(
    ("bias", "line"),
    [
        (lambda offset: 0.5, "bias: returned float, needed is a tensor"),
        (lambda offset: offset, "bias: returned torch.int64, needed is a tensor"),
        (lambda offset: torch.zeros(3, 1, 1), "bias: returned shape [3, 1, 1] for offsets"),
        (lambda offset: torch.zeros(2, 2, 2, 1, 40), "or what broadcasts to it"),
    ],
)
def test_a_bias_that_does_not_fit_is_refused_in_one_line(
    bias: Callable[[Tensor], Any], line: str
) -> None:
    with pytest.raises(UserError) as caught:
        attend(*drawn(40), bias=bias)
    assert line in str(caught.value)


def test_half_precision_takes_the_softmax_of_scores_that_are_not_rounded() -> None:
    """In bf16 a score of 40 would be known to an eighth, and its weight to an eighth of itself."""
    q, k, v = ((x * s).bfloat16() for x, s in zip(drawn(60), (4, 4, 1), strict=True))
    for case, path in (("full", "dense"), ("pre", "banded"), ("post", "dense")):
        with torch.no_grad():
            found = attend(q, k, v, **CASES[case], path=path)
            exact = attend(*(x.double() for x in (q, k, v)), **CASES[case], path="dense")
        assert distance([found], [exact]) < 0.012


def test_a_sum_that_half_precision_cannot_hold_is_not_taken_for_nan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(*given: Any) -> Tensor:
        raise AssertionError("a finite text was taken for one with NaN")

    monkeypatch.setattr(parts, "mix_strays", unreachable)
    texts = [torch.full((1, 2, 500, 16), 20.0).half() for _ in range(3)]
    assert torch.isfinite(attend(*texts)).all()
    assert parts.is_finite(texts[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_ratio_in_half_precision_loses_no_distances(dtype: torch.dtype) -> None:
    q, v = torch.zeros(1, 1, 300, 8), torch.randn(1, 1, 300, 8)
    seen: list[Tensor] = []

    def bias(offset: Tensor) -> Tensor:
        seen.append(offset)
        return -offset.abs().float()

    attend(q, q, v, cross=True, bias=bias, ratio=torch.tensor([1.25], dtype=dtype))
    assert seen[0].dtype == torch.float32 and seen[0][201, 253] == 253 - 1.25 * 201


@pytest.mark.parametrize("operator", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("cell", ["band1000000", "prev1000000", "next40"])
def test_a_mask_wider_than_the_text_costs_no_more_than_the_text(cell: str, operator: str) -> None:
    given: dict[str, Any] = {"heads": [cell, "band2"], "mask_operator": operator}
    found = attend(*drawn(10), **given, path="banded")
    assert (
        distance([found], [attend(*(x.double() for x in drawn(10)), **given, path="dense")]) < 1e-5
    )


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"heads": [1, 2]}, "head '1': allowed are full"),
        ({"slopes": [0.1]}, "slopes: is [0.1], needed is a tensor"),
        ({"segments": [[1, 0]]}, "segments: is [[1, 0]], needed is a tensor"),
        ({"segments": torch.ones(1, 12)}, "segments: are torch.float32"),
        ({"segments": -torch.ones(1, 12, dtype=torch.int)}, "segments: hold -1"),
        ({"causal": 1}, "causal: is 1, needed is True or False"),
        ({"dropout": "a"}, "dropout: is 'a', needed is a number"),
        ({"prune": "1e-4"}, "prune: is '1e-4', needed is a number"),
        ({"bias": torch.ones(1)}, "needed is a function of offsets"),
        ({"cross": True, "ratio": 5.0}, "ratio: does nothing without slopes or a bias"),
        ({"cross": True, "ratio": "a"}, "ratio: is 'a', needed is one number"),
        ({"cross": True, "ratio": torch.ones(12)}, "needed is one number, or a tensor of one"),
        ({"cross": True, "ratio": float("nan"), "slopes": torch.ones(2, 1)}, "ratio = nan"),
    ],
)
def test_what_is_of_no_use_is_refused_in_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        attend(*drawn(12), **given)
    assert line in str(caught.value)
