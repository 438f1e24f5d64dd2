"""Receptive fields against explicit gradients, in theory and measured; fits of biases by logs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ala_encoder.analysis.logfit import (
    fit_bias,
    fit_kerple_log,
    fit_log,
    fit_sandwich,
    fit_t5,
)
from ala_encoder.analysis.receptive_field import (
    ReceptiveField,
    Theory,
    masked_receptive_field,
    receptive_field,
    theoretical_field,
)
from ala_encoder.analysis.segments import blocks, causal_segments, masked_segments
from ala_encoder.attention import Attention
from ala_encoder.biases import Alibi, KerpleLog, Sandwich, alibi_exponents
from ala_encoder.errors import UserError
from ala_encoder.models import CausalLM, MaskedLM
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import CausalModel
from tests import test_causal, test_models
from tests.launched import small
from tests.test_capture import masked
from tests.test_models import shaken

Grads = list[list[float]]
"""|gradient| of each token, by segment."""


def expected(grads: Grads, places: list[int]) -> dict[str, Any]:
    """Return curve, ERFs and sides by loops over tokens and distances."""
    size = max(max(i, len(row) - 1 - i) for i, row in zip(places, grads, strict=True)) + 1
    curves, befores, afters = [], [], []
    for row, i in zip(grads, places, strict=True):
        total = math.fsum(row)
        for found, holds in (
            (curves, lambda o: True), (befores, lambda o: o < 0), (afters, lambda o: o > 0)
        ):  # fmt: skip
            found.append([
                math.fsum(g for j, g in enumerate(row) if abs(j - i) < m and holds(j - i)) / total
                for m in range(1, size + 1)
            ])  # fmt: skip
    mean = [math.fsum(column) / len(curves) for column in zip(*curves, strict=True)]
    erf = [next(m for m, c in enumerate(curve, 1) if c > 0.99) for curve in [*curves, mean]]
    sides = ([math.fsum(c) / len(x) for c in zip(*x, strict=True)] for x in (befores, afters))
    return {"curve": mean, "erf": erf.pop(), "erfs": tuple(erf),
            **dict(zip(("before", "after"), sides, strict=True))}  # fmt: skip


def assert_equal(found: ReceptiveField, wanted: dict[str, Any], tolerance: float) -> None:
    for name in ("curve", "before", "after"):
        assert getattr(found, name).tolist() == pytest.approx(wanted[name], abs=tolerance), name
    assert (found.erf, found.erfs) == (wanted["erf"], wanted["erfs"])


# ---------------------------------------------------------------------------------------------
# Brute force
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", test_causal.ATTENTION)
def test_a_causal_field_is_that_of_numbers_moved_one_by_one(attention: str) -> None:
    """A number of a token's embedding is moved by putting another token there."""
    model = test_causal.build(attention, positions="none", tied_embeddings=False).double()
    step = 1e-3  # biases are float32
    ids = torch.randint(0, 23, (2, 9), generator=torch.Generator().manual_seed(1))
    grads = []
    words = model.vocabulary.weight.detach().clone()
    for row in ids:
        moves = [(j, place, sign) for j in range(8) for place in range(24) for sign in (1, -1)]
        others, rows = [words], row.repeat(len(moves), 1)
        for number, (j, place, sign) in enumerate(moves):
            other = words[row[j]][None].clone()
            other[0, place] += sign * step
            others.append(other)
            rows[number, j] = len(words) + number
        model.vocabulary.weight.data = torch.cat(others)
        with torch.no_grad():
            found = model(rows[:, :-1])[:, -1].log_softmax(-1)[:, row[-1]]
        slopes = found.view(8, 24, 2).diff(dim=-1)[..., 0] / (2 * step)
        grads.append([math.hypot(*token) for token in slopes.tolist()])
    model.vocabulary.weight.data = words
    field = receptive_field(model, ids)
    assert_equal(field, expected(grads, [7, 7]), 1e-4)
    with torch.no_grad():
        losses = [-model(row[None, :-1])[0, -1].log_softmax(-1)[row[-1]] for row in ids]
    assert field.losses == pytest.approx([float(loss) for loss in losses])
    assert field.length == 8


def log_prob_of(model: CausalLM, x: Tensor, label: Tensor) -> Tensor:
    logits = model.logits(model.stack(x, None))
    return logits[0, -1].log_softmax(-1)[label]


