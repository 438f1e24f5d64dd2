"""Folders of Hugging Face BERT: configurations that are refused, missing and broken files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ala_encoder import hub
from tests.hub_twins import VOCAB, refused, written
from tests.test_hub import MODEL, exported


def folder(path: Path, **changes: Any) -> Path:
    return written(path, hub.config_of("bert", MODEL, VOCAB), exported(), **changes)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu_10"),
        ("position_embedding_type", "relative_key"),
        ("type_vocab_size", 1),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("model_type", "roberta"),
        ("model_type", ["bert"]),
        ("vocab_size", 0),
        ("tie_word_embeddings", False),
    ],
)
def test_a_configuration_we_cannot_compute_is_refused_by_name(
    key: str, value: Any, tmp_path: Path
) -> None:
    text = refused(lambda: hub.load(folder(tmp_path / "bert", **{key: value})))
    assert f"config.json: {key} = {value!r}" in text


def test_impossible_sizes_in_a_configuration_are_refused(tmp_path: Path) -> None:
    for number, (changes, words) in enumerate(
        (
            ({"num_attention_heads": 5}, "not a multiple of num_heads 5"),
            ({"hidden_size": "12"}, "Field 'hidden_size' expected int, got str"),
            ({"intermediate_size": 0}, "ffn_dim = 0"),
            ({"auto_map": {"AutoModel": "other.Model"}}, "auto_map = {"),
            ({"vocab_size": 20}, "word_embeddings.weight has shape [19, 12], needed is [20, 12]"),
        )
    ):
        path = folder(tmp_path / str(number), **changes)
        assert words in refused(lambda: hub.load(path))  # noqa: B023


def test_missing_and_broken_files_are_user_errors(tmp_path: Path) -> None:
    assert "config.json" in refused(lambda: hub.load(tmp_path / "nowhere"))
    path = folder(tmp_path / "bert")
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    assert "cannot read the weights" in refused(lambda: hub.load(path))
    weights.rename(path / "pytorch_model.bin")
    assert "never a pickle" in refused(lambda: hub.load(path))
    (path / "config.json").write_text("{", encoding="utf-8")
    assert "not JSON" in refused(lambda: hub.load(path))
    (path / "config.json").write_text("[]", encoding="utf-8")
    assert "holds a list" in refused(lambda: hub.load(path))
