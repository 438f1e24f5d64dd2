"""`train_tokenizer` and `prepare_data` on a translation config, as they are started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ala_encoder import command, parallel_manifests
from ala_encoder.settings.experiment import Preparation
from ala_encoder.settings.loader import dump, load
from ala_encoder.tokenizer import load as load_tokenizer
from pipelines import prepare_data, train_tokenizer
from tests.pairs import PAIRS, refusal, settings
from tests.strings import ROOT

MODEL = {"family": "encoder_decoder", "dim": 32, "num_layers": 1, "num_heads": 4, "ffn_dim": 64}
KINDS = {
    "fairseq_bpe": {"num_merges": 90},
    "sentencepiece": {"vocab_size": 120, "model": "unigram"},
    "byte_bpe": {"vocab_size": 300},
}


def config(folder: Path, kind: str = "fairseq_bpe", **changes: Any) -> Path:
    data = settings(folder).model_dump(mode="json")
    tokenizer = {"kind": kind, "path": str(folder / "tokenizer"), **KINDS.get(kind, {})}
    content = {"variant": "a", "seed": 7, "model": MODEL, "tokenizer": tokenizer, "data": data}
    path = folder / "config.yaml"
    path.write_text(json.dumps(content | changes))
    return path


def run(pipeline: Any, *words: object) -> int:
    more = {"json_flag": True} if pipeline is train_tokenizer else {}
    argv = [str(word) for word in words]
    return command.run(pipeline.main, Preparation, pipeline.__doc__ or "", argv=argv, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_a_translation_config_gives_a_joint_tokenizer_and_a_corpus(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, kind)
    assert run(train_tokenizer, path, "--json") == 0
    fit = json.loads(capsys.readouterr().out)
    assert set(fit) == {"en", "de"}
    assert fit["en"]["words"] == sum(len(src.split()) for src, _ in PAIRS[8:10])
    assert fit["de"]["lines"] == 2
    assert json.loads((tmp_path / "tokenizer" / "report.json").read_text()) == fit
    assert run(prepare_data, path) == 0
    said = capsys.readouterr().out
    assert "  valid: 2 pairs, en " in said
    assert "source tokens for each target token" in said
    manifest = parallel_manifests.read(tmp_path / "corpus")
    assert manifest.tokenizer == load_tokenizer(tmp_path / "tokenizer").fingerprint
    assert run(train_tokenizer, path) == 0
    assert "left as it is" in capsys.readouterr().out
    assert run(prepare_data, path) == 0
    assert "is current" in capsys.readouterr().out


def test_b18_a_tokenizer_made_anew_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path)
    assert run(train_tokenizer, path) == run(prepare_data, path) == 0
    other = "tokenizer.num_merges=50"
    assert run(prepare_data, path, other) == 2
    assert "tokenizer.num_merges = 50" in capsys.readouterr().err
    (tmp_path / "tokenizer").rename(tmp_path / "old")
    assert run(train_tokenizer, path, other) == 0
    assert run(prepare_data, path, other) == 2
    assert "made with another tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize("pipeline", [train_tokenizer, prepare_data])
def test_unequal_files_are_one_line_and_leave_nothing(
    pipeline: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path)
    if pipeline is prepare_data:
        assert run(train_tokenizer, path) == 0
        capsys.readouterr()
    before = sorted(tmp_path.iterdir())
    with (tmp_path / "train.de").open("a") as file:
        file.write("mehr\n")
    assert run(pipeline, path) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "train.en: 8 lines" in error
    assert "train.de: 9 lines" in error
    left = [p for p in tmp_path.iterdir() if p not in before and not p.name.endswith(".lock")]
    assert left == []


def test_the_sections_of_a_training_are_checked_and_otherwise_ignored(tmp_path: Path) -> None:
    more = {"train": {"steps": 3, "batch_size": 4}, "optim": {"learning_rate": 1e-3}}
    loaded = load(config(tmp_path, **more), [], Preparation)
    assert loaded.data == settings(tmp_path)
    dump(loaded, tmp_path / "again.yaml")
    assert load(tmp_path / "again.yaml", [], Preparation) == loaded
    told = refusal(load, config(tmp_path, **more), ["optim.lerning_rate=1"], Preparation)
    assert "did you mean 'optim.learning_rate'?" in told


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("data.srclang=en", "data.srclang: no such setting (did you mean 'data.src_lang'?)"),
        ("data.cleaning.max_lenght=3", "did you mean 'data.cleaning.max_length'?"),
        ("data.train.kind=file", "data.train.kind = 'file': allowed are 'files', 'datasets'"),
        ("data.train.src=[]", "data.train.src = []"),
        ("data.trg_lang=en", "src_lang = trg_lang = 'en'"),
        ("data.cleaning.max_ratio=1e999", "not a finite number"),
        ("data=3", "data = 3"),
        ("data={}", "data.path: missing"),
        ("tokenizer.kind=fairseq", "did you mean 'fairseq_bpe'?"),
        ("model.family=causal", "needs running text"),
    ],
)
def test_a_wrong_setting_is_one_line(override: str, told: str, tmp_path: Path) -> None:
    path = config(tmp_path)
    if override.startswith("model"):
        content = json.loads(path.read_text())
        content["model"] = {"family": "causal", "max_length": 32}
        path.write_text(json.dumps(content))
        assert told in refusal(load, path, [], Preparation)
        return
    assert told in refusal(load, path, [override], Preparation)


def test_a_pretraining_config_is_held_to_everything_it_is_for() -> None:
    demo = ROOT / "configs" / "demo" / "full.yaml"
    loaded = load(demo, [], Preparation)
    assert not hasattr(loaded.data, "languages")
    told = refusal(load, demo, ["data.length=4096"], Preparation)
    assert told.startswith("data.length = 4096: the model has")
    told = refusal(load, demo, ["data.lenght=7"], Preparation)
    assert "did you mean 'data.length'?" in told
    told = refusal(load, demo, ["train.steps=7", "train.epochs=7"], Preparation)
    assert told == "train: give one of steps and epochs"


def test_running_text_gives_no_fairseq_codes(tmp_path: Path) -> None:
    demo = ROOT / "configs" / "demo" / "full.yaml"
    text = {"kind": "files", "train": [str(tmp_path / "train.en")],
            "valid": [str(tmp_path / "valid.en")]}  # fmt: skip
    settings(tmp_path)
    words = [
        f"data.source={json.dumps(text)}",
        "tokenizer={kind: fairseq_bpe, path: " + str(tmp_path / "tokenizer") + "}",
    ]
    told = refusal(train_tokenizer.main, load(demo, words, Preparation), False)
    assert "is for parallel text (data.src_lang)" in told