FAR: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "alibi": [{"kind": "alibi"}],
    "gated": [{"kind": "gated_distbias", "alpha_init": 0.1}],
    "window": [{"kind": "window", "width": 20}],
    "sandwich": [{"kind": "sandwich", "dim": 16}],
    "kerple": [{"kind": "kerple_log"}],
    "t5": [{"kind": "t5"}],
}


def long_model(biases: list[dict[str, Any]], positions: str = "none", **changes: Any) -> CausalLM:
    settings = CausalModel(family="causal", dim=16, num_layers=3, num_heads=2, ffn_dim=16,
                           positions=positions, dropout=0.3, **changes)  # fmt: skip
    torch.manual_seed(0)
    attention = AttentionSettings.model_validate({"biases": biases})
    return shaken(CausalLM(settings, attention, 23))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", FAR)
@pytest.mark.parametrize("length", [40, 600])
def test_fused_paths_give_the_field_of_an_explicit_jacobian(name: str, length: int) -> None:
    """The vocabulary is tied: what it adds as output matrix is no gradient of an input."""
    model = long_model(FAR[name])
    ids = torch.randint(0, 23, (3, length + 1), generator=torch.Generator().manual_seed(1))
    grads = []
    twin = long_model(FAR[name]).double()
    for part in twin.modules():
        if isinstance(part, Attention):
            part.settings = part.settings.model_copy(update={"path": "dense"})
    for row in ids:
        x = twin.vocabulary.weight[row[None, :-1]].detach().requires_grad_()
        (grad,) = torch.autograd.grad(log_prob_of(twin, x, row[-1]), x)
        grads.append(grad[0].norm(dim=-1).tolist())
    wanted = expected(grads[:1], [length - 1])
    one = receptive_field(model, ids[:1])
    assert one.curve.tolist() == pytest.approx(wanted["curve"], abs=2e-5)
    assert abs(one.erf - wanted["erf"]) <= 1  # float32, where 0.99 may fall between
    together = receptive_field(model.train(), ids, batch_size=2)
    assert together.curve[-1] == pytest.approx(1.0)
    assert together.erfs[0] == one.erf and model.training
    assert together.mean_erf.mean == pytest.approx(sum(together.erfs) / 3)


@pytest.mark.parametrize("variant", [*test_models.VARIANTS, *test_models.FAMILIES])
def test_an_encoders_field_reaches_to_both_sides_as_its_jacobian_does(variant: str) -> None:
    model = masked(variant)
    ids = torch.randint(0, 23, (3, 11), generator=torch.Generator().manual_seed(1))
    places, labels = torch.tensor([0, 4, 7]), torch.tensor([3, 9, 1])
    grads, encoder = [], model.encoder
    for row, place, label in zip(ids, places, labels, strict=True):
        x = encoder.vocabulary.weight[row][None].detach().requires_grad_()
        assert encoder.positions is not None
        inputs = x + encoder.positions.embedding.weight[:11] + encoder.token_types.weight[0]
        hidden = encoder.stack(encoder.norm(inputs), None)
        logits = model.head(hidden[:, place], encoder.vocabulary)
        (grad,) = torch.autograd.grad(logits[0].log_softmax(-1)[label], x)
        grads.append(grad[0].norm(dim=-1).tolist())
    found = masked_receptive_field(model, ids, places, labels, batch_size=2)
    assert_equal(found, expected(grads, places.tolist()), 1e-6)
    assert len(found.curve) == 11  # the first of them sees to the other end
    total = found.before[-1] + found.after[-1]
    assert 0 < total < 1 and found.before[0] == found.after[0] == 0


# ---------------------------------------------------------------------------------------------
# Theory
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 5])
def test_no_gradient_comes_from_beyond_the_windows_of_all_layers(width: int) -> None:
    model = long_model([{"kind": "window", "width": width}])
    theory = theoretical_field(model)
    assert theory == Theory(3 * width, 3 * (width - 1) + 1)
    found = receptive_field(model, torch.randint(0, 23, (4, 41)))
    assert found.curve[theory.exact - 1] == pytest.approx(1.0, abs=1e-12)
    assert theory.exact == 1 or found.curve[theory.exact - 2] < 1.0
    assert max(found.erfs) <= theory.exact


def heads(cells: list[str], **changes: Any) -> nn.Module:
    attention = AttentionSettings.model_validate({"heads": [cells] * 3, **changes})
    return MaskedLM(test_models.MODEL, attention, 23)


