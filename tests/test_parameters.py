"""Parameter counts by formula: equal to built models and to the numbers of the sources."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from ala_encoder.heads import LAYOUTS, named_layout
from ala_encoder.models import CausalLM, Classifier, MaskedLM, Seq2Seq
from ala_encoder.parameters import bias_parameters, count, heads_without_qk
from ala_encoder.settings.attention import AttentionSettings, head_table
from ala_encoder.settings.experiment import check_stacks
from ala_encoder.settings.model import (
    CausalModel,
    EncoderDecoderModel,
    EncoderModel,
    ModelSettings,
)

ENCODER_ATTENTION = {
    **dict.fromkeys("abcdef", 6_291_456),
    **{"g": 5_505_024, "h": 4_718_592, "i": 3_932_160, "j": 3_538_944},
    **{"k": 4_784_128, "l": 3_211_264},
    **dict.fromkeys(("bert_full", "bert_band2", "bert_band6"), 28_348_416),
    **{"bert_band6_tied144": 14_272_640, "bert_band6_tied132": 15_453_824},
    "bert_band6_tied120": 16_635_008,
}
"""Q, K, V and output projections, as the source's tables have them or as follows from it."""

BIASES: list[dict[str, Any]] = [
    {"kind": "distbias"}, {"kind": "gated_distbias"}, {"kind": "window", "width": 3},
    {"kind": "distbias", "alpha_learnable": False},
]  # fmt: skip
ALL_BIASES: list[dict[str, Any]] = [
    *BIASES, {"kind": "multiscale_distbias", "ranges": [1, 3]}, {"kind": "alibi"},
    {"kind": "sandwich"}, {"kind": "kerple_log"}, {"kind": "kerple_power"}, {"kind": "t5"},
]  # fmt: skip


def random_model(draw: random.Random, family: str, heads: int, layers: int) -> ModelSettings:
    """Return a model of a family, every setting that changes a count drawn."""
    positions = draw.choice(["learned", "sinusoidal", "rotary", "none"])
    given: dict[str, Any] = {
        "family": family,
        "dim": heads * 2 * draw.randint(1, 3),
        "num_layers": layers,
        "num_heads": heads,
        "ffn_dim": draw.randint(1, 9),
        "norm": draw.choice(["post", "pre"]),
        "normalization": draw.choice(["layer_norm", "rms_norm"]),
        "attention_bias": draw.choice([True, False]),
        "positions": positions,
    }
    if family == "encoder" or positions == "learned":
        given["max_length"] = draw.randint(5, 9)
    if family == "encoder":
        return EncoderModel(**given)
    if family == "causal":
        switches = {name: draw.choice([True, False]) for name in ("embedding_norm",
                                                                  "tied_embeddings")}  # fmt: skip
        return CausalModel(**given, **switches)
    return EncoderDecoderModel(
        **given, num_decoder_layers=draw.randint(1, 4), output_bias=draw.choice([True, False])
    )


def random_attention(
    draw: random.Random, layers: int, heads: int, *, cross: bool = False
) -> AttentionSettings:
    masks, groups = ["full"] if cross else ["full", "band1", "prev2"], ["", "#a", "#b"]
    cells = [
        [draw.choice(masks) + draw.choice(groups) for _ in range(heads)] for _ in range(layers)
    ]
    biases = draw.sample(ALL_BIASES, draw.randint(0, 4))
    kinds = {bias["kind"] for bias in biases}
    learns = cross and "kerple_power" not in kinds and any("distbias" in kind for kind in kinds)
    return AttentionSettings.model_validate(
        {"heads": cells, "biases": biases, "ratio_learnable": learns}
    )


