"""The encoder-decoder: PyTorch's Transformer with copied weights, padding, packed pairs, ratio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ala_encoder.blocks import Trace, checkpoint_activations
from ala_encoder.errors import UserError
from ala_encoder.heads import LAYOUTS
from ala_encoder.models import Seq2Seq
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import EncoderDecoderModel
from tests.test_causal import names_of
from tests.test_models import assert_equal, left_padded, shaken
from tests.test_parameters import ENCODER_ATTENTION, size

VOCAB, LAYERS = 23, 2
MODEL = EncoderDecoderModel(
    family="encoder_decoder", dim=24, num_layers=3, num_decoder_layers=LAYERS, num_heads=4,
    ffn_dim=20, dropout=0.0,
)  # fmt: skip
GATED = {"kind": "gated_distbias", "alpha_init": 0.4}
SHARED: list[dict[str, Any]] = [
    {"kind": "t5", "num_buckets": 4, "max_distance": 3}, {"kind": "kerple_log"},
    {"kind": "kerple_power"},
]  # fmt: skip
SECTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "full": {},
    "local": {
        "encoder": {"heads": [["prev1", "band1", "next2", "full"]] * 3},
        "decoder": {"heads": [["prev1", "band1", "identity", "full"]] * LAYERS},
    },
    "tied": {
        "encoder": {"heads": [["prev1#a", "band1#a", "full#a", "full#a"]] * 3},
        "decoder": {"heads": [["full#a", "full#a", "full#b", "full#b"]] * LAYERS},
        "cross": {"heads": [["full#a"] * 4] * LAYERS},
    },
    "gated": {
        "encoder": {"biases": [GATED]},
        "decoder": {"biases": [GATED]},
        "cross": {"biases": [GATED], "ratio": 1.5, "ratio_learnable": True},
    },
    "shared": {
        "encoder": {"biases": SHARED},
        "decoder": {"biases": SHARED},
        "cross": {"biases": SHARED, "ratio": 0.5},
    },
    "mixed": {
        "encoder": {"biases": [{"kind": "window", "width": 3}]},
        "decoder": {"biases": [{"kind": "alibi"}]},
        "cross": {"biases": [{"kind": "window", "width": 4},
                             {"kind": "multiscale_distbias", "ranges": [2, 4]},
                             {"kind": "sandwich", "dim": 8}]},
    },
}  # fmt: skip


def sections(name: str) -> Mapping[str, AttentionSettings]:
    return {key: AttentionSettings.model_validate(given) for key, given in SECTIONS[name].items()}


def build(name: str = "full", **changes: Any) -> Seq2Seq:
    if changes.get("positions") == "learned":
        changes = {"max_length": 12, **changes}
    model = EncoderDecoderModel.model_validate({**MODEL.model_dump(), **changes})
    torch.manual_seed(0)
    built: Seq2Seq = shaken(Seq2Seq(model, sections(name), VOCAB))
    for key, parameter in built.named_parameters():
        if key.endswith("ratio"):
            nn.init.constant_(parameter, 1.5)
    return built


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return sources of 7, 9 and 4 tokens and targets of 5, 3 and 6, with their segments."""
    generator = torch.Generator().manual_seed(1)
    src = (torch.arange(9)[None] < torch.tensor([[7], [9], [4]])).long()
    trg = (torch.arange(6)[None] < torch.tensor([[5], [3], [6]])).long()
    src_ids = torch.randint(1, VOCAB, src.shape, generator=generator) * src
    trg_ids = torch.randint(1, VOCAB, trg.shape, generator=generator) * trg
    return src_ids, trg_ids, src, trg


# ---------------------------------------------------------------------------------------------
# PyTorch's Transformer
# ---------------------------------------------------------------------------------------------


