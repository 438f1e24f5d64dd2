"""The attention module: against its equation, nn.MultiheadAttention, copies, and padding."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ala_encoder import biases, kernels
from ala_encoder.attention import Attention, QKBank, compile_long_runs
from ala_encoder.errors import UserError
from ala_encoder.heads import HeadTable, parse_head
from ala_encoder.kernels import Visibility, shifted
from ala_encoder.settings import paths
from ala_encoder.settings.attention import AttentionSettings, head_table

DIM = 12

PADDING = {
    "none": None,
    "right": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]],
    "left": [[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]],
    "all": [[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]],
    "documents": [[1, 1, 2, 2, 2, 3], [1, 1, 2, 2, 0, 0]],
}
BIASES: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "distbias": [{"kind": "distbias", "alpha_init": 0.3}],
    "gated": [{"kind": "gated_distbias", "alpha_init": 0.7}],
    "window": [{"kind": "window", "width": 3}],
    "kerple": [{"kind": "kerple_log"}, {"kind": "kerple_power"}],
    "t5": [{"kind": "t5", "num_buckets": 4, "max_distance": 3}],
    "sandwich": [{"kind": "sandwich", "dim": 8}, {"kind": "alibi"}],
    "multiscale": [{"kind": "multiscale_distbias", "ranges": [2, 5], "alpha_init": 0.5}],
    "all": [
        {"kind": "distbias", "alpha_init": 0.2},
        {"kind": "gated_distbias", "alpha_init": 0.4},
        {"kind": "window", "width": 4},
    ],
}
TABLES = {
    "full": [["full", "full", "full"]],
    "local": [["prev1", "band1", "full"]],
    "tied": [["next1#a", "band2#a", "full#a"]],
    "two groups": [["next1#a", "full", "identity#a"]],
}


class Layers(nn.Module):
    """A bank and the attention modules of its layers, one after the other."""

    def __init__(
        self, rows: list[list[str]], *, bias: bool = True, causal: bool = False, **settings: Any
    ) -> None:
        super().__init__()
        self.causal = causal
        attention = AttentionSettings.model_validate({"heads": rows, **settings})
        table = head_table(attention, len(rows), len(rows[0]))
        self.bank = QKBank(table, DIM, bias=bias)
        self.layers = nn.ModuleList(
            Attention(table, layer, DIM, attention, bias=bias, causal=causal)
            for layer in range(len(rows))
        )
        self.shared = biases.build(attention.biases, DIM, len(rows[0]), causal=causal, shared=True)
        torch.manual_seed(0)
        for name, parameter in self.named_parameters():
            if "raw_alpha" not in name:
                nn.init.normal_(parameter, 0.0, 0.3)

    def forward(self, x: Tensor, rows: Tensor | None = None, layer: int | None = None) -> Tensor:
        for module in self.layers if layer is None else [self.layers[layer]]:
            x, _ = module(x, self.bank, Visibility.of(rows, causal=self.causal), shared=self.shared)
        return x

    def weights(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        seen = Visibility.of(rows, causal=self.causal)
        _, weights = self.layers[0](x, self.bank, seen, shared=self.shared, need_weights=True)
        return weights


def segments(name: str) -> Tensor | None:
    rows = PADDING[name]
    return None if rows is None else torch.tensor(rows)


def draw(length: int = 6, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, DIM, generator=torch.Generator().manual_seed(3))


def values_and_gradients(module: nn.Module, x: Tensor, rows: Tensor | None) -> dict[str, Tensor]:
    """Return output and gradients (of a mean over positions) for real positions' outputs alone."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    out = module(x, rows)
    incoming = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
    if rows is not None:
        incoming = incoming * (rows > 0)[..., None]
        out = out.masked_fill((rows == 0)[..., None], 0.0)
    (out * incoming).sum(-1).mean().backward()
    found = {name: p.grad for name, p in module.named_parameters()} | {"x": x.grad}
    return {"out": out.detach()} | {k: v.clone() for k, v in found.items() if v is not None}


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=tolerance, rtol=tolerance, msg=name)


