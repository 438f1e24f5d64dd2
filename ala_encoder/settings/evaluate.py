"""The settings of `evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from ala_encoder.settings.loader import check
from ala_encoder.settings.search import SearchSettings
from ala_encoder.settings.task import RowSource, TaskSettings


class EvaluateRun(RowSource):
    """Scores of an export: a language model's loss, a classifier's metrics, a translator's BLEU."""

    export: Path
    """An export folder, or a run folder that has one."""
    split: str | None = None
    """None: valid for a language model, every dev split for a classifier (test, without one), valid
    and test for a translation model."""
    task: str | None = None
    """Another GLUE task with the same classes, such as ax for a classifier of mnli."""
    path: Path | None = None
    """Other data than the export was made with: a prepared corpus, or a folder of tables."""
    batch_size: Annotated[int, Field(ge=1)] = 64
    prune: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Of a language model, in place of the export's `encoder.prune`: what a query's attention
    weights may lose in sum; what that changes at most becomes part of the scores."""
    search: SearchSettings | None = None
    """Of a translation model: what is given here is in place of the run's own."""
    test_set: str | None = None
    """Of a translation model, in place of valid and test: a test set by sacreBLEU's name, such as
    wmt14/full, fetched once; or name two texts by `files.src` and `files.trg`."""
    compound_split_bleu: bool = False
    """Of a translation model: also the tokenised BLEU that the literature has of WMT'14
    English-German, in which a-b is three words. It is not comparable with BLEU."""
    output: Path | None = None
    """Folder of SPLIT.json and predictions; none: eval/ beside the export, or for other data or
    with `prune` eval-DATA-DIGEST/, of both, so that no scores replace others."""

    def task_data(self, own: TaskSettings) -> TaskSettings:
        """Return a classifier's own data settings with what is given here in their place.

        They are equal to `own` where nothing else is to be scored. Raises UserError for what does
        not fit together.
        """
        data = own.model_dump(mode="json")
        if self.task is not None and self.task != own.task:
            data |= {"task": self.task, "columns": None, "files": None, "config": None}
            data["max_train_examples"] = 0
        if self.path is not None or self.dataset is not None:
            keep = {"task", "columns", "length", "on_bad_row"}
            data = {key: value for key, value in data.items() if key in keep}
            data |= self.model_dump(mode="json", include={"path", "dataset", "config", "revision"})
        if self.files:
            data["files"] = self.files
        return check(data, TaskSettings)