def twin_of(built: Seq2Seq, model: EncoderDecoderModel) -> nn.Transformer:
    """Return nn.Transformer with copies of our weights."""
    given: dict[str, Any] = {
        "d_model": 24, "nhead": 4, "dim_feedforward": 20, "dropout": 0.0,
        "activation": model.activation, "batch_first": True, "norm_first": model.norm == "pre",
    }  # fmt: skip
    last = [nn.LayerNorm(24) if model.norm == "pre" else None for _ in range(2)]
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**given), 3, last[0], enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**given), LAYERS, last[1])
    twin = nn.Transformer(24, 4, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    with torch.no_grad():
        for ours, theirs in ((built.encoder, encoder), (built.decoder, decoder)):
            for layer, (block, other) in enumerate(zip(ours.layers, theirs.layers, strict=True)):
                pairs = [("attention", other.self_attn, ours.bank)]
                norms = ["attention_norm", "ffn_norm"]
                if ours is built.decoder:
                    pairs.append(("cross_attention", other.multihead_attn, ours.cross_bank))
                    norms.insert(1, "cross_norm")
                for name, attention, bank in pairs:
                    projection, own = bank.projections[layer], block.get_submodule(name)
                    parts = (projection.q_proj, projection.k_proj, own.v_proj)
                    attention.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
                    attention.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
                    attention.out_proj.load_state_dict(own.out_proj.state_dict())
                other.linear1.load_state_dict(block.ffn.in_proj.state_dict())
                other.linear2.load_state_dict(block.ffn.out_proj.state_dict())
                for number, name in enumerate(norms, 1):
                    state = block.get_submodule(name).state_dict()
                    other.get_submodule(f"norm{number}").load_state_dict(state)
            if ours.norm is not None:
                theirs.norm.load_state_dict(ours.norm.state_dict())
    return twin


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("padded", [True, False])
def test_both_stacks_equal_torchs_transformer(norm: str, activation: str, padded: bool) -> None:
    changes = {"norm": norm, "activation": activation, "attention_bias": True}
    built = build(**changes)
    twin = twin_of(built, MODEL.model_copy(update=changes))
    _, _, src, trg = batch()
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(3, n, 24, generator=generator) for n in (9, 6)]
    (x, y), (their_x, their_y) = (
        [tensor.clone().requires_grad_() for tensor in inputs] for _ in range(2)
    )
    if padded:
        memory = built.encoder(x, src)
        ours = built.decoder(y, trg, memory=memory, memory_segments=src)
    else:
        memory = built.encoder(x, None)
        ours = built.decoder(y, None, memory=memory)
    theirs = twin(
        their_x,
        their_y,
        tgt_mask=torch.ones(6, 6).triu(1).bool(),
        src_key_padding_mask=src == 0 if padded else None,
        tgt_key_padding_mask=trg == 0 if padded else None,
        memory_key_padding_mask=src == 0 if padded else None,
    )
    real = trg > 0 if padded else trg >= 0
    torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=1e-5)
    incoming = torch.randn(6, 24, generator=generator)
    (ours * incoming)[real].mean().backward()
    (theirs * incoming)[real].mean().backward()
    for a, b in ((x, their_x), (y, their_y)):
        assert a.grad is not None and a.grad.abs().max() > 1e-5
        torch.testing.assert_close(a.grad, b.grad, atol=1e-6, rtol=1e-4)
    value = built.decoder.layers[0].cross_attention.v_proj.weight.grad
    their_value = twin.decoder.layers[0].multihead_attn.in_proj_weight.grad[48:]
    torch.testing.assert_close(value, their_value, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("output_bias", [True, False])
def test_embeddings_are_lifted_and_one_matrix_serves_source_target_and_logits(
    output_bias: bool,
) -> None:
    built = build(output_bias=output_bias)
    src_ids, trg_ids, src, trg = batch()
    matrix = built.vocabulary.weight
    waves = torch.zeros(9, 24)
    for p in range(9):
        for m in range(12):
            angle = torch.tensor(p / 10_000 ** (2 * m / 24))
            waves[p, m], waves[p, 12 + m] = angle.sin(), angle.cos()
    memory = built.encoder(matrix[src_ids] * 24**0.5 + waves, src)
    embedded = matrix[trg_ids] * 24**0.5 + waves[:6]
    hidden = built.decoder(embedded, trg, memory=memory, memory_segments=src)
    expected = hidden @ matrix.T + (built.output_bias if output_bias else 0.0)
    torch.testing.assert_close(built(src_ids, trg_ids, src, trg), expected, atol=1e-5, rtol=1e-5)


def test_source_and_target_have_learned_positions_of_their_own() -> None:
    built = build(positions="learned")
    src_ids, trg_ids, src, trg = batch()
    own = [p.embedding.weight for p in (built.encoder_positions, built.decoder_positions)]
    assert (own[0] - own[1]).abs().max() > 0.1
    words = built.vocabulary.weight
    memory = built.encoder(words[src_ids] + own[0][:9], src)
    x = words[trg_ids] + own[1][:6]
    hidden = built.decoder(x, trg, memory=memory, memory_segments=src)
    found = built.decode(trg_ids, built.encode(src_ids, src), trg, src)
    torch.testing.assert_close(found, hidden, atol=1e-5, rtol=1e-5)


# ---------------------------------------------------------------------------------------------
# The future, padding, packed pairs
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SECTIONS)
def test_no_gradient_comes_from_the_targets_future(name: str) -> None:
    built = build(name)
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(2, n, 24, generator=generator).requires_grad_() for n in (8, 6))
    hidden = built.decoder(y, None, memory=built.encoder(x, None))
    for i in range(6):
        past, source = torch.autograd.grad(hidden[:, i].square().sum(), (y, x), retain_graph=True)
        assert (past[:, i + 1 :] == 0).all() and (past[:, i] != 0).any()
        assert (source != 0).any(-1).all() or name == "mixed"  # where a window hides some


