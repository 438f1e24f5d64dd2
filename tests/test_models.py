"""Models: Hugging Face and PyTorch twins with copied weights, padding, checkpointing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ala_encoder import hub
from ala_encoder.blocks import Block, Context, Trace
from ala_encoder.errors import UserError
from ala_encoder.kernels import Visibility
from ala_encoder.models import CausalLM, Classifier, Encoder, MaskedLM, Seq2Seq
from ala_encoder.settings.attention import AttentionSettings, head_table
from ala_encoder.settings.model import CausalModel, EncoderDecoderModel, EncoderModel

VOCAB, LABELS = 23, 3
MODEL = EncoderModel(
    family="encoder", dim=24, num_layers=3, num_heads=4, ffn_dim=20, max_length=12, dropout=0.0
)
PLAIN = AttentionSettings()
FULL = ["full"] * 4

VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "local": {"heads": [["prev1", "band1", "next2", "full"]] * 3},
    "tied": {"heads": [["prev1#a", "band1#a", "identity#a", "full#a"]] * 2 + [FULL]},
    "hidden": {
        "heads": [["prev1", "band1", "next2", "full"]] * 3, "mask_operator": "pre_softmax"
    },
    "distbias": {"biases": [{"kind": "distbias", "alpha_init": 0.4}]},
    "gated": {"biases": [{"kind": "gated_distbias", "alpha_init": 0.4}]},
    "window": {"biases": [{"kind": "window", "width": 3}]},
    "dense": {"path": "dense"},
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "groups": {"heads": [["full#a", "full#a", "full#b", "full"]] * 3},
    "shared": {"biases": [{"kind": kind} for kind in ("t5", "kerple_log", "kerple_power")]},
}
"""What every family can have."""


def attention(variant: str) -> AttentionSettings:
    return AttentionSettings.model_validate({**VARIANTS, **FAMILIES}[variant])


def shaken(module: Any, seed: int = 0) -> Any:
    """Give every parameter a value large enough that nothing is hidden by smallness."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if "raw_alpha" not in name:
            is_norm = "norm" in name.lower() and name.endswith("weight")
            drawn = 0.3 * torch.randn(parameter.shape, generator=generator)
            parameter.data.copy_(drawn + is_norm)
    return module.eval()


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, segments and types of three rows of 7, 9 and 4 tokens padded to 9."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([7, 9, 4])
    segments = (torch.arange(9)[None] < lengths[:, None]).long()
    ids = torch.randint(1, VOCAB, (3, 9), generator=generator) * segments
    types = torch.randint(0, 2, (3, 9), generator=generator) * segments
    return ids, segments, types


def every(segments: Tensor) -> Tensor:
    return segments.flatten().nonzero()[:, 0]


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=1e-5, rtol=1e-5, msg=name)


# ---------------------------------------------------------------------------------------------
# Twins
# ---------------------------------------------------------------------------------------------


def twins(head: hub.Form, rows: AttentionSettings = PLAIN) -> tuple[Any, Any]:
    """Return our model and the Hugging Face one, with our weights copied into theirs."""
    from transformers import BertForMaskedLM, BertForSequenceClassification

    config = hub.config_of("bert", MODEL, VOCAB)
    config.num_labels = LABELS
    if head == "masked_lm":
        ours, theirs = shaken(MaskedLM(MODEL, rows, VOCAB)), BertForMaskedLM(config)
    else:
        ours = shaken(Classifier(MODEL, rows, VOCAB, LABELS))
        theirs = BertForSequenceClassification(config)
    shaken(theirs, seed=9)
    state = hub.to_hub("bert", ours.state_dict(), MODEL, rows, head)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert set(missing) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert not unexpected
    return ours, theirs


def gradients(ours: Any, theirs: Any, rows: AttentionSettings, head: hub.Form) -> None:
    """Assert that every gradient of theirs is ours, through the map of the weights."""
    grads = {name: p.grad for name, p in ours.named_parameters()}
    mapped = hub.to_hub("bert", grads, MODEL, rows, head)
    found = {n: p.grad for n, p in theirs.named_parameters() if n in mapped}
    assert_equal(mapped, found)
    assert all(value.abs().max() > 1e-4 for n, value in mapped.items() if "key.bias" not in n)


