"""Train every combination of configs and settings, such as seeds, and compare them.

One after the other:  python -m pipelines.suite SUITE.yaml
What is left to do:   python -m pipelines.suite SUITE.yaml dry_run=true [--json]
One of a job array:   … SUITE.yaml cell=N, in this process, under any launcher
The table of them:    … SUITE.yaml table=true, which trains nothing
Started again, it skips what is finished and goes on with the rest. What is finished with other
settings is refused, or with settings='["train.from_scratch=true"]' trained anew.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ala_encoder import signals
from ala_encoder.command import SAVED, run
from ala_encoder.errors import RunSaved, RunStopped, UserError
from ala_encoder.settings.suite import Cell, SuiteRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ala_encoder.tracking import RunLog

PARENT = "ALA_PARENT_RUN"
"""Environment variable: MLflow's id of the run whose children the cells are."""
_LOOKS = 6
"""How often a local store is looked for, 10 s each: a busy machine imports MLflow slowly."""


def main(settings: SuiteRun, as_json: bool) -> None:
    """Run what is not finished, then write the table."""
    if as_json and not settings.dry_run:
        raise UserError("--json: does nothing without dry_run=true")
    settings.check_cells()
    if settings.cell is not None:
        _become(settings, settings.cells[settings.cell])
        return
    signals.release()
    done = {cell.name: _is_finished(settings, cell) for cell in settings.cells}
    if settings.dry_run:
        _tell(settings, done, as_json)
        return

    left = [name for name, finished in done.items() if not finished]
    if settings.table and left:
        raise UserError(f"table: {len(left)} of {len(done)} cells are left: {', '.join(left)}")
    home = settings.output / settings.name
    with _log(settings, home) as log:
        parent = log.run_id
        for number, cell in enumerate(settings.cells, 1):
            heading = f"cell {number} of {len(done)}, {cell.name}"
            if done[cell.name]:
                print(f"{heading}: finished", flush=True)
                continue
            print(f"{heading}:", flush=True)
            _start(settings, cell, parent)
        folders = [str(settings.output / name) for name in done]
        words = [f"output={home}"]
        words += [] if settings.baseline is None else [f"baseline={settings.baseline}"]
        _call([sys.executable, "-m", "pipelines.compare", *folders, *words])
        for path in [home / "report.md", home / "report.csv", *sorted(home.glob("*.png"))]:
            log.artifact(path)


def _log(settings: SuiteRun, home: Path) -> RunLog:
    from ala_encoder.tracking import RunInfo, RunLog

    info = RunInfo(settings.name, settings.tracking.experiment, {"suite": settings.name})
    where = settings.tracking
    return RunLog(home, info, uri=where.uri, enabled=where.enabled, system_metrics=False)


def _is_finished(settings: SuiteRun, cell: Cell) -> bool:
    """Tell whether a cell is; raises UserError where it is with other settings than are given."""
    from ala_encoder import relabelling
    from ala_encoder.records import read_folder
    from ala_encoder.tracking import EVENTS

    folder, given = settings.output / cell.name, settings.loaded(cell)
    if not (folder / EVENTS).is_file() or read_folder(folder)[0].status != "FINISHED":
        return False
    changed = relabelling.difference(folder, given)
    if changed and not given.train.from_scratch:
        raise UserError(f"cell {cell.name}: {changed}")
    return changed is None


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
    with subprocess.Popen(command, env=environment) as process, _handing_on(process):
        code = process.wait()
    if code == SAVED:
        raise RunSaved("the command above has saved its run; start the suite again to go on")
    if code:
        raise RunStopped(
            f"the command above ended with exit code {code}; started again, the suite goes on there"
        )


@contextmanager
def _handing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Give signals to a process instead: a training that outlived its suite would be in the way."""

    def hand_on(number: int, _: object) -> None:
        process.send_signal(number)

    earlier = {number: signal.signal(number, hand_on) for number in signals.ASKING}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _parent(settings: SuiteRun) -> str | None:
    """Return MLflow's id of the suite's run, which the first cell of an array opens.

    Until the table is written it is KILLED there, as a run that nobody is at; None: MLflow is away.
    """
    from ala_encoder.files import locked, read_json
    from ala_encoder.tracking import checked_uri, public_uri

    home = settings.output / settings.name
    home.mkdir(parents=True, exist_ok=True)
    with locked(home):
        path = home / "mlflow_run.json"
        known = read_json(path) if path.exists() else {}
        store = public_uri(checked_uri(settings.tracking.uri))
        if known.get("run_id") and known["uri"] == store:
            return str(known["run_id"])
        log = _log(settings, home)
        looks = _LOOKS if store.startswith("sqlite") else 1
        found = next((run_id for _ in range(looks) if (run_id := log.run_id)), None)
        log.close("KILLED")
        return found


def _become(settings: SuiteRun, cell: Cell) -> None:
    """Put the cell's pipeline in the place of this process, which a launcher counts as a rank."""
    if _is_finished(settings, cell):
        print(f"cell {cell.name}: finished", flush=True)
        return
    is_main = os.environ.get("RANK", "0") == "0"
    if is_main and settings.tracking.enabled and (parent := _parent(settings)):
        os.environ[PARENT] = parent
    os.execv(sys.executable, [sys.executable, "-m", *_words(settings, cell)])


if __name__ == "__main__":
    sys.exit(run(main, SuiteRun, __doc__ or "", json_flag=True))
