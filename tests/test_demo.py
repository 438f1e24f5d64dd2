"""The demo: its commands fit together, and its translation leg runs, tiny and in one process."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from ala_encoder import command, runs, tokenizer
from ala_encoder.files import read_json
from ala_encoder.records import read_folder
from ala_encoder.settings.compare import CompareRun
from ala_encoder.settings.demo import DemoRun
from ala_encoder.settings.experiment import FinetuneRun, PretrainRun
from ala_encoder.settings.loader import load
from ala_encoder.settings.translation import TranslationRun
from pipelines import demo
from tests.strings import ROOT
from tests.test_pipelines import signature
from tests.test_quickstart_readers import STAND_IN, cached

CONFIGS = ROOT / "configs" / "demo"


def read(words: list[str]) -> tuple[str, BaseModel]:
    """Return the pipeline that a command starts and the settings that it reads."""
    place = next(i for i, word in enumerate(words) if word.startswith("pipelines."))
    name = words[place].removeprefix("pipelines.")
    cls, options = signature(name)
    found: list[BaseModel] = []

    def main(settings: BaseModel, *_: Any) -> None:
        found.append(settings)

    assert command.run(main, cls, "", argv=words[place + 1 :], **options) == 0
    return name, found[0]


@pytest.mark.parametrize("steps", [None, 300])
def test_every_command_of_the_demo_is_accepted_and_reads_what_an_earlier_one_wrote(
    steps: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []

    def note(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        started.append(words)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", note)
    demo.main(DemoRun(output=Path("there"), pretrain_steps=steps, translation_steps=steps))
    written: set[Path] = set()
    for name, settings in map(read, started):
        if isinstance(settings, PretrainRun | TranslationRun | FinetuneRun):
            assert settings.output == Path("there") and settings.tracking.experiment == "demo"
            init = getattr(settings, "init", None)
            assert init is None or init in written
            if isinstance(settings, FinetuneRun):
                variant = str(init).split("/")[-1].removesuffix("-mlm-1337")
                written.add(settings.output / f"{variant}-sst2-1337")
            else:
                assert steps in (None, settings.train.steps)
                written.add(settings.output / settings.run_name)
        if isinstance(settings, CompareRun):
            assert name == "compare" and {*map(Path, settings.runs)} == written
    assert len(written) == 9 and read(started[-1])[0] == "compare"
    assert "Done in 0.0 minutes" in capsys.readouterr().out


def test_the_two_translation_models_differ_in_their_encoders_attention_alone() -> None:
    a3, l3 = (
        load(CONFIGS / f"{name}.yaml", [], TranslationRun).model_dump(mode="json")
        for name in ("a3", "l3")
    )
    assert {key for key in a3 if a3[key] != l3[key]} == {"variant", "encoder"}


@pytest.mark.usefixtures("started")
def test_the_translation_leg_goes_from_nothing_to_a_report_and_names_the_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALA_OFFLINE", "1")
    monkeypatch.setattr(runs.engines, "stop", lambda: None)  # the group is the test session's
    cached(tmp_path / ".cache" / "quickstart", STAND_IN)
    tiny = ["model.dim=32", "model.ffn_dim=64", "tokenizer.vocab_size=130"]
    run = ["optim.warmup_steps=1", "train.steps=2", "train.eval_every=0", "tracking.enabled=false"]

    def start(name: str, *words: object) -> None:
        module = __import__(f"pipelines.{name}", fromlist=["main"])
        cls, options = signature(name)
        code = command.run(module.main, cls, "", argv=[*map(str, words)], **options)
        assert code == 0, capsys.readouterr().err

    start("train_tokenizer", CONFIGS / "a3.yaml", *tiny)
    start("prepare_data", CONFIGS / "a3.yaml", *tiny)
    short = ["search.max_extra_tokens=1", "search.beam_size=1"]
    start("finetune_nmt", CONFIGS / "a3.yaml", *tiny, *run, *short)
    start("pretrain", CONFIGS / "l3_encoder.yaml", *tiny, *run, "data.length=16")
    start("finetune_nmt", CONFIGS / "l3.yaml", *tiny, *run, *short, "init=runs/l3-mlm-1337")
    names = ("l3-mlm-1337", "a3-en-de-1337", "l3-en-de-1337")
    start("compare", *(f"runs/{name}" for name in names), "output=report")
    for name, data in zip(names, (f"{STAND_IN} (en)", STAND_IN, STAND_IN), strict=True):
        card = read_json(tmp_path / "runs" / name / "export" / "export.json")
        assert card["data_name"] == data
        made_with = read_folder(tmp_path / "runs" / name)[0].settings["tokenizer.fingerprint"]
        assert tokenizer.load(tmp_path / "runs" / name / "export").fingerprint.startswith(made_with)
    report = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert report.count(f"{STAND_IN}, a generated data set") == 1
    assert report.count(f"{STAND_IN} (en), a generated data set") == 1
    start("evaluate", "runs/l3-en-de-1337", "split=test", "search.max_extra_tokens=1")
    assert f"l3-en-de-1337 on test of {STAND_IN}:" in capsys.readouterr().out
