"""Metrics of locality by hand, against a uniform causal map, and their averages against loops."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ala_encoder.analysis.capture import Captured, capture
from ala_encoder.analysis.locality import (
    LocalityMeter,
    entropy,
    expected_distance,
    local_mass,
    locality,
)
from ala_encoder.errors import UserError
from ala_encoder.models import CausalLM, Seq2Seq
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import CausalModel
from tests import test_causal, test_seq2seq
from tests.test_capture import masked, texts
from tests.test_models import shaken


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


def test_a_row_under_a_mask_after_the_softmax_is_divided_by_what_is_left_of_it() -> None:
    """Stated are the sums as they are, by which little weight would mean a small distance."""
    weights = torch.tensor([[0.0, 0, 0, 0], [0.125, 0, 0, 0], [0.03, 0.01, 0, 0], [0.0, 0, 0, 0]])
    torch.testing.assert_close(expected_distance(weights), torch.tensor([0.0, 1.0, 1.75, 0.0]))
    torch.testing.assert_close(local_mass(weights, 1), torch.tensor([0.0, 1.0, 0.25, 0.0]))
    torch.testing.assert_close(entropy(weights)[2], torch.tensor(0.5623351))
    stated = expected_distance(weights, normalised=False)
    torch.testing.assert_close(stated, torch.tensor([0.0, 0.125, 0.07, 0.0]))
    stated = local_mass(weights, 1, normalised=False)
    torch.testing.assert_close(stated, torch.tensor([0.0, 0.125, 0.01, 0.0]))
    stated = entropy(weights, normalised=False)
    torch.testing.assert_close(stated[1], torch.tensor(-0.125 * math.log(0.125)))


# ---------------------------------------------------------------------------------------------
# Averages
# ---------------------------------------------------------------------------------------------

Rows = dict[str, dict[tuple[int, int, int], list[float]]]


def by_loops(model: nn.Module, batches: Any, widths: tuple[int, ...]) -> Rows:
    """Return every metric of every real query, by layer, head and place in its document."""
    rows: Rows = defaultdict(lambda: defaultdict(list))

    def see(one: Captured) -> None:
        segments = one.visibility.segments
        assert segments is not None
        for b, h, i in torch.cartesian_prod(*map(torch.arange, one.weights.shape[:3])).tolist():
            own = int(segments[b, i])
            if own == 0:
                continue
            place = sum(1 for j in range(i) if segments[b, j] == own)
            key = (one.layer, h, place)
            row = one.weights[b, h, i].double().tolist()
            total = math.fsum(row)
            rows["weight"][key].append(total)
            if one.gates:
                rows["gate"][key].append(sum(float(g[b, h, i]) for g in one.gates) / len(one.gates))
            if total == 0:
                continue
            row = [w / total for w in row]
            rows["expected_distance"][key].append(
                math.fsum(w * abs(i - j) for j, w in enumerate(row))
            )
            rows["entropy"][key].append(-math.fsum(w * math.log(w) for w in row if w > 0))
            for width in widths:
                near = (w for j, w in enumerate(row) if abs(i - j) <= width)
                rows[f"mass@{width}"][key].append(math.fsum(near))

    capture(model, batches, see)
    return rows


def mean_where(rows: dict[tuple[int, int, int], list[float]], **fixed: int) -> float | None:
    names = ("layer", "head", "place")
    values = [
        value
        for key, found in rows.items()
        if all(dict(zip(names, key, strict=True))[name] == n for name, n in fixed.items())
        for value in found
    ]
    return math.fsum(values) / len(values) if values else None


MODELS: dict[str, tuple[str, Any]] = {
    **{f"causal {name}": ("decoder", lambda name=name: test_causal.build(name))
       for name in ("full", "local", "hidden", "gated", "shared", "multiscale")},
    **{f"masked {name}": ("encoder", lambda name=name: masked(name))
       for name in ("full", "local", "tied", "hidden", "gated", "multiscale")},
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_averages_are_those_of_loops_over_real_queries(name: str) -> None:
    """Padding, packed documents, rows with nothing left, and heads without Q and K among them."""
    section, build = MODELS[name]
    model, widths = build(), (0, 2)
    found = locality(model, texts(), widths)[section].model
    rows = by_loops(model, texts(), widths)
    assert set(found.mean()) == set(rows)
    for metric, own in rows.items():
        close = lambda x: x if x is None else pytest.approx(x, rel=2e-5, abs=2e-6)  # noqa: E731
        assert found.mean()[metric] == close(mean_where(own))
        for layer, value in enumerate(found.by_layer()[metric]):
            assert value == close(mean_where(own, layer=layer))
        for layer, values in enumerate(found.by_head()[metric]):
            assert len(values) == 4
            for head, value in enumerate(values):
                assert value == close(mean_where(own, layer=layer, head=head))
        places = found.by_position()[metric]
        assert len(places) == 9
        for place, value in enumerate(places):
            assert value == close(mean_where(own, place=place))
    assert ("gate" in rows) == ("gated" in name or "multiscale" in name)
    if name.split()[1] in ("local", "tied", "hidden"):  # a first token has no prev1
        assert found.mean()["weight"] < 0.999
    else:
        assert found.mean()["weight"] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_distances_across_two_texts_are_those_of_the_bias(ratio: float) -> None:
    """|j − ratio·i|, within sentences of equal number; the uniform map is over the source."""
    cross = {"biases": [{"kind": "alibi"}], "ratio": ratio}
    given = {"cross": AttentionSettings.model_validate(cross)}
    model = shaken(Seq2Seq(test_seq2seq.MODEL, given, test_seq2seq.VOCAB))
    src_ids, trg_ids, src, trg = test_seq2seq.batch()
    inputs = {"src_ids": src_ids, "trg_ids": trg_ids, "src_segments": src, "trg_segments": trg}
    found = locality(model, [inputs], [2])
    assert found.keys() == {"encoder", "decoder", "cross"}
    totals, uniform, maps = [], [], {}
    capture(model, [inputs], lambda one: maps.setdefault((one.section, one.layer), one.weights))
    for (section, _), weights in maps.items():
        for b, i in (trg > 0).nonzero().tolist() if section == "cross" else []:
            apart = (torch.arange(src.shape[1]) - ratio * i).abs().double()
            totals += [float(weights[b, h, i].double() @ apart) for h in range(weights.shape[1])]
            uniform.append(float(apart[src[b] > 0].mean()))
    mean, equal = found["cross"].model.mean(), found["cross"].uniform.mean()
    assert mean["expected_distance"] == pytest.approx(math.fsum(totals) / len(totals), rel=1e-5)
    assert equal["expected_distance"] == pytest.approx(math.fsum(uniform) / len(uniform))


def uniform(length: int) -> tuple[CausalLM, Tensor]:
    """Return a model whose attention is uniform, and a text."""
    settings = CausalModel(family="causal", dim=8, num_layers=2, num_heads=2, ffn_dim=4,
                           positions="none", dropout=0.0)  # fmt: skip
    model = CausalLM(settings, AttentionSettings(), 5).eval()
    with torch.no_grad():
        for projection in model.stack.bank.projections:
            projection.get_submodule("q_proj").weight.zero_()
    return model, torch.zeros(1, length, dtype=torch.long)


def test_a_uniform_causal_model_of_512_tokens_has_the_stated_averages() -> None:
    model, ids = uniform(512)
    found = locality(model, [{"input_ids": ids}])["decoder"]
    for averages in (found.model, found.uniform):
        mean = averages.mean()
        assert mean["expected_distance"] == pytest.approx(127.75, abs=1e-4)
        assert mean["mass@32"] == pytest.approx(0.24026, abs=5e-6)
        assert mean["mass@64"] == pytest.approx(0.38813, abs=5e-6)
        assert mean["entropy"] == pytest.approx(5.2462, abs=5e-5)
    by_place = found.model.by_position()
    assert by_place["expected_distance"] == pytest.approx([p / 2 for p in range(512)], abs=1e-4)
    assert by_place["entropy"] == pytest.approx([math.log(p + 1) for p in range(512)], abs=1e-5)


def test_the_uniform_reference_follows_padding_and_documents() -> None:
    model, _ = uniform(4)
    segments = torch.tensor([[0, 1, 1, 1, 2, 2, 0]])
    inputs = {"input_ids": torch.zeros(1, 7, dtype=torch.long), "segments": segments}
    causal = locality(model, [inputs], [1])["decoder"]
    for averages in (causal.model, causal.uniform):
        mean = averages.mean()
        assert mean["expected_distance"] == pytest.approx((0 + 0.5 + 1 + 0 + 0.5) / 5)
        assert mean["mass@1"] == pytest.approx((1 + 1 + 2 / 3 + 1 + 1) / 5)
    (found,) = locality(masked("gated"), [inputs], [1]).values()
    expected = (1 + 2 / 3 + 1 + 0.5 + 0.5) / 5
    assert found.uniform.mean()["expected_distance"] == pytest.approx(expected)
    assert "gate" not in found.uniform.mean()


def test_a_record_is_json_and_holds_slopes_by_scale_layer_and_head() -> None:
    for variant, scales in (("full", 0), ("gated", 1), ("multiscale", 2)):
        model = masked(variant)
        (found,) = locality(model, texts()).values()
        record = json.loads(json.dumps(found.record(), allow_nan=False))
        assert record["queries"] == 7 + 9 + 4 + 5
        assert record["mean"]["entropy"] == pytest.approx(found.model.mean()["entropy"], rel=1e-5)
        assert np.shape(record["by_head"]["entropy"]) == (3, 4)
        assert np.shape(record["alphas"]) == ((scales, 3, 4) if scales else (0,))
        assert all(0 < alpha < 1 for scale in record["alphas"] for row in scale for alpha in row)
        assert set(record["mean"]) - set(record["uniform"]) == {
            "weight", *(["gate"] if scales else [])
        }  # fmt: skip


def test_batches_and_their_order_do_not_matter() -> None:
    one, two = texts()
    rows = [{key: value[n : n + 1] for key, value in one.items()} for n in range(3)]
    whole, cut = (locality(masked("gated"), given)["encoder"].model.mean()
                  for given in ([one, two], [two, *rows]))  # fmt: skip
    assert whole == pytest.approx(cut, rel=1e-6)


def test_attention_that_is_not_finite_is_an_error_and_no_average() -> None:
    model = masked("full")
    with torch.no_grad():
        model.encoder.stack.bank.projections[1].get_submodule("q_proj").weight[0, 0] = math.nan
    with pytest.raises(UserError, match="encoder: layer 1: weights that are not finite"):
        locality(model, texts())
    with pytest.raises(UserError, match="allowed are 0 and above"):
        LocalityMeter([-1])
