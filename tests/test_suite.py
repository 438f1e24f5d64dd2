"""A suite: every combination once, finished cells skipped, one table."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ala_encoder import command
from ala_encoder.checkpoint import steps
from ala_encoder.errors import UserError
from ala_encoder.settings.experiment import Preparation
from ala_encoder.settings.loader import check, dump, load
from ala_encoder.settings.suite import SuiteRun
from pipelines import suite, train_tokenizer
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


def test_a_table_that_comes_too_early_trains_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="table: 4 of 4 cells are left: full-1, full-2, band6_tied"):
        suite.main(made(table=True, output=str(tmp_path)), as_json=False)
    assert not list(tmp_path.iterdir())


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
        ({"cell": 2, "dry_run": True}, "dry_run: does nothing beside cell = 2, which is trained"),
        ({"cell": 2, "ranks": 2}, "ranks = 2: does nothing beside `cell`"),
        ({"settings": ["seed=7"]}, "settings: seed: vary.seed is in its place, keep one"),
        ({"settings": ["encoder.path=dense"], "vary": {"encoder": [{}]}},
         "settings: encoder.path: vary.encoder is in its place"),
        ({"settings": ["output=x"]}, "settings: output: is the suite's own for each cell"),
        ({"settings": ["variant=x"], "vary": {"optim.eps": [1e-6]}},
         "settings: variant: is made of vary.optim.eps"),
        ({"cell": 2, "table": True}, "table: does nothing beside `cell` or `dry_run`"),
        ({"name": "full-2"}, "name = full-2: is a cell's too, whose folder it would share"),
        ({"pipeline": "translate"}, "pipeline"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_suite_is_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        made(**changes)


def test_settings_of_every_cell_are_checked_before_any_runs() -> None:
    with pytest.raises(UserError, match=r"cell full-2-1: .*optim.lerning_rate"):
        made(vary={"optim.lerning_rate": [2], "seed": [1]}).check_cells()


def test_two_cells_that_a_table_would_take_for_one_run_are_refused(tmp_path: Path) -> None:
    twin = tmp_path / "twin.yaml"
    twin.write_text(json.dumps({"base": GIVEN["configs"][0], "optim": {"eps": 1e-6}}))
    with pytest.raises(UserError, match="cells full-1 and twin-1: both are variant full, seed 1"):
        made(configs=[GIVEN["configs"][0], str(twin)]).check_cells()
    twin.write_text(json.dumps({"base": GIVEN["configs"][0], "data": {"length": 60}}))
    with pytest.raises(UserError, match="cells full-1 and twin-1: both are variant full, seed 1"):
        made(configs=[GIVEN["configs"][0], str(twin)]).check_cells()
    for other in ({"data": {"path": "other"}}, {"model": {"dim": 64}}):
        twin.write_text(json.dumps({"base": GIVEN["configs"][0], **other}))  # a table, a row more
        made(configs=[GIVEN["configs"][0], str(twin)]).check_cells()


def test_cells_from_one_export_that_is_not_there_yet_are_told_apart_too(tmp_path: Path) -> None:
    config = ROOT / "configs" / "glue" / "sst2.yaml"
    twin = tmp_path / "twin.yaml"
    twin.write_text(json.dumps({"base": str(config), "optim": {"eps": 1e-6}}))
    given: dict[str, Any] = {"pipeline": "finetune_glue", "vary": {"init": ["x"], "seed": [1]}}
    with pytest.raises(UserError, match=r"sst2-x-1 and twin-x-1: both are variant of x, seed 1"):
        made(configs=[str(config), str(twin)], **given).check_cells()
    made(configs=[str(config)], **given | {"vary": {"init": ["x", "y"], "seed": [1]}}).check_cells()


def test_a_baseline_that_no_cell_is_is_told_before_any_runs() -> None:
    with pytest.raises(UserError, match=r"baseline = ful: neither .* \(did you mean 'full'"):
        made(baseline="ful").check_cells()
    for name in ("full", "full-2"):
        made(baseline=name).check_cells()


def test_settings_beside_those_that_vary_are_each_cells() -> None:
    for word in ("seeds=7", "optim.eps=1e-6", "variant=x", "encoder={}"):
        cells = made(settings=[word], vary={"seed": [1], "init": ["x"]}).cells
        assert all(word in cell.overrides for cell in cells)
    both = made(settings=["optim.eps=1e-6"], vary={"optim.learning_rate": [1e-3]})
    assert "optim.eps=1e-6" in both.cells[0].overrides


def test_where_the_suite_is_tracked_its_cells_are_too(tmp_path: Path) -> None:
    given = made(tracking={"uri": f"sqlite:///{tmp_path}/all.db", "experiment": "here"})
    for cell in given.cells:
        found = given.loaded(cell).tracking
        assert (found.uri, found.experiment) == (f"sqlite:///{tmp_path}/all.db", "here")
        assert found.system_metrics and found.enabled  # as their configs say
    apart = made(tracking={"enabled": False}, settings=["tracking.enabled=true"])
    assert apart.loaded(apart.cells[0]).tracking.enabled


HANDED_ON = """
import sys
from ala_encoder import command
from ala_encoder.errors import RunSaved
from pipelines import suite
child = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(85)); "
child += "print('there', flush=True); time.sleep(60)"
try:
    suite._call([sys.executable, "-c", child])
except RunSaved as error:
    print(error)
