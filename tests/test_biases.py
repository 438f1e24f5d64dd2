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
from ala_encoder.settings.biases import LINEAR, SHARED

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
    own, shared = (biases.build(parsed.biases, DIM, HEADS, shared=s) for s in (False, True))
    assert [type(bias).__name__ for bias in own] == [
        "DistBias", "GatedDistBias", "MultiScaleDistBias", "Alibi", "Window", "Sandwich"
    ]  # fmt: skip
    assert [type(bias).__name__ for bias in shared] == ["KerpleLog", "KerplePower", "T5Bias"]
    for parsed_bias in parsed.biases:
        (bias,) = [*biases.build([parsed_bias], DIM, HEADS, shared=isinstance(parsed_bias, SHARED))]
        count = sum(p.numel() for p in bias.parameters())
        assert count == parsed_bias.num_parameters(DIM, HEADS)


def test_a_fresh_gate_is_one_half_where_its_input_is_zero() -> None:
    bias = gated()
    torch.nn.init.zeros_(bias.gate_proj.bias)
    assert bias.gate(torch.zeros(1, LENGTH, DIM)).unique().tolist() == [0.5]


# ---------------------------------------------------------------------------------------------
# All of them
# ---------------------------------------------------------------------------------------------

KINDS: dict[str, dict[str, object]] = {
    "distbias": {}, "gated_distbias": {}, "multiscale_distbias": {"ranges": [2, 4]}, "alibi": {},
    "window": {"width": 3}, "sandwich": {}, "kerple_log": {}, "kerple_power": {}, "t5": {},
}  # fmt: skip
LEARNED = [kind for kind in KINDS if kind not in ("alibi", "window", "sandwich")]


def make(kind: str, heads: int = HEADS, *, causal: bool = False, **given: object) -> biases.Bias:
    entry = {"kind": kind, **KINDS[kind], **given}
    (parsed,) = settings.AttentionSettings.model_validate({"biases": [entry]}).biases
    torch.manual_seed(0)
    shared = isinstance(parsed, SHARED)
    (bias,) = biases.build([parsed], DIM, heads, causal=causal, shared=shared)
    assert isinstance(bias, biases.Bias)
    return bias


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_every_bias_has_the_right_sign_and_is_not_zero(kind: str, causal: bool) -> None:
    got = make(kind, causal=causal)(offsets(), torch.randn(2, LENGTH, DIM))
    got = got.expand(2, HEADS, LENGTH, LENGTH)
    assert got.dtype == torch.float32 and (got != 0).any()
    if kind == "window":
        assert torch.isneginf(got[..., offsets().abs() >= 3]).all() and (got[..., 0, 0] == 0).all()
        return
    assert torch.isfinite(got).all()
    if kind == "t5":
        return  # a learned table of either sign
    own, next_, far = got[..., 0, 0], got[..., 1, 0], got[..., 4, 0]
    assert (own > next_).all() and (next_ > far).all(), "a far key weighs less than a near one"
    if kind not in ("gated_distbias", "multiscale_distbias"):  # their gate is the query's
        torch.testing.assert_close(got, got.transpose(2, 3))


