"""GPT-2 in and out: its Hugging Face twin, left padding, refusals."""

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

MODEL = CausalModel(
    family="causal",
    dim=12,
    num_layers=2,
    num_heads=3,
    ffn_dim=10,
    max_length=9,
    dropout=0.0,
    activation="gelu_tanh",
    attention_bias=True,
)
FULL = AttentionSettings()
TIED = AttentionSettings(heads=(("full#a", "full#a", "full#b"), ("full#a", "full", "full#a")))


def build(model: CausalModel = MODEL, attention: AttentionSettings = FULL) -> CausalLM:
    return shaken(CausalLM(model, attention, VOCAB))  # type: ignore[no-any-return]


def twin(**changes: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    fields = {
        "vocab_size": VOCAB, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 9,
        "n_inner": 10, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        "attn_implementation": "eager",
    }  # fmt: skip
    return shaken(GPT2LMHeadModel(GPT2Config(**fields | changes)), seed=1)


def their_logits(theirs: Any, ids: Tensor, segments: Tensor, **kwargs: Any) -> Any:
    places = (segments.cumsum(1) - 1).clamp(min=0)
    return theirs(ids, attention_mask=segments, position_ids=places, use_cache=False, **kwargs)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("segments", [RIGHT, LEFT], ids=["right", "left"])
def test_a_gpt2_computes_here_what_it_computes_there(segments: Tensor, tied: bool) -> None:
    theirs = twin(tie_word_embeddings=tied)
    model = MODEL.model_copy(update={"tied_embeddings": tied})
    ours = build(model)
    ours.load_state_dict(hub.from_hub("gpt2", theirs.state_dict(), model, FULL, "causal_lm"))
    ids, real = some_ids(segments), segments > 0
    trace = Trace()
    got = ours(ids, segments, trace)[real]
    out = their_logits(theirs, ids, segments, output_attentions=True)
    assert_close(got, out.logits[real])
    for mine, other in zip(trace.weights, out.attentions, strict=True):
        assert_close(mine.transpose(1, 2)[real], other.transpose(1, 2)[real])
    backward(ours(ids, segments)[real])
    backward(out.logits[real])
    gradients = {name: p.grad for name, p in ours.named_parameters()}
    assert_gradients(hub.to_hub("gpt2", gradients, model, FULL, "causal_lm"), theirs)


def test_e10_left_padding_without_position_ids_changes_nothing() -> None:
    ours, ids = build(), some_ids(LEFT)
    assert_close(ours(ids, LEFT)[1, 2:], ours(ids[1:, 2:])[0])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("attention", [FULL, TIED], ids=["full", "shared"])
def test_transformers_reads_an_export_strictly_and_computes_the_same(
    attention: AttentionSettings, tied: bool, tmp_path: Path
) -> None:
    from transformers import GPT2LMHeadModel

    model = MODEL.model_copy(update={"tied_embeddings": tied, "activation": "relu"})
    ours = build(model, attention)
    state = hub.to_hub("gpt2", ours.state_dict(), model, attention, "causal_lm")
    written(tmp_path, hub.config_of("gpt2", model, VOCAB, attention), state)
    theirs = read_strictly(GPT2LMHeadModel, tmp_path)
    ids = some_ids(RIGHT)
    out = their_logits(theirs, ids, RIGHT)
    assert_close(ours(ids, RIGHT)[RIGHT > 0], out.logits[RIGHT > 0])
    back = hub.load(tmp_path, attention)
    assert (back.family, back.model, back.vocab_size) == ("gpt2", model, VOCAB)
    assert back.attention == {"decoder": attention}
    assert_same(back.state, ours.state_dict())


def test_a_saved_folder_comes_back_bit_by_bit(tmp_path: Path) -> None:
    theirs = twin(n_inner=None)
    file = saved(theirs, tmp_path)
    found = hub.load(tmp_path)
    assert found.model == MODEL.model_copy(update={"ffn_dim": 48})
    assert_same(hub.to_hub("gpt2", found.state, found.model, FULL, "causal_lm"), file)


def test_names_of_the_bare_model_and_its_buffers_are_understood() -> None:
    state = {name.removeprefix("transformer."): x for name, x in twin().state_dict().items()}
    expected = hub.from_hub("gpt2", state, MODEL, FULL, "causal_lm")
    state["h.0.attn.bias"] = torch.ones(1, 1, 9, 9).tril()
    state["h.1.attn.masked_bias"] = torch.tensor(-1e4)
    del state["lm_head.weight"]
    assert_same(hub.from_hub("gpt2", state, MODEL, FULL, "causal_lm"), expected)


def test_a_model_with_local_masks_can_start_from_gpt2() -> None:
    local = AttentionSettings(heads=(("band1", "prev1", "full"), ("full", "full", "identity")))
    state = hub.from_hub("gpt2", twin().state_dict(), MODEL, local, "causal_lm")
    build(attention=local).load_state_dict(state)


def test_heads_that_differ_cannot_become_one_group() -> None:
    text = refused(lambda: hub.from_hub("gpt2", twin().state_dict(), MODEL, TIED, "causal_lm"))
    assert "c_attn.weight of head 0 and h.0.attn.c_attn.weight of head 1 differ" in text


def test_pre_softmax_heads_of_one_key_leave_q_and_k_and_keep_v(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pre = AttentionSettings(
        mask_operator="pre_softmax", heads=(("prev1", "full", "full"), ("band1", "full", "full"))
    )
    theirs = twin()
    state = hub.from_hub("gpt2", theirs.state_dict(), MODEL, pre, "causal_lm")
    assert "import of GPT-2: Q and K of 1 heads dropped (104 numbers)" in capsys.readouterr().err
    build(attention=pre).load_state_dict(state)
    fused = theirs.transformer.h[0].attn.c_attn.weight.detach().t()
    assert torch.equal(state["stack.bank.projections.0.q_proj.weight"], fused[4:12])
    assert torch.equal(state["stack.layers.0.attention.v_proj.weight"], fused[24:])


def test_attention_without_biases_is_exported_with_zeros() -> None:
    model = MODEL.model_copy(update={"attention_bias": False})
    ours = build(model)
    state = hub.to_hub("gpt2", ours.state_dict(), model, FULL, "causal_lm")
    assert not state["transformer.h.1.attn.c_attn.bias"].any()
    assert_same(hub.from_hub("gpt2", state, model, FULL, "causal_lm"), dict(ours.state_dict()))
    state["transformer.h.1.attn.c_attn.bias"][20] = 1.0
    text = refused(lambda: hub.from_hub("gpt2", state, model, FULL, "causal_lm"))
    assert "h.1.attn.c_attn.bias is not 0" in text


# ---------------------------------------------------------------------------------------------
# Configurations
# ---------------------------------------------------------------------------------------------


def test_every_field_of_the_configuration_is_accounted_for() -> None:
    harmless = """
        use_cache bos_token_id eos_token_id pad_token_id reorder_and_upcast_attn
        summary_type summary_use_proj summary_activation summary_proj_to_labels
        summary_first_dropout
    """
    assert_fields_known(hub.config_of("gpt2", MODEL, VOCAB), "n_inner", harmless)


def test_scores_upcast_and_reordered_are_the_same_scores(tmp_path: Path) -> None:
    plain, other = twin(), twin(reorder_and_upcast_attn=True)
    ids = some_ids(RIGHT)
    assert_close(their_logits(plain, ids, RIGHT).logits, their_logits(other, ids, RIGHT).logits)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scale_attn_weights", False),
        ("scale_attn_by_inverse_layer_idx", True),
        ("add_cross_attention", True),
        ("activation_function", "tanh"),
        ("embd_pdrop", 0.1),
        ("model_type", "gpt"),
    ],
)
def test_a_configuration_we_cannot_compute_is_refused_by_name(
    key: str, value: Any, tmp_path: Path
) -> None:
    theirs = twin()
    written(tmp_path, theirs.config, hub_state(theirs), **{key: value})
    assert f"config.json: {key} = {value!r}" in refused(lambda: hub.load(tmp_path))