@pytest.mark.parametrize(
    ("model", "theory"),
    [
        (lambda: heads(["prev2", "identity", "band1", "next1"], mask_operator="pre_softmax"),
         Theory(9, 7)),
        (lambda: heads(["prev2", "identity", "band1", "full"], mask_operator="pre_softmax"), None),
        (lambda: heads(["prev2", "identity", "band1", "next1"]), None),
        (lambda: heads(["prev2", "identity", "full", "full"],
                       biases=[{"kind": "window", "width": 4}, {"kind": "alibi"}]), Theory(12, 10)),
        (lambda: masked("full"), None),
    ],
)  # fmt: skip
def test_theory_knows_windows_and_masks_before_the_softmax(
    model: Callable[[], nn.Module], theory: Theory | None
) -> None:
    """A mask after it is no limit: the sum that weights are divided by is over all keys."""
    built = model()
    assert theoretical_field(built) == theory
    if theory is not None:
        assert isinstance(built, MaskedLM)
        ids = torch.randint(0, 23, (2, 12))
        found = masked_receptive_field(shaken(built), ids, torch.tensor([11, 0]), ids[:, 0])
        assert found.curve[theory.exact - 1] == pytest.approx(1.0, abs=1e-12)
        assert found.curve[theory.exact - 2] < 1.0


# ---------------------------------------------------------------------------------------------
# What is left behind, and what goes wrong
# ---------------------------------------------------------------------------------------------