def random_settings(seed: int, family: str) -> tuple[Any, dict[str, AttentionSettings], int]:
    """Return a model, its attention by section, and the size of a vocabulary."""
    draw = random.Random(seed)
    heads, layers = draw.randint(1, 4), draw.randint(1, 4)
    model = random_model(draw, family, heads, layers)
    if seed % 3 == 0:
        length = {} if family == "encoder" else {"max_length": None}
        model = model.model_copy(update={"positions": "none", **length})
    attention = {
        name: single_keys(draw, model.layers_of(name), heads)
        if seed % 3 == 0 and name != "cross"
        else random_attention(draw, model.layers_of(name), heads, cross=name == "cross")
        for name in model.sections
    }
    return model, attention, draw.randint(5, 30)


def single_keys(draw: random.Random, layers: int, heads: int) -> AttentionSettings:
    """Return pre-softmax masks, some of which leave one key: those heads have no Q and K."""
    masks, groups = ["prev1", "identity", "band1", "full"], ["", "#a", "#b"]
    cells = [
        [draw.choice(masks) + draw.choice(groups) for _ in range(heads)] for _ in range(layers)
    ]
    cells[0][0] = "prev1"
    return AttentionSettings.model_validate({"heads": cells, "mask_operator": "pre_softmax"})


def size(model: torch.nn.Module, *words: str) -> int:
    """Count the parameters whose name holds one of the words (no words: all)."""
    return sum(
        p.numel()
        for name, p in model.named_parameters()
        if not words or any(word in name for word in words)
    )


@pytest.mark.parametrize("seed", range(60))
def test_the_count_equals_the_built_encoder(seed: int) -> None:
    model, attention, vocab_size = random_settings(seed, "encoder")
    built = MaskedLM(model, attention["encoder"], vocab_size)
    classifier = Classifier(model, attention["encoder"], vocab_size, 2)
    counts = count(model, attention, vocab_size)
    assert counts == {
        "encoder_attention": size(built, "bank.", "v_proj", "attention.out_proj"),
        "encoder_bias": size(built, "attention.biases", "stack.biases"),
        "qk_groups": groups(model, attention["encoder"], "encoder"),
        "embeddings": size(built, "vocabulary"),
        "encoder": size(built.encoder),
        "encoder_with_pooler": size(classifier.encoder) + size(classifier.pooler),
        "total": size(built),
    }
    assert count(model, attention, vocab_size, 2) == counts | {"total": size(classifier)}


@pytest.mark.parametrize("seed", range(60))
def test_the_count_equals_the_built_causal_model(seed: int) -> None:
    model, attention, vocab_size = random_settings(seed, "causal")
    built = CausalLM(model, attention["decoder"], vocab_size)
    assert count(model, attention, vocab_size) == {
        "decoder_attention": size(built, "bank.", "v_proj", "attention.out_proj"),
        "decoder_bias": size(built, "attention.biases", "stack.biases"),
        "qk_groups": groups(model, attention["decoder"], "decoder"),
        "embeddings": size(built.vocabulary),
        "positions": size(built, "positions"),
        "decoder_stack": size(built.stack),
        "output": size(built, "output.weight"),
        "total": size(built),
    }


@pytest.mark.parametrize("seed", range(60))
def test_the_count_equals_the_built_encoder_decoder(seed: int) -> None:
    model, attention, vocab_size = random_settings(seed, "encoder_decoder")
    built = Seq2Seq(model, attention, vocab_size)
    cross = ("cross_attention.v_proj", "cross_attention.out_proj", "cross_bank.")
    cross_biases = ("cross_attention.biases", "cross_biases", "ratio")
    assert count(model, attention, vocab_size) == {
        "encoder_attention": size(built.encoder, "bank.", "v_proj", "attention.out_proj"),
        "encoder_bias": size(built.encoder, "biases"),
        "qk_groups": groups(model, attention["encoder"], "encoder"),
        "decoder_attention": size(built.decoder, "bank.", "v_proj", "attention.out_proj")
        - size(built.decoder, *cross),
        "decoder_bias": size(built.decoder, "biases", "ratio") - size(built.decoder, *cross_biases),
        "cross_attention": size(built.decoder, *cross),
        "cross_bias": size(built.decoder, *cross_biases),
        "embeddings": size(built.vocabulary),
        "positions": size(built, "_positions"),
        "encoder_stack": size(built.encoder),
        "decoder_stack": size(built.decoder),
        "output": size(built, "output_bias"),
        "total": size(built),
    }