# ---------------------------------------------------------------------------------------------
# Brute force and an independent twin
# ---------------------------------------------------------------------------------------------


def linear(module: nn.Linear, x: Tensor) -> Tensor:
    return x @ module.weight.T + (0 if module.bias is None else module.bias)


def by_hand(layers: Layers, cells: list[str], x: Tensor, rows: Tensor | None, pre: bool) -> Tensor:
    """One layer of attention as nested loops over the equation, in float64."""
    module, heads = layers.layers[0], [parse_head(cell) for cell in cells]
    size = DIM // len(heads)
    free = [pre and head.kind in ("prev", "next", "identity") for head in heads]
    names = [head.group or f"own {h}" for h, head in enumerate(heads)]
    order = [name for name, is_free in zip(names, free, strict=True) if not is_free]
    order = sorted(set(order), key=order.index)
    (projection,) = layers.bank.projections
    batch, length, _ = x.shape
    q, k, v = (linear(p, x) for p in (projection.q_proj, projection.k_proj, module.v_proj))
    mixed = torch.zeros(batch, length, DIM, dtype=torch.float64)
    for b, h, i in itertools.product(range(batch), range(len(heads)), range(length)):
        scores = {}
        for j in range(length):
            if rows is not None and (rows[b, i] != rows[b, j] or rows[b, i] == 0):
                continue
            if pre and not heads[h].allows(j - i):
                continue
            score = 0.0
            if not free[h]:
                g = order.index(names[h])
                at = slice(g * size, (g + 1) * size)
                score = (q[b, i, at] @ k[b, j, at]).item() / math.sqrt(size)
            for bias in module.biases:
                kind = type(bias).__name__
                if kind == "Window":
                    score += -math.inf if abs(i - j) >= bias.width else 0.0
                    continue
                distance = bias if kind == "DistBias" else bias.distance
                slope = math.log1p(math.exp(distance.raw_alpha[h].item()))
                if kind == "GatedDistBias":
                    gate = linear(bias.gate_proj, x[b, i])[h].item()
                    slope *= 1 / (1 + math.exp(-gate))
                score -= slope * abs(i - j)
            scores[j] = score
        total = sum(math.exp(score) for score in scores.values())
        for j, score in scores.items():
            if pre or heads[h].allows(j - i):
                at = slice(h * size, (h + 1) * size)
                mixed[b, i, at] += math.exp(score) / total * v[b, j, at]
    return linear(module.out_proj, mixed)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("bias", ["none", "distbias", "gated", "window", "all"])