def hub_state(theirs: Any) -> dict[str, Tensor]:
    state = theirs.state_dict()
    return {name: x.clone() for name, x in state.items() if name != "lm_head.weight"}


def test_other_spellings_of_fields_count_as_in_transformers(tmp_path: Path) -> None:
    written(tmp_path, twin().config, hub_state(twin()), num_hidden_layers=3)
    assert "missing h.2." in refused(lambda: hub.load(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"norm": "post"}, "model.norm = 'post': that of a GPT-2 is 'pre'"),
        ({"positions": "rotary", "max_length": None}, "model.positions = 'rotary'"),
        ({"normalization": "rms_norm"}, "model.normalization = 'rms_norm'"),
        ({"embedding_norm": True}, "model.embedding_norm = True"),
    ],
)
def test_what_gpt2_cannot_express_is_neither_exported_nor_imported(
    change: dict[str, Any], words: str
) -> None:
    model = CausalModel.model_validate(MODEL.model_dump() | change)
    for call in (
        lambda: hub.config_of("gpt2", model, VOCAB),
        lambda: hub.to_hub("gpt2", build(model).state_dict(), model, FULL, "causal_lm"),
        lambda: hub.from_hub("gpt2", twin().state_dict(), model, FULL, "causal_lm"),
    ):
        assert words in refused(call)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"heads": [["full", "full", "band1"], ["full"] * 3]}, "it has no local masks"),
        ({"biases": [{"kind": "alibi"}]}, "the model has alibi, a GPT-2 none"),
    ],
)
def test_attention_that_gpt2_has_not_is_not_exported(settings: Any, words: str) -> None:
    attention = AttentionSettings.model_validate(settings)
    state = build(attention=attention).state_dict()
    assert words in refused(lambda: hub.to_hub("gpt2", state, MODEL, attention, "causal_lm"))


def test_another_form_or_family_is_refused_by_name() -> None:
    state = build().state_dict()
    assert "form = 'masked_lm': allowed is 'causal_lm'" in refused(
        lambda: hub.to_hub("gpt2", state, MODEL, FULL, "masked_lm")
    )
    assert "family = 'gpt': allowed are" in refused(lambda: hub.config_of("gpt", MODEL, VOCAB))
    assert "model.family = 'causal'" in refused(lambda: hub.config_of("bert", MODEL, VOCAB))
