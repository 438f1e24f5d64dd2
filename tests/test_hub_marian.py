"""Marian in and out: its Hugging Face twin, left padding, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ala_encoder import hub
from ala_encoder.blocks import Trace
from ala_encoder.models import Seq2Seq
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import EncoderDecoderModel
from tests.hub_twins import (
    LEFT,
    RIGHT,
    VOCAB,
    assert_close,
    assert_fields_known,
    assert_gradients,
    assert_same,
    backward,
    read_strictly,
    refused,
    saved,
    shaken,
    some_ids,
    written,
)

FULL: dict[str, AttentionSettings] = {
    name: AttentionSettings() for name in ("encoder", "decoder", "cross")
}
SHARED = ("full#a", "full#a", "full#b")
TIED = {
    "encoder": AttentionSettings(heads=(SHARED, ("full#a", "full", "full#a"))),
    "decoder": AttentionSettings(heads=(SHARED, ("full",) * 3, SHARED)),
    "cross": AttentionSettings(heads=(("full",) * 3, SHARED, SHARED)),
}
TRG = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])


def settings(**changes: Any) -> EncoderDecoderModel:
    fields = {
        "family": "encoder_decoder", "dim": 12, "num_layers": 2, "num_decoder_layers": 3,
        "num_heads": 3, "ffn_dim": 10, "norm": "post", "activation": "silu", "dropout": 0.0,
        "attention_bias": True, "output_bias": True,
    }  # fmt: skip
    return EncoderDecoderModel.model_validate(fields | changes)


def build(model: EncoderDecoderModel | None = None, attention: Any = FULL) -> Seq2Seq:
    return shaken(Seq2Seq(model or settings(), attention, VOCAB))  # type: ignore[no-any-return]


def twin(**changes: Any) -> Any:
    from transformers import MarianConfig, MarianMTModel

    fields = {
        "vocab_size": VOCAB, "d_model": 12, "encoder_layers": 2, "decoder_layers": 3,
        "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 10,
        "decoder_ffn_dim": 10, "activation_function": "swish", "scale_embedding": True,
        "dropout": 0.0, "pad_token_id": 0, "max_position_embeddings": 16,
        "decoder_start_token_id": 0, "attn_implementation": "eager",
    }  # fmt: skip
    theirs = shaken(MarianMTModel(MarianConfig(**fields | changes)), seed=1)
    generator = torch.Generator().manual_seed(5)
    theirs.final_logits_bias.copy_(torch.randn(1, VOCAB, generator=generator))
    return theirs


def run(theirs: Any, src: Tensor, trg: Tensor, segments: Tensor) -> Any:
    return theirs(
        src, attention_mask=segments, decoder_input_ids=trg, decoder_attention_mask=TRG,
        use_cache=False, output_attentions=True,
    )  # fmt: skip


def assert_weights(mine: list[Tensor], other: tuple[Tensor, ...], real: Tensor) -> None:
    for ours, theirs in zip(mine, other, strict=True):
        assert_close(ours.transpose(1, 2)[real], theirs.transpose(1, 2)[real])


@pytest.mark.parametrize("activation", ["swish", "relu", "gelu"])
def test_a_marian_computes_here_what_it_computes_there(activation: str) -> None:
    theirs = twin(activation_function=activation)
    model = settings(activation="silu" if activation == "swish" else activation)
    ours = build(model)
    ours.load_state_dict(hub.from_hub("marian", theirs.state_dict(), model, FULL, "seq2seq"))
    src, trg, real = some_ids(RIGHT), some_ids(TRG, 3), TRG > 0
    first, second = Trace(), Trace()
    hidden = ours.decode(trg, ours.encode(src, RIGHT, first), TRG, RIGHT, second)
    out = run(theirs, src, trg, RIGHT)
    assert_close(ours.logits(hidden)[real], out.logits[real])
    assert_weights(first.weights, out.encoder_attentions, RIGHT > 0)
    assert_weights(second.weights, out.decoder_attentions, real)
    assert_weights(second.cross_weights, out.cross_attentions, real)
    backward(ours(src, trg, RIGHT, TRG)[real])
    backward(out.logits[real])
    gradients = {name: p.grad for name, p in ours.named_parameters()}
    mapped = hub.to_hub("marian", gradients, model, FULL, "seq2seq")
    del mapped["final_logits_bias"]  # theirs is no parameter
    assert_gradients(mapped, theirs)


def test_e10_left_padding_without_position_ids_changes_nothing() -> None:
    ours, src, trg = build(), some_ids(LEFT), some_ids(torch.ones(2, 5))
    left = TRG.flip(1)
    assert_close(ours(src, trg, LEFT)[1], ours(src[1:, 2:], trg[1:])[0])
    assert_close(ours(src, trg * left, LEFT, left)[0, 1:], ours(src[:1], trg[:1, 1:])[0])


@pytest.mark.parametrize("attention", [FULL, TIED], ids=["full", "shared"])
def test_transformers_reads_an_export_strictly_and_computes_the_same(
    attention: dict[str, AttentionSettings], tmp_path: Path
) -> None:
    from transformers import MarianMTModel

    ours = build(attention=attention)
    state = hub.to_hub("marian", ours.state_dict(), settings(), attention, "seq2seq")
    written(tmp_path, hub.config_of("marian", settings(), VOCAB, attention), state)
    theirs = read_strictly(MarianMTModel, tmp_path)
    src, trg, real = some_ids(RIGHT), some_ids(TRG, 3), TRG > 0
    assert_close(ours(src, trg, RIGHT, TRG)[real], run(theirs, src, trg, RIGHT).logits[real])
    back = hub.load(tmp_path, attention)
    assert (back.family, back.model, back.vocab_size) == ("marian", settings(), VOCAB)
    assert back.attention == attention
    assert_same(back.state, ours.state_dict())


def test_a_saved_folder_comes_back_bit_by_bit(tmp_path: Path) -> None:
    file = saved(twin(), tmp_path)
    found = hub.load(tmp_path)
    assert (found.model, found.attention) == (settings(), FULL)
    assert_same(hub.to_hub("marian", found.state, found.model, FULL, "seq2seq"), file)


def test_whichever_of_the_tied_names_is_there_is_read() -> None:
    state = twin().state_dict()
    expected = hub.from_hub("marian", state, settings(), FULL, "seq2seq")
    for name in ("model.shared.weight", "model.encoder.embed_tokens.weight"):
        del state[name]
    assert_same(hub.from_hub("marian", state, settings(), FULL, "seq2seq"), expected)
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    text = refused(lambda: hub.from_hub("marian", state, settings(), FULL, "seq2seq"))
    assert "lm_head.weight differs from shared.weight" in text


def test_a_model_with_local_masks_can_start_from_marian() -> None:
    local = TIED | {"encoder": AttentionSettings(heads=(("band1", "prev1", "full"),) * 2)}
    local["decoder"] = AttentionSettings(heads=(("prev1", "full", "full"),) * 3)
    local["cross"] = FULL["cross"]
    state = hub.from_hub("marian", twin().state_dict(), settings(), local, "seq2seq")
    build(attention=local).load_state_dict(state)
    text = refused(lambda: hub.to_hub("marian", state, settings(), local, "seq2seq"))
    assert "encoder: it has no local masks, the table has band1" in text


def test_every_field_of_the_configuration_is_accounted_for() -> None:
    harmless = """
        max_position_embeddings use_cache is_encoder_decoder decoder_start_token_id pad_token_id
        eos_token_id bos_token_id forced_eos_token_id
    """
    assert_fields_known(hub.config_of("marian", settings(), VOCAB), harmless=harmless)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scale_embedding", False),
        ("share_encoder_decoder_embeddings", False),
        ("tie_word_embeddings", False),
        ("is_decoder", True),
        ("activation_dropout", 0.1),
        ("encoder_layerdrop", 0.1),
        ("decoder_layerdrop", 0.1),
        ("static_position_embeddings", False),
        ("normalize_before", True),
        ("normalize_embedding", True),
        ("add_final_layer_norm", True),
        ("decoder_vocab_size", 20),
        ("decoder_attention_heads", 4),
        ("decoder_ffn_dim", 12),
        ("activation_function", "tanh"),
    ],
)
def test_a_configuration_we_cannot_compute_is_refused_by_name(
    key: str, value: Any, tmp_path: Path
) -> None:
    state = hub.to_hub("marian", build().state_dict(), settings(), FULL, "seq2seq")
    written(tmp_path, hub.config_of("marian", settings(), VOCAB), state, **{key: value})
    assert f"config.json: {key} = {value!r}" in refused(lambda: hub.load(tmp_path))


def test_a_field_that_is_absent_has_the_value_it_has_there(tmp_path: Path) -> None:
    state = hub.to_hub("marian", build().state_dict(), settings(), FULL, "seq2seq")
    written(tmp_path, hub.config_of("marian", settings(), VOCAB), state, scale_embedding=...)
    assert "scale_embedding = False: allowed is True" in refused(lambda: hub.load(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"norm": "pre"}, "model.norm = 'pre': that of a Marian is 'post'"),
        ({"normalization": "rms_norm"}, "model.normalization = 'rms_norm'"),
        ({"positions": "none"}, "model.positions = 'none'"),
        ({"output_bias": False}, "model.output_bias = False"),
        ({"layer_norm_eps": 1e-6}, "model.layer_norm_eps = 1e-06"),
    ],
)
def test_what_marian_cannot_express_is_neither_exported_nor_imported(
    change: dict[str, Any], words: str
) -> None:
    model = settings(**change)
    for call in (
        lambda: hub.config_of("marian", model, VOCAB),
        lambda: hub.to_hub("marian", build(model).state_dict(), model, FULL, "seq2seq"),
        lambda: hub.from_hub("marian", twin().state_dict(), model, FULL, "seq2seq"),
    ):
        assert words in refused(call)


@pytest.mark.parametrize("section", ["encoder", "decoder", "cross"])
def test_biases_of_any_section_are_not_exported(section: str) -> None:
    biased = AttentionSettings.model_validate({"biases": [{"kind": "distbias"}]})
    attention = FULL | {section: biased}
    state = build(attention=attention).state_dict()
    text = refused(lambda: hub.to_hub("marian", state, settings(), attention, "seq2seq"))
    assert f"export to Marian: {section}.biases: the model has distbias, a Marian none" in text
