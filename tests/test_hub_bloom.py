"""Bloom in and out: its Hugging Face twin, left padding, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ala_encoder import hub
from ala_encoder.blocks import Trace
from ala_encoder.models import CausalLM
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import CausalModel
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

PRESS: list[Any] = [{"kind": "alibi", "slopes": "press"}]
ALIBI = AttentionSettings.model_validate({"biases": PRESS})
TIED = AttentionSettings.model_validate(
    {"biases": PRESS, "heads": [["full#a", "full#a", "full#b"], ["full#a", "full", "full#a"]]}
)


def settings(num_heads: int = 3, **changes: Any) -> CausalModel:
    fields = {
        "family": "causal", "dim": 12, "num_layers": 2, "num_heads": num_heads, "ffn_dim": 48,
        "positions": "none", "dropout": 0.0, "activation": "gelu_tanh", "attention_bias": True,
        "embedding_norm": True,
    }  # fmt: skip
    return CausalModel.model_validate(fields | changes)


def build(model: CausalModel, attention: AttentionSettings = ALIBI) -> CausalLM:
    return shaken(CausalLM(model, attention, VOCAB))  # type: ignore[no-any-return]


def twin(num_heads: int = 3, **changes: Any) -> Any:
    from transformers import BloomConfig, BloomForCausalLM

    fields = {
        "vocab_size": VOCAB, "hidden_size": 12, "n_layer": 2, "n_head": num_heads,
        "attn_implementation": "eager",
    }  # fmt: skip
    return shaken(BloomForCausalLM(BloomConfig(**fields | changes)), seed=1)


def run(theirs: Any, ids: Tensor, segments: Tensor) -> Any:
    return theirs(ids, attention_mask=segments, use_cache=False, output_attentions=True)


@pytest.mark.parametrize("num_heads", [3, 4, 6])
@pytest.mark.parametrize("segments", [RIGHT, LEFT], ids=["right", "left"])
def test_a_bloom_computes_here_what_it_computes_there(segments: Tensor, num_heads: int) -> None:
    theirs, model = twin(num_heads), settings(num_heads)
    ours = build(model)
    ours.load_state_dict(hub.from_hub("bloom", theirs.state_dict(), model, ALIBI, "causal_lm"))
    ids, real, trace = some_ids(segments), segments > 0, Trace()
    got, out = ours(ids, segments, trace)[real], run(theirs, ids, segments)
    assert_close(got, out.logits[real])
    for mine, other in zip(trace.weights, out.attentions, strict=True):
        assert_close(mine.transpose(1, 2)[real], other.transpose(1, 2)[real])
    backward(ours(ids, segments)[real])
    backward(out.logits[real])
    gradients = {name: p.grad for name, p in ours.named_parameters()}
    assert_gradients(hub.to_hub("bloom", gradients, model, ALIBI, "causal_lm"), theirs)


def test_e10_left_padding_without_position_ids_changes_nothing() -> None:
    ours, ids = build(settings()), some_ids(LEFT)
    assert_close(ours(ids, LEFT)[1, 2:], ours(ids[1:, 2:])[0])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("attention", [ALIBI, TIED], ids=["full", "shared"])
def test_transformers_reads_an_export_strictly_and_computes_the_same(
    attention: AttentionSettings, tied: bool, tmp_path: Path
) -> None:
    from transformers import BloomForCausalLM

    model = settings(tied_embeddings=tied)
    ours = build(model, attention)
    state = hub.to_hub("bloom", ours.state_dict(), model, attention, "causal_lm")
    written(tmp_path, hub.config_of("bloom", model, VOCAB, attention), state)
    theirs = read_strictly(BloomForCausalLM, tmp_path)
    ids, real = some_ids(RIGHT), RIGHT > 0
    assert_close(ours(ids, RIGHT)[real], run(theirs, ids, RIGHT).logits[real])
    back = hub.load(tmp_path, attention)
    assert (back.family, back.model, back.vocab_size) == ("bloom", model, VOCAB)
    assert_same(back.state, ours.state_dict())


def test_a_saved_folder_comes_back_bit_by_bit(tmp_path: Path) -> None:
    file = saved(twin(6), tmp_path)
    found = hub.load(tmp_path)
    assert found.model == settings(6)
    assert found.attention == {"decoder": ALIBI}
    assert_same(hub.to_hub("bloom", found.state, found.model, ALIBI, "causal_lm"), file)


def test_a_model_with_further_biases_can_start_from_bloom() -> None:
    more = AttentionSettings.model_validate({"biases": [*PRESS, {"kind": "distbias"}]})
    state = hub.from_hub("bloom", twin().state_dict(), settings(), more, "causal_lm")
    missing, unexpected = build(settings(), more).load_state_dict(state, strict=False)
    assert set(missing) == {f"stack.layers.{n}.attention.biases.1.raw_alpha" for n in (0, 1)}
    assert not unexpected


def test_heads_that_differ_cannot_become_one_group() -> None:
    state = twin().state_dict()
    text = refused(lambda: hub.from_hub("bloom", state, settings(), TIED, "causal_lm"))
    assert "weight of head 0 and h.0.self_attention.query_key_value.weight of head 1" in text


def test_every_field_of_the_configuration_is_accounted_for() -> None:
    harmless = "use_cache bos_token_id eos_token_id pad_token_id pretraining_tp"
    assert_fields_known(hub.config_of("bloom", settings(), VOCAB), harmless=harmless)


@pytest.mark.parametrize(
    ("key", "value"),
    [("apply_residual_connection_post_layernorm", True), ("slow_but_exact", True)],
)
def test_a_configuration_we_cannot_compute_is_refused_by_name(
    key: str, value: Any, tmp_path: Path
) -> None:
    state = hub.to_hub("bloom", build(settings()).state_dict(), settings(), ALIBI, "causal_lm")
    written(tmp_path, hub.config_of("bloom", settings(), VOCAB), state, **{key: value})
    assert f"config.json: {key} = {value!r}" in refused(lambda: hub.load(tmp_path))


def test_the_width_of_the_first_files_is_read(tmp_path: Path) -> None:
    state = hub.to_hub("bloom", build(settings()).state_dict(), settings(), ALIBI, "causal_lm")
    config = hub.config_of("bloom", settings(), VOCAB)
    written(tmp_path, config, state, hidden_size=..., n_embed=12, pretraining_tp=4)
    assert hub.load(tmp_path).model == settings()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ffn_dim": 40}, "model.ffn_dim = 40: that of a Bloom is 48"),
        ({"activation": "gelu"}, "model.activation = 'gelu'"),
        ({"embedding_norm": False}, "model.embedding_norm = False"),
        ({"positions": "learned", "max_length": 9}, "model.positions = 'learned'"),
    ],
)
def test_what_bloom_cannot_express_is_neither_exported_nor_imported(
    change: dict[str, Any], words: str
) -> None:
    model = settings(**change)
    for call in (
        lambda: hub.config_of("bloom", model, VOCAB),
        lambda: hub.to_hub("bloom", build(model).state_dict(), model, ALIBI, "causal_lm"),
        lambda: hub.from_hub("bloom", twin().state_dict(), model, ALIBI, "causal_lm"),
    ):
        assert words in refused(call)


@pytest.mark.parametrize("biases", [[], [{"kind": "alibi"}], [*PRESS, {"kind": "distbias"}]])
def test_other_biases_than_press_s_are_not_exported(biases: list[Any]) -> None:
    attention = AttentionSettings.model_validate({"biases": biases})
    state = build(settings(), attention).state_dict()
    text = refused(lambda: hub.to_hub("bloom", state, settings(), attention, "causal_lm"))
    assert "export to Bloom: decoder.biases: the model has" in text


@pytest.mark.parametrize("biases", [[], [{"kind": "alibi"}], [{"kind": "distbias"}, *PRESS]])
def test_a_bloom_is_not_read_without_its_own_bias(biases: list[Any]) -> None:
    attention = AttentionSettings.model_validate({"biases": biases})
    state = twin().state_dict()
    text = refused(lambda: hub.from_hub("bloom", state, settings(), attention, "causal_lm"))
    assert "decoder.biases" in text and "a Bloom alibi(slopes='press')" in text


def test_an_untied_output_matrix_is_refused_by_a_tied_model() -> None:
    state = twin().state_dict()
    state["lm_head.weight"] = torch.ones(VOCAB, 12)
    text = refused(lambda: hub.from_hub("bloom", state, settings(), ALIBI, "causal_lm"))
    assert "lm_head.weight differs from word_embeddings.weight" in text
