"""Parameter counts by formula: equal to built models and to the numbers of the sources."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from ala_encoder.heads import LAYOUTS, named_layout
from ala_encoder.models import Classifier, MaskedLM
from ala_encoder.parameters import bias_parameters, count
from ala_encoder.settings.attention import AttentionSettings, head_table
from ala_encoder.settings.model import EncoderDecoderModel, EncoderModel

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
    *BIASES, {"kind": "multiscale_distbias", "ranges": [2, 3]}, {"kind": "alibi"},
    {"kind": "sandwich"}, {"kind": "kerple_log"}, {"kind": "kerple_power"}, {"kind": "t5"},
]  # fmt: skip


def random_settings(seed: int) -> tuple[EncoderModel, AttentionSettings, int]:
    draw = random.Random(seed)
    heads, layers = draw.randint(1, 4), draw.randint(1, 4)
    model = EncoderModel(
        family="encoder",
        dim=heads * 2 * draw.randint(1, 3),
        num_layers=layers,
        num_heads=heads,
        ffn_dim=draw.randint(1, 9),
        max_length=draw.randint(5, 9),
        norm=draw.choice(["post", "pre"]),
        attention_bias=draw.choice([True, False]),
        positions=draw.choice(["learned", "sinusoidal", "rotary", "none"]),
    )
    masks, groups = ["full", "band1", "prev2"], ["", "#a", "#b"]
    if seed % 3 == 0:
        model = model.model_copy(update={"positions": "none"})
        return model, single_keys(draw, layers, heads), draw.randint(5, 30)
    cells = [
        [draw.choice(masks) + draw.choice(groups) for _ in range(heads)] for _ in range(layers)
    ]
    biases = draw.sample(ALL_BIASES, draw.randint(0, 4))
    attention = AttentionSettings.model_validate({"heads": cells, "biases": biases})
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
def test_the_count_equals_the_built_model(seed: int) -> None:
    model, attention, vocab_size = random_settings(seed)
    table = head_table(attention, model.num_layers, model.num_heads)
    counts = count(model, attention, table, vocab_size)
    built = MaskedLM(model, attention, vocab_size)
    classifier = Classifier(model, attention, vocab_size, 2)
    assert counts == {
        "encoder_attention": size(built, "bank.", "v_proj", "attention.out_proj"),
        "encoder_bias": size(built, "attention.biases", "stack.biases"),
        "qk_groups": table.num_groups,
        "embeddings": size(built, "vocabulary"),
        "encoder": size(built.encoder),
        "encoder_with_pooler": size(classifier.encoder) + size(classifier.pooler),
        "total": size(built),
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_the_stated_attention_parameters(name: str) -> None:
    layers, heads = len(LAYOUTS[name]), len(LAYOUTS[name][0])
    model = EncoderModel(family="encoder") if heads == 12 else EncoderDecoderModel(
        family="encoder_decoder"
    )  # fmt: skip
    attention = AttentionSettings(layout=name)
    counts = count(model, attention, named_layout(name, layers, heads), 30_522)
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
    counts = count(model, attention, named_layout("full", 12, 12), 30_522)
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
