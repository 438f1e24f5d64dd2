"""The README's code runs, and its settings are accepted; its commands are in `test_pipelines`."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from ruamel.yaml import YAML

from ala_encoder.settings import biases, paths
from ala_encoder.settings.attention import AttentionSettings, check_attention, head_table
from ala_encoder.settings.corpus import CorpusSettings
from ala_encoder.settings.loader import check
from tests.strings import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def settings(key: str) -> Any:
    found = [YAML(typ="safe").load(block) for block in blocks("yaml")]
    return next(data[key] for data in found if key in data)


def test_the_readme_has_code_and_settings() -> None:
    assert len(blocks("python")) >= 1
    assert len(blocks("yaml")) >= 2


@pytest.mark.parametrize("code", blocks("python"))
def test_its_code_runs_as_it_stands(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_its_settings_are_accepted() -> None:
    attention = check(settings("encoder"), AttentionSettings)
    check_attention(attention, head_table(attention, 3, 4), 128)
    assert check(settings("data"), CorpusSettings).source.kind == "files"


def test_it_names_every_bias_and_states_the_lengths_of_the_code() -> None:
    kinds = {
        cls.model_fields["kind"].annotation.__args__[0]  # type: ignore[union-attr]
        for cls in vars(biases).values()
        if isinstance(cls, type) and "kind" in getattr(cls, "model_fields", {})
    }
    assert len(kinds) == 9
    for kind in kinds:
        assert f"`{kind}`" in TEXT
    assert f"`dense,slope@{paths.SLOPE_FROM}`" in TEXT
    assert f"from {paths.PRUNE_FROM:,} tokens on" in TEXT


def test_its_mistake_is_told_as_it_shows() -> None:
    (shown,) = re.findall(r"^\$ python (-m .*)\n(error: .*)$", TEXT, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, *shown[0].split()], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.strip()) == (2, shown[1])
