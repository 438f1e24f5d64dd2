"""T5 in and out: its Hugging Face twin, left padding, refusals."""

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

TRG = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
SHARED = ["full#a", "full#a", "full#b"]
LAST = "decoder.final_layer_norm.weight"


def attention(num_buckets: int = 8, **heads: Any) -> dict[str, AttentionSettings]:
    bias = {"biases": [{"kind": "t5", "num_buckets": num_buckets, "max_distance": 6}]}
    plain: dict[str, Any] = {"encoder": bias, "decoder": bias, "cross": {}}
    return {
        name: AttentionSettings.model_validate(of | ({"heads": heads[name]} if heads else {}))
        for name, of in plain.items()
    }


OWN = attention()
TIED = attention(
    encoder=[SHARED, ["full#a", "full", "full#a"]],
    decoder=[SHARED, ["full"] * 3, SHARED],
    cross=[["full"] * 3, SHARED, SHARED],
)


def settings(**changes: Any) -> EncoderDecoderModel:
    fields = {
        "family": "encoder_decoder", "dim": 12, "num_layers": 2, "num_decoder_layers": 3,
        "num_heads": 3, "ffn_dim": 10, "norm": "pre", "normalization": "rms_norm",
        "positions": "none", "activation": "relu", "dropout": 0.0, "attention_bias": False,
        "layer_norm_eps": 1e-6,
    }  # fmt: skip
    return EncoderDecoderModel.model_validate(fields | changes)


def build(model: EncoderDecoderModel | None = None, of: Any = None) -> Seq2Seq:
    ours: Seq2Seq = shaken(Seq2Seq(model or settings(), of or OWN, VOCAB))
    for name, parameter in ours.named_parameters():
        if "ffn" in name and name.endswith("bias"):
            torch.nn.init.zeros_(parameter)  # what T5 has no place for
    return ours


def twin(**changes: Any) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    fields = {
        "vocab_size": VOCAB, "d_model": 12, "d_kv": 4, "d_ff": 10, "num_layers": 2,
        "num_decoder_layers": 3, "num_heads": 3, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 6, "dropout_rate": 0.0, "decoder_start_token_id": 0,
        "attn_implementation": "eager",
    }  # fmt: skip
    return shaken(T5ForConditionalGeneration(T5Config(**fields | changes)), seed=1)


def run(theirs: Any, src: Tensor, trg: Tensor, segments: Tensor, trg_segments: Tensor) -> Any:
    return theirs(
        src, attention_mask=segments, decoder_input_ids=trg, decoder_attention_mask=trg_segments,
        use_cache=False, output_attentions=True,
    )  # fmt: skip


def assert_weights(mine: list[Tensor], other: tuple[Tensor, ...], real: Tensor) -> None:
    for ours, theirs in zip(mine, other, strict=True):
        assert_close(ours.transpose(1, 2)[real], theirs.transpose(1, 2)[real])


@pytest.mark.parametrize("activation", ["relu", "gelu_new"])
@pytest.mark.parametrize(
    ("segments", "trg_segments"), [(RIGHT, TRG), (LEFT, TRG.flip(1))], ids=["right", "left"]
)
def test_a_t5_computes_here_what_it_computes_there(
    segments: Tensor, trg_segments: Tensor, activation: str
) -> None:
    theirs = twin(feed_forward_proj=activation)
    model = settings(activation={"gelu_new": "gelu_tanh"}.get(activation, activation))
    ours = build(model)
    ours.load_state_dict(hub.from_hub("t5", theirs.state_dict(), model, OWN, "seq2seq"))
    src, trg, real = some_ids(segments), some_ids(trg_segments, 3), trg_segments > 0
    first, second = Trace(), Trace()
    memory = ours.encode(src, segments, first)
    logits = ours.logits(ours.decode(trg, memory, trg_segments, segments, second))
    out = run(theirs, src, trg, segments, trg_segments)
    assert_close(logits[real], out.logits[real])
    assert_weights(first.weights, out.encoder_attentions, segments > 0)
    assert_weights(second.weights, out.decoder_attentions, real)
    assert_weights(second.cross_weights, out.cross_attentions, real)
    backward(ours(src, trg, segments, trg_segments)[real])
    backward(out.logits[real])
    assert_gradients(their_gradients(ours, model), theirs)


