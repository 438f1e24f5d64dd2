"""Distance biases: by hand, against the equation, and never zero or without a gradient."""

from __future__ import annotations

import math
import typing

import pytest
import torch
from torch import Tensor

from ala_encoder import biases
from ala_encoder.biases import DistBias, GatedDistBias, Window
from ala_encoder.settings import attention as settings

DIM, HEADS, LENGTH = 6, 3, 5


def offsets(queries: int = LENGTH, keys: int = LENGTH) -> Tensor:
    return torch.arange(keys)[None, :] - torch.arange(queries)[:, None]


def gated(alpha_init: float = 0.3) -> GatedDistBias:
    torch.manual_seed(0)
    return GatedDistBias(DIM, HEADS, alpha_init=alpha_init)


def test_alpha_of_0_01_starts_at_raw_minus_4_6002() -> None:
    bias = DistBias(HEADS, alpha_init=0.01)
    assert bias.raw_alpha.tolist() == pytest.approx([-4.6002] * HEADS, abs=5e-5)


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 0.01, 1.0, 7.0, 60.0])
def test_alpha_init_is_the_value_of_alpha(alpha: float) -> None:
    assert DistBias(1, alpha_init=alpha).alpha().item() == pytest.approx(alpha, rel=1e-5)


def test_distbias_is_minus_alpha_times_the_distance() -> None:
    bias = DistBias(2, alpha_init=0.01)
    with torch.no_grad():
        bias.raw_alpha.copy_(torch.tensor([0.0, 1.0]))
    got = bias(offsets(4, 4), torch.zeros(1, 4, DIM))
    for head, raw in enumerate((0.0, 1.0)):
        for i in range(4):
            for j in range(4):
                expected = -math.log1p(math.exp(raw)) * abs(i - j)
                assert got[head, i, j].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("keys", [5, 7])
def test_gated_distbias_equals_a_double_loop_over_its_equation(keys: int) -> None:
    bias = gated().double()
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    got = bias(offsets(LENGTH, keys), x)
    weight, shift = bias.gate_proj.weight, bias.gate_proj.bias
    for b in range(2):
        for h in range(HEADS):
            alpha = math.log1p(math.exp(bias.distance.raw_alpha[h].item()))
            for i in range(LENGTH):
                dot = sum(weight[h, c].item() * x[b, i, c].item() for c in range(DIM))
                gate = 1 / (1 + math.exp(-dot - shift[h].item()))
                for j in range(keys):
                    expected = -alpha * gate * abs(i - j)
                    assert got[b, h, i, j].item() == pytest.approx(expected, abs=1e-6)


def test_the_gate_belongs_to_the_query_not_to_the_key() -> None:
    bias, x = gated(), torch.zeros(1, LENGTH, DIM)
    before = bias(offsets(), x)
    x[0, 2] = 5.0
    changed = (bias(offsets(), x) != before)[0].any(0)
    assert changed[2].tolist() == [True, True, False, True, True]
    assert not changed[[0, 1, 3, 4]].any()


def test_window_by_hand_counts_the_current_token() -> None:
    got = Window(2)(offsets(4, 4), torch.zeros(1, 4, DIM))
    rows = ["".join("0" if value == 0 else "-" for value in row) for row in got.tolist()]
    assert rows == ["00--", "000-", "-000", "--00"]
    assert torch.isneginf(got[got != 0]).all()
    only_self = Window(1)(offsets(3, 3), torch.zeros(1, 3, DIM))
    assert (only_self == 0).tolist() == torch.eye(3, dtype=torch.bool).tolist()


@pytest.mark.parametrize("bias", [DistBias(HEADS, alpha_init=0.01), gated(0.01)])
def test_a_bias_is_finite_and_negative_away_from_its_token(bias: biases.Bias) -> None:
    got = bias(offsets(), torch.randn(2, LENGTH, DIM)).expand(2, HEADS, LENGTH, LENGTH)
    away = offsets() != 0
    assert torch.isfinite(got).all()
    assert (got[..., away] < -1e-3).all() and (got[..., ~away] == 0).all()
    assert got[..., 0, 4].abs().gt(got[..., 0, 1].abs()).all(), "it grows with the distance"


@pytest.mark.parametrize("bias", [DistBias(HEADS, alpha_init=0.01), gated(0.01)])
def test_every_parameter_of_a_bias_gets_a_gradient(bias: biases.Bias) -> None:
    bias(offsets(), torch.randn(2, LENGTH, DIM)).sum().backward()
    for name, parameter in bias.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all() and (parameter.grad != 0).all(), name


def test_the_gate_passes_a_gradient_to_its_input() -> None:
    x = torch.randn(1, LENGTH, DIM, requires_grad=True)
    gated()(offsets(), x).sum().backward()
    assert x.grad is not None and (x.grad != 0).all()


@pytest.mark.parametrize("kind", ["distbias", "gated_distbias"])
def test_an_alpha_that_is_not_learnable_gets_no_gradient(kind: str) -> None:
    entry = {"kind": kind, "alpha_learnable": False}
    parsed = settings.AttentionSettings.model_validate({"biases": [entry]})
    (bias,) = biases.build(parsed.biases, DIM, HEADS)
    frozen = [name for name, p in bias.named_parameters() if not p.requires_grad]
    assert [name.rpartition(".")[2] for name in frozen] == ["raw_alpha"]


def test_biases_stay_float32_in_a_bf16_model() -> None:
    far = offsets(1, 1024)
    for bias in (DistBias(HEADS, alpha_init=0.01), gated(0.01)):
        got = bias.to(torch.bfloat16)(far, torch.ones(1, 1, DIM, dtype=torch.bfloat16))
        assert got.dtype == torch.float32
        assert got.reshape(HEADS, -1)[0].unique().numel() == 1024, "bf16 would keep 513"


def test_every_bias_of_the_settings_can_be_built() -> None:
    union = typing.get_args(settings.BiasSettings)[0]
    kinds = [typing.get_args(c.model_fields["kind"].annotation)[0] for c in typing.get_args(union)]
    parsed = settings.AttentionSettings.model_validate(
        {"biases": [{"kind": k} | ({"width": 3} if k == "window" else {}) for k in kinds]}
    )
    built = biases.build(parsed.biases, DIM, HEADS)
    assert [type(bias).__name__ for bias in built] == ["DistBias", "GatedDistBias", "Window"]


def test_a_fresh_gate_is_one_half_where_its_input_is_zero() -> None:
    bias = gated()
    torch.nn.init.zeros_(bias.gate_proj.bias)
    assert bias.gate(torch.zeros(1, LENGTH, DIM)).unique().tolist() == [0.5]