@pytest.mark.parametrize("path", ["dense", "sdpa"])
@pytest.mark.parametrize("padded", [True, False])
def test_masked_lm_equals_its_hugging_face_twin(path: str, padded: bool) -> None:
    rows = AttentionSettings.model_validate({"path": path})
    ours, theirs = twins("masked_lm", rows)
    ids, segments, types = batch()
    mask = segments if padded else None
    if mask is None:
        segments = torch.ones_like(segments)
    logits = ours(ids, every(segments), mask, types)
    expected = theirs(ids, attention_mask=mask, token_type_ids=types).logits[segments > 0]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    incoming = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4))
    (logits * incoming).mean().backward()
    (expected * incoming).mean().backward()
    gradients(ours, theirs, rows, "masked_lm")


def test_classifier_equals_its_hugging_face_twin() -> None:
    ours, theirs = twins("classifier")
    ids, segments, types = batch()
    logits = ours(ids, segments, types)
    expected = theirs(ids, attention_mask=segments, token_type_ids=types).logits
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    incoming = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4))
    (logits * incoming).mean().backward()
    (expected * incoming).mean().backward()
    gradients(ours, theirs, PLAIN, "classifier")


def test_token_types_default_to_the_first() -> None:
    ours = twins("classifier")[0]
    ids, segments, types = batch()
    torch.testing.assert_close(ours(ids, segments), ours(ids, segments, types * 0))
    assert (ours(ids, segments) - ours(ids, segments, types)).abs().max() > 1e-2


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_block_equals_torchs_encoder_layer(norm: str) -> None:
    model = MODEL.model_copy(update={"norm": norm, "num_layers": 1})
    encoder = shaken(Encoder(model, PLAIN, VOCAB))
    block: Block = encoder.stack.layers[0]
    twin = nn.TransformerEncoderLayer(
        24, 4, 20, 0.0, "gelu", 1e-12, batch_first=True, norm_first=norm == "pre"
    )
    projection, layer = encoder.stack.bank.projections[0], block.attention
    parts = (projection.q_proj, projection.k_proj, layer.v_proj)
    pairs = {
        "self_attn.out_proj": layer.out_proj, "linear1": block.ffn.in_proj,
        "linear2": block.ffn.out_proj, "norm1": block.attention_norm, "norm2": block.ffn_norm,
    }  # fmt: skip
    with torch.no_grad():
        twin.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        twin.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        for name, module in pairs.items():
            twin.get_submodule(name).load_state_dict(module.state_dict())
    segments = batch()[1]
    x = torch.randn(3, 9, 24, generator=torch.Generator().manual_seed(2))
    ours_in, theirs_in = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours = block(ours_in, Context(encoder.stack.bank, Visibility.of(segments)))
    theirs = twin(theirs_in, src_key_padding_mask=segments == 0)
    real = segments > 0
    torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=1e-5)
    ours[real].square().mean().backward()
    theirs[real].square().mean().backward()
    torch.testing.assert_close(ours_in.grad, theirs_in.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        block.ffn.in_proj.weight.grad, twin.linear1.weight.grad, atol=1e-5, rtol=1e-5
    )


def test_a_pre_norm_stack_ends_with_its_final_norm() -> None:
    model = MODEL.model_copy(update={"norm": "pre"})
    stack = shaken(Encoder(model, PLAIN, VOCAB)).stack
    nn.init.ones_(stack.norm.weight)
    nn.init.zeros_(stack.norm.bias)
    trace = Trace()
    out = stack(torch.randn(2, 5, 24), None, trace)
    torch.testing.assert_close(out.mean(-1), torch.zeros(2, 5), atol=1e-5, rtol=0)
    torch.testing.assert_close(out, stack.norm(trace.hidden_states[-1]))


# ---------------------------------------------------------------------------------------------
# Padding, lengths
# ---------------------------------------------------------------------------------------------