def test_nothing_is_left_behind_in_the_model() -> None:
    model = long_model(FAR["gated"]).train()
    model.vocabulary.weight.requires_grad_(False)
    with torch.no_grad():  # whatever the caller does
        first = receptive_field(model, torch.arange(20)[None])
    assert first.erfs == receptive_field(model, torch.arange(20)[None]).erfs  # dropout is off
    assert all(part.training for part in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert [n for n, p in model.named_parameters() if not p.requires_grad] == ["vocabulary.weight"]
    assert not model.vocabulary._forward_hooks


def test_what_has_no_field_is_an_error() -> None:
    model = test_causal.build(tied_embeddings=False)
    with pytest.raises(UserError, match="input of 13 tokens: the model has 12 positions"):
        receptive_field(model, torch.zeros(1, 14, dtype=torch.long))
    with torch.no_grad():
        model.vocabulary.weight[5] = math.nan
    ids = torch.tensor([[1, 2, 3, 4], [1, 5, 3, 4]])
    with pytest.raises(UserError, match="segment 1: its gradient is 0 or not finite"):
        receptive_field(model, ids)


def test_segments_predict_the_same_tokens_at_every_length() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    for length in (10, 64):
        found = causal_segments(tokens, length, 7, 64)
        assert found.shape == (7, length + 1)
        assert found[:, -1].tolist() == [64 + n * 936 // 7 for n in range(7)]
        assert (found.diff(dim=1) == 1).all()
    assert causal_segments(tokens, 64, 936, 64)[:, -1].tolist() == list(range(64, 1000))
    with pytest.raises(UserError, match=r"segments = 937: a text of 1,000 tokens has 936 places"):
        causal_segments(tokens, 64, 937, 64)
    with pytest.raises(UserError, match="has 0 places"):
        causal_segments(tokens, 2000, 1, 2000)


def test_masked_segments_mask_the_same_tokens_at_every_length(home: Any) -> None:
    tokenizer, tokens = small.data(home)
    tokens[200:] = tokenizer.sep_id  # of which none is masked
    labels = []
    for length in (8, 9, 32):
        ids, places, own = masked_segments(tokens, length, 5, 32, tokenizer)
        labels.append(own.tolist())
        assert ids.shape == (5, length)
        assert (ids[:, 0] == tokenizer.cls_id).all() and (ids[:, -1] == tokenizer.sep_id).all()
        for row, place, label in zip(ids, places, own, strict=True):
            assert abs(int(place) - (length - 1) / 2) <= 1
            assert row[place] == tokenizer.mask_id and label not in tokenizer.special_ids
            text = row[1:-1].tolist()
            text[int(place) - 1] = int(label)
            assert any((tokens[i : i + length - 2] == text).all() for i in range(len(tokens)))
    side, leave_out = 15, {*tokenizer.special_ids, tokenizer.unk_id}
    inside = tokens[side : len(tokens) - side].tolist()
    ordinary = [token for token in inside if token not in leave_out]
    assert labels == [[ordinary[n * len(ordinary) // 5] for n in range(5)]] * 3


def test_blocks_are_spread_over_the_text_and_never_more_than_there_are() -> None:
    tokens = np.arange(100, dtype=np.uint16)
    assert blocks(tokens, 10, 3)[:, 0].tolist() == [0, 30, 60]
    assert blocks(tokens, 30, 9).tolist() == [list(range(n, n + 30)) for n in (0, 30, 60)]
    with pytest.raises(UserError, match="a text of 100 tokens is shorter than a block of 101"):
        blocks(tokens, 101, 1)


def test_a_record_is_json_with_both_averages() -> None:
    found = receptive_field(long_model([]), torch.randint(0, 23, (4, 21)))
    record = json.loads(json.dumps(found.record(), allow_nan=False))
    assert (record["length"], record["segments"]) == (20, 4)
    assert record["mean_erf"]["mean"] == pytest.approx(sum(found.erfs) / 4)
    assert record["loss"]["n"] == 4
    assert record["erf_of_mean_curve"] == found.erf
    assert record["curve"][-1] == 1.0 and len(record["curve"]) == 20


# ---------------------------------------------------------------------------------------------
# Logarithms
# ---------------------------------------------------------------------------------------------


def test_sandwich_is_nearly_a_logarithm_with_the_stated_numbers() -> None:
    found = fit_sandwich()
    assert (found.slope, found.intercept) == pytest.approx((-0.832, -0.794), abs=5e-4)
    values = {0: 64, 1: 62.094, 8: 45.721, 64: 30.520, 512: 14.043, 4096: -3.383}
    assert [8 * found.values[d] + 64 for d in values] == pytest.approx(
        list(values.values()), abs=6e-4
    )
    logs = np.log1p(np.arange(8192))
    twin = np.polyfit(logs, found.values, 1)
    assert (found.slope, found.intercept) == pytest.approx(tuple(twin))
    assert found.rmse == pytest.approx(np.std(found.values - np.polyval(twin, logs)))
    np.testing.assert_allclose(found.fitted, np.polyval(twin, logs))


def test_kerple_with_r2_of_1_is_that_logarithm() -> None:
    found = fit_kerple_log(0.832, 1.0)
    assert (found.slope, found.intercept) == pytest.approx((-0.832, 0.0), abs=1e-6)
    assert found.rmse < 1e-6
    steep = fit_kerple_log(1.5, 0.2)  # −r1 ln r2 away for far keys, 0 at the first
    assert steep.slope == pytest.approx(-1.5, abs=0.03)
    assert steep.intercept == pytest.approx(-1.5 * math.log(0.2), abs=0.2)


def test_t5_with_a_line_over_its_buckets_is_near_a_logarithm_up_to_its_end() -> None:
    table = [-0.25 * bucket for bucket in range(32)]
    near = fit_t5(table, length=129)
    buckets = [d if d < 16 else 16 + int(math.log(d / 16) / math.log(8) * 16) for d in range(128)]
    assert near.values[:128].tolist() == [-0.25 * bucket for bucket in buckets]
    assert near.values[128] == -0.25 * 31
    assert near.slope == pytest.approx(-1.9, abs=0.1) and near.rmse < 0.5
    assert abs(fit_t5(table).slope) < abs(near.slope)  # all far keys are alike


def test_heads_of_a_bias_are_fitted_each_for_itself() -> None:
    found = fit_bias(Sandwich(4, 128))
    assert [fit.slope for fit in found] == pytest.approx([-0.8324 * 4 / n for n in (1, 2, 3, 4)],
                                                         abs=1e-3)  # fmt: skip
    torch.manual_seed(0)
    kerple = KerpleLog(3)
    for head, fit in enumerate(fit_bias(kerple, 64)):
        r1, r2 = (max(0.01, r.tolist()[head]) for r in (kerple.r1, kerple.r2))
        assert fit.values.tolist() == pytest.approx(
            [-r1 * math.log1p(r2 * d) for d in range(64)], abs=1e-5
        )
    line = fit_bias(Alibi(alibi_exponents(2)), 16)[0]
    assert line.values.tolist() == pytest.approx([-d / 16 for d in range(16)])


def test_a_fit_needs_no_bias() -> None:
    found = fit_log([3.0 - 2.0 * math.log1p(d) for d in range(5)])
    assert (found.slope, found.intercept) == pytest.approx((-2.0, 3.0))
