"""Hugging Face BERT in and out: round trips, its twin, refusals; its files: test_hub_files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ala_encoder import hub
from ala_encoder.models import Classifier, Encoder, MaskedLM
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import EncoderModel
from tests.hub_twins import (
    LEFT,
    VOCAB,
    assert_close,
    assert_fields_known,
    assert_same,
    read_strictly,
    refused,
    saved,
    shaken,
    some_ids,
    written,
)

LABELS = 3
MODEL = EncoderModel(
    family="encoder", dim=12, num_layers=2, num_heads=3, ffn_dim=10, max_length=8, dropout=0.0
)
FULL = AttentionSettings()
TIED = AttentionSettings(heads=(("full#a", "full#a", "full#b"), ("full#a", "full", "full#a")))
FORMS: tuple[hub.Form, ...] = ("encoder", "masked_lm", "classifier")


def build(head: hub.Form, attention: AttentionSettings, model: EncoderModel = MODEL) -> Any:
    built: Any
    if head == "masked_lm":
        built = MaskedLM(model, attention, VOCAB)
    elif head == "classifier":
        built = Classifier(model, attention, VOCAB, LABELS)
    else:
        built = torch.nn.ModuleDict({"encoder": Encoder(model, attention, VOCAB)})
    return shaken(built)


def twin(head: hub.Form, model: EncoderModel = MODEL) -> Any:
    from transformers import BertForMaskedLM, BertForSequenceClassification, BertModel

    config = hub.config_of("bert", model, VOCAB)
    config.num_labels = LABELS
    built: Any = {
        "encoder": BertModel,
        "masked_lm": BertForMaskedLM,
        "classifier": BertForSequenceClassification,
    }[head](config)
    return shaken(built, seed=1)


def exported(head: hub.Form = "masked_lm", attention: AttentionSettings = FULL) -> hub.State:
    return hub.to_hub("bert", build(head, attention).state_dict(), MODEL, attention, head)


@pytest.mark.parametrize("head", FORMS)
@pytest.mark.parametrize("attention", [FULL, TIED])
def test_export_and_import_give_the_same_weights_back(
    head: hub.Form, attention: AttentionSettings
) -> None:
    state = build(head, attention).state_dict()
    back = hub.from_hub(
        "bert", hub.to_hub("bert", state, MODEL, attention, head), MODEL, attention, head
    )
    assert_same(dict(state), back)


@pytest.mark.parametrize("head", FORMS)
def test_export_has_exactly_the_names_that_transformers_saves(
    head: hub.Form, tmp_path: Path
) -> None:
    file = saved(twin(head), tmp_path)
    expected = {n: tuple(t.shape) for n, t in file.items() if not n.startswith("pooler.")}
    assert {name: tuple(t.shape) for name, t in exported(head).items()} == expected


@pytest.mark.parametrize("head", FORMS)
def test_import_of_every_name_of_a_twin_loads_strictly_and_computes_the_same(
    head: hub.Form,
) -> None:
    theirs = twin(head)
    ours = build(head, FULL)
    ours.load_state_dict(hub.from_hub("bert", theirs.state_dict(), MODEL, FULL, head))
    ids = torch.randint(0, VOCAB, (2, 6), generator=torch.Generator().manual_seed(2))
    if head == "masked_lm":
        got, expected = ours(ids, torch.arange(12)), theirs(ids).logits.flatten(0, 1)
    elif head == "classifier":
        got, expected = ours(ids), theirs(ids).logits
    else:
        got, expected = ours["encoder"](ids), theirs(ids).last_hidden_state
    assert_close(got, expected)


def test_a_folder_that_transformers_saved_is_read(tmp_path: Path) -> None:
    for head in FORMS:
        theirs = twin(head)
        theirs.save_pretrained(tmp_path / head)
        found = hub.load(tmp_path / head)
        assert (found.family, found.model, found.vocab_size) == ("bert", MODEL, VOCAB)
        assert found.attention == {"encoder": FULL}
        expected = hub.from_hub("bert", theirs.state_dict(), MODEL, FULL, head)
        pooler = {"pooler.weight", "pooler.bias"} if head == "encoder" else set()
        assert found.state.keys() == expected.keys() | pooler
        assert_same({name: found.state[name] for name in expected}, expected)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
def test_transformers_reads_an_exported_folder(activation: str, tmp_path: Path) -> None:
    from transformers import BertForMaskedLM

    model = MODEL.model_copy(update={"activation": activation})
    ours = build("masked_lm", TIED, model)
    state = hub.to_hub("bert", ours.state_dict(), model, TIED, "masked_lm")
    written(tmp_path, hub.config_of("bert", model, VOCAB), state)
    theirs = read_strictly(BertForMaskedLM, tmp_path)
    ids = torch.tensor([[3, 4, 5]])
    assert_close(ours(ids, torch.arange(3)), theirs(ids).logits[0])
    assert hub.load(tmp_path, TIED).model == model


def test_e10_left_padding_without_position_ids_changes_nothing() -> None:
    encoder, ids = build("encoder", FULL)["encoder"], some_ids(LEFT)
    assert_close(encoder(ids, LEFT)[1, 2:], encoder(ids[1:, 2:])[0])


def test_heads_of_one_group_get_copies_on_export() -> None:
    query = exported("encoder", TIED)["encoder.layer.0.attention.self.query.weight"].chunk(3)
    later = exported("encoder", TIED)["encoder.layer.1.attention.self.query.weight"].chunk(3)
    assert torch.equal(query[0], query[1]) and not torch.equal(query[0], query[2])
    assert torch.equal(query[0], later[0]) and torch.equal(query[0], later[2])


def test_heads_that_differ_cannot_become_one_group() -> None:
    state = exported("masked_lm", FULL)
    text = refused(lambda: hub.from_hub("bert", state, MODEL, TIED, "masked_lm"))
    assert "query.weight of head 0" in text and "of head 1 differ" in text


def test_a_model_with_local_masks_can_start_from_bert() -> None:
    local = AttentionSettings(heads=(("band1", "prev1", "full"), ("full", "next1", "identity")))
    state = hub.from_hub("bert", exported(), MODEL, local, "masked_lm")
    build("masked_lm", local).load_state_dict(state)


def test_names_of_the_first_checkpoints_and_known_extras_are_understood() -> None:
    state = exported()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in state.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(8)[None]
    old["bert.pooler.dense.weight"] = torch.ones(12, 12)
    old["bert.pooler.dense.bias"] = torch.ones(12)
    old["cls.seq_relationship.weight"] = torch.ones(2, 12)
    old["cls.seq_relationship.bias"] = torch.ones(2)
    old["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
    old["cls.predictions.decoder.bias"] = state["cls.predictions.bias"]
    assert_same(
        hub.from_hub("bert", old, MODEL, FULL, "masked_lm"),
        hub.from_hub("bert", state, MODEL, FULL, "masked_lm"),
    )
    old["bert.embeddings.LayerNorm.weight"] = state["bert.embeddings.LayerNorm.weight"]
    assert "there twice" in refused(lambda: hub.from_hub("bert", old, MODEL, FULL, "masked_lm"))


def test_attention_without_biases_is_exported_with_zeros_and_comes_back() -> None:
    model = MODEL.model_copy(update={"attention_bias": False})
    ours = build("masked_lm", TIED, model)
    state = hub.to_hub("bert", ours.state_dict(), model, TIED, "masked_lm")
    assert (state["bert.encoder.layer.1.attention.self.key.bias"] == 0).all()
    assert_same(dict(ours.state_dict()), hub.from_hub("bert", state, model, TIED, "masked_lm"))
    theirs = twin("masked_lm")
    theirs.load_state_dict(state, strict=False)
    ids = torch.tensor([[3, 4, 5]])
    assert_close(ours(ids, torch.arange(3)), theirs(ids).logits[0])
    state["bert.encoder.layer.1.attention.self.key.bias"][0] = 1.0
    text = refused(lambda: hub.from_hub("bert", state, model, TIED, "masked_lm"))
    assert "layer.1.attention.self.key.bias is not 0" in text


def test_the_configuration_is_the_models() -> None:
    config = hub.config_of("bert", MODEL, VOCAB, AttentionSettings(dropout=0.1))
    found = (config.hidden_size, config.num_hidden_layers, config.num_attention_heads)
    assert found == (12, 2, 3)
    assert (config.intermediate_size, config.max_position_embeddings) == (10, 8)
    assert (config.vocab_size, config.type_vocab_size) == (VOCAB, 2)
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.0, 0.1)
    assert (config.layer_norm_eps, config.initializer_range) == (1e-12, 0.02)
    assert config.hidden_act == "gelu" and not config.is_decoder
    assert (config.pad_token_id, config.eos_token_id) == (None, None)


def test_every_field_of_the_configuration_is_accounted_for() -> None:
    harmless = "use_cache classifier_dropout pad_token_id bos_token_id eos_token_id"
    assert_fields_known(hub.config_of("bert", MODEL, VOCAB), harmless=harmless)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"heads": [["full", "full", "band1"], ["full"] * 3]}, "it has no local masks"),
        ({"biases": [{"kind": "distbias"}]}, "the model has distbias"),
        ({"biases": [{"kind": "gated_distbias"}]}, "the model has gated_distbias"),
        ({"biases": [{"kind": "window", "width": 3}]}, "the model has window"),
    ],
)  # fmt: skip
def test_what_bert_cannot_express_is_not_exported(settings: Any, reason: str) -> None:
    attention = AttentionSettings.model_validate(settings)
    state = build("masked_lm", attention).state_dict()
    assert reason in refused(lambda: hub.to_hub("bert", state, MODEL, attention, "masked_lm"))


def test_a_pre_norm_model_is_not_a_bert() -> None:
    model = MODEL.model_copy(update={"norm": "pre"})
    state = exported()
    for call in (
        lambda: hub.config_of("bert", model, VOCAB),
        lambda: hub.to_hub("bert", {}, model, FULL, "masked_lm"),
        lambda: hub.from_hub("bert", state, model, FULL, "masked_lm"),
    ):
        assert "model.norm = 'pre'" in refused(call)


def test_a_classifier_that_sees_the_mean_of_the_tokens_is_not_a_bert() -> None:
    model = MODEL.model_copy(update={"pooling": "mean"})
    state = build("classifier", FULL, model).state_dict()
    text = refused(lambda: hub.to_hub("bert", state, model, FULL, "classifier"))
    assert text == "export to BERT: model.pooling = 'mean': its classifier has 'first'"
    hub.to_hub("bert", build("masked_lm", FULL, model).state_dict(), model, FULL, "masked_lm")


def test_attention_of_a_section_that_bert_has_not_is_refused() -> None:
    text = refused(lambda: hub.to_hub("bert", {}, MODEL, {"cross": FULL}, "masked_lm"))
    assert "export to BERT: cross: a model of family 'encoder' has encoder alone" in text


def test_missing_and_left_over_keys_are_listed() -> None:
    state = exported()
    moved = state.pop("bert.encoder.layer.1.output.dense.bias")
    state["bert.encoder.layer.1.output.dense.Bias"] = moved
    state["qa_outputs.weight"] = torch.ones(2, 12)
    text = refused(lambda: hub.from_hub("bert", state, MODEL, FULL, "masked_lm"))
    assert "missing encoder.layer.1.output.dense.bias;" in text
    assert "left over encoder.layer.1.output.dense.Bias, qa_outputs.weight" in text
    ours = build("masked_lm", FULL).state_dict()
    ours["head.extra"] = ours.pop("head.proj.bias")
    text = refused(lambda: hub.to_hub("bert", ours, MODEL, FULL, "masked_lm"))
    assert "missing head.proj.bias; left over head.extra" in text


@pytest.mark.parametrize(("given", "head"), [
    ("masked_lm", "classifier"), ("classifier", "masked_lm"), ("encoder", "masked_lm"),
    ("masked_lm", "encoder"), ("classifier", "encoder"),
])  # fmt: skip
def test_a_checkpoint_with_another_head_is_refused(given: hub.Form, head: hub.Form) -> None:
    state = exported(given)
    assert "keys" in refused(lambda: hub.from_hub("bert", state, MODEL, FULL, head))


def test_other_numbers_of_layers_and_other_shapes_are_refused() -> None:
    state = exported()
    deeper = MODEL.model_copy(update={"num_layers": 3})
    shallow = MODEL.model_copy(update={"num_layers": 1})
    longer = MODEL.model_copy(update={"max_length": 9})
    wider = MODEL.model_copy(update={"ffn_dim": 11})
    for model, words in (
        (deeper, "missing encoder.layer.2."),
        (shallow, "left over encoder.layer.1."),
        (longer, "position_embeddings.weight has shape [8, 12], needed is [9, 12]"),
        (wider, "intermediate.dense.weight has shape [10, 12], needed is [11, 12]"),
    ):
        assert words in refused(lambda: hub.from_hub("bert", state, model, FULL, "masked_lm"))  # noqa: B023
    ours = build("masked_lm", FULL).state_dict()
    ours["encoder.stack.layers.0.ffn.in_proj.bias"] = torch.ones(9)
    assert "has shape [9], needed is [10]" in refused(
        lambda: hub.to_hub("bert", ours, MODEL, FULL, "masked_lm")
    )


def test_an_untied_output_matrix_is_refused() -> None:
    state = exported()
    state["cls.predictions.decoder.weight"] = torch.ones(VOCAB, 12)
    text = refused(lambda: hub.from_hub("bert", state, MODEL, FULL, "masked_lm"))
    assert "cls.predictions.decoder.weight differs" in text