@pytest.mark.parametrize("padding", PADDING)
def test_attention_equals_nested_loops_over_the_equation(
    table: str, bias: str, padding: str
) -> None:
    rows = segments(padding)
    layers = Layers(TABLES[table], biases=BIASES[bias]).double()
    x = draw().double()
    with torch.no_grad():
        expected = by_hand(layers, TABLES[table][0], x, rows, pre=False)
        torch.testing.assert_close(layers(x, rows), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("cells", [["prev1", "identity", "full"], ["band1#a", "band2#a", "next2"]])
@pytest.mark.parametrize("padding", PADDING)
def test_pre_softmax_attention_equals_nested_loops(cells: list[str], padding: str) -> None:
    rows = segments(padding)
    layers = Layers([cells], mask_operator="pre_softmax").double()
    x = draw().double()
    with torch.no_grad():
        expected = by_hand(layers, cells, x, rows, pre=True)
        torch.testing.assert_close(layers(x, rows), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("path", ["dense", "sdpa"])
def test_full_heads_equal_torchs_multihead_attention(bias: bool, padding: str, path: str) -> None:
    rows, x = segments(padding), draw()
    layers = Layers([["full"] * 3], bias=bias, path=path)
    (projection,), module = layers.bank.projections, layers.layers[0]
    twin = nn.MultiheadAttention(DIM, 3, bias=bias, batch_first=True)
    parts = (projection.q_proj, projection.k_proj, module.v_proj)
    with torch.no_grad():
        twin.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        twin.out_proj.load_state_dict(module.out_proj.state_dict())
        if bias:
            twin.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    hidden = None if rows is None else rows == 0
    real = torch.ones(2, 6, dtype=torch.bool) if rows is None else rows > 0
    ours_in, theirs_in = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours = layers(ours_in, rows)[real]
    theirs, maps = twin(theirs_in, theirs_in, theirs_in, hidden, average_attn_weights=False)
    torch.testing.assert_close(ours, theirs[real], atol=1e-5, rtol=1e-5)
    maps = maps.transpose(1, 2)[real]
    torch.testing.assert_close(
        layers.weights(x, rows).transpose(1, 2)[real], maps, atol=1e-5, rtol=1e-5
    )
    incoming = torch.randn(ours.shape, generator=torch.Generator().manual_seed(5))
    (ours * incoming).sum(-1).mean().backward()
    (theirs[real] * incoming).sum(-1).mean().backward()
    grads = [part.weight.grad for part in parts]
    torch.testing.assert_close(torch.cat(grads), twin.in_proj_weight.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours_in.grad, theirs_in.grad, atol=1e-5, rtol=1e-5)


# ---------------------------------------------------------------------------------------------
# Paths
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 127, 128, 129])
@pytest.mark.parametrize("case", ["full", "tied", "gated", "window", "pre_softmax"])
def test_the_sdpa_path_equals_the_dense_path_in_value_and_gradient(length: int, case: str) -> None:
    cells = {
        "tied": ["full#a", "full", "full#a"], "pre_softmax": ["prev1", "band2#a", "full#a"]
    }.get(case, ["full"] * 3)  # fmt: skip
    settings: dict[str, Any] = {"biases": BIASES.get(case, [])}
    if case == "pre_softmax":
        settings["mask_operator"] = case
    rows = torch.ones(2, length, dtype=torch.long)
    rows[1, (length + 1) // 2 :] = 0
    results = [
        values_and_gradients(Layers([cells], path=path, **settings), draw(length), rows)
        for path in ("dense", "sdpa")
    ]
    assert_equal(*results)


@pytest.mark.parametrize("path", ["dense", "sdpa", "slope"])
def test_e11_weights_are_handed_out_on_every_path(path: str) -> None:
    layers, x = Layers([["full"] * 3], path=path, biases=BIASES["distbias"]), draw()
    weights = layers.weights(x, segments("right"))
    assert weights.shape == (2, 3, 6, 6)
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(3, 6))
    assert (weights[1, :, :4, 4:] == 0).all() and (weights[1, :, 4:] == 0).all()


def test_local_weights_are_zero_outside_the_mask_and_not_renormalised() -> None:
    weights = Layers([["prev1", "band1", "full"]]).weights(draw())
    full = Layers([["full"] * 3]).weights(draw())
    for head, cell in enumerate(("prev1", "band1", "full")):
        for i, j in itertools.product(range(6), range(6)):
            kept = parse_head(cell).allows(j - i)
            expected = full[:, head, i, j] if kept else torch.zeros(2)
            torch.testing.assert_close(weights[:, head, i, j], expected, atol=1e-7, rtol=0)
    assert (weights[:, 0, 0] == 0).all() and weights[:, 0].sum(-1).max() < 0.999


def test_a_pre_softmax_single_key_has_weight_1_and_no_q_and_k_at_all() -> None:
    layers = Layers([["prev1", "next2", "identity"]], mask_operator="pre_softmax")
    weights = layers.weights(draw())
    assert weights.sum(-1)[:, 0].tolist() == [[0.0, 1.0, 1.0, 1.0, 1.0, 1.0]] * 2
    assert weights.sum(-1)[:, 1].tolist() == [[1.0, 1.0, 1.0, 1.0, 0.0, 0.0]] * 2
    layers(draw()).sum().backward()
    assert not list(layers.bank.parameters())
    value = layers.layers[0].v_proj.weight.grad
    assert value is not None and value.abs().max() > 0.1