@pytest.mark.parametrize("name", SECTIONS)
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_of_either_side_is_invisible(name: str, positions: str, side: str) -> None:
    built = build(name, positions=positions)
    src_ids, trg_ids, src, trg = batch()
    with torch.no_grad():
        alone = [
            built(src_ids[i : i + 1, : src[i].sum()], trg_ids[i : i + 1, : trg[i].sum()])[0]
            for i in range(3)
        ]
        if side == "left":
            src_ids, src = left_padded(src_ids, src), left_padded(src, src)
            shift = (6 - trg.sum(1)).tolist()
            trg_ids, trg = (
                torch.stack([row.roll(n) for row, n in zip(t, shift, strict=True)])
                for t in (trg_ids, trg)
            )
        together = built(src_ids, trg_ids, src, trg)[trg > 0]
        torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-5)
        if side == "right":  # only the source is padded
            one = built(src_ids[2:], trg_ids[2:], src[2:])
            torch.testing.assert_close(one[0], alone[2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SECTIONS)
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
def test_a_pair_is_the_same_alone_and_packed_with_others(name: str, positions: str) -> None:
    built = build(name, positions=positions)
    pairs = [(torch.randint(1, VOCAB, (s,)), torch.randint(1, VOCAB, (t,)))
             for s, t in ((3, 4), (5, 2), (2, 3))]  # fmt: skip
    zero = torch.tensor([0])
    src_ids = torch.cat([*(s for s, _ in pairs), zero, zero])[None]
    trg_ids = torch.cat([zero, *(t for _, t in pairs)])[None]
    src = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 0, 0]])
    trg = torch.tensor([[0, 1, 1, 1, 1, 2, 2, 3, 3, 3]])
    with torch.no_grad():
        alone = torch.cat([built(s[None], t[None])[0] for s, t in pairs])
        packed = built(src_ids, trg_ids, src, trg)[0, 1:]
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_row_without_source_or_target_is_harmless(name: str) -> None:
    built = build(name)
    src_ids, trg_ids, src, trg = batch()
    expected = built(src_ids, trg_ids, src, trg)[:1]
    src[1], trg[2] = 0, 0
    logits = built(src_ids, trg_ids, src, trg)
    real = trg[:1] > 0
    torch.testing.assert_close(logits[:1][real], expected[real], atol=1e-5, rtol=1e-5)
    logits[trg > 0].square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in built.parameters())


