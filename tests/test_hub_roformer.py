"""RoFormer in and out: its Hugging Face twin, left padding, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ala_encoder import hub
from ala_encoder.blocks import Trace
from ala_encoder.models import Encoder, MaskedLM
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import EncoderModel
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

FULL = AttentionSettings()
TIED = AttentionSettings(heads=(("full#a", "full#a", "full#b"), ("full#a", "full", "full#a")))
TABLE = "roformer.encoder.embed_positions.weight"


def settings(**changes: Any) -> EncoderModel:
    fields = {
        "family": "encoder", "dim": 12, "num_layers": 2, "num_heads": 3, "ffn_dim": 10,
        "max_length": 9, "positions": "rotary", "dropout": 0.0,
    }  # fmt: skip
    return EncoderModel.model_validate(fields | changes)


def build(model: EncoderModel | None = None, attention: AttentionSettings = FULL) -> MaskedLM:
    return shaken(MaskedLM(model or settings(), attention, VOCAB))  # type: ignore[no-any-return]


def twin(**changes: Any) -> Any:
    from transformers import RoFormerConfig, RoFormerForMaskedLM

    fields = {
        "vocab_size": VOCAB, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 10, "max_position_embeddings": 9, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "attn_implementation": "eager",
    }  # fmt: skip
    return shaken(RoFormerForMaskedLM(RoFormerConfig(**fields | changes)), seed=1)


def types_of(segments: Tensor) -> Tensor:
    return (torch.arange(7)[None] > 3).long() * segments


def run(theirs: Any, ids: Tensor, segments: Tensor) -> Any:
    types = types_of(segments)
    return theirs(ids, attention_mask=segments, token_type_ids=types, output_attentions=True)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("segments", [RIGHT, LEFT], ids=["right", "left"])
def test_a_roformer_computes_here_what_it_computes_there(segments: Tensor, activation: str) -> None:
    theirs, model = twin(hidden_act=activation), settings(activation=activation)
    ours = build(model)
    ours.load_state_dict(hub.from_hub("roformer", theirs.state_dict(), model, FULL, "masked_lm"))
    ids, targets, trace = some_ids(segments), segments.flatten().nonzero()[:, 0], Trace()
    logits = ours(ids, targets, segments, types_of(segments))
    out = run(theirs, ids, segments)
    expected = out.logits.flatten(0, 1)[targets]
    assert_close(logits, expected)
    ours.encoder(ids, segments, types_of(segments), trace)
    for mine, other in zip(trace.weights, out.attentions, strict=True):
        assert_close(mine.transpose(1, 2)[segments > 0], other.transpose(1, 2)[segments > 0])
    backward(logits)
    backward(expected)
    gradients = {name: p.grad for name, p in ours.named_parameters()}
    mapped = hub.to_hub("roformer", gradients, model, FULL, "masked_lm")
    del mapped[TABLE]
    assert_gradients(mapped, theirs)


def test_e10_left_padding_without_position_ids_changes_nothing() -> None:
    encoder, ids = build().encoder, some_ids(LEFT)
    assert_close(encoder(ids, LEFT)[1, 2:], encoder(ids[1:, 2:])[0])


@pytest.mark.parametrize("form", ["masked_lm", "encoder"])
@pytest.mark.parametrize("attention", [FULL, TIED], ids=["full", "shared"])
def test_transformers_reads_an_export_strictly_and_computes_the_same(
    attention: AttentionSettings, form: hub.Form, tmp_path: Path
) -> None:
    from transformers import RoFormerForMaskedLM, RoFormerModel

    ours: Any = build(attention=attention)
    if form == "encoder":
        ours = torch.nn.ModuleDict({"encoder": shaken(Encoder(settings(), attention, VOCAB))})
    state = hub.to_hub("roformer", ours.state_dict(), settings(), attention, form)
    written(tmp_path, hub.config_of("roformer", settings(), VOCAB, attention), state)
    cls = RoFormerModel if form == "encoder" else RoFormerForMaskedLM
    theirs = read_strictly(cls, tmp_path)
    ids, real = some_ids(RIGHT), RIGHT > 0
    out = run(theirs, ids, RIGHT)
    if form == "encoder":
        got = ours["encoder"](ids, RIGHT, types_of(RIGHT))[real]
        assert_close(got, out.last_hidden_state[real])
    else:
        targets = real.flatten().nonzero()[:, 0]
        assert_close(ours(ids, targets, RIGHT, types_of(RIGHT)), out.logits[real])
    back = hub.load(tmp_path, attention)
    assert (back.family, back.model, back.vocab_size) == ("roformer", settings(), VOCAB)
    assert_same(back.state, ours.state_dict())


def test_a_saved_folder_comes_back_bit_by_bit(tmp_path: Path) -> None:
    file = saved(twin(), tmp_path)
    found = hub.load(tmp_path)
    assert (found.model, found.attention) == (settings(), {"encoder": FULL})
    assert_same(hub.to_hub("roformer", found.state, found.model, FULL, "masked_lm"), file)


def test_neighbours_that_turn_together_lie_half_a_head_apart_here() -> None:
    state = twin().state_dict()
    ours = hub.from_hub("roformer", state, settings(), FULL, "masked_lm")
    theirs = state["roformer.encoder.layer.1.attention.self.key.bias"]
    got = ours["encoder.stack.bank.projections.1.k_proj.bias"]
    assert torch.equal(got, theirs[[0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11]])
    value = "roformer.encoder.layer.1.attention.self.value.bias"
    assert torch.equal(ours["encoder.stack.layers.1.attention.v_proj.bias"], state[value])


def test_a_table_of_positions_that_is_not_the_sinusoids_is_refused() -> None:
    state = twin().state_dict()
    state[TABLE] = state[TABLE].half()
    hub.from_hub("roformer", state, settings(), FULL, "masked_lm")
    state[TABLE] = state[TABLE] + 0.01
    text = refused(lambda: hub.from_hub("roformer", state, settings(), FULL, "masked_lm"))
    assert "embed_positions.weight is not the sinusoids" in text
    state[TABLE] = state[TABLE][:8]
    text = refused(lambda: hub.from_hub("roformer", state, settings(), FULL, "masked_lm"))
    assert "embed_positions.weight has shape [8, 4], needed is [9, 4]" in text
    state[TABLE] = state[TABLE][:, :3]
    text = refused(lambda: hub.from_hub("roformer", state, settings(), FULL, "masked_lm"))
    assert "embed_positions.weight has shape [8, 3], needed is [9, 4]" in text


def test_every_field_of_the_configuration_is_accounted_for() -> None:
    harmless = "use_cache pad_token_id bos_token_id eos_token_id"
    assert_fields_known(hub.config_of("roformer", settings(), VOCAB), harmless=harmless)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rotary_value", True),
        ("type_vocab_size", 3),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("tie_word_embeddings", False),
        ("embedding_size", 8),
        ("hidden_act", "gelu_10"),
    ],
)
def test_a_configuration_we_cannot_compute_is_refused_by_name(
    key: str, value: Any, tmp_path: Path
) -> None:
    state = hub.to_hub("roformer", build().state_dict(), settings(), FULL, "masked_lm")
    written(tmp_path, hub.config_of("roformer", settings(), VOCAB), state, **{key: value})
    assert f"config.json: {key} = {value!r}" in refused(lambda: hub.load(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"positions": "learned"}, "model.positions = 'learned': that of a RoFormer is 'rotary'"),
        ({"norm": "pre"}, "model.norm = 'pre'"),
        ({"normalization": "rms_norm"}, "model.normalization = 'rms_norm'"),
    ],
)
def test_what_roformer_cannot_express_is_neither_exported_nor_imported(
    change: dict[str, Any], words: str
) -> None:
    model = settings(**change)
    for call in (
        lambda: hub.config_of("roformer", model, VOCAB),
        lambda: hub.to_hub("roformer", build(model).state_dict(), model, FULL, "masked_lm"),
        lambda: hub.from_hub("roformer", twin().state_dict(), model, FULL, "masked_lm"),
    ):
        assert words in refused(call)


def test_its_classifier_is_another_than_ours() -> None:
    text = refused(lambda: hub.to_hub("roformer", {}, settings(), FULL, "classifier"))
    assert "RoFormer: form = 'classifier': allowed are 'encoder', 'masked_lm'" in text