def test_dropout_of_weights_works_in_training_only() -> None:
    layers, x = Layers([["full"] * 3], dropout=0.5), draw()
    plain = Layers([["full"] * 3])(x)
    assert (layers(x) - plain).abs().max() > 0.01
    torch.testing.assert_close(layers.eval()(x), plain, atol=1e-5, rtol=1e-5)


# ---------------------------------------------------------------------------------------------
# Sharing
# ---------------------------------------------------------------------------------------------


def spread(tied: Layers, rows: list[list[str]], **settings: Any) -> Layers:
    """Return an untied model whose heads hold copies of the tied model's groups."""
    untied = Layers([[cell.split("#")[0] for cell in row] for row in rows], **settings)
    state = {k: v for k, v in tied.state_dict().items() if not k.startswith("bank.")}
    for layer, row in enumerate(rows):
        for name in ("q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias"):
            parts = [block_of(tied, rows, layer, head, name) for head in range(len(row))]
            state[f"bank.projections.{layer}.{name}"] = torch.cat(parts)
    untied.load_state_dict(state)
    return untied


def block_of(
    tied: Layers, rows: list[list[str]], layer: int, head: int, name: str, grad: bool = False
) -> Tensor:
    table = HeadTable.parse(rows)
    laid = [
        part
        for block in table.blocks_of(layer)
        for part in (
            lambda p: p.grad if grad else p.detach()
        )(tied.bank.get_parameter(f"projections.{block}.{name}")).chunk(
            table.blocks[block].num_groups
        )
    ]  # fmt: skip
    return laid[table.columns_of(layer)[head]]


TIED_TABLES = [
    [["prev1#a", "band1#a", "full#a"]],
    [["band1#b", "full#a", "identity#b"]],
    [["prev1#a", "band1#a", "full#a"], ["next1#a", "full#a", "full#a"]],
    [["prev1#a", "band1#b", "full"], ["full#b", "full", "full#c"], ["band1#a", "full#c", "full#b"]],
]


@pytest.mark.parametrize("rows", TIED_TABLES)
@pytest.mark.parametrize("bias", ["none", "gated"])
def test_tied_heads_equal_untied_heads_with_copied_weights(
    rows: list[list[str]], bias: str
) -> None:
    tied = Layers(rows, biases=BIASES[bias])
    untied = spread(tied, rows, biases=BIASES[bias])
    a = values_and_gradients(tied, draw(), segments("right"))
    b = values_and_gradients(untied, draw(), segments("right"))
    own = [name for name in a if not name.startswith("bank.")]
    assert_equal({n: a[n] for n in own}, {n: b[n] for n in own})


@pytest.mark.parametrize("rows", TIED_TABLES)
def test_the_gradient_of_a_shared_pair_is_the_sum_over_its_uses(rows: list[list[str]]) -> None:
    tied = Layers(rows)
    untied = spread(tied, rows)
    values_and_gradients(tied, draw(), None)
    b = values_and_gradients(untied, draw(), None)
    for name in ("q_proj.weight", "q_proj.bias", "k_proj.weight"):
        sums: dict[str, Tensor] = {}
        places = [(i, h, cell) for i, row in enumerate(rows) for h, cell in enumerate(row)]
        for layer, head, cell in places:
            group = cell.partition("#")[2] or f"{layer} {head}"
            part = b[f"bank.projections.{layer}.{name}"].chunk(3)[head]
            sums[group] = sums.get(group, torch.zeros(part.shape)) + part
        for layer, head, cell in places:
            group = cell.partition("#")[2] or f"{layer} {head}"
            got = block_of(tied, rows, layer, head, name, grad=True)
            torch.testing.assert_close(got, sums[group], atol=1e-5, rtol=1e-5)
            assert got.abs().max() > 1e-4