"""


def test_a_suite_that_is_asked_to_leave_hands_that_on_and_waits() -> None:
    """A training that goes on alone would have the run's lock when the suite is started again."""
    with subprocess.Popen(
        [sys.executable, "-c", HANDED_ON], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("$ ")
        assert process.stdout.readline() == "there\n"
        process.terminate()
        assert process.stdout.read().startswith("the command above has saved its run")
    assert process.returncode == 0


def finished(folder: Path, *names: str) -> None:
    """Write the folders of cells that have ended well, such as full-1."""
    (folder / "runs").mkdir(exist_ok=True)
    for name in names:
        logged(folder / "runs" / name, name[:-2], int(name[-1]))


def start(folder: Path, *words: str) -> int:
    path = folder / "suite.yaml"
    path.write_text(json.dumps({**GIVEN, "output": str(folder / "runs")}))
    given = (str(path), "tracking.enabled=false", *words)
    return command.run(suite.main, SuiteRun, "", json_flag=True, argv=given)


def test_finished_cells_are_known_and_their_table_is_written_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    finished(tmp_path, "full-1", "full-2", "band6_tied-1")
    assert start(tmp_path, "dry_run=true", "--json") == 0
    assert json.loads(capfd.readouterr().out)["left"] == [3]
    logged(tmp_path / "runs" / "band6_tied-2", "band6_tied", 2, status="KILLED")
    assert start(tmp_path, "dry_run=true") == 0
    assert "1 of 4 are left" in capfd.readouterr().out
    finished(tmp_path, "band6_tied-2")
    assert start(tmp_path) == 0
    said = capfd.readouterr().out
    assert said.count(": finished") == 4
    report = (tmp_path / "runs" / "some" / "report.md").read_text(encoding="utf-8")
    assert report.count(" 1, 2 |") == 2


def test_json_is_what_a_dry_run_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert start(tmp_path, "--json") == 2
    assert capsys.readouterr().err == "error: --json: does nothing without dry_run=true\n"


def test_a_cell_that_is_finished_with_other_settings_is_not_taken_for_this_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A table would have the old runs under the new settings' name."""
    (tmp_path / "runs").mkdir()
    given = made(output=str(tmp_path / "runs"))
    for cell in given.cells:
        folder = logged(tmp_path / "runs" / cell.name, cell.name[:-2], int(cell.name[-1]))
        dump(given.loaded(cell), folder / "settings.yaml")
    assert start(tmp_path, "dry_run=true") == 0
    harmless = 'settings=["train.log_every=3", "train.save_every=7", "tracking.enabled=false"]'
    assert start(tmp_path, "dry_run=true", harmless) == 0
    assert capfd.readouterr().out.count("0 of 4 are left") == 2
    changed = 'settings=["train.steps=3000"]'
    for word in ("dry_run=true", "cell=1", "baseline=full"):
        assert start(tmp_path, changed, word) == 2
        out, err = capfd.readouterr()
        assert re.search(
            r"error: cell full-[12]: .* is finished with train.steps = \d+, now 3000", err
        )
        assert out == "" and err.count("\n") == 1
    assert not (tmp_path / "runs" / "some").exists()
    # and trained anew where that is asked for
    anew = 'settings=["train.steps=3000", "train.from_scratch=true"]'
    assert start(tmp_path, anew, "dry_run=true") == 0
    assert "4 of 4 are left" in capfd.readouterr().out
    assert start(tmp_path, 'settings=["train.from_scratch=true"]', "dry_run=true") == 0
    assert "0 of 4 are left" in capfd.readouterr().out


def test_a_cell_of_an_array_that_is_finished_ends_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished(tmp_path, "full-2")
    assert start(tmp_path, "cell=1") == 0
    assert capsys.readouterr().out == "cell full-2: finished\n"


def test_a_baseline_of_the_suite_is_that_of_its_table(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    finished(tmp_path, "full-1", "full-2", "band6_tied-1", "band6_tied-2")
    assert start(tmp_path, "baseline=full") == 0
    report = (tmp_path / "runs" / "some" / "report.md").read_text(encoding="utf-8")
    assert "### Paired tests over seeds against full" in report
    # nothing differs from seed to seed
    assert "- band6_tied: no test of eval_loss: all differences are equal" in report
    assert start(tmp_path, "baseline=ful") == 2
    assert "baseline = ful: neither a cell nor its variant" in capfd.readouterr().err


def test_a_suite_killed_in_a_training_ends_with_the_table_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    path, whole, killed = toy(tmp_path), tmp_path / "whole", tmp_path / "killed"
    words = [f"configs=[{tmp_path / 'gated.yaml'}]", 'settings=["train.steps=24"]', "baseline=null"]
    call(train_tokenizer, Preparation, tmp_path / "plain.yaml", json_flag=True)
    cells = load(path, [*words, f"output={whole}"], SuiteRun).cells

    def suite(output: Path) -> list[str]:
        return [sys.executable, "-m", "pipelines.suite", str(path), *words, f"output={output}"]

    # a process of its own too: what ran in this one before may change how it rounds
    subprocess.run(suite(whole), capture_output=True, check=True)
    shutil.copytree(whole / cells[0].name, killed / cells[0].name)

    words[1] = 'settings=["train.steps=24", "train.save_every=4"]'
    kill_in_training(suite(killed), killed / cells[1].name)
    done = subprocess.run(suite(killed), capture_output=True, text=True, check=False)
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
