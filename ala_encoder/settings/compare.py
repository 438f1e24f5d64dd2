"""The settings of `compare`, and of `track`: what is done with runs that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from ala_encoder.errors import UserError
from ala_encoder.settings.base import Section
from ala_encoder.settings.tracking import TrackingSettings


class CompareRun(Section):
    """One table over many runs."""

    runs: tuple[str, ...] = ()
    """Run folders or globs; empty: the runs of the MLflow experiment."""
    output: Path = Path("runs/compare")
    """Folder of report.md, report.csv and the plots."""
    metric: str | None = None
    """Metric of the plot; none: the first that runs share."""
    floors: dict[str, dict[str, float]] | None = None
    """What a simple baseline reaches, by data name and score: a column of the summary."""
    floors_source: str | None = None
    """Where the floors come from, in a line."""
    baseline: str | None = None
    """A variant, or a run of it, that the others are tested against: language models and GLUE over
    their seeds by the paired t-test, the BLEU of translation runs by paired bootstrap resampling,
    against that run or the variant's of the same seed."""
    translations: str = "eval/test"
    """Where in a run folder the translations are that are tested: eval/test.translations.txt."""
    samples: Annotated[int, Field(ge=100)] = 1000
    """Resamples of the test."""
    tracking: TrackingSettings = TrackingSettings()

    @model_validator(mode="after")
    def _sourced(self) -> CompareRun:
        if self.floors_source is not None and not self.floors:
            raise UserError("floors_source: does nothing without `floors`")
        for name, values in (self.floors or {}).items():
            if not values:
                raise UserError(f"floors.{name}: names no score, as in eval_accuracy: 0.5")
        return self

    @model_validator(mode="after")
    def _tested(self) -> CompareRun:
        if self.baseline is not None and not self.runs:
            raise UserError("baseline: needs `runs`, whose folders hold what is tested")
        for name in ("translations", "samples"):
            is_default = getattr(self, name) == type(self).model_fields[name].default
            if self.baseline is None and not is_default:
                raise UserError(f"{name}: does nothing without `baseline`")
        return self


class TrackRun(Section):
    """Replay of a run folder into MLflow."""

    run: Path
    """The run folder."""
    uri: str | None = None
    """None: MLFLOW_TRACKING_URI, or sqlite:///mlflow.db in the current folder."""