def test_a_pair_shared_across_layers_is_one_parameter_with_one_key() -> None:
    rows = [["prev1#a", "band1#a", "full#a"]] * 4
    layers = Layers(rows)
    keys = [key for key in layers.state_dict() if "q_proj" in key or "k_proj" in key]
    assert sorted(keys) == [
        f"bank.projections.0.{side}_proj.{part}" for side in "kq" for part in ("bias", "weight")
    ]
    assert layers.bank.projections[0].q_proj.weight.shape == (DIM // 3, DIM)
    storages = [p.data_ptr() for p in layers.parameters()]
    assert len(set(storages)) == len(storages)


# ---------------------------------------------------------------------------------------------
# Padding and documents
# ---------------------------------------------------------------------------------------------

VARIANTS: dict[str, dict[str, Any]] = {
    "full": {"rows": [["full"] * 3] * 2},
    "local": {"rows": [["prev1", "band1", "full"]] * 2},
    "tied": {"rows": [["prev1#a", "band1#a", "full#a"]] * 2},
    "hidden": {"rows": [["prev1", "band1", "full"]] * 2, "mask_operator": "pre_softmax"},
    "hidden, biases": {
        "rows": [["band2", "band1", "full"]] * 2, "mask_operator": "pre_softmax",
        "biases": [*BIASES["gated"], *BIASES["t5"]],
    },
    "causal": {"rows": [["band2", "full", "full"]] * 2, "causal": True},
    "causal, gated": {
        "rows": [["full"] * 3] * 2, "causal": True, "biases": BIASES["gated"]
    },
    "causal, hidden": {
        "rows": [["prev1", "band1", "full"]] * 2, "causal": True, "mask_operator": "pre_softmax"
    },
    **{name: {"rows": [["full"] * 3] * 2, "biases": BIASES[name]} for name in BIASES},
}  # fmt: skip
WAYS = ["dense", "auto", "crossed"]
"""crossed: auto whose faster paths begin at one token."""


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    path: str = request.param
    if path == "crossed":
        for name in [name for name in vars(paths) if name.endswith("_FROM")]:
            monkeypatch.setattr(paths, name, 1)
        monkeypatch.setattr(paths, "BANDED_PER_OFFSET", 0)
        paths._plan.cache_clear()
    yield "dense" if path == "dense" else "auto"
    paths._plan.cache_clear()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("padding", ["right", "left", "all"])
@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("poison", [float("nan"), 1e30])
def test_nothing_at_a_padded_position_reaches_real_positions_or_gradients(
    variant: str, padding: str, way: str, poison: float
) -> None:
    rows = segments(padding)
    assert rows is not None
    layers = Layers(path=way, **VARIANTS[variant])
    clean = values_and_gradients(layers, draw(), rows)
    poisoned = draw().masked_fill((rows == 0)[..., None], poison)
    assert_equal(clean, values_and_gradients(layers, poisoned, rows), tolerance=1e-6)
    assert all(torch.isfinite(value).all() for value in clean.values())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_e01_an_all_padded_row_mixes_to_exactly_0(variant: str, way: str) -> None:
    layers = Layers(path=way, bias=False, **VARIANTS[variant])
    x = draw().requires_grad_()
    out = layers(x, segments("all"))
    assert (out[1] == 0).all() and (out[0] != 0).any()
    out.square().sum().backward()
    grads = [x.grad, *(p.grad for p in layers.parameters())]
    assert all(g is not None and torch.isfinite(g).all() for g in grads)
    assert x.grad is not None and (x.grad[1] == 0).all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("side", ["right", "left"])
def test_r22_a_sentence_gets_the_same_alone_and_padded_on_either_side(
    variant: str, way: str, side: str
) -> None:
    layers = Layers(path=way, **VARIANTS[variant])
    rows = segments(side)
    assert rows is not None
    real = rows[1] > 0
    torch.testing.assert_close(
        layers(draw(), rows)[1, real], layers(draw()[1:, real])[0], atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_two_documents_in_one_row_do_not_see_each_other(variant: str, way: str) -> None:
    layers = Layers(path=way, **VARIANTS[variant])
    x = draw(length=9)
    packed = layers(x, torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2, 2]] * 2))
    apart = torch.cat([layers(x[:, :4]), layers(x[:, 4:])], 1)
    torch.testing.assert_close(packed, apart, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("way", ["auto", "crossed"], indirect=True)
def test_the_layers_of_every_way_equal_dense_in_value_and_gradient(variant: str, way: str) -> None:
    for padding in PADDING:
        rows = segments(padding)
        exact = values_and_gradients(Layers(path="dense", **VARIANTS[variant]), draw(), rows)
        assert_equal(
            values_and_gradients(Layers(path=way, **VARIANTS[variant]), draw(), rows), exact
        )


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.startswith("causal")])
@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_no_gradient_comes_from_the_future(variant: str, way: str) -> None:
    layers = Layers(path=way, **VARIANTS[variant])
    x = draw().requires_grad_()
    for i in range(6):
        (grad,) = torch.autograd.grad(layers(x)[:, i].square().sum(), x)
        assert (grad[:, i + 1 :] == 0).all() and (grad[:, i] != 0).any()
    plain = Layers([["full"] * 3])
    (grad,) = torch.autograd.grad(plain(x)[:, 2].square().sum(), x)
    assert (grad[:, 3:] != 0).any()


