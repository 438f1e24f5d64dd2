"""The settings of `suite`: which trainings are its cells."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ala_encoder.errors import UserError, nearest
from ala_encoder.settings.base import NonNegativeInt, Section
from ala_encoder.settings.experiment import FinetuneRun, Name, PretrainRun, TrainingRun
from ala_encoder.settings.loader import load
from ala_encoder.settings.tracking import TrackingSettings
from ala_encoder.settings.translation import TranslationRun

PIPELINES: dict[str, type[TrainingRun]] = {
    "pretrain": PretrainRun,
    "finetune_glue": FinetuneRun,
    "finetune_nmt": TranslationRun,
}


_SAME = ("seed", "init")
"""What does not make another variant: a table has both."""

_DATA = {"path", "source", "files", "dataset", "config", "task", "valid", "test"}
_PLACE: dict[str, Any] = {
    "variant": True, "seed": True, "objective": True, "data": _DATA, "tokenizer": True,
    "model": True, "encoder": True, "decoder": True, "cross": True,
}  # fmt: skip
"""What puts runs into different places of a table: task, data, variant and sizes, seed."""


class Cell(Section):
    """One training of a suite."""

    name: str
    config: Path
    overrides: tuple[str, ...]
    """What it is given beside its config, name and output among it."""


class SuiteRun(Section):
    """Trainings of several configs, each with every combination of some settings, and their table.

    Started again it goes on: finished cells are skipped, others go on from their checkpoints.
    """

    name: Name
    """Of the suite in MLflow, where its cells are the children of one run."""
    pipeline: Literal["pretrain", "finetune_glue", "finetune_nmt"]
    configs: Annotated[tuple[Path, ...], Field(min_length=1)]
    vary: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = Field(
        default_factory=lambda: {"seed": (1337, 42, 2025)}
    )
    """Setting → its values, such as seed or init; every combination of them is a cell. What differs
    by another setting than these two is a variant of its own in the table."""
    settings: tuple[str, ...] = ()
    """Further overrides of all cells, as in optim.learning_rate=1e-4; not of what `vary` sets."""
    output: Path = Path("runs")
    """Folder of the cells' run folders; the table goes to output/NAME."""
    baseline: str | None = None
    """Variant that the others are tested against in the table, over the seeds."""
    ranks: Annotated[int, Field(ge=1)] = 1
    """Processes a cell; more than one are started by the deepspeed launcher."""
    cell: NonNegativeInt | None = None
    """Run this cell alone, in this process, as a job array does; none: all, one after the other."""
    table: bool = False
    """Write the table alone; a cell that is not finished is an error."""
    dry_run: bool = False
    """Tell the cells and what is done of them, and run nothing."""
    tracking: TrackingSettings = TrackingSettings()
    """Of the suite; what is given here is its cells' too, in place of what their configs say."""

    @model_validator(mode="after")
    def _one_of_them(self) -> SuiteRun:
        fixed = {"output", "name", "variant"} & self.vary.keys()
        if fixed:
            raise UserError(f"vary.{min(fixed)}: is the suite's own, name another setting")
        if any(cell.name == self.name for cell in self.cells):
            raise UserError(f"name = {self.name}: is a cell's too, whose folder it would share")
        number = len(self.cells)
        if self.cell is not None and self.cell >= number:
            raise UserError(f"cell = {self.cell}: there are 0 … {number - 1}")
        if self.cell is not None and self.dry_run:
            raise UserError(f"dry_run: does nothing beside cell = {self.cell}, which is trained")
        if self.table and (self.cell is not None or self.dry_run):
            raise UserError("table: does nothing beside `cell` or `dry_run`")
        if self.cell is not None and self.ranks > 1:
            raise UserError(
                f"ranks = {self.ranks}: does nothing beside `cell`, whose launcher starts the ranks"
            )
        self._check_settings()
        return self

    def _check_settings(self) -> None:
        """Raise UserError for one of `settings` in whose place a cell is given something else."""
        keys = [word.partition("=")[0] for word in self.settings]
        for key in keys:
            if key in ("name", "output"):
                raise UserError(f"settings: {key}: is the suite's own for each cell")
            for varied in self.vary:
                if f"{key}.".startswith(f"{varied}."):
                    raise UserError(f"settings: {key}: vary.{varied} is in its place, keep one")
        others = [name for name in self.vary if name not in _SAME]
        if others and "variant" in keys:
            raise UserError(f"settings: variant: is made of vary.{others[0]}")

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells in order: of each config the combinations, the last setting fastest.

        Raises UserError when two would have one name.
        """
        found = []
        tracking = self.tracking.model_dump(mode="json", exclude_unset=True)
        shared = (*(f"tracking.{k}={json.dumps(v)}" for k, v in tracking.items()), *self.settings)
        for config in self.configs:
            for values in itertools.product(*self.vary.values()):
                given = dict(zip(self.vary, values, strict=True))
                words = [config.stem, *map(_word, given.values())]
                name = "-".join(words)[:100]
                own = {"name": name, "output": str(self.output), **given}
                others = [_word(value) for key, value in given.items() if key not in _SAME]
                if others:
                    own["variant"] = "-".join([config.stem, *others])
                overrides = (*shared, *(f"{k}={json.dumps(v)}" for k, v in own.items()))
                found.append(Cell(name=name, config=config, overrides=overrides))
        names = [cell.name for cell in found]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UserError(f"configs, vary: two cells are named {twice}; rename a config")
        return tuple(found)

    def check_cells(self) -> None:
        """Raise UserError for a cell whose settings do not fit together, for two that would be one
        run of the table, and for a baseline that none is."""
        known: dict[str, str] = {}
        runs = {cell.name: self.loaded(cell) for cell in self.cells}
        for name, run in runs.items():
            told = run.model_dump(mode="json", include=_PLACE)
            init = getattr(run, "init", None)  # whose variant it is, unless another is given
            told["start"] = str(init) if run.variant is None else init is not None
            other = known.setdefault(json.dumps(told, sort_keys=True), name)
            if other != name:
                variant = f"variant {run.variant or f'of {init}'}, seed {run.seed}"
                raise UserError(
                    f"cells {other} and {name}: both are {variant}, and one would be left out of "
                    "the table: give a config another `variant`"
                )
        variants = {run.variant for run in runs.values()}
        names = {*runs, *filter(None, variants)}
        if self.baseline is not None and None not in variants and self.baseline not in names:
            near = nearest(self.baseline, sorted(names))
            raise UserError(f"baseline = {self.baseline}: neither a cell nor its variant{near}")

    def loaded(self, cell: Cell) -> TrainingRun:
        """Return a cell's settings; raises UserError where they do not fit together."""
        try:
            return load(cell.config, cell.overrides, PIPELINES[self.pipeline])
        except UserError as error:
            raise UserError(f"cell {cell.name}: {error}") from None


def _word(value: Any) -> str:
    """Return a value as a part of a run's name: of a path its last folder."""
    text = value.rstrip("/").split("/")[-1] if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", text).strip("_") or "none"
