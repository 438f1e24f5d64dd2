"""Train every combination of configs and settings, such as seeds, and compare them.

One after the other:  python -m pipelines.suite SUITE.yaml
What is left to do:   python -m pipelines.suite SUITE.yaml dry_run=true [--json]
One of a job array:   … SUITE.yaml cell=N, in this process, under any launcher
Started again, it skips what is finished and goes on with the rest.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from ala_encoder.command import run
from ala_encoder.errors import RunStopped
from ala_encoder.settings.suite import Cell, SuiteRun

if TYPE_CHECKING:
    from collections.abc import Sequence

PARENT = "ALA_PARENT_RUN"
"""Environment variable: MLflow's id of the run whose children the cells are."""


def main(settings: SuiteRun, as_json: bool) -> None:
    """Run what is not finished, then write the table."""
    settings.check_cells()
    if settings.cell is not None:
        _become(settings, settings.cells[settings.cell])
        return
    done = {cell.name: _is_finished(settings, cell) for cell in settings.cells}
    if settings.dry_run:
        _tell(settings, done, as_json)
        return

    from ala_encoder.tracking import RunInfo, RunLog

    home = settings.output / settings.name
    info = RunInfo(settings.name, settings.tracking.experiment, {"suite": settings.name})
    where = settings.tracking
    with RunLog(home, info, uri=where.uri, enabled=where.enabled, system_metrics=False) as log:
        parent = log.run_id
        for number, cell in enumerate(settings.cells, 1):
            heading = f"cell {number} of {len(done)}, {cell.name}"
            if done[cell.name]:
                print(f"{heading}: finished", flush=True)
                continue
            print(f"{heading}:", flush=True)
            _start(settings, cell, parent)
        folders = [str(settings.output / name) for name in done]
        _call([sys.executable, "-m", "pipelines.compare", *folders, f"output={home}"])
        log.artifact(home / "report.md")


def _is_finished(settings: SuiteRun, cell: Cell) -> bool:
    from ala_encoder.records import read_folder
    from ala_encoder.tracking import EVENTS

    folder = settings.output / cell.name
    return (folder / EVENTS).is_file() and read_folder(folder)[0].status == "FINISHED"


def _tell(settings: SuiteRun, done: dict[str, bool], as_json: bool) -> None:
    left = [number for number, finished in enumerate(done.values()) if not finished]
    if as_json:
        print(json.dumps({"cells": list(done), "left": left}))
        return
    for number, (name, finished) in enumerate(done.items()):
        print(f"{number:>4}  {'finished' if finished else 'to do':<9} {name}")
    print(f"{len(left)} of {len(done)} are left")


def _words(settings: SuiteRun, cell: Cell) -> list[str]:
    return [f"pipelines.{settings.pipeline}", str(cell.config), *cell.overrides]


def _start(settings: SuiteRun, cell: Cell, parent: str | None) -> None:
    launcher = [sys.executable, "-m"]
    if settings.ranks > 1:
        launcher += ["deepspeed.launcher.runner", "--num_gpus", str(settings.ranks), "--module"]
    environment = {**os.environ, **({PARENT: parent} if parent else {})}
    _call([*launcher, *_words(settings, cell)], environment)


def _call(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    print(f"$ {shlex.join(command)}", flush=True)
    code = subprocess.run(command, check=False, env=environment).returncode
    if code:
        raise RunStopped(
            f"the command above ended with exit code {code}; started again, the suite goes on there"
        )


def _become(settings: SuiteRun, cell: Cell) -> None:
    """Put the cell's pipeline in the place of this process, which a launcher counts as a rank."""
    if _is_finished(settings, cell):
        print(f"cell {cell.name}: finished", flush=True)
        return
    os.execv(sys.executable, [sys.executable, "-m", *_words(settings, cell)])


if __name__ == "__main__":
    sys.exit(run(main, SuiteRun, __doc__ or "", json_flag=True))