@pytest.mark.parametrize("way", ["crossed"], indirect=True)
def test_e11_weights_of_every_way_mix_to_its_output(way: str) -> None:
    for variant, given in VARIANTS.items():
        layers = Layers(path=way, **given)
        module, x, rows = layers.layers[0], draw(), segments("left")
        seen = Visibility.of(rows, causal=layers.causal)
        with torch.no_grad():
            fast, none = module(x, layers.bank, seen, shared=layers.shared)
            open_, weights = module(x, layers.bank, seen, shared=layers.shared, need_weights=True)
        assert none is None and weights is not None, variant
        torch.testing.assert_close(fast, open_, atol=1e-5, rtol=1e-5)
        assert (weights.sum(-1) <= 1 + 1e-5).all() and (weights > 0).any()


# ---------------------------------------------------------------------------------------------
# What the layers of a stack share, and what a head does without
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["kerple", "t5"])
def test_e16_a_shared_bias_is_stored_once_and_still_tied_after_loading(
    kind: str, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    layers = Layers([["full#a"] * 3] * 3, biases=BIASES[kind])
    state = layers.state_dict()
    own = [name for name in state if name.startswith("layers.")]
    assert not [name for name in own if "bias" in name.split(".")[-2] or ".r1" in name]
    assert sum(name.startswith("shared.") for name in state) == (4 if kind == "kerple" else 1)
    save_file(state, tmp_path / "weights.safetensors")
    fresh = Layers([["full#a"] * 3] * 3, biases=BIASES[kind])
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    fresh.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    torch.testing.assert_close(fresh(draw()), layers(draw()))
    before = [fresh(draw(), layer=layer) for layer in range(3)]
    with torch.no_grad():
        next(fresh.shared.parameters()).add_(1.0)
    after = [fresh(draw(), layer=layer) for layer in range(3)]
    assert all((a != b).any() for a, b in zip(before, after, strict=True))


def test_the_gradient_of_a_shared_bias_is_the_sum_over_the_layers() -> None:
    layers = Layers([["full"] * 3] * 2, biases=BIASES["t5"])
    x = draw()
    table = next(layers.shared.parameters())
    outs = [layers(x, layer=layer).square().sum() for layer in range(2)]
    apart = [torch.autograd.grad(out, table)[0] for out in outs]
    both = torch.autograd.grad(
        sum(layers(x, layer=layer).square().sum() for layer in range(2)), table
    )[0]
    torch.testing.assert_close(both, apart[0] + apart[1])
    assert all((grad != 0).any() for grad in apart)


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        ([["prev1", "band1", "full"]], [8]),
        ([["prev1#a", "band1#a", "identity"]], [4]),
        ([["prev1#a", "next1#a", "identity"], ["full#a", "prev1", "band1#a"]], [4]),
        ([["prev1", "prev2", "next1"]], []),
    ],
)
def test_a_group_of_single_keys_alone_has_no_projection(
    rows: list[list[str]], sizes: list[int]
) -> None:
    layers = Layers(rows, mask_operator="pre_softmax")
    found = [len(block.q_proj.weight) for block in layers.bank.projections]
    assert found == sizes
    after = Layers(rows)
    assert sum(len(block.q_proj.weight) for block in after.bank.projections) > sum(sizes)
    assert_equal(
        values_and_gradients(layers, draw(), segments("left")),
        values_and_gradients(
            Layers(rows, mask_operator="pre_softmax", path="dense"), draw(), segments("left")
        ),
    )


