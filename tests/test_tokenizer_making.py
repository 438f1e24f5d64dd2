"""`train_tokenizer`: made once, read when it is there, copied from published ones, and reported."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ala_encoder.errors import UserError
from ala_encoder.settings.experiment import Architecture, PretrainRun
from ala_encoder.settings.loader import check
from ala_encoder.tokenizer import ByteBPE, SentencePiece, WordPiece, load
from pipelines.train_tokenizer import main
from tests.strings import GPT2, ROOT, generated_text, saved_bytes, written
from tests.test_tokenizer_kinds import unigram_folder


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, Any]:
    """The settings of a little text."""
    for number, split in enumerate(("train", "valid")):
        written(tmp_path / f"{split}.txt", "\n".join(generated_text(number, 100)) + "\n")
    sources = {split: [str(tmp_path / f"{split}.txt")] for split in ("train", "valid")}
    return {"path": str(tmp_path / "tokens"), "source": {"kind": "files", **sources}}


def settings(texts: dict[str, Any], path: Path, **tokenizer: Any) -> PretrainRun:
    data: dict[str, Any] = {
        "variant": "toy",
        "model": {"family": "encoder", "dim": 8, "num_heads": 2},
        "train": {"steps": 1, "batch_size": 1},
        "data": texts,
        "tokenizer": {"path": str(path), **tokenizer},
    }
    return check(data, PretrainRun)


SPM = {"kind": "sentencepiece", "vocab_size": 150}


def test_a_folder_is_made_reported_and_then_left(
    texts: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "made" / "tokenizer"
    kinds = [({"vocab_size": 200}, WordPiece), (SPM, SentencePiece)]
    kinds.append(({"kind": "byte_bpe", "vocab_size": 300}, ByteBPE))
    for number, (wanted, kind) in enumerate(kinds):
        here = path / str(number)
        main(settings(texts, here, **wanted), False)
        assert isinstance(load(here), kind)
        said = capsys.readouterr().out
        assert f"{here}: {wanted['vocab_size']} pieces\n" in said
        assert "  pieces per word: " in said
        before = saved_bytes(here)
        main(settings(texts, here, **wanted), True)
        out, err = capsys.readouterr()
        assert "left as it is" in err
        assert json.loads(out) == json.loads(before["report.json"])
        assert saved_bytes(here) == before
    assert sorted(p.name for p in path.iterdir() if not p.name.endswith(".lock")) == ["0", "1", "2"]


def test_an_existing_folder_of_another_kind_is_refused_and_of_another_size_noted(
    texts: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokenizer"
    main(settings(texts, path, vocab_size=200), False)
    with pytest.raises(UserError, match=r"kind = 'sentencepiece': .*tokenizer holds a WordPiece"):
        main(settings(texts, path, **SPM), False)
    capsys.readouterr()
    main(settings(texts, path, vocab_size=300), False)
    assert f"note: {path} has 200 pieces, not tokenizer.vocab_size = 300" in capsys.readouterr().out
    main(settings(texts, path, kind="pretrained", name="anything"), False)


def test_a_published_tokenizer_is_copied_with_what_it_lacks(
    texts: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = tmp_path / "published"
    published.mkdir()
    unigram_folder(published)
    size = load(published).vocab_size
    path = tmp_path / "copy"
    main(settings(texts, path, kind="pretrained", name=str(published)), False)
    assert f"appended <mask>: {size + 1:,} pieces" in capsys.readouterr().out
    assert load(path).mask_id == size
    assert (path / "report.json").is_file()
    if GPT2.exists():
        wanted = {"kind": "pretrained", "name": str(GPT2), "vocab_size": 50257}
        main(settings(texts, tmp_path / "gpt2", **wanted), False)
        said = capsys.readouterr().out
        assert "appended <pad>, <mask>: 50,259 pieces" in said
        assert "has 50,259 pieces, not tokenizer.vocab_size = 50,257" in said


def test_a_name_that_cannot_be_had_leaves_nothing(
    texts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(UserError, match=r"tokenizer.name = 'no/such'"):
        main(settings(texts, tmp_path / "copy", kind="pretrained", name="no/such"), False)
    assert time.monotonic() - start < 10
    assert not (tmp_path / "copy").exists()


def test_two_processes_make_a_folder_once(texts: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "tokenizer"
    config = written(tmp_path / "run.yaml", settings(texts, path, vocab_size=200).model_dump_json())
    command = [sys.executable, "-m", "pipelines.train_tokenizer", str(config)]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in "ab"]
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("making a wordpiece tokenizer" in out for out in outputs) == 1
    assert sum("left as it is" in out for out in outputs) == 1


# Settings


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"kind": "wordpeice"}, "tokenizer.kind = 'wordpeice': allowed are"),
        ({"kind": "byte_bpe", "lowercase": True}, "tokenizer.lowercase: no such setting here"),
        ({"model": "bpe"}, "tokenizer.model: no such setting here, it belongs to another kind"),
        ({"lowercse": True}, "did you mean 'tokenizer.lowercase'?"),
        ({"kind": "pretrained"}, "tokenizer.name: missing"),
        ({"kind": "byte_bpe", "vocab_size": 100}, "tokenizer.vocab_size = 100"),
        ({"kind": "sentencepiece", "model": "bpee"}, "did you mean 'bpe'?"),
        ({"vocab_size": "3"}, "tokenizer.vocab_size"),
    ],
)
def test_a_setting_of_another_kind_is_refused(
    wanted: dict[str, Any], message: str, texts: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        settings(texts, tmp_path, **wanted)
    assert message in str(caught.value)


def test_counting_parameters_needs_the_size_of_a_pretrained_vocabulary() -> None:
    data: dict[str, Any] = {
        "model": {"family": "encoder"},
        "tokenizer": {"path": "x", "kind": "pretrained", "name": "y"},
    }
    with pytest.raises(UserError, match=r"tokenizer.vocab_size: missing"):
        _ = check(data, Architecture).vocab_size
    data["tokenizer"]["vocab_size"] = 50_259
    assert check(data, Architecture).vocab_size == 50_259
