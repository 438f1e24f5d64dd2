"""`evaluate` on a translation model: test sets by name and by files, the record, and mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ala_encoder import command, runs
from ala_encoder.bleu import text_scores
from ala_encoder.files import read_json
from ala_encoder.settings.evaluate import EvaluateRun
from pipelines import evaluate
from tests.pairs import PAIRS, write
from tests.strings import ROOT
from tests.test_bleu import keep_test_set
from tests.test_translate import made, start

SRC, TRG = (list(side) for side in zip(*PAIRS[:5], strict=True))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("scores"))


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process group is the test session's: a run must not end it."""
    monkeypatch.setattr(runs.engines, "stop", lambda: None)


def scored(*words: object) -> int:
    argv = [str(word) for word in words]
    options: Any = {"json_flag": True, "positional": "export", "argv": argv}
    return command.run(evaluate.main, EvaluateRun, "", **options)


@pytest.mark.usefixtures("started")
def test_files_are_scored_as_their_translations_are_and_the_record_says_all(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    src, trg = write(tmp_path / "own.en", SRC), write(tmp_path / "own.de", TRG)
    files = (f"files.src={src}", f"files.trg={trg}")
    more = ("search.beam_size=3", "compound_split_bleu=true", "--json")
    assert scored(model, *files, *more) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["data"] == "own.en en-de"
    (folder,) = model.glob("eval-own.en-en-de-*")
    record = read_json(folder / "test.json")
    assert record["search"]["beam_size"] == 3
    assert record["search"]["max_extra_tokens"] == 10  # the export's own
    assert record["averaged"] == []
    assert start(model, f"input={src}", "search.beam_size=3") == 0
    lines = capfd.readouterr().out.splitlines()
    assert (folder / "test.translations.txt").read_text("utf-8").splitlines() == lines
    assert (folder / "test.references.txt").read_text("utf-8").splitlines() == TRG
    metrics = ("bleu", "uncased_bleu", "chrf", "compound_split_bleu")
    for name, score in text_scores(lines, TRG, "de", metrics).items():
        assert record["scores"][f"test_{name}"] == said["scores"][f"test_{name}"] == score.value
        assert record["notes"][f"test_{name}"] == score.signature
    # another search is another folder; the loss is the same
    assert scored(model, *files) == 0
    capfd.readouterr()
    (other,) = set(model.glob("eval-own.en-en-de-*")) - {folder}
    found = read_json(other / "test.json")
    assert found["scores"]["test_loss"] == record["scores"]["test_loss"]
    assert "test_compound_split_bleu" not in found["scores"]


def test_a_test_set_is_scored_by_its_name(model: Path, tmp_path: Path) -> None:
    keep_test_set(tmp_path, SRC, TRG)
    environment = {**os.environ, "SACREBLEU": str(tmp_path), "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-m", "pipelines.evaluate", str(model), "test_set=wmt14/full", "--json"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = json.loads(run.stdout)
    assert (said["data"], said["splits"]) == ("wmt14/full en-de", ["test"])
    assert "|test:wmt14/full|" in said["notes"]["test_bleu"]
    (folder,) = model.glob("eval-wmt14-full-en-de-*")
    assert (folder / "test.references.txt").read_text("utf-8").splitlines() == TRG


def test_what_cannot_be_scored_is_one_line(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    src, trg = write(tmp_path / "own.en", SRC), write(tmp_path / "own.de", TRG[1:])
    none = write(tmp_path / "none", [])
    cases = [
        ((f"files.src={src}", f"files.trg={trg}"), "5 lines"),
        ((f"files.src={none}", f"files.trg={none}x"), "cannot be read"),
        ((f"files.src={src}",), "files: names src; for a seq2seq allowed are src and trg"),
        ((f"files.test={src}",), "files: names test; for a seq2seq allowed are src and trg"),
        (("test_set=wmt14/ful",), "did you mean 'wmt14/full'?"),
        (("test_set=wmt14", "path=x"), "path and test_set: all say what is translated"),
        (("test_set=wmt14", f"files.src={src}"), "files and test_set: all say"),
        (("search.n_best=3", "search.beam_size=2"), "n_best = 3: more than beam_size = 2"),
        (("search.n_best=2",), "search.n_best = 2: only the best one is scored"),
        (("batch_size=8",), "batch_size: does nothing for a seq2seq"),
    ]
    for words, told in cases:
        assert scored(model, *words) == 2, told
        said = capfd.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1, said.err
        assert told in said.err
