"""The causal language model: against its equations, PyTorch's layers, the future, and padding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ala_encoder.blocks import Trace, checkpoint_activations
from ala_encoder.errors import UserError
from ala_encoder.models import CausalLM
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.loader import check
from ala_encoder.settings.model import CausalModel
from tests.test_models import assert_equal, left_padded, shaken

VOCAB = 23
MODEL = CausalModel(
    family="causal", dim=24, num_layers=3, num_heads=4, ffn_dim=20, max_length=12, dropout=0.0
)
ATTENTION: dict[str, dict[str, Any]] = {
    "full": {},
    "local": {"heads": [["prev1", "band1", "identity", "full"]] * 3},
    "tied": {"heads": [["prev1#a", "band1#a", "full#a", "full#a"]] * 2 + [["full"] * 4]},
    "hidden": {
        "heads": [["prev1", "band1", "identity", "full"]] * 3, "mask_operator": "pre_softmax"
    },
    "gated": {"biases": [{"kind": "gated_distbias", "alpha_init": 0.4}]},
    "shared": {"biases": [{"kind": "t5", "num_buckets": 4, "max_distance": 3},
                          {"kind": "kerple_log"}, {"kind": "kerple_power"}]},
    "window": {"biases": [{"kind": "window", "width": 3}, {"kind": "alibi"}]},
    "multiscale": {"biases": [{"kind": "multiscale_distbias", "ranges": [2, 5]},
                              {"kind": "sandwich", "dim": 8}]},
    "dense": {"path": "dense"},
}  # fmt: skip


def build(attention: str = "full", vocab_size: int = VOCAB, **changes: Any) -> CausalLM:
    if changes.get("positions", "learned") != "learned":
        changes = {"max_length": None, **changes}
    model = CausalModel.model_validate({**MODEL.model_dump(), **changes})
    torch.manual_seed(0)
    found: CausalLM = shaken(
        CausalLM(model, AttentionSettings.model_validate(ATTENTION[attention]), vocab_size)
    )
    return found


def batch() -> tuple[Tensor, Tensor]:
    """Return ids and segments of rows of 7, 9 and 4 tokens padded to 9."""
    generator = torch.Generator().manual_seed(1)
    segments = (torch.arange(9)[None] < torch.tensor([[7], [9], [4]])).long()
    return torch.randint(1, VOCAB, (3, 9), generator=generator) * segments, segments


# ---------------------------------------------------------------------------------------------
# The equations, and PyTorch
# ---------------------------------------------------------------------------------------------

CURVES: dict[str, Any] = {
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
}


def by_hand(built: CausalLM, settings: CausalModel, ids: list[int]) -> Tensor:
    """Return the logits [T, V] of one text, token by token and head by head, in float64."""
    state: Mapping[str, Tensor] = {k: v.double() for k, v in built.state_dict().items()}
    width = settings.dim // settings.num_heads

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", 0)

    def norm(name: str, x: Tensor) -> Tensor:
        centre = x.mean() if settings.normalization == "layer_norm" else 0.0
        size = ((x - centre) ** 2).mean() + settings.layer_norm_eps
        return (x - centre) / size.sqrt() * state[f"{name}.weight"] + state.get(f"{name}.bias", 0)

    def waves(place: int, dim: int) -> list[float]:
        return [place / 10_000 ** (2 * m / dim) for m in range(dim // 2)]

    def turned(x: Tensor, place: int) -> Tensor:
        if settings.positions != "rotary":
            return x
        low, high = x[: width // 2], x[width // 2 :]
        angle = torch.tensor(waves(place, width), dtype=torch.float64)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([low * cos - high * sin, high * cos + low * sin])

    def mixed(layer: int, i: int, seen: list[Tensor]) -> Tensor:
        bank, name = f"stack.bank.projections.{layer}", f"stack.layers.{layer}.attention"
        found = []
        for h in range(settings.num_heads):
            at = slice(h * width, (h + 1) * width)
            q = turned(linear(f"{bank}.q_proj", seen[i])[at], i)
            scores = torch.zeros(i + 1, dtype=torch.float64)
            for j in range(i + 1):
                k = turned(linear(f"{bank}.k_proj", seen[j])[at], j)
                scores[j] = q @ k / math.sqrt(width)
                if f"{name}.biases.0.gate_proj.weight" in state:
                    gate = linear(f"{name}.biases.0.gate_proj", seen[i])[h].sigmoid()
                    alpha = F.softplus(state[f"{name}.biases.0.distance.raw_alpha"][h])
                    scores[j] -= alpha * gate * (i - j)
            weights = scores.softmax(0)
            values = torch.stack([linear(f"{name}.v_proj", seen[j])[at] for j in range(i + 1)])
            found.append(weights @ values)
        return linear(f"{name}.out_proj", torch.cat(found))

    def fed(layer: int, x: Tensor) -> Tensor:
        inner = linear(f"stack.layers.{layer}.ffn.in_proj", x)
        curve = CURVES[settings.activation]
        bent = torch.tensor([curve(value) for value in inner.tolist()], dtype=torch.float64)
        return linear(f"stack.layers.{layer}.ffn.out_proj", bent)

    xs = []
    for place, token in enumerate(ids):
        x = state["vocabulary.weight"][token]
        if settings.positions == "learned":
            x = x + state["positions.embedding.weight"][place]
        elif settings.positions == "sinusoidal":
            angle = torch.tensor(waves(place, settings.dim), dtype=torch.float64)
            x = x * math.sqrt(settings.dim) + torch.cat([angle.sin(), angle.cos()])
        xs.append(norm("embedding_norm", x) if settings.embedding_norm else x)
    for layer in range(settings.num_layers):
        name, is_pre = f"stack.layers.{layer}", settings.norm == "pre"
        seen = [norm(f"{name}.attention_norm", x) for x in xs] if is_pre else xs
        xs = [x + mixed(layer, i, seen) for i, x in enumerate(xs)]
        if is_pre:
            xs = [x + fed(layer, norm(f"{name}.ffn_norm", x)) for x in xs]
        else:
            xs = [norm(f"{name}.attention_norm", x) for x in xs]
            xs = [norm(f"{name}.ffn_norm", x + fed(layer, x)) for x in xs]
    if settings.norm == "pre":
        xs = [norm("stack.norm", x) for x in xs]
    output = state["vocabulary.weight" if settings.tied_embeddings else "output.weight"]
    return torch.stack(xs) @ output.T


@pytest.mark.parametrize(
    ("changes", "attention"),
    [
        ({}, "full"),
        ({"norm": "post"}, "full"),
        ({"norm": "post", "normalization": "rms_norm", "activation": "silu"}, "full"),
        ({"normalization": "rms_norm", "embedding_norm": True}, "full"),
        ({"activation": "relu", "embedding_norm": True, "attention_bias": True}, "full"),
        ({"activation": "gelu_tanh", "tied_embeddings": False}, "full"),
        ({"activation": "silu", "positions": "sinusoidal"}, "full"),
        ({"positions": "rotary", "layer_norm_eps": 0.1}, "full"),
        ({"positions": "none"}, "gated"),
        ({"positions": "rotary", "attention_bias": True}, "gated"),
    ],
)
def test_logits_equal_loops_over_the_equations(changes: dict[str, Any], attention: str) -> None:
    built = build(attention, **changes)
    settings = CausalModel.model_validate(
        {**MODEL.model_dump(), "max_length": None if "positions" in changes else 12, **changes}
    )
    ids = [3, 7, 7, 1, 22, 0]
    with torch.no_grad():
        found = built.double()(torch.tensor([ids]))[0]
    torch.testing.assert_close(found, by_hand(built, settings, ids), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("padded", [True, False])
def test_the_stack_equals_torchs_encoder_layers_under_a_causal_mask(
    norm: str, padded: bool
) -> None:
    stack = build(norm=norm, attention_bias=True).stack
    twins = [
        nn.TransformerEncoderLayer(
            24, 4, 20, 0.0, "gelu", 1e-5, batch_first=True, norm_first=norm == "pre"
        )
        for _ in stack.layers
    ]
    for layer, (block, twin) in enumerate(zip(stack.layers, twins, strict=True)):
        projection = stack.bank.projections[layer]
        parts = (projection.q_proj, projection.k_proj, block.attention.v_proj)
        pairs = {
            "self_attn.out_proj": block.attention.out_proj, "linear1": block.ffn.in_proj,
            "linear2": block.ffn.out_proj, "norm1": block.attention_norm, "norm2": block.ffn_norm,
        }  # fmt: skip
        with torch.no_grad():
            twin.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
            twin.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
            for name, module in pairs.items():
                twin.get_submodule(name).load_state_dict(module.state_dict())
    segments = batch()[1]
    real = segments > 0 if padded else segments >= 0
    x = torch.randn(3, 9, 24, generator=torch.Generator().manual_seed(2))
    ours_in, theirs_in = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours = stack(ours_in, segments if padded else None)
    theirs, future = theirs_in, torch.ones(9, 9).triu(1).bool()
    for twin in twins:
        theirs = twin(theirs, future, segments == 0 if padded else None)
    theirs = theirs if stack.norm is None else stack.norm(theirs)
    torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=1e-5)
    incoming = torch.randn(9, 24, generator=torch.Generator().manual_seed(4))
    ((ours * incoming)[real]).mean().backward()
    first = {name: p.grad.clone() for name, p in stack.layers[0].ffn.named_parameters()}
    ((theirs * incoming)[real]).mean().backward()
    torch.testing.assert_close(ours_in.grad, theirs_in.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        first["in_proj.weight"], twins[0].linear1.weight.grad, atol=1e-5, rtol=1e-4
    )


# ---------------------------------------------------------------------------------------------
# The future, padding, documents
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("length", [7, 70])
def test_no_gradient_comes_from_the_future(attention: str, length: int) -> None:
    built = build(attention, positions="none", norm="post")
    x = torch.randn(2, length, 24, generator=torch.Generator().manual_seed(3)).requires_grad_()
    for segments in (None, torch.ones(2, length, dtype=torch.long)):
        logits = built.logits(built.stack(x, segments))
        for i in (0, 1, length // 2, length - 2):
            (grad,) = torch.autograd.grad(logits[:, i].square().sum(), x, retain_graph=True)
            assert (grad[:, i + 1 :] == 0).all()
            assert (grad[:, i] != 0).any()
            assert i == 0 or (grad[:, i - 1] != 0).any()


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_invisible(attention: str, positions: str, side: str) -> None:
    built = build(attention, positions=positions, embedding_norm=True)
    ids, segments = batch()
    lengths = segments.sum(1).tolist()
    with torch.no_grad():
        alone = [built(ids[i : i + 1, :n])[0] for i, n in enumerate(lengths)]
        if side == "left":
            ids, segments = left_padded(ids, segments), left_padded(segments, segments)
        together = built(ids, segments)[segments > 0]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
def test_a_document_is_the_same_alone_and_packed_with_others(
    attention: str, positions: str
) -> None:
    built = build(attention, positions=positions)
    texts = [torch.randint(1, VOCAB, (n,)) for n in (3, 4, 2)]
    packed = torch.cat([torch.tensor([0, 0]), *texts, torch.tensor([0])])[None]
    segments = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 0]])
    with torch.no_grad():
        alone = torch.cat([built(text[None])[0] for text in texts])
        torch.testing.assert_close(built(packed, segments)[0, 2:11], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ATTENTION)
def test_a_row_of_padding_is_harmless(attention: str) -> None:
    built = build(attention)
    ids, segments = batch()
    expected = built(ids[:2], segments[:2])
    segments[2] = 0
    logits = built(ids, segments)
    real = segments[:2] > 0
    torch.testing.assert_close(logits[:2][real], expected[real], atol=1e-5, rtol=1e-5)
    logits[segments > 0].square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in built.parameters())


def test_d18_a_text_of_one_token_more_than_the_positions_is_a_user_error() -> None:
    built = build()
    built(torch.ones(1, 12, dtype=torch.long))
    with pytest.raises(UserError, match="input of 13 tokens: the model has 12 positions"):
        built(torch.ones(1, 13, dtype=torch.long))
    for positions in ("sinusoidal", "rotary", "none"):
        longer = build(positions=positions)
        assert longer(torch.ones(1, 13, dtype=torch.long)).isfinite().all()


# ---------------------------------------------------------------------------------------------
# Names, heads, checkpointing, start, settings
# ---------------------------------------------------------------------------------------------


def names_of(built: nn.Module) -> set[str]:
    return {".".join(word for word in name.split(".") if not word.isdecimal())
            for name in built.state_dict()}  # fmt: skip


def test_the_state_has_these_names() -> None:
    norms = {f"stack.layers.{norm}.{x}" for norm in ("attention_norm", "ffn_norm")
             for x in ("weight", "bias")}  # fmt: skip
    ffn = {f"stack.layers.ffn.{p}.{x}" for p in ("in_proj", "out_proj") for x in ("weight", "bias")}
    plain = {
        "vocabulary.weight", "positions.embedding.weight", "stack.bank.projections.q_proj.weight",
        "stack.bank.projections.k_proj.weight", "stack.layers.attention.v_proj.weight",
        "stack.layers.attention.out_proj.weight", "stack.norm.weight", "stack.norm.bias",
        *norms, *ffn,
    }  # fmt: skip
    assert names_of(build()) == plain
    assert names_of(build(norm="post")) == plain - {"stack.norm.weight", "stack.norm.bias"}
    assert names_of(build(positions="sinusoidal")) == plain - {"positions.embedding.weight"}
    assert names_of(build(tied_embeddings=False)) == plain | {"output.weight"}
    assert names_of(build(embedding_norm=True)) == plain | {
        "embedding_norm.weight", "embedding_norm.bias"
    }  # fmt: skip
    assert names_of(build("shared")) == plain | {
        "stack.biases.table.weight", "stack.biases.r1", "stack.biases.r2"
    }  # fmt: skip
    assert names_of(build(normalization="rms_norm")) == {
        name for name in plain if not name.endswith("norm.bias")
    }


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_some_hidden_states_are_rows_of_all_logits(tied: bool) -> None:
    built = build(tied_embeddings=tied)
    ids, segments = batch()
    hidden = built.hidden(ids, segments)
    picked = torch.tensor([0, 5, 11])
    found = built.logits(hidden.flatten(0, 1)[picked])
    torch.testing.assert_close(found, built(ids, segments).flatten(0, 1)[picked])
    output = built.vocabulary if tied else built.output
    torch.testing.assert_close(found, hidden.flatten(0, 1)[picked] @ output.weight.T)


@pytest.mark.parametrize("attention", ["full", "tied", "gated", "hidden", "shared"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_activation_checkpointing_equals_plain_training(attention: str, norm: str) -> None:
    found = []
    for checkpointing in (True, False):
        built = build(attention, norm=norm, dropout=0.2).train()
        if checkpointing:
            checkpoint_activations(built)
            assert built.stack.activation_checkpointing
        ids, segments = batch()
        torch.manual_seed(5)
        logits = built(ids, segments)
        logits[segments > 0].square().mean().backward()
        grads = {name: p.grad for name, p in built.named_parameters()}
        assert all(grad is not None for grad in grads.values())
        found.append({"logits": logits.detach(), **grads})
    assert_equal(*found)


@pytest.mark.parametrize("attention", ATTENTION)
def test_a_trace_holds_every_layer(attention: str) -> None:
    built = build(attention)
    ids, segments = batch()
    trace = Trace()
    traced = built(ids, segments, trace)
    torch.testing.assert_close(traced[segments > 0], built(ids, segments)[segments > 0])
    assert [tuple(h.shape) for h in trace.hidden_states] == [(3, 9, 24)] * 4
    assert [tuple(w.shape) for w in trace.weights] == [(3, 4, 9, 9)] * 3
    assert all((w.triu(1) == 0).all() for w in trace.weights)
    assert trace.cross_weights == []


def test_every_parameter_starts_as_its_settings_say() -> None:
    torch.manual_seed(0)
    model = MODEL.model_copy(update={"embedding_norm": True, "tied_embeddings": False})
    attention = AttentionSettings.model_validate(ATTENTION["gated"])
    for name, parameter in CausalLM(model, attention, 500).named_parameters():
        if name.endswith("raw_alpha"):
            torch.testing.assert_close(F.softplus(parameter), torch.full((4,), 0.4))
        elif "norm" in name and name.endswith("weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            assert abs(parameter.std().item() / model.init_std - 1) < 0.35, name


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"max_length": None}, "max_length: missing, learned positions have a number"),
        ({"positions": "rotary"}, "max_length = 12: does nothing, positions are 'rotary'"),
        ({"pooling": "mean"}, "pooling: no such setting"),
        ({"activation": "gelu_tan"}, "'gelu_tanh'"),
        ({"normalization": "layernorm"}, "(did you mean 'layer_norm'?)"),
    ],
)
def test_settings_without_effect_are_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        check({**MODEL.model_dump(), **changes}, CausalModel)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("attention", "line"),
    [
        ({"heads": [["next1", "full", "full", "full"]] * 3},
         "decoder: head next1: sees nothing where attention is causal"),
        ({"heads": [["full"] * 4] * 2}, "decoder: heads has 2 rows x 4 cells, the model 3 layers"),
        ({"ratio": 2.0, "biases": [{"kind": "alibi"}]}, "decoder: ratio: does nothing in self"),
        ({"heads": [["band11", *["full"] * 3]] * 3}, "decoder: head band11: hides nothing within"),
    ],
)  # fmt: skip
def test_the_head_table_fits_the_model_or_is_refused(attention: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        CausalLM(MODEL, AttentionSettings.model_validate(attention), VOCAB)


@pytest.mark.parametrize("length", [20, 600])
@pytest.mark.parametrize("segments", [torch.tensor(-1), torch.tensor(0.5)])
def test_segments_that_number_no_documents_are_refused_at_any_length(
    segments: Tensor, length: int
) -> None:
    ids = torch.zeros(1, length, dtype=torch.long)
    with pytest.raises(UserError, match=r"^segments: "):
        build(positions="none")(ids, segments.expand(1, length))


@pytest.mark.parametrize("positions", ["learned", "none", "rotary", "sinusoidal"])
@pytest.mark.parametrize("shape", [(0, 6), (2, 0)])
def test_no_texts_and_empty_texts_give_no_logits(shape: tuple[int, int], positions: str) -> None:
    ids = torch.zeros(shape, dtype=torch.long)
    for segments in (None, torch.ones(shape, dtype=torch.long)):
        assert build(positions=positions)(ids, segments).shape == (*shape, VOCAB)