def test_the_path_of_a_layer_is_written_as_text() -> None:
    layers = Layers([["prev1", "band1", "full"]], mask_operator="pre_softmax")
    assert layers.layers[0].path == "1xbanded+1xdense,banded@102+1xdense,sdpa@256"
    assert Layers([["full"] * 3], biases=BIASES["gated"]).layers[0].path == "dense,slope@32"
    assert Layers([["full"] * 3], dropout=0.1).layers[0].path == "dense(dropout)"
    half = Layers([["full"] * 3], biases=BIASES["gated"]).bfloat16()
    assert half.layers[0].path == "dense,sdpa@512"


@pytest.mark.parametrize("causal", [False, True])
def test_long_texts_of_gated_layers_equal_dense(causal: bool) -> None:
    """700 tokens: longer than what `slope` computes in the open."""
    rows = torch.ones(2, 700, dtype=torch.long)
    rows[0, 650:], rows[1, 300:] = 0, 2
    slope, dense = (
        values_and_gradients(
            Layers([["full"] * 3], causal=causal, biases=BIASES["gated"], path=path),
            draw(700), rows,
        )
        for path in ("slope", "dense")
    )  # fmt: skip
    assert_equal(slope, dense, tolerance=1e-5)


# ---------------------------------------------------------------------------------------------
# Cross-attention
# ---------------------------------------------------------------------------------------------


def cross(**settings: Any) -> tuple[QKBank, Attention]:
    attention = AttentionSettings.model_validate({"heads": [["full"] * 3], **settings})
    table = head_table(attention, 1, 3)
    torch.manual_seed(0)
    bank = QKBank(table, DIM, bias=True)
    return bank, Attention(table, 0, DIM, attention, bias=True, cross=True)


def test_cross_attention_without_biases_equals_torchs() -> None:
    bank, module = cross()
    twin = nn.MultiheadAttention(DIM, 3, batch_first=True)
    (projection,) = bank.projections
    parts = (projection.q_proj, projection.k_proj, module.v_proj)
    with torch.no_grad():
        twin.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        twin.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        twin.out_proj.load_state_dict(module.out_proj.state_dict())
    x, memory = draw(4), draw(6)
    keys = segments("right")
    assert keys is not None
    seen = Visibility.across(None, keys, 4, 6)
    ours, weights = module(x, bank, seen, memory=memory, need_weights=True)
    fast, _ = module(x, bank, seen, memory=memory)
    theirs, maps = twin(x, memory, memory, keys == 0, average_attn_weights=False)
    for a, b in ((ours, theirs), (fast, theirs), (weights, maps)):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [name for name in BIASES if name not in ("none", "window")])
