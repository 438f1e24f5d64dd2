"""The source's own keys of attention: what they mean, and when they contradict each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ala_encoder.errors import UserError
from ala_encoder.settings.experiment import Architecture, PretrainRun
from ala_encoder.settings.loader import dump, load
from ala_encoder.settings.source_keys import understood
from tests.strings import ROOT

CONFIGS = ROOT / "configs"


@pytest.mark.parametrize(
    ("given", "biases"),
    [
        ({"attn_variant": "baseline"}, []),
        ({"attn_variant": "baseline", "gate_enabled": False}, []),
        ({"attn_variant": "distbias", "alpha_init": 0.02},
         [{"kind": "distbias", "alpha_init": 0.02}]),
        ({"attn_variant": "gated_distbias", "alpha_learnable": False, "gate_enabled": True},
         [{"kind": "gated_distbias", "alpha_learnable": False}]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("section", ["encoder", "decoder", "cross"])
def test_they_mean_a_bias(given: dict[str, Any], biases: list[Any], section: str) -> None:
    found = understood({"seed": 1, section: {"path": "dense", **given}})
    assert found == {"seed": 1, section: {"path": "dense", "biases": biases}}


def test_what_has_none_of_them_is_left_as_it_is() -> None:
    for data in ({}, {"decoder": None}, {"decoder": {"biases": [3]}}, {"encoder": [1], "x": {}}):
        assert understood(data) == data


@pytest.mark.parametrize("variant", ["baseline", "distbias", "gated_distbias"])
def test_a_run_with_them_is_the_shipped_one_and_is_dumped_as_such(
    variant: str, tmp_path: Path
) -> None:
    words = [f"variant={variant}", f"decoder.attn_variant={variant}"]
    words += ["decoder.alpha_init=0.01"] if variant != "baseline" else []
    found = load(CONFIGS / "wt103" / "baseline.yaml", words, PretrainRun)
    shipped = load(CONFIGS / "wt103" / f"{variant}.yaml", [], PretrainRun)
    assert found.model_copy(update={"decoder": None}) == shipped.model_copy(
        update={"decoder": None}
    )
    assert found.sections == shipped.sections
    dump(found, tmp_path / "settings.yaml")
    assert load(tmp_path / "settings.yaml", [], PretrainRun) == found


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("decoder.attn_variant=gated", "decoder: attn_variant: 'gated' is none, allowed are basel"),
        ("decoder.attn_variant=gated_distbas", "(did you mean 'gated_distbias'?)"),
        ("decoder.attn_variant=[a]", "decoder: attn_variant: ['a'] is none"),
        ("decoder.gate_enabled=true", "decoder: attn_variant: missing, allowed are baseline"),
        ("decoder.alpha_init=0.1", "decoder: attn_variant: missing"),
        ("decoder.attn_variant=distbias decoder.gate_enabled=true",
         "decoder: gate_enabled = True: contradicts attn_variant = 'distbias'"),
        ("decoder.attn_variant=gated_distbias decoder.gate_enabled=false",
         "decoder: gate_enabled = False: contradicts attn_variant = 'gated_distbias'"),
        ("decoder.attn_variant=distbias decoder.gate_enabled=0", "gate_enabled = 0: contradicts"),
        ("decoder.attn_variant=baseline decoder.alpha_learnable=false",
         "decoder: alpha_learnable: does nothing with attn_variant = 'baseline'"),
        ("decoder.attn_variant=distbias decoder.biases=[{kind: alibi}]",
         "decoder: biases and attn_variant: both say which biases there are, keep one"),
        ("decoder.biases=[{kind: distbias}] decoder.alpha_init=0.02",
         "decoder: alpha_init: beside attn_variant alone, and here are `biases`; write "
         "decoder.biases.0.alpha_init=…"),
        ("decoder.biases=[{kind: distbias}] decoder.gate_enabled=true decoder.alpha_init=0.02",
         "write decoder.biases.0.alpha_init=… decoder.biases.0.kind=gated_distbias"),
        ("decoder.attn_variant=distbias decoder.alpha_init=-1",
         "decoder.biases.0.alpha_init = -1: "),
    ],
)  # fmt: skip
def test_a_contradiction_is_one_line(words: str, told: str) -> None:
    for cls in (PretrainRun, Architecture):
        with pytest.raises(UserError) as caught:
            load(CONFIGS / "wt103" / "baseline.yaml", _words(words), cls)
        assert told in str(caught.value) and "\n" not in str(caught.value)


def _words(line: str) -> list[str]:
    return [f"decoder.{word}".strip() for word in line.split("decoder.")[1:]]