def their_gradients(ours: Seq2Seq, model: EncoderDecoderModel) -> dict[str, Tensor]:
    """Return our gradients as theirs: what is multiplied on the way in, is so once more here."""
    gradients = {name: p.grad for name, p in ours.named_parameters() if p.grad is not None}
    for name in gradients:
        if "ffn" in name and name.endswith("bias"):
            gradients[name] = torch.zeros_like(gradients[name])
    found = hub.to_hub("t5", gradients, model, OWN, "seq2seq")
    for name, gradient in found.items():
        if name.endswith(".q.weight"):
            gradient *= 4  # d_kv
        elif name == LAST:
            gradient /= 12  # d_model
    return found


def test_e10_left_padding_without_position_ids_changes_nothing() -> None:
    ours, src, trg = build(), some_ids(LEFT), some_ids(torch.ones(2, 5))
    left = TRG.flip(1)
    assert_close(ours(src, trg, LEFT)[1], ours(src[1:, 2:], trg[1:])[0])
    assert_close(ours(src, trg * left, LEFT, left)[0, 1:], ours(src[:1], trg[:1, 1:])[0])


@pytest.mark.parametrize("of", [OWN, TIED], ids=["full", "shared"])
def test_transformers_reads_an_export_strictly_and_computes_the_same(
    of: dict[str, AttentionSettings], tmp_path: Path
) -> None:
    from transformers import T5ForConditionalGeneration

    model = settings(activation="silu")
    ours = build(model, of)
    state = hub.to_hub("t5", ours.state_dict(), model, of, "seq2seq")
    written(tmp_path, hub.config_of("t5", model, VOCAB, of), state)
    theirs = read_strictly(T5ForConditionalGeneration, tmp_path)
    src, trg, real = some_ids(RIGHT), some_ids(TRG, 3), TRG > 0
    assert_close(ours(src, trg, RIGHT, TRG)[real], run(theirs, src, trg, RIGHT, TRG).logits[real])
    back = hub.load(tmp_path, of)
    assert (back.family, back.model, back.vocab_size) == ("t5", model, VOCAB)
    assert back.attention == of
    apart = {"decoder.norm.weight"}  # sqrt(12) is no power of two
    assert_same(without(back.state, apart), without(ours.state_dict(), apart))
    torch.testing.assert_close(
        back.state["decoder.norm.weight"], ours.decoder.norm.weight.data, atol=0, rtol=2e-7
    )  # fmt: skip


def without(state: Any, names: set[str]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if name not in names}


def test_a_saved_folder_comes_back_bit_by_bit(tmp_path: Path) -> None:
    file = saved(twin(d_model=16, num_heads=4), tmp_path)
    found = hub.load(tmp_path)
    assert found.model == settings(dim=16, num_heads=4)
    assert found.attention == OWN
    assert_same(hub.to_hub("t5", found.state, found.model, found.attention, "seq2seq"), file)


def test_factors_that_are_no_powers_of_two_cost_one_rounding(tmp_path: Path) -> None:
    theirs = twin(d_kv=5, num_heads=3, d_model=15)
    file = saved(theirs, tmp_path)
    found = hub.load(tmp_path)
    back = hub.to_hub("t5", found.state, found.model, found.attention, "seq2seq")
    assert back.keys() == file.keys()
    for name, tensor in back.items():
        torch.testing.assert_close(tensor, file[name], atol=0, rtol=2e-7)
        if ".q." not in name and name != LAST:
            assert torch.equal(tensor, file[name])


def test_feed_forward_biases_must_be_zero_to_leave() -> None:
    ours = build()
    with torch.no_grad():
        ours.decoder.layers[1].ffn.out_proj.bias[3] = 0.1  # type: ignore[index,union-attr]
    text = refused(lambda: hub.to_hub("t5", ours.state_dict(), settings(), OWN, "seq2seq"))
    assert "export to T5: decoder.layers.1.ffn.out_proj.bias is not 0" in text


