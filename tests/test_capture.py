"""Attention seen from inside: equal to what the models compute, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ala_encoder.analysis.capture import Captured, capture, evaluating, run_layers
from ala_encoder.attention import Attention
from ala_encoder.blocks import Trace
from ala_encoder.errors import UserError
from ala_encoder.models import CausalLM, Classifier, MaskedLM, Seq2Seq
from ala_encoder.settings.attention import AttentionSettings
from tests import test_causal, test_models, test_seq2seq
from tests.test_models import shaken

MULTISCALE = {"biases": [{"kind": "multiscale_distbias", "ranges": [2, 5], "alpha_init": 0.4}]}


def masked(variant: str = "gated", **changes: Any) -> MaskedLM:
    settings = {**test_models.VARIANTS, **test_models.FAMILIES, "multiscale": MULTISCALE}[variant]
    model = test_models.MODEL.model_copy(update=changes)
    attention = AttentionSettings.model_validate(settings)
    torch.manual_seed(0)
    return shaken(MaskedLM(model, attention, 23))  # type: ignore[no-any-return]


def texts() -> list[dict[str, Tensor]]:
    """Return two batches with padding, the second with documents too, and labels."""
    ids, segments = test_causal.batch()
    other = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 0]])
    targets = {"targets": torch.tensor([1]), "labels": torch.tensor([3])}
    return [{"input_ids": ids, "segments": segments, **targets},
            {"input_ids": ids[:1, :8], "segments": other, **targets}]  # fmt: skip


def seen_by(model: nn.Module, batches: list[dict[str, Tensor]]) -> list[Captured]:
    found: list[Captured] = []
    assert capture(model, batches, found.append) == len(found)
    return found


@pytest.mark.parametrize("attention", test_causal.ATTENTION)
def test_the_maps_of_a_causal_model_are_those_of_its_trace(attention: str) -> None:
    model, batches = test_causal.build(attention), texts()
    found = seen_by(model, batches)
    assert [(one.batch, one.section, one.layer) for one in found] == [
        (batch, "decoder", layer) for batch in (0, 1) for layer in (0, 1, 2)
    ]
    for number, inputs in enumerate(batches):
        trace = Trace()
        model(inputs["input_ids"], inputs["segments"], trace)
        for one, weights in zip(found[3 * number :], trace.weights, strict=False):
            torch.testing.assert_close(one.weights, weights)
            assert (one.real == (inputs["segments"] > 0)).all()
            assert (one.weights[~one.real[:, None].expand_as(one.weights[..., 0])] == 0).all()


@pytest.mark.parametrize("variant", [*test_models.VARIANTS, *test_models.FAMILIES])
def test_the_maps_of_an_encoder_are_those_of_its_trace(variant: str) -> None:
    model, (inputs, _) = masked(variant), texts()
    trace = Trace()
    model.encoder(inputs["input_ids"], inputs["segments"], trace=trace)
    for one, weights in zip(seen_by(model, [inputs]), trace.weights, strict=True):
        assert one.section == "encoder"
        torch.testing.assert_close(one.weights, weights)


@pytest.mark.parametrize("name", test_seq2seq.SECTIONS)
def test_an_encoder_decoder_shows_all_three_kinds_of_attention(name: str) -> None:
    sections = test_seq2seq.SECTIONS[name]
    given = {k: AttentionSettings.model_validate(v) for k, v in sections.items()}
    model = shaken(Seq2Seq(test_seq2seq.MODEL, given, test_seq2seq.VOCAB))
    src_ids, trg_ids, src, trg = test_seq2seq.batch()
    inputs = {"src_ids": src_ids, "trg_ids": trg_ids, "src_segments": src, "trg_segments": trg}
    found = seen_by(model, [inputs])
    trace = Trace()
    model.decode(trg_ids, model.encode(src_ids, src, trace), trg, src, trace)
    for section, maps in {
        "encoder": trace.weights[: len(model.encoder.layers)],
        "decoder": trace.weights[len(model.encoder.layers) :],
        "cross": trace.cross_weights,
    }.items():
        own = [one for one in found if one.section == section]
        assert [one.layer for one in own] == list(range(len(maps)))
        for one, weights in zip(own, maps, strict=True):
            torch.testing.assert_close(one.weights, weights)
    cross = next(one for one in found if one.section == "cross")
    places = torch.arange(src_ids.shape[1]), torch.arange(trg_ids.shape[1])
    expected = (places[0] - cross.ratio * places[1][:, None]).abs().float()
    torch.testing.assert_close(cross.distance.float()[0, 0], expected)


def test_a_classifier_and_a_bare_encoder_are_seen_too() -> None:
    (inputs, _), model = texts(), test_models.MODEL
    classifier = shaken(Classifier(model, AttentionSettings(), 23, 3))
    found, bare = seen_by(classifier, [inputs]), seen_by(classifier.encoder, [inputs])
    for one, other in zip(found, bare, strict=True):
        assert (one.weights == other.weights).all()


@pytest.mark.parametrize(("variant", "count"), [("gated", 1), ("multiscale", 2)])
def test_gates_and_slopes_are_those_of_the_layers_input(variant: str, count: int) -> None:
    model, (inputs, _) = masked(variant), texts()
    state = model.state_dict()
    for one in seen_by(model, [inputs]):
        name = f"encoder.stack.layers.{one.layer}.attention.biases.0."
        name += "" if count == 1 else "scales.{}."
        assert len(one.gates) == len(one.alphas) == count
        for scale in range(count):
            own = name.format(scale)
            weight, bias = (state[f"{own}gate_proj.{x}"] for x in ("weight", "bias"))
            gates = torch.sigmoid(one.x @ weight.T + bias).transpose(1, 2)
            torch.testing.assert_close(one.gates[scale], gates)
            alpha = F.softplus(state[f"{own}distance.raw_alpha"])
            torch.testing.assert_close(one.alphas[scale], alpha)
    for one in seen_by(masked("distbias"), [inputs]):
        assert (one.gates, len(one.alphas)) == ((), 1)
    for one in seen_by(masked("full"), [inputs]):
        assert (one.gates, one.alphas) == ((), ())


def test_places_and_distances_are_counted_within_documents() -> None:
    _, inputs = texts()
    one = seen_by(masked("full"), [inputs])[0]
    assert one.places[0, 2:7].tolist() == [0, 1, 2, 0, 1]
    assert one.distance[0, 0, 2:5, 2:5].tolist() == [[0, 1, 2], [1, 0, 1], [2, 1, 0]]
    assert one.visible[0, 0].int().tolist() == [
        [int(a == b > 0) for b in (0, 0, 1, 1, 1, 2, 2, 0)] for a in (0, 0, 1, 1, 1, 2, 2, 0)
    ]
    alone = seen_by(masked("full"), [{"input_ids": inputs["input_ids"]}])[0]
    assert alone.visible.all() and alone.real.all() and alone.real.shape == (1, 8)


@pytest.mark.parametrize("attention", ["gated", "local", "shared"])
def test_a_layer_gives_its_output_again_and_its_jacobian(attention: str) -> None:
    """Which is what a study of sensitivity needs; the referee moves one number at a time."""
    model = test_causal.build(attention).double()
    found: list[tuple[Tensor, Tensor]] = []

    def see(one: Captured) -> None:
        if one.layer != 1:
            return
        x = one.x.clone().requires_grad_()
        with torch.enable_grad():
            y = one.again(x)
            (grad,) = torch.autograd.grad(y[0, 4, 2], x)
        step = torch.zeros_like(x)
        slopes = torch.zeros_like(grad)
        for place in range(x.shape[1]):
            step.zero_()[0, place, 3] = 1e-3
            apart = one.again(one.x + step) - one.again(one.x - step)
            slopes[0, place, 3] = apart[0, 4, 2] / 2e-3
        found.append((grad[0, :, 3], slopes[0, :, 3]))

    capture(model, [{"input_ids": test_causal.batch()[0][1:2]}], see)
    torch.testing.assert_close(*found[0], atol=1e-4, rtol=1e-4)  # biases are float32
    assert (found[0][0][5:] == 0).all() and found[0][0].abs().max() > 1e-2


# ---------------------------------------------------------------------------------------------
# What is left behind, and what goes wrong
# ---------------------------------------------------------------------------------------------


def test_dropout_is_off_and_every_mode_is_as_it_was() -> None:
    model = masked("gated", dropout=0.5)
    expected = [one.weights for one in seen_by(model, texts())]
    model.train()
    model.head.eval()
    modes = [part.training for part in model.modules()]
    found = [one.weights for one in seen_by(model, texts())]
    assert [part.training for part in model.modules()] == modes
    for a, b in zip(found, expected, strict=True):
        assert (a == b).all()


def test_no_gradient_and_no_hook_is_left_behind() -> None:
    model = masked("gated")
    found = seen_by(model, texts())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(t.requires_grad for one in found for t in (one.weights, one.x, *one.gates))
    for part in model.modules():
        assert not part._forward_hooks and not part._forward_pre_hooks
    inputs = texts()[0]
    model(inputs["input_ids"], inputs["targets"], inputs["segments"]).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_after_an_error_the_model_is_as_it_was_too() -> None:
    model = masked("gated").train()

    def fail(_: Captured) -> None:
        raise KeyError("of the caller")

    with pytest.raises(KeyError, match="of the caller"):
        capture(model, texts(), fail)
    assert all(part.training for part in model.modules())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_only_one_layer_is_held_at_a_time() -> None:
    """The map of a layer is gone when the next one comes, unless whoever sees it keeps it."""
    import weakref

    held: list[weakref.ref[Tensor]] = []

    def see(one: Captured) -> None:
        assert all(ref() is None for ref in held)
        held.append(weakref.ref(one.weights))

    assert capture(masked("full"), texts(), see) == len(held) == 6


def test_e11_that_nothing_came_back_is_an_error_and_no_empty_average() -> None:
    with pytest.raises(UserError, match="no batch to look at"):
        capture(masked("full"), [], lambda _: None)

    class Deaf(Attention):
        """Attention as other libraries have it, whose fused path has no weights."""

        def forward(self, *given: Any, **options: Any) -> tuple[Tensor, None]:
            return super().forward(*given, **options)[0], None

    model = masked("full")
    model.encoder.stack.layers[1].attention.__class__ = Deaf
    with pytest.raises(UserError, match=r"layers\.1\.attention: hands out no attention"):
        capture(model, texts(), lambda _: None)
    with pytest.raises(UserError, match="model: hands out no attention"):
        capture(_Plain(), texts(), lambda _: None)


class _Plain(nn.Module):
    """A model without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(23, 4)

    def forward(self, ids: Tensor, *_: object) -> Tensor:
        return self.table(ids)  # type: ignore[no-any-return]


def test_hidden_states_are_those_of_the_model_itself() -> None:
    inputs: Mapping[str, Tensor] = texts()[0]
    causal = test_causal.build("gated")
    with torch.no_grad(), evaluating(causal):
        found = run_layers(causal, inputs)
        assert (found == causal.hidden(inputs["input_ids"], inputs["segments"])).all()
        assert isinstance(causal, CausalLM)