# ---------------------------------------------------------------------------------------------
# Reuse, checkpointing, trace, names
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SECTIONS)
def test_a_search_reuses_the_memory_and_reads_on_token_by_token(name: str) -> None:
    built = build(name)
    src_ids, trg_ids, src, _ = batch()
    with torch.no_grad():
        memory = built.encode(src_ids, src)
        whole = built(src_ids, trg_ids, src)
        for length in range(1, 7):
            hidden = built.decode(trg_ids[:, :length], memory, src_segments=src)
            last = built.logits(hidden[:, -1])
            torch.testing.assert_close(last, whole[:, length - 1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["full", "tied", "gated", "shared"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_activation_checkpointing_equals_plain_training(name: str, norm: str) -> None:
    found = []
    for checkpointing in (True, False):
        built = build(name, norm=norm, dropout=0.2).train()
        if checkpointing:
            checkpoint_activations(built)
            assert built.encoder.activation_checkpointing and built.decoder.activation_checkpointing
        src_ids, trg_ids, src, trg = batch()
        torch.manual_seed(5)
        logits = built(src_ids, trg_ids, src, trg)
        logits[trg > 0].square().mean().backward()
        grads = {key: p.grad for key, p in built.named_parameters()}
        assert all(grad is not None for grad in grads.values())
        found.append({"logits": logits.detach(), **grads})
    assert_equal(*found)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_trace_holds_the_weights_of_both_attentions(name: str) -> None:
    built = build(name)
    src_ids, trg_ids, src, trg = batch()
    source, target = Trace(), Trace()
    memory = built.encode(src_ids, src, source)
    hidden = built.decode(trg_ids, memory, trg, src, target)
    torch.testing.assert_close(
        built.logits(hidden)[trg > 0], built(src_ids, trg_ids, src, trg)[trg > 0]
    )
    assert [tuple(w.shape) for w in source.weights] == [(3, 4, 9, 9)] * 3
    assert source.cross_weights == []
    assert [tuple(w.shape) for w in target.weights] == [(3, 4, 6, 6)] * LAYERS
    assert [tuple(w.shape) for w in target.cross_weights] == [(3, 4, 6, 9)] * LAYERS
    for weights in target.cross_weights:
        assert (weights.permute(0, 3, 1, 2)[src == 0] == 0).all()
        assert (weights.transpose(1, 2)[trg == 0] == 0).all()


def test_every_parameter_has_a_dimension() -> None:
    """DeepSpeed sends parameters as bytes when it starts, and cannot look at a number so."""
    assert all(p.dim() > 0 for name in SECTIONS for p in build(name).parameters())


def test_the_state_has_these_names() -> None:
    def stack(name: str, *norms: str) -> set[str]:
        attentions = ["attention", "cross_attention"][: len(norms) - 1]
        bank = ["bank", "cross_bank"][: len(norms) - 1]
        return {
            *(f"{name}.{b}.projections.{p}_proj.weight" for b in bank for p in "qk"),
            *(f"{name}.layers.{a}.{p}.weight" for a in attentions for p in ("v_proj", "out_proj")),
            *(f"{name}.layers.ffn.{p}.{x}" for p in ("in_proj", "out_proj")
              for x in ("weight", "bias")),
            *(f"{name}.{norm}.{x}" for norm in (*(f"layers.{n}" for n in norms), "norm")
              for x in ("weight", "bias")),
        }  # fmt: skip

    plain = {"vocabulary.weight", *stack("encoder", "attention_norm", "ffn_norm"),
             *stack("decoder", "attention_norm", "cross_norm", "ffn_norm")}  # fmt: skip
    assert names_of(build()) == plain
    assert names_of(build(norm="post")) == {n for n in plain if ".norm." not in n}
    assert names_of(build(output_bias=True)) == plain | {"output_bias"}
    assert names_of(build(positions="learned")) == plain | {
        "encoder_positions.embedding.weight", "decoder_positions.embedding.weight"
    }  # fmt: skip
    shared = {"table.weight", "r1", "r2"}
    assert names_of(build("shared")) == plain | {
        f"{stack_biases}.{name}"
        for stack_biases in ("encoder.biases", "decoder.biases", "decoder.cross_biases")
        for name in shared
    }
    assert {n for n in names_of(build("gated")) if "cross" in n and "ratio" in n} == {
        "decoder.layers.cross_attention.ratio"
    }


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if not name.startswith("bert")])
def test_every_layout_builds_with_the_stated_attention_parameters(layout: str) -> None:
    with torch.device("meta"):
        model = EncoderDecoderModel(family="encoder_decoder")
        built = Seq2Seq(model, {"encoder": AttentionSettings(layout=layout)}, 33_000)
    found = size(built.encoder, "bank.", "v_proj", "attention.out_proj")
    assert found == ENCODER_ATTENTION[layout]


# ---------------------------------------------------------------------------------------------
# Biases across two texts
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "learnable"),
    [(2.0, False), (1.0, True), (1.0, False)],
    ids=["fixed", "learned", "wrong"],
)
def test_cross_attention_learns_to_copy_by_distance_alone(start: float, learnable: bool) -> None:
    """Token i of the target is token 2i of the source; there are no positions but the bias.

    With a ratio of 2 it is learned, a learned ratio gets there from 1, and a fixed 1 cannot.
    """
    cross = {"biases": [{"kind": "gated_distbias", "alpha_init": 0.5}], "ratio": start,
             "ratio_learnable": learnable}  # fmt: skip
    model = EncoderDecoderModel(
        family="encoder_decoder", dim=16, num_layers=1, num_decoder_layers=1, num_heads=2,
        ffn_dim=16, positions="none", dropout=0.0, init_std=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    built = Seq2Seq(model, {"cross": AttentionSettings.model_validate(cross)}, 12)
    attention = built.decoder.layers[0].cross_attention
    before = {name: p.detach().clone() for name, p in attention.named_parameters()}
    optimizer = torch.optim.Adam(built.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(7)
    losses = []
    for _ in range(120):
        src_ids = torch.randint(
            1, 12, (32, 12), generator=generator
        )  # new: none is learned by heart
        wanted = src_ids[:, ::2]
        trg_ids = F.pad(wanted[:, :-1], (1, 0))
        loss = F.cross_entropy(built(src_ids, trg_ids).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 2.3
    if start == 1.0 and not learnable:
        assert losses[-1] > 1.5
        return
    assert losses[-1] < 0.1
    moved = {name: (p - before[name]).abs().max() for name, p in attention.named_parameters()}
    for name in ("raw_alpha", "gate_proj.weight", "gate_proj.bias"):
        (change,) = (value for key, value in moved.items() if key.endswith(name))
        assert change > 0.2, name
    assert attention.ratio == 2.0 if not learnable else abs(attention.ratio.item() - 2.0) < 0.05
    assert ("ratio" in moved) == learnable


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_the_ratio_moves_where_each_query_looks(ratio: float) -> None:
    """With a steep slope alone the weights peak at key ratio·i."""
    cross = {"biases": [{"kind": "distbias", "alpha_init": 5.0}], "ratio": ratio}
    torch.manual_seed(0)
    built = Seq2Seq(MODEL, {"cross": AttentionSettings.model_validate(cross)}, VOCAB).eval()
    ids = torch.ones(1, 9, dtype=torch.long)
    trace = Trace()
    built.decode(ids[:, :4], built.encode(ids), trace=trace)
    for weights in trace.cross_weights:
        found = weights.argmax(-1)[0]
        allowed = [{round(ratio * i + side) for side in (-0.5, 0.0, 0.5)} for i in range(4)]
        assert all(int(j) in allowed[i] for row in found for i, j in enumerate(row))
        if ratio == 2.0:
            assert found.tolist() == [[0, 2, 4, 6]] * 4


def test_a_t5_bias_across_texts_tells_keys_ahead_from_keys_behind() -> None:
    """Without Q and K the weights are the softmax of the table's numbers, of all layers alike."""
    cross = AttentionSettings.model_validate({"biases": [{"kind": "t5"}]})
    built = shaken(Seq2Seq(MODEL, {"cross": cross}, VOCAB))
    for parameter in built.decoder.cross_bank.parameters():
        nn.init.zeros_(parameter)
    (bias,) = built.decoder.cross_biases
    trace = Trace()
    ids = torch.ones(1, 8, dtype=torch.long)
    built.decode(ids, built.encode(ids), trace=trace)
    # 32 buckets: 16 a side, of which the first 8 are exact; those of keys ahead come second.
    bucket = [[j - i + 16 if j > i else i - j for j in range(8)] for i in range(8)]
    expected = bias.table.weight[torch.tensor(bucket)].permute(2, 0, 1).softmax(-1)
    for weights in trace.cross_weights:
        torch.testing.assert_close(weights[0], expected)


# ---------------------------------------------------------------------------------------------
# Settings
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"cross": {"heads": [["band1", *["full"] * 3]] * LAYERS}},
         "cross: head band1: cross-attention has no local masks"),
        ({"decoder": {"heads": [["full"] * 4] * 3}}, "decoder: heads has 3 rows x 4 cells"),
        ({"decoder": {"heads": [["next1", *["full"] * 3]] * LAYERS}}, "decoder: head next1"),
        ({"encoder": {"ratio": 2.0, "biases": [GATED]}}, "encoder: ratio: does nothing in self"),
        ({"cross": {"ratio": 2.0}}, "cross: ratio: does nothing without biases"),
        ({"cross": {"path": "slope", "biases": [GATED]}}, "cross: path = 'slope'"),
        ({"cros": {}}, "cros: a model of family 'encoder_decoder' has encoder, decoder, cross"),
    ],
)  # fmt: skip
def test_a_section_that_cannot_be_is_refused_by_its_name(given: Any, line: str) -> None:
    settings = {name: AttentionSettings.model_validate(value) for name, value in given.items()}
    with pytest.raises(UserError, match=line):
        Seq2Seq(MODEL, settings, VOCAB)


def test_rotation_needs_q_and_k_in_one_of_the_two_stacks() -> None:
    model = MODEL.model_copy(update={"positions": "rotary"})

    def single(layers: int) -> AttentionSettings:
        return AttentionSettings.model_validate(
            {"heads": [["identity"] * 4] * layers, "mask_operator": "pre_softmax"}
        )

    assert Seq2Seq(model, {"encoder": single(3)}, VOCAB).decoder.rotary is not None
    with pytest.raises(UserError, match=r"model\.positions = 'rotary': does nothing, no head"):
        Seq2Seq(model, {"encoder": single(3), "decoder": single(LAYERS)}, VOCAB)