def test_names_of_the_first_files_are_understood() -> None:
    state = twin().state_dict()
    expected = hub.from_hub("t5", state, settings(), OWN, "seq2seq")
    for name in ("lm_head.weight", "encoder.embed_tokens.weight"):
        del state[name]
    bias = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    state[bias] = torch.ones(8, 3)
    assert_same(hub.from_hub("t5", state, settings(), OWN, "seq2seq"), expected)


def test_every_field_of_the_configuration_is_accounted_for() -> None:
    derived = "d_kv relative_attention_num_buckets relative_attention_max_distance"
    harmless = "initializer_factor use_cache pad_token_id eos_token_id classifier_dropout"
    assert_fields_known(hub.config_of("t5", settings(), VOCAB, OWN), derived, harmless)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"feed_forward_proj": "gated-gelu"}, "feed_forward_proj = 'gated-gelu'"),
        ({"is_gated_act": True}, "feed_forward_proj = 'relu': with is_gated_act = True"),
        ({"dense_act_fn": "gelu_new"}, "and dense_act_fn = 'gelu_new'"),
        ({"tie_word_embeddings": False, "scale_decoder_outputs": ...},
         "scale_decoder_outputs = False"),
        ({"scale_decoder_outputs": False}, "scale_decoder_outputs = False"),
        ({"d_kv": 5}, "d_kv = 5: times num_heads 3 it must be d_model 12"),
        ({"head_dim": 5}, "d_kv = 5"),
        ({"is_decoder": True}, "is_decoder = True"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder = False"),
        ({"relative_attention_num_buckets": 6}, "weight has shape [8, 3], needed is [6, 3]"),
        ({"relative_attention_num_buckets": 7}, "num_buckets = 7"),
        ({"per_layer_config": {"0": {"d_ff": 4}}}, "per_layer_config = "),
        ({"quantization_config": {"load_in_8bit": True}}, "quantization_config = "),
        ({"feed_forward_proj": 3}, "feed_forward_proj"),
        ({"vocab_size": 0}, "vocab_size = 0"),
        ({"num_heads": 0}, "d_kv = 4: times num_heads 0"),
        ({"num_decoder_layers": 10**9}, "1000000000 layers of width 12 are not in the weights"),
    ],
)  # fmt: skip
def test_a_configuration_we_cannot_compute_is_refused_by_name(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    state = hub.to_hub("t5", build().state_dict(), settings(), OWN, "seq2seq")
    written(tmp_path, hub.config_of("t5", settings(), VOCAB, OWN), state, **changes)
    assert words in refused(lambda: hub.load(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"norm": "post"}, "model.norm = 'post': that of a T5 is 'pre'"),
        ({"normalization": "layer_norm"}, "model.normalization = 'layer_norm'"),
        ({"attention_bias": True}, "model.attention_bias = True"),
        ({"output_bias": True}, "model.output_bias = True"),
        ({"positions": "sinusoidal"}, "model.positions = 'sinusoidal'"),
    ],
)
def test_what_t5_cannot_express_is_neither_exported_nor_imported(
    change: dict[str, Any], words: str
) -> None:
    model = settings(**change)
    for call in (
        lambda: hub.config_of("t5", model, VOCAB, OWN),
        lambda: hub.to_hub("t5", build(model).state_dict(), model, OWN, "seq2seq"),
        lambda: hub.from_hub("t5", twin().state_dict(), model, OWN, "seq2seq"),
    ):
        assert words in refused(call)


@pytest.mark.parametrize(
    ("changed", "section"),
    [
        ({"encoder": AttentionSettings()}, "encoder"),
        ({"decoder": attention(num_buckets=10)["decoder"]}, "decoder"),
        ({"cross": OWN["encoder"]}, "cross"),
    ],
)
def test_other_biases_than_its_own_are_not_exported(changed: Any, section: str) -> None:
    of = OWN | changed
    state = build(of=of).state_dict()
    text = refused(lambda: hub.to_hub("t5", state, settings(), of, "seq2seq"))
    assert f"export to T5: {section}.biases: the model has" in text