def left_padded(rows: Tensor, segments: Tensor) -> Tensor:
    """Move each row's real tokens to the right end."""
    lengths = segments.sum(1)
    return torch.stack([row.roll(int(9 - n)) for row, n in zip(rows, lengths, strict=True)])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_padding_is_invisible_to_the_masked_lm(variant: str, side: str, norm: str) -> None:
    model = MODEL.model_copy(update={"norm": norm})
    ours = shaken(MaskedLM(model, attention(variant), VOCAB))
    ids, segments, types = batch()
    alone = [
        ours(ids[i : i + 1, :n], torch.arange(n), None, types[i : i + 1, :n])
        for i, n in enumerate(segments.sum(1).tolist())
    ]
    if side == "left":
        ids, types, segments = (left_padded(t, segments) for t in (ids, types, segments))
    together = ours(ids, every(segments), segments, types)
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_invisible_to_the_classifier(variant: str, side: str) -> None:
    ours = shaken(Classifier(MODEL, attention(variant), VOCAB, LABELS))
    ids, segments, types = batch()
    alone = [
        ours(ids[i : i + 1, :n], None, types[i : i + 1, :n])
        for i, n in enumerate(segments.sum(1).tolist())
    ]
    if side == "left":
        ids, types, segments = (left_padded(t, segments) for t in (ids, types, segments))
    torch.testing.assert_close(ours(ids, segments, types), torch.cat(alone), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_of_padding_is_harmless(variant: str) -> None:
    ours = shaken(MaskedLM(MODEL, attention(variant), VOCAB))
    ids, segments, types = batch()
    expected = ours(ids[:2], every(segments[:2]), segments[:2], types[:2])
    segments[2] = 0
    logits = ours(ids, every(segments), segments, types)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    logits.square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in ours.parameters())


def test_d18_a_text_of_one_token_more_than_the_positions_is_a_user_error() -> None:
    ours = shaken(MaskedLM(MODEL, PLAIN, VOCAB))
    ours(torch.ones(1, 12, dtype=torch.long), torch.tensor([0]))
    with pytest.raises(UserError, match="input of 13 tokens: the model has 12 positions"):
        ours(torch.ones(1, 13, dtype=torch.long), torch.tensor([0]))


# ---------------------------------------------------------------------------------------------
# Heads, checkpointing, trace, initialisation
# ---------------------------------------------------------------------------------------------


def test_logits_of_targets_are_the_rows_of_all_logits() -> None:
    ours = shaken(MaskedLM(MODEL, PLAIN, VOCAB))
    ids, segments, types = batch()
    full = ours(ids, torch.arange(ids.numel()), segments, types)
    targets = torch.tensor([0, 3, 11, 17, 20])
    torch.testing.assert_close(ours(ids, targets, segments, types), full[targets])
    assert ours(ids, torch.tensor([], dtype=torch.long), segments, types).shape == (0, VOCAB)


def test_the_head_has_the_activation_and_the_norm_of_its_model() -> None:
    model = MODEL.model_copy(update={"activation": "relu", "normalization": "rms_norm"})
    ours = shaken(MaskedLM(model, PLAIN, VOCAB))
    head, words = ours.head, ours.encoder.vocabulary
    x = torch.randn(5, 24)
    inner = (x @ head.proj.weight.T + head.proj.bias).clamp(min=0)
    normed = inner / (inner.square().mean(-1, keepdim=True) + 1e-12).sqrt() * head.norm.weight
    expected = normed @ words.weight.T + head.output_bias
    torch.testing.assert_close(head(x, words), expected, atol=1e-5, rtol=1e-5)
    assert not [name for name in ours.state_dict() if "norm.bias" in name]


def trained(variant: str, norm: str, checkpointing: bool, dropout: float) -> dict[str, Tensor]:
    model = MODEL.model_copy(update={"norm": norm, "dropout": dropout})
    ours = shaken(MaskedLM(model, attention(variant), VOCAB)).train()
    ours.encoder.stack.activation_checkpointing = checkpointing
    ids, segments, types = batch()
    torch.manual_seed(5)
    logits = ours(ids, every(segments), segments, types)
    logits.square().mean().backward()
    grads = {name: p.grad for name, p in ours.named_parameters()}
    assert all(grad is not None for grad in grads.values())
    return {"logits": logits.detach(), **grads}


@pytest.mark.parametrize("variant", ["full", "tied", "gated", "hidden"])
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_activation_checkpointing_equals_plain_training(
    variant: str, norm: str, dropout: float
) -> None:
    assert_equal(trained(variant, norm, True, dropout), trained(variant, norm, False, dropout))


def test_a_trace_holds_every_layer_in_training_with_checkpointing_too() -> None:
    encoder = shaken(Encoder(MODEL, attention("tied"), VOCAB))
    ids, segments, types = batch()
    for training in (False, True):
        trace = Trace()
        encoder.train(training)
        encoder.stack.activation_checkpointing = training
        out = encoder(ids, segments, types, trace)
        assert [tuple(h.shape) for h in trace.hidden_states] == [(3, 9, 24)] * 4
        assert [tuple(w.shape) for w in trace.weights] == [(3, 4, 9, 9)] * 3
        assert torch.equal(trace.hidden_states[-1], out)


