"""A suite: every combination once, finished cells skipped, one table."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ala_encoder import command, runs
from ala_encoder.checkpoint import steps
from ala_encoder.errors import UserError
from ala_encoder.settings.compare import CompareRun
from ala_encoder.settings.experiment import Preparation, PretrainRun
from ala_encoder.settings.loader import check, load
from ala_encoder.settings.suite import SuiteRun
from pipelines import compare, pretrain, suite, train_tokenizer
from tests.launched import small
from tests.test_causal_report import grids, toy
from tests.test_causal_report import start as call
from tests.test_reporting import logged

ROOT = Path(__file__).resolve().parents[1]
GIVEN: dict[str, Any] = {
    "name": "some",
    "pipeline": "pretrain",
    "configs": [str(ROOT / "configs" / "demo" / f"{name}.yaml") for name in ("full", "band6_tied")],
    "vary": {"seed": [1, 2]},
}


def made(**changes: Any) -> SuiteRun:
    return check({**GIVEN, **changes}, SuiteRun)


def test_cells_are_every_config_with_every_combination() -> None:
    names = [cell.name for cell in made().cells]
    assert names == ["full-1", "full-2", "band6_tied-1", "band6_tied-2"]
    made().check_cells()
    more = made(vary={"optim.learning_rate": [1e-3, 2e-3], "seed": [1, 2]})
    assert len(more.cells) == 8
    assert 'variant="full-0.001"' in more.cells[0].overrides
    assert "seed=1" in more.cells[0].overrides


def test_seeds_and_starts_make_no_variant_of_their_own() -> None:
    given = made(pipeline="finetune_glue", vary={"init": ["runs/a-mlm-1/"], "seed": [1]})
    assert given.cells[0].name == "full-a-mlm-1-1"
    assert not any(word.startswith("variant") for word in given.cells[0].overrides)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"configs": [GIVEN["configs"][0]] * 2}, "two cells are named full-1"),
        ({"vary": {"name": ["a"]}}, "vary.name: is the suite's own"),
        ({"vary": {"seed": []}}, "vary.seed"),
        ({"cell": 4}, "cell = 4: there are 0 … 3"),
        ({"pipeline": "translate"}, "pipeline"),
    ],
    ids=str,
)
def test_what_is_no_suite_is_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        made(**changes)


def test_settings_of_every_cell_are_checked_before_any_runs() -> None:
    with pytest.raises(UserError, match=r"cell full-2-1: .*optim.lerning_rate"):
        made(vary={"optim.lerning_rate": [2], "seed": [1]}).check_cells()


def start(folder: Path, *words: str) -> int:
    path = folder / "suite.yaml"
    path.write_text(json.dumps({**GIVEN, "output": str(folder / "runs")}))
    given = (str(path), "tracking.enabled=false", *words)
    return command.run(suite.main, SuiteRun, "", json_flag=True, argv=given)


def test_finished_cells_are_known_and_their_table_is_written_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    for name in ("full-1", "full-2", "band6_tied-1"):
        logged(tmp_path / "runs" / name, name[:-2], int(name[-1]))
    assert start(tmp_path, "dry_run=true", "--json") == 0
    assert json.loads(capfd.readouterr().out)["left"] == [3]
    logged(tmp_path / "runs" / "band6_tied-2", "band6_tied", 2, status="KILLED")
    assert start(tmp_path, "dry_run=true") == 0
    assert "1 of 4 are left" in capfd.readouterr().out
    logged(tmp_path / "runs" / "band6_tied-2", "band6_tied", 2)
    assert start(tmp_path) == 0
    said = capfd.readouterr().out
    assert said.count(": finished") == 4
    report = (tmp_path / "runs" / "some" / "report.md").read_text(encoding="utf-8")
    assert report.count(" 1, 2 |") == 2


def test_a_cell_of_an_array_that_is_finished_ends_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    logged(tmp_path / "runs" / "full-2", "full", 2)
    assert start(tmp_path, "cell=1") == 0
    assert capsys.readouterr().out == "cell full-2: finished\n"


def test_a_baseline_of_the_suite_is_that_of_its_table(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    for name in ("full-1", "full-2", "band6_tied-1", "band6_tied-2"):
        logged(tmp_path / "runs" / name, name[:-2], int(name[-1]))
    assert start(tmp_path, "baseline=full") == 0
    report = (tmp_path / "runs" / "some" / "report.md").read_text(encoding="utf-8")
    assert "### Paired tests over seeds against full" in report
    # nothing differs from seed to seed
    assert "- band6_tied: no test of eval_loss: all differences are equal" in report
    assert start(tmp_path, "baseline=ful") == 1
    assert "baseline = ful: neither a finished run nor its variant" in capfd.readouterr().err


def test_a_suite_killed_in_a_training_ends_with_the_table_of_one_that_was_not(
    tmp_path: Path, started: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, whole, killed = toy(tmp_path), tmp_path / "whole", tmp_path / "killed"
    words = [f"configs=[{tmp_path / 'gated.yaml'}]", 'settings=["train.steps=24"]', "baseline=null"]
    call(train_tokenizer, Preparation, tmp_path / "plain.yaml", json_flag=True)
    cells = load(path, [*words, f"output={whole}"], SuiteRun).cells
    with monkeypatch.context() as patch:
        patch.setattr(runs.engines, "stop", lambda: None)
        for cell in cells:
            call(pretrain, PretrainRun, cell.config, *cell.overrides)
    folders = [whole / cell.name for cell in cells]
    call(compare, CompareRun, *folders, f"output={whole / 'both'}", positional="runs")
    shutil.copytree(folders[0], killed / cells[0].name)

    words[1] = 'settings=["train.steps=24", "train.save_every=4"]'
    command_line = [sys.executable, "-m", "pipelines.suite", str(path), *words, f"output={killed}"]
    kill_in_training(command_line, killed / cells[1].name)
    done = subprocess.run(command_line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": finished") == 1
    texts = [(one / "both" / "report.md").read_text(encoding="utf-8") for one in (whole, killed)]
    for title in ("clm on tokens", "Summary", "Runs", "Gate of gated"):
        (expected,), (found,) = (grids(text, title) for text in texts)
        for row in [*expected, *found]:
            row.pop("train_tokens_per_second", None)  # a killed run is no other, but later
        assert found == expected
    assert small.losses(killed / "gated-2") == small.losses(whole / "gated-2")
    assert (killed / "gated-2" / "environment-1.json").is_file()


def kill_in_training(command_line: list[str], folder: Path) -> None:
    """Start a suite and kill it and what it has started once the run has a checkpoint."""
    process = subprocess.Popen(
        command_line, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not steps(folder / "checkpoints"):
            assert process.poll() is None, "it has ended"
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not (folder / "export").exists()
