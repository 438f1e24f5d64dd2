"""`finetune_nmt` as a user starts it: twelve layouts, scores, links, resume, and `evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ala_encoder import command, export, runs
from ala_encoder import tokenizer as tokenizers
from ala_encoder.files import read_json
from ala_encoder.settings.evaluate import EvaluateRun
from ala_encoder.settings.loader import load
from ala_encoder.settings.tokenizer import WordPieceSettings
from ala_encoder.settings.translation import TranslationRun
from ala_encoder.tracking import EVENTS
from pipelines import evaluate, finetune_nmt
from tests.launched import nmt, small
from tests.pairs import PAIRS
from tests.strings import ROOT
from tests.test_parameters import ENCODER_ATTENTION

pytestmark = pytest.mark.usefixtures("started")


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process group is the test session's: a run must not end it."""
    monkeypatch.setattr(runs.engines, "stop", lambda: None)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nmt")
    nmt.tokenizer_of(nmt.settings(folder))
    return folder


def start(home: Path, *words: str, **sections: Any) -> int:
    path = home / "config.yaml"
    path.write_text(json.dumps(nmt.plain_settings(home, **sections)))
    words = (str(path), *words)
    return command.run(finetune_nmt.main, TranslationRun, finetune_nmt.__doc__ or "", argv=words)


def params(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (folder / EVENTS).read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] in ("start", "params"):
            found |= event["params" if event["event"] == "start" else "values"]
    return found


@pytest.mark.parametrize("row", "abcdefghijkl")
def test_every_layout_trains_and_logs_the_attention_parameters_of_the_source(
    row: str, home: Path
) -> None:
    """Scaled from width 512 to 32: a projection of the source's has 16 x 16 times as many."""
    model = {"num_layers": 6, "num_heads": 8, "num_decoder_layers": 1}
    train = {"steps": 2, "save_every": 0, "average_checkpoints": None, "greedy_bleu": False}
    optim = {"warmup_steps": 1}
    changes: dict[str, Any] = {"model": model, "train": train, "encoder": {"layout": row}}
    assert start(home, f"variant={row}", "train.stop_after=2", optim=optim, **changes) == 0
    folder = home / "runs" / f"{row}-en-de-7"
    losses = small.losses(folder)
    assert len(losses) == 2
    assert all(5 < loss < 7 for loss in losses.values())
    found = params(folder)
    assert int(found["params/encoder_attention"]) * 256 == ENCODER_ATTENTION[row]
    assert found["model_family"] == "encoder_decoder"
    path = ROOT / "configs" / "nmt" / f"wmt14_en_de_{row}.yaml"
    assert (
        load(path, [], TranslationRun).encoder
        == load(ROOT / "configs" / "nmt_small" / f"{row}.yaml", [], TranslationRun).encoder
    )


def test_a_run_ends_with_an_export_that_scores_what_was_scored(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(home, "train.max_length=25") == 0
    folder = home / "runs" / "tiny-en-de-7"
    card = export.read_translation(folder).card
    assert card.averaged == ("step_0000008", "step_0000012")
    assert card.signatures["bleu"].startswith("nrefs:1|case:mixed|")
    assert {"eval_loss", "eval_bleu", "eval_chrf", "test_loss", "test_bleu"} <= set(card.scores)
    assert set(small.metrics(folder, "eval_greedy_bleu")) == {4, 8, 12}
    assert set(small.metrics(folder, "eval_loss")) >= {0, 4, 8, 12}
    found = params(folder)
    assert found["bleu_signature"] == card.signatures["bleu"]
    assert int(found["dropped_pairs"]) > 0
    written = read_json(folder / "eval" / "test.json")
    assert written["notes"]["test_bleu"] == card.signatures["bleu"]
    assert written["scores"]["test_bleu"] == card.scores["test_bleu"]
    # one record, and one MLflow run, say how the score came about
    assert written["search"] == card.search.model_dump(mode="json")
    assert written["averaged"] == list(card.averaged)
    assert found["averaged_checkpoints"] == " ".join(card.averaged)
    assert (found["search.beam_size"], found["search.length_penalty"]) == ("2", "0.6")
    assert found["uncased_bleu_signature"] == written["notes"]["test_uncased_bleu"]
    logged = (folder / EVENTS).read_text(encoding="utf-8").splitlines()
    kept = [e["path"] for e in map(json.loads, logged) if e["event"] == "artifact"]
    assert {"eval/valid.json", "eval/test.json"} <= set(kept)
    lines = (folder / "eval" / "test.translations.txt").read_text(encoding="utf-8").split("\n")
    assert len(lines) == 1 + len(PAIRS[10:])
    capsys.readouterr()
    argv = [str(folder), "--json"]
    options: Any = {"json_flag": True, "positional": "export", "argv": argv}
    assert command.run(evaluate.main, EvaluateRun, "", **options) == 0
    scored = json.loads(capsys.readouterr().out)
    assert scored["splits"] == ["valid", "test"]
    assert scored["scores"] == pytest.approx(card.scores, rel=1e-6)
    options["argv"] = [str(folder), "split=tst"]
    assert command.run(evaluate.main, EvaluateRun, "", **options) == 2
    assert "there are valid, test (did you mean 'test'?)" in capsys.readouterr().err
    # a second run starts from the first, and says so
    assert start(home, f"init={folder}", "name=second", "train.steps=4") == 0
    events = (home / "runs" / "second" / EVENTS).read_text(encoding="utf-8").splitlines()
    tags = json.loads(events[0])["tags"]
    assert (tags["pretrained_run"], tags["pretrained_kind"]) == ("tiny-en-de-7", "seq2seq")
    first = small.metrics(home / "runs" / "second", "eval_greedy_bleu")
    assert set(first) == {0, 4}  # weights that can translate are scored before any step


def test_a_missing_export_is_told_before_anything_is_read(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(home, "init=runs/none", "data.path=nowhere") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: runs/none: no export there")
    assert error.count("\n") == 1


def test_a_finished_mean_of_saves_is_not_relabelled_with_another_rhythm(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = {"steps": 4, "eval_every": 0, "save_every": 2, "greedy_bleu": False}
    assert start(home, "name=rhythm", train=train) == 0
    assert start(home, "name=rhythm", "train.log_every=2", train=train) == 0
    assert start(home, "name=rhythm", "train.save_every=1", train=train) == 2
    assert "is finished with train.save_every = 2, now 1" in capsys.readouterr().err


def test_a_copied_wordpiece_vocabulary_is_refused_as_one_that_was_trained(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [text for pair in PAIRS for text in pair]
    wordpiece = WordPieceSettings(path=tmp_path / "tok", vocab_size=200)
    tokenizers.train(wordpiece, words).save(tmp_path / "tok")
    copied = {"kind": "pretrained", "path": str(tmp_path / "tok"), "name": "x"}
    assert start(home, "name=lossy", tokenizer={**copied, "vocab_size": None}) == 2
    assert "is a WordPiece vocabulary, which gives no translation back" in capsys.readouterr().err