@pytest.mark.parametrize("kind", LEARNED)
def test_every_parameter_of_every_bias_gets_a_gradient(kind: str) -> None:
    bias = make(kind)
    far = torch.arange(-300, 301)[None]  # so that every bucket of T5 is met
    bias(far, torch.randn(2, LENGTH, DIM)).square().sum().backward()
    parameters = dict(bias.named_parameters())
    assert parameters
    for name, parameter in parameters.items():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all() and (parameter.grad != 0).any(), name
        if kind != "t5":
            assert (parameter.grad != 0).all(), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_e05_no_bias_loses_a_distance_in_half_precision(kind: str, dtype: torch.dtype) -> None:
    """Slopes of 2^-8 and 1,024 distances are 1,024 numbers; a bias in bf16 has 513."""
    bias = make(kind).to(dtype)
    far = -torch.arange(1024)[None]
    got = bias(far, torch.ones(1, 1, DIM, dtype=dtype)).expand(1, HEADS, 1, 1024)
    assert got.dtype == torch.float32 and not torch.isnan(got).any()
    if kind == "window":
        return
    assert torch.isfinite(got).all()
    wanted = {"t5": 15, "multiscale_distbias": 5, "sandwich": 1000}.get(kind, 1024)
    assert got[0, -1, 0].unique().numel() >= wanted


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_offsets_gives_the_values_of_the_map(kind: str) -> None:
    """What `banded` asks for is what `dense` adds."""
    bias, x = make(kind), torch.randn(2, LENGTH, DIM)
    whole = bias(offsets(), x).expand(2, HEADS, LENGTH, LENGTH)
    row = torch.arange(1 - LENGTH, LENGTH)[None]
    short = bias(row, x).expand(2, HEADS, LENGTH, 2 * LENGTH - 1)
    for i in range(LENGTH):
        found = short[:, :, i, LENGTH - 1 - i : 2 * LENGTH - 1 - i]
        torch.testing.assert_close(found, whole[:, :, i], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_of_two_texts_may_be_fractions_and_differ_by_row(kind: str) -> None:
    bias, x = make(kind), torch.randn(2, LENGTH, DIM)
    where = torch.stack([offsets() * 0.5, offsets() - 1.25])[:, None]
    got = bias(where, x)
    assert got.expand(2, HEADS, LENGTH, LENGTH).dtype == torch.float32
    for b in range(2):
        alone = bias(where[b, 0], x[b : b + 1]).expand(1, HEADS, LENGTH, LENGTH)
        torch.testing.assert_close(got.expand(2, HEADS, LENGTH, LENGTH)[b], alone[0])


@pytest.mark.parametrize("kind", ["distbias", "gated_distbias", "alibi"])
def test_the_slopes_of_a_linear_bias_are_those_it_adds(kind: str) -> None:
    bias, x = make(kind), torch.randn(2, LENGTH, DIM)
    a = biases.slopes(bias, x)
    assert (a > 0).all() and a.dtype == torch.float32
    torch.testing.assert_close(
        -a[..., None] * offsets().abs(), bias(offsets(), x), atol=1e-7, rtol=1e-6
    )


def test_e06_alibi_slopes_by_both_rules() -> None:
    """8n/H as it stands, and the list of Press et al. for H no power of two."""
    press = {
        4: [2**-2, 2**-4, 2**-6, 2**-8],
        6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
        8: [2**-n for n in range(1, 9)],
        12: [*(2**-n for n in range(1, 9)), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
    }
    for heads, expected in press.items():
        got = biases.slopes(make("alibi", heads, slopes="press"), torch.zeros(1, 1, DIM))
        assert got.flatten().tolist() == pytest.approx(expected, rel=1e-6)
        rule = biases.slopes(make("alibi", heads), torch.zeros(1, 1, DIM)).flatten().tolist()
        assert rule == pytest.approx([2 ** (-8 * n / heads) for n in range(1, heads + 1)])
        assert (rule == pytest.approx(expected)) == (heads in (4, 8))
    twelve = biases.slopes(make("alibi", 12), torch.zeros(1, 1, DIM)).flatten().tolist()
    assert [round(twelve[0], 3), round(twelve[-1], 4)] == [0.63, 0.0039]
    last = biases.alibi_exponents(12, "press")[8:]
    assert [round(2**-h, 4) for h in last] == [0.7071, 0.3536, 0.1768, 0.0884]


def test_a_shift_and_an_equal_slope_move_the_exponents() -> None:
    assert biases.alibi_exponents(4, shift=-3.0) == [-1.0, 1.0, 3.0, 5.0]
    assert biases.alibi_exponents(3, "equal", equal=5.0) == [5.0] * 3


def test_sandwich_has_the_values_of_the_source() -> None:
    """The sum of 64 cosines at distances 0 … 4096, divided by 8n/H."""
    distances = torch.tensor([[0, 1, 8, 64, 512, 4096]])
    expected = [64, 62.094, 45.721, 30.520, 14.043, -3.383]
    got = make("sandwich", 8)(distances, torch.zeros(1, 1, DIM))[:, 0]
    for n in range(1, 9):
        assert (got[n - 1] * n).tolist() == pytest.approx(expected, abs=2e-3)


def test_multi_scale_terms_stop_growing_at_their_range() -> None:
    bias, x = make("multiscale_distbias", ranges=[2, 4]), torch.randn(1, 1, DIM)
    got = bias(torch.arange(7)[None], x)[0, :, 0]
    steps = got[:, :-1] - got[:, 1:]
    assert (steps[:, :4] > 0).all() and (steps[:, 4:] == 0).all()
    torch.testing.assert_close(steps[:, 0], steps[:, 1])
    assert (steps[:, 2] < steps[:, 1]).all(), "one term less grows"


def by_hand_bucket(offset: int, buckets: int, longest: int, causal: bool) -> int:
    """T5's bucket, with integers and `math`, as its paper's code has it."""
    side, distance = 0, max(-offset, 0)
    if not causal:
        buckets //= 2
        side, distance = (buckets if offset > 0 else 0), abs(offset)
    exact = buckets // 2
    if distance < exact:
        return side + distance
    far = math.log(distance / exact) / math.log(longest / exact) * (buckets - exact)
    return side + min(exact + int(far), buckets - 1)


@pytest.mark.parametrize("causal", [True, False])
def test_t5_buckets_are_those_of_a_loop_and_of_its_library(causal: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    row = torch.arange(-600, 601)
    for buckets, longest in ((32, 128), (8, 20)):
        got = biases.t5_bucket(row, buckets, longest, causal=causal)
        theirs = T5Attention._relative_position_bucket(
            row, bidirectional=not causal, num_buckets=buckets, max_distance=longest
        )
        assert torch.equal(got, theirs)
        exact = [by_hand_bucket(int(o), buckets, longest, causal) for o in row]
        assert sum(a != b for a, b in zip(got.tolist(), exact, strict=True)) <= 2  # float32 log
    assert biases.t5_bucket(torch.tensor([-15, -16]), 32, 128, causal=True).tolist() == [15, 16]


@pytest.mark.parametrize("kind", ["kerple_log", "kerple_power"])
def test_a_kerple_parameter_below_its_bound_is_held_there_and_comes_back(kind: str) -> None:
    bias = make(kind)
    with torch.no_grad():
        for parameter in bias.parameters():
            parameter.fill_(-1.0)
    got = bias(offsets(), torch.zeros(1, LENGTH, DIM))
    d = offsets().abs().double()
    expected = {"kerple_log": -0.01 * (1 + 0.01 * d).log(), "kerple_power": -0.01 * d**0.01}[kind]
    torch.testing.assert_close(got[0].double(), expected, atol=1e-7, rtol=1e-5)
    got.sum().backward()
    for parameter in bias.parameters():
        assert parameter.grad is not None and (parameter.grad != 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_counts_as_linear_is_a_slope_times_the_distance_and_nothing_else_is(kind: str) -> None:
    """`dense` is given the same slopes, so no comparison of paths would notice a wrong entry."""
    bias, x, row = make(kind), torch.randn(2, LENGTH, DIM), offsets(9, 9)[4:5]
    with torch.no_grad():
        for parameter in bias.parameters():
            parameter.add_(torch.rand_like(parameter))
        found, steep = bias(row, x), biases.slopes(bias, x)
        expected = (-steep[..., None] * row.abs()).expand(found.shape)
    is_linear = kind in [typing.get_args(c.model_fields["kind"].annotation)[0] for c in LINEAR]
    assert torch.allclose(found, expected, atol=1e-6) == is_linear