def groups(model: ModelSettings, attention: AttentionSettings, section: str) -> int:
    return head_table(attention, model.layers_of(section), model.num_heads).num_groups


def groups_of(layer: torch.nn.Module) -> tuple[int | None, ...]:
    attention: Any = layer.get_submodule("attention")
    return tuple(attention.groups)


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_the_heads_without_q_and_k_are_those_the_built_model_has_none_of(seed: int) -> None:
    model, attention, vocab_size = random_settings(seed, "encoder_decoder")
    tables = check_stacks(model, attention)
    named = heads_without_qk(tables)
    with torch.device("meta"):
        built = Seq2Seq(model, attention, vocab_size)
    stacks = {"encoder": built.encoder, "decoder": built.decoder}
    for section, stack in stacks.items():
        found = [
            f"{section} layer {number} head {head} {tables[section].rows[number][head]}"
            for number, layer in enumerate(stack.layers)
            for head, group in enumerate(groups_of(layer))
            if group is None
        ]
        assert named[section] == found != []
    assert named["cross"] == []


@pytest.mark.parametrize("bias", [None, "distbias", "gated_distbias"])
def test_the_models_of_adaptive_locality_attention_have_the_stated_sizes(bias: str | None) -> None:
    model = CausalModel(family="causal", max_length=512)
    attention = AttentionSettings.model_validate({"biases": [{"kind": bias}] if bias else []})
    stated = {None: 51_197_440, "distbias": 51_197_504, "gated_distbias": 51_230_336}[bias]
    assert count(model, {"decoder": attention}, 50_257)["total"] == stated
    with torch.device("meta"):
        assert size(CausalLM(model, attention, 50_257)) == stated


def test_the_base_model_of_the_extrapolation_papers_has_162_322_944_parameters() -> None:
    model = CausalModel(
        family="causal", dim=768, num_layers=12, num_heads=12, ffn_dim=3072,
        positions="sinusoidal", attention_bias=True, tied_embeddings=False,
    )  # fmt: skip
    assert count(model, {}, 50_304)["total"] == 162_322_944
    with torch.device("meta"):
        assert size(CausalLM(model, AttentionSettings(), 50_304)) == 162_322_944


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_the_stated_attention_parameters(name: str) -> None:
    model = EncoderModel(family="encoder") if len(LAYOUTS[name]) == 12 else EncoderDecoderModel(
        family="encoder_decoder"
    )  # fmt: skip
    counts = count(model, {"encoder": AttentionSettings(layout=name)}, 30_522)
    assert counts["encoder_attention"] == ENCODER_ATTENTION[name]


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name.startswith("bert")])
def test_a_built_bert_of_every_row_has_the_stated_attention_parameters(name: str) -> None:
    with torch.device("meta"):
        model = EncoderModel(family="encoder")
        built = MaskedLM(model, AttentionSettings(layout=name), 30_522)
    found = size(built, "bank.", "v_proj", "attention.out_proj")
    assert found == ENCODER_ATTENTION[name]


def test_bert_base_with_pooler_has_109_482_240_parameters() -> None:
    model, attention = EncoderModel(family="encoder"), AttentionSettings()
    counts = count(model, {}, 30_522)
    assert counts["encoder_with_pooler"] == 109_482_240
    with torch.device("meta"):
        built = Classifier(model, attention, 30_522, 2)
    assert size(built.encoder) + size(built.pooler) == 109_482_240


def test_gates_and_slopes_of_8_layers_of_512_are_the_stated_32_832_and_64() -> None:
    table = named_layout("full", 8, 8)
    found = [
        bias_parameters(AttentionSettings.model_validate({"biases": [bias]}), table, 512)
        for bias in BIASES
    ]
    assert found == [64, 32_832 + 64, 0, 64]