def test_the_vocabulary_is_one_parameter_that_looks_up_and_predicts() -> None:
    ours = shaken(MaskedLM(MODEL, PLAIN, VOCAB))
    sizes = [key for key, value in ours.state_dict().items() if value.shape == (VOCAB, 24)]
    assert sizes == ["encoder.vocabulary.weight"]
    table = ours.encoder.vocabulary
    x = torch.randn(2, 24)
    torch.testing.assert_close(table(x), x @ table.weight.T)
    assert torch.equal(table(torch.tensor([[3]])), table.weight[[3]][None])


@pytest.mark.parametrize("build", [
    lambda a: MaskedLM(MODEL, a, 500), lambda a: Classifier(MODEL, a, 500, LABELS),
])  # fmt: skip
def test_every_parameter_starts_as_bert_does(build: Any) -> None:
    torch.manual_seed(0)
    for name, parameter in build(attention("gated")).named_parameters():
        if name.endswith("raw_alpha"):
            softplus = torch.log1p(parameter.exp())
            torch.testing.assert_close(softplus, torch.full((4,), 0.4), atol=1e-6, rtol=0)
        elif "norm" in name and name.endswith("weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            assert abs(parameter.std().item() / MODEL.init_std - 1) < 0.35, name
            assert abs(parameter.mean().item()) < 0.01, name


def family(name: str, variant: str) -> tuple[Any, tuple[Tensor, ...]]:
    """Return a model with the attention of `variant`, and what its `forward` takes."""
    ids, segments, types = batch()
    given, plain = attention(variant), MODEL.model_dump(include={"dim", "num_layers", "num_heads",
                                                                 "ffn_dim", "dropout"})  # fmt: skip
    if name == "masked":
        return MaskedLM(MODEL, given, VOCAB), (ids, every(segments), segments, types)
    if name == "classifier":
        return Classifier(MODEL, given, VOCAB, LABELS), (ids, segments, types)
    if name == "causal":
        causal = CausalModel(
            family="causal", max_length=12, embedding_norm=True, tied_embeddings=False, **plain
        )
        return CausalLM(causal, given, VOCAB), (ids, segments)
    both = EncoderDecoderModel(
        family="encoder_decoder", num_decoder_layers=3, output_bias=True, **plain
    )
    kinds = {bias.kind for bias in given.biases}
    learns = bool(kinds) and "kerple_power" not in kinds
    cross = given.model_copy(update={"ratio_learnable": learns})
    sections = {"encoder": given, "decoder": given, "cross": cross}
    return Seq2Seq(both, sections, VOCAB), (ids, ids[:, :5], segments, segments[:, :5])


@pytest.mark.parametrize("variant", ["full", "groups", "gated", "shared"])
@pytest.mark.parametrize("name", ["masked", "classifier", "causal", "seq2seq"])
def test_no_module_reads_the_weights_of_another(name: str, variant: str) -> None:
    """ZeRO-3 gathers a module's own weights for the time of its forward: all others are NaN."""
    model, inputs = family(name, variant)
    shaken(model)
    with torch.no_grad():
        expected = model(*inputs)
        kept = {id(p): p.data for p in model.parameters()}

        def show(module: nn.Module, *_: object) -> None:
            for p in module.parameters(recurse=False):
                p.data = kept[id(p)]

        def hide(module: nn.Module, *_: object) -> None:
            for p in module.parameters(recurse=False):
                p.data = torch.full_like(p, float("nan"))

        for module in model.modules():
            module.register_forward_pre_hook(show)
            module.register_forward_hook(hide)
            hide(module)
        assert torch.equal(model(*inputs), expected)


def test_the_head_table_fits_the_model_or_is_refused() -> None:
    assert head_table(attention("tied"), 3, 4).num_groups == 5
    with pytest.raises(UserError, match="encoder: heads has 3 rows x 4 cells"):
        MaskedLM(MODEL.model_copy(update={"num_layers": 2}), attention("tied"), VOCAB)
    with pytest.raises(UserError, match=r"model\.dim = 24: not a multiple of num_heads 5"):
        MaskedLM(MODEL.model_copy(update={"num_heads": 5}), PLAIN, VOCAB)
