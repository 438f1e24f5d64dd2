"""`train_tokenizer`: made once, read when it is there, copied from published ones, and reported."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ala_encoder.errors import UserError
from ala_encoder.finetuning import start_from
from ala_encoder.settings.experiment import Architecture, FinetuneRun, PretrainRun
from ala_encoder.settings.loader import check
from ala_encoder.settings.tokenizer import ByteBPESettings, WordPieceSettings
from ala_encoder.tokenizer import ByteBPE, SentencePiece, WordPiece, load, make, open_folder
from pipelines.prepare_data import main as prepare_data
from pipelines.pretrain import main as pretrain
from pipelines.train_tokenizer import main
from tests.strings import (
    BERT,
    GPT2,
    ROOT,
    generated_text,
    saved_bytes,
    small_bert,
    small_gpt2,
    written,
)
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


BYTES = {"kind": "byte_bpe", "vocab_size": 300}


@pytest.mark.parametrize(
    ("made", "given", "message"),
    [
        ({"vocab_size": 200}, SPM, "kind = 'sentencepiece': .* has 'wordpiece'"),
        ({"vocab_size": 200}, BYTES, "kind = 'byte_bpe': .* has 'wordpiece'"),
        (BYTES, {"kind": "pretrained", "name": "x"}, "kind = 'pretrained': .* has 'byte_bpe'"),
        ({"vocab_size": 200}, {"vocab_size": 300}, "vocab_size = 300: .* has 200"),
        ({"vocab_size": 200}, {"vocab_size": 200, "lowercase": False},
         "lowercase = False: .* has True"),
        ({"vocab_size": 200}, {"vocab_size": 200, "min_frequency": 9},
         "min_frequency = 9: .* has 2"),
        (SPM, {**SPM, "model": "bpe"}, "model = 'bpe': .* has 'unigram'"),
        (SPM, {**SPM, "normalization": "identity"}, "normalization = 'identity': .*'nmt_nfkc'"),
        (SPM, {**SPM, "character_coverage": 1.0}, "character_coverage = 1.0: .* has 0.9995"),
    ],
)  # fmt: skip
def test_a_folder_made_with_other_settings_is_refused_by_name_everywhere(
    made: dict[str, Any], given: dict[str, Any], message: str, texts: dict[str, Any],
    tmp_path: Path,
) -> None:  # fmt: skip
    path = tmp_path / "tokenizer"
    main(settings(texts, path, **made), False)
    before = saved_bytes(path)
    run = settings(texts, path, **given)
    for pipeline in (lambda: main(run, False), lambda: prepare_data(run), lambda: pretrain(run)):
        with pytest.raises(UserError, match=rf"tokenizer\.{message}; give that, choose another"):
            pipeline()
    task = {"task": "sst2", "length": 8, "path": str(tmp_path)}
    sections = run.model_dump(mode="json", exclude={"objective", "decoder", "cross"})
    finetune = {**sections, "data": task, "init": None}
    with pytest.raises(UserError, match=rf"tokenizer\.{message}"):
        start_from(FinetuneRun.model_validate_json(json.dumps(finetune)))
    assert saved_bytes(path) == before


def test_another_source_or_revision_of_a_copy_is_refused(
    texts: dict[str, Any], tmp_path: Path
) -> None:
    name, path = str(unigram_folder(tmp_path)), tmp_path / "copy"
    main(settings(texts, path, kind="pretrained", name=name), False)
    with pytest.raises(UserError, match=r"tokenizer\.name = 'anything': .*copy has "):
        main(settings(texts, path, kind="pretrained", name="anything"), False)
    with pytest.raises(UserError, match=r"tokenizer\.revision = 'v1': .*copy has None"):
        main(settings(texts, path, kind="pretrained", name=name, revision="v1"), False)
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size = 7: "):
        main(settings(texts, path, kind="pretrained", name=name, vocab_size=7), False)


def test_a_poor_text_gives_a_smaller_folder_that_opens_with_a_note(
    texts: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "train.txt", "ab ab abc\n")
    run = settings(texts, tmp_path / "poor", vocab_size=100)
    for _ in range(2):
        main(run, False)
        said = capsys.readouterr().out
        assert "poor has 11 pieces, not tokenizer.vocab_size = 100; the folder's size" in said


@pytest.mark.parametrize("name", ["small", *(["bert"] if BERT.exists() else [])])
def test_a_folder_of_others_is_held_to_what_can_be_known(name: str, tmp_path: Path) -> None:
    path = BERT if name == "bert" else small_bert(tmp_path / "bert")
    said: list[str] = []
    size = open_folder(WordPieceSettings(path=path), said.append).vocab_size
    assert f"note: {path} was not made by train_tokenizer" in said[0]
    assert len(said) == (1 if size == 30_522 else 2)
    assert open_folder(WordPieceSettings(path=path, vocab_size=16), said.append).vocab_size == size
    assert said[-1].startswith(f"note: {path} has {size:,} pieces, not tokenizer.vocab_size = 16")
    with pytest.raises(UserError, match=r"tokenizer\.lowercase = False: .* has True"):
        open_folder(WordPieceSettings(path=path, lowercase=False), said.append)
    with pytest.raises(UserError, match=r"tokenizer\.kind = 'byte_bpe': .* has 'wordpiece'"):
        open_folder(ByteBPESettings(path=path, kind="byte_bpe"), said.append)
    with pytest.raises(UserError, match="gone: no such folder; run train_tokenizer first"):
        open_folder(WordPieceSettings(path=tmp_path / "gone"), said.append)


def test_a_damaged_record_of_the_settings_is_told(texts: dict[str, Any], tmp_path: Path) -> None:
    run = settings(texts, tmp_path / "tokenizer", vocab_size=200)
    main(run, False)
    written(tmp_path / "tokenizer" / "made_with.json", "{")
    with pytest.raises(UserError, match=r"made_with\.json"):
        main(run, False)


def test_a_folder_that_cannot_be_written_leaves_nothing(
    texts: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer"
    run = settings(texts, path, vocab_size=200)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(UserError, match="cannot"):
            make(run.tokenizer, generated_text(0, 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train.txt", "valid.txt"]


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


@pytest.mark.parametrize("name", ["small", *(["gpt2"] if GPT2.exists() else [])])
def test_a_copy_of_gpt2_has_the_size_that_is_said_or_is_not_made(
    name: str, texts: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = GPT2 if name == "gpt2" else small_gpt2(tmp_path / "published")
    size = load(published).vocab_size
    path, wanted = tmp_path / "copy", {"kind": "pretrained", "name": str(published)}
    with pytest.raises(UserError, match=rf"vocab_size = {size}: .*copy has {size + 2}"):
        main(settings(texts, path, **wanted, vocab_size=size), False)
    assert not path.exists()
    main(settings(texts, path, **wanted, vocab_size=size + 2), False)
    assert f"appended <pad>, <mask>: {size + 2:,} pieces" in capsys.readouterr().out


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
