"""A suite: every combination once, finished cells skipped, one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ala_encoder import command
from ala_encoder.errors import UserError
from ala_encoder.settings.loader import check
from ala_encoder.settings.suite import SuiteRun
from pipelines import suite
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
