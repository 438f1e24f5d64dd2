"""AdamW's groups, and learning rates by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ala_encoder.models import Classifier, MaskedLM
from ala_encoder.optim import adamw, learning_rate, parameter_groups
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import EncoderModel
from ala_encoder.settings.optim import OptimSettings

SCHEDULES = ["constant", "linear", "cosine", "inverse_sqrt"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Small tensors: several threads on busy cores only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def settings(schedule: str, warmup: int, peak: float = 2.0, **more: Any) -> OptimSettings:
    return OptimSettings.model_validate(
        {"schedule": schedule, "warmup_steps": warmup, "learning_rate": peak, **more}
    )


def rates(made: OptimSettings, total: int) -> list[float]:
    return [learning_rate(step, made, total) for step in range(1, total + 1)]


def test_the_schedules_by_hand() -> None:
    """Peak 2, warm-up of 2 steps, 5 steps in all."""
    half = math.sqrt(0.5)
    by_hand = {
        "constant": [1, 2, 2, 2, 2],
        "linear": [1, 2, 1.5, 1, 0.5],
        "cosine": [1, 2, 1 + half, 1, 1 - half],
        "inverse_sqrt": [1, 2, 2 * math.sqrt(2 / 3), 2 * half, 2 * math.sqrt(2 / 5)],
    }
    for schedule, expected in by_hand.items():
        assert rates(settings(schedule, 2), 5) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_final_ratio_is_the_floor_of_the_fall(schedule: str) -> None:
    plain, raised = (rates(settings(schedule, 2, final_ratio=f), 9) for f in (0.0, 0.25))
    for low, high in zip(plain[2:], raised[2:], strict=True):
        assert high == pytest.approx(0.25 * 2 + 0.75 * low, rel=1e-15)
    made = settings(schedule, 2, final_ratio=0.25)
    for after_the_end in (10, 11, 1000):
        assert learning_rate(after_the_end, made, 9) == pytest.approx(0.5)
    assert rates(settings(schedule, 0, final_ratio=1.0), 5) == [2] * 5


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (1, 1), (1, 7), (5, 5), (3, 100), (0, 50)])
def test_r29_every_update_moves_and_none_exceeds_the_peak(
    schedule: str, warmup: int, total: int
) -> None:
    if schedule == "inverse_sqrt":
        warmup = max(1, warmup)  # 0 is refused by the settings
    made = rates(settings(schedule, warmup), total)
    assert all(0 < rate <= 2 for rate in made)
    if warmup:
        assert made[warmup - 1] == 2
    assert made[: warmup - 1 if warmup else 0] == [2 * s / warmup for s in range(1, warmup)]
    falls = made[max(0, warmup - 1) :]
    assert all(a >= b for a, b in itertools.pairwise(falls))
    if schedule in ("linear", "cosine") and total > warmup:
        assert made[-1] < 2


def test_a_warm_up_of_16000_steps_is_the_sources_formula() -> None:
    """dim^-0.5 · min(step^-0.5, step · warmup^-1.5) (Vaswani et al. 2017), scaled to its peak."""
    dim, warmup = 512, 16_000
    peak = dim**-0.5 * warmup**-0.5
    made = settings("inverse_sqrt", warmup, peak)
    for step in (1, 2, 8_000, 15_999, 16_000, 16_001, 64_000, 100_000):
        formula = dim**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert learning_rate(step, made, 100_000) == pytest.approx(formula, rel=1e-12)
    assert learning_rate(1, made, 100_000) == peak / 16_000
    assert learning_rate(64_000, made, 100_000) == peak / 2


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_r29_a_rate_depends_on_its_step_alone(schedule: str) -> None:
    made = settings(schedule, 10)
    in_order = rates(made, 50)
    backwards = [learning_rate(step, made, 50) for step in range(50, 0, -1)]
    assert in_order == backwards[::-1]


# Groups


def model(kind: str, bias: str) -> torch.nn.Module:
    sizes = EncoderModel(
        family="encoder", dim=8, num_layers=2, num_heads=2, ffn_dim=6, max_length=12
    )
    attention = AttentionSettings.model_validate(
        {"biases": [{"kind": bias}], "heads": [["band1#a", "full"]] * 2}
    )
    if kind == "mlm":
        return MaskedLM(sizes, attention, 20)
    return Classifier(sizes, attention, 20, 3)


@pytest.mark.parametrize("bias", ["distbias", "gated_distbias"])
@pytest.mark.parametrize("kind", ["mlm", "classifier"])
def test_biases_norms_and_alpha_are_not_decayed_and_matrices_are(kind: str, bias: str) -> None:
    made = model(kind, bias)
    decay = {
        id(parameter): group["weight_decay"]
        for group in parameter_groups(made, 0.1)
        for parameter in group["params"]
    }
    named = dict(made.named_parameters())
    assert len(decay) == len(named)
    for name, parameter in named.items():
        free = name.endswith("bias") or "norm" in name.lower() or "alpha" in name
        assert decay[id(parameter)] == (0.0 if free else 0.1), name
    assert any("raw_alpha" in name for name in named)


def test_a_shared_parameter_is_in_the_groups_once_and_a_frozen_one_never() -> None:
    made = model("mlm", "distbias")
    frozen = next(made.parameters())
    frozen.requires_grad_(False)
    listed = [p for group in parameter_groups(made, 0.1) for p in group["params"]]
    assert len(listed) == len({id(p) for p in listed}) == len(list(made.parameters())) - 1
    assert all(p is not frozen for p in listed)


def test_a_group_without_a_parameter_is_left_out() -> None:
    assert [group["weight_decay"] for group in parameter_groups(torch.nn.LayerNorm(3), 0.1)] == [0]
    alone = torch.nn.Linear(3, 3, bias=False)
    assert [group["weight_decay"] for group in parameter_groups(alone, 0.1)] == [0.1]


def test_adamw_equals_its_formula_written_out() -> None:
    """Loshchilov and Hutter 2019: p ← p − lr·(wd·p + m̂ / (√v̂ + eps))."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 2).double()
    made = OptimSettings(learning_rate=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.5)
    optimizer = adamw(layer, made)
    values = {name: p.detach().clone() for name, p in layer.named_parameters()}
    m = {name: torch.zeros_like(p) for name, p in values.items()}
    v = {name: torch.zeros_like(p) for name, p in values.items()}
    for step in range(1, 6):
        rate = learning_rate(step, settings("linear", 2, 0.1), 5)
        for group in optimizer.param_groups:
            group["lr"] = rate
        for name, parameter in layer.named_parameters():
            grad = torch.randn(parameter.shape, dtype=torch.float64)
            parameter.grad = grad.clone()
            m[name] = 0.8 * m[name] + 0.2 * grad
            v[name] = 0.9 * v[name] + 0.1 * grad**2
            decay = 0.5 if parameter.ndim == 2 else 0.0
            values[name] -= rate * decay * values[name]
            unbiased = m[name] / (1 - 0.8**step), v[name] / (1 - 0.9**step)
            values[name] -= rate * unbiased[0] / (unbiased[1].sqrt() + 1e-3)
        optimizer.step()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(parameter.data, values[name], rtol=1e-12, atol=0)