def test_a_learned_ratio_and_every_bias_train_across_two_texts(kind: str) -> None:
    """A small copy task: query i should look at key 2i; the loss falls, the ratio moves."""
    learns = kind != "t5"
    bank, module = cross(biases=BIASES[kind], ratio=1.5, ratio_learnable=learns)
    shared = biases.build(module.settings.biases, DIM, 3, shared=True)
    x, memory = draw(6, 8), draw(12, 8)
    every = [*bank.parameters(), *module.parameters(), *shared.parameters()]
    optimizer = torch.optim.Adam(every, lr=0.02)
    losses = []
    for _ in range(12):
        out, _ = module(x, bank, Visibility(), memory=memory, shared=shared)
        loss = (out - memory[:, ::2]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in every)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    if learns:
        assert isinstance(module.ratio, nn.Parameter) and abs(module.ratio.item() - 1.5) > 1e-3


@pytest.mark.parametrize("side", ["left", "right"])
def test_r22_padding_of_either_text_changes_nothing_across_them(side: str) -> None:
    bank, module = cross(biases=[*BIASES["gated"], *BIASES["sandwich"]], ratio=1.5)
    x, memory = draw(4), draw(6)
    alone, _ = module(x, bank, Visibility(), memory=memory)
    pad = (3, 0) if side == "left" else (0, 3)
    wide_x, wide_memory = (
        nn.functional.pad(t, (0, 0, *pad), value=float("nan")) for t in (x, memory)
    )
    rows, keys = (nn.functional.pad(torch.ones(2, n, dtype=torch.long), pad) for n in (4, 6))
    padded, _ = module(wide_x, bank, Visibility.across(rows, keys, 7, 9), memory=wide_memory)
    real = padded[:, 3:] if side == "left" else padded[:, :4]
    torch.testing.assert_close(real, alone, atol=1e-5, rtol=1e-5)


def test_flex_cannot_train_on_a_cpu_and_says_so() -> None:
    layers = Layers([["full"] * 3], path="flex")
    with pytest.raises(UserError, match="no backward on a CPU; allowed here: auto, dense, sdpa"):
        layers(draw())
    with torch.no_grad():
        torch.testing.assert_close(
            layers(draw()), Layers([["full"] * 3])(draw()), atol=1e-5, rtol=1e-5
        )


# ---------------------------------------------------------------------------------------------
# Compilation
# ---------------------------------------------------------------------------------------------


def test_compiled_layers_equal_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a backend that takes no time: the graph is the same one."""
    used: list[int] = []

    def quick() -> Any:
        used.append(1)
        return shifted.compiled("aot_eager")

    monkeypatch.setattr(kernels.parts, "compiled", quick)
    given: dict[str, Any] = {**VARIANTS["hidden, biases"], "path": "banded"}
    given["rows"] = [["band2", "band1", "band1#a"]]
    results = [
        values_and_gradients(Layers(compile=how, **given), draw(), segments("left"))
        for how in ("on", "off")
    ]
    assert used == [1]
    assert_equal(results[0], results[1])


def test_auto_compiles_in_long_trainings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiles(how: str, steps: int | None) -> bool:
        layers = Layers([["band1", "band1#a"]], compile=how, mask_operator="pre_softmax")
        if steps is not None:
            compile_long_runs(layers, steps)
        assert ("(compiled)" in layers.layers[0].path) == layers.layers[0].compiles
        return layers.layers[0].compiles

    long = paths.COMPILED_FROM_STEPS
    monkeypatch.setenv("CXX", sys.executable)  # any program: nothing is compiled here
    for how, steps in (("on", None), ("on", 1), ("on", long), ("auto", long)):
        assert compiles(how, steps)
    for how, steps in (("off", long), ("auto", None), ("auto", long - 1)):
        assert not compiles(how, steps)
    monkeypatch.setenv("CXX", "no such compiler")
    assert not compiles("auto", long)
    with pytest.raises(UserError, match="there is no C\\+\\+ compiler 'no such compiler'"):
        compiles("on", long)
