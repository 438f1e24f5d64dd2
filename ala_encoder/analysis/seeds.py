"""Variants over their seeds: paired tests, curves with their spread, and what gates have learned.

For: `compare`, on the rows of its tables. Not for: reading runs (`records`), means of final scores
(`reporting`), the tests themselves (`statistics`).

A seed decides the initial weights and the order of the text, so runs of one seed are a pair. The
differences of n seeds say something of the variants, where a test over the tokens of one run each
would say something of two trained models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ala_encoder.analysis.statistics import Aggregate, PairedTest, aggregate, in_both, paired_t
from ala_encoder.errors import UserError, nearest
from ala_encoder.glue import TASKS
from ala_encoder.records import Record
from ala_encoder.reporting import Row, Table

Points = Mapping[Path, Mapping[str, Mapping[int, float]]]
"""Run folder → metric → step → value."""


def points_of(records: Mapping[Path, Sequence[Record]]) -> Points:
    """Return the points of runs' curves; scores are none."""
    found: dict[Path, dict[str, dict[int, float]]] = {}
    for folder, some in records.items():
        curves = found.setdefault(folder, {})
        for record in some:
            if not record.final and record.step is not None:
                curves.setdefault(record.metric, {})[record.step] = record.value
    return found


# ---------------------------------------------------------------------------------------------
# Paired tests
# ---------------------------------------------------------------------------------------------


LANGUAGE_MODELS = ("mlm", "clm", "denoise")
_BY_TEXT = ("eval_bits_per_byte", "eval_word_perplexity")
"""Of the same text, whatever its pieces are."""


def is_tested_over_seeds(task: str) -> bool:
    """Tell whether runs are language models or of GLUE; translations are tested by their texts."""
    return task in (*LANGUAGE_MODELS, *TASKS)


@dataclass(frozen=True)
class SeedTest:
    """A variant beside the baseline: one score over the seeds that both have."""

    variant: str
    metric: str
    seeds: tuple[int, ...]
    test: PairedTest
    """Of the variant's score less the baseline's."""


def baseline_row(item: Table, baseline: str) -> Row | None:
    """Return the row of a variant, or of a run's variant; None where the table has none.

    Raises UserError where several rows are of that variant.
    """
    rows = [row for row in item.rows if any(run.run == baseline for run in row.runs)]
    rows = rows or [row for row in item.rows if row.variant == baseline]
    if len(rows) > 1:
        raise UserError(
            f"baseline = {baseline}: {len(rows)} rows of {item.task} on {item.data_name} are it, "
            "with other sizes or another start; name one of its runs"
        )
    return rows[0] if rows else None


def check_baseline(items: Sequence[Table], baseline: str) -> None:
    """Raise UserError where no table has the baseline, or none has anything else."""
    found = [(item, row) for item in items if (row := baseline_row(item, baseline))]
    rows = [row for item in items for row in item.rows]
    if not found:
        names = sorted(
            {row.variant for row in rows} | {run.run for row in rows for run in row.runs}
        )
        near = nearest(baseline, names)
        raise UserError(f"baseline = {baseline}: neither a finished run nor its variant{near}")
    if all(len(item.rows) == 1 for item, _ in found):
        raise UserError(f"baseline = {baseline}: there is no other variant to compare with it")


def seed_tests(item: Table, base: Row) -> list[SeedTest]:
    """Return the paired tests of every other row against one, a score at a time.

    A score that a floor gives, such as eval_unigram_loss, is not tested, nor is what does not
    compare: eval_* of another training length (`trained_at`), and scores by token over other
    targets (`targets_of`).
    """
    found = []
    for row in item.rows:
        if row is base:
            continue
        for metric in item.metrics:
            if not _compares(item.task, row, base, metric):
                continue
            own, other = _by_seed(row, metric), _by_seed(base, metric)
            if own and other and not metric.endswith("unigram_loss"):
                seeds = tuple(seed for seed in own if seed in other)
                test = paired_t(*in_both(own, other))
                found.append(SeedTest(item.unique(row), metric, seeds, test))
    return found


def trained_at(row: Row) -> set[str]:
    """Return the training lengths of a row's runs, where their logs tell them.

    A causal model's eval_* are of blocks of its own: the shorter they are, the less stands before
    a token, so they do not compare with those at another length.
    """
    told = {run.settings.get("data.length") for run in row.runs}
    return {length for length in told if length is not None}


def targets_of(row: Row) -> set[int]:
    """Return over how many targets a row's eval_* scores were taken, one number where all agree.

    Of one held-out text they differ with the tokenizer, or with a masked model's length: a score by
    token is then of other things. Those by byte and by word are of the same text.
    """
    return {run.counts["eval"] for run in row.runs if "eval" in run.counts}


def _compares(task: str, row: Row, base: Row, metric: str) -> bool:
    """Tell whether a score of two rows is of the same thing."""
    if task not in LANGUAGE_MODELS or not metric.startswith("eval_"):
        return True
    if task == "clm" and len(trained_at(row) | trained_at(base)) > 1:
        return False
    return metric in _BY_TEXT or len(targets_of(row) | targets_of(base)) < 2


def _by_seed(row: Row, metric: str) -> dict[int, float]:
    return {run.seed: run.scores[metric] for run in row.runs if metric in run.scores}


# ---------------------------------------------------------------------------------------------
# Curves
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """A score over steps: at each step that all runs of a variant have, over its seeds."""

    label: str
    steps: tuple[int, ...]
    values: tuple[Aggregate, ...]


def curve(label: str, row: Row, points: Points, metric: str) -> Curve | None:
    """Return a row's curve; None where no run has one, or they share no step."""
    runs = [found[metric] for found in _curves(row, points) if metric in found]
    if not runs:
        return None
    steps = sorted(set.intersection(*(set(values) for values in runs)))
    found = tuple(aggregate([values[step] for values in runs]) for step in steps)
    return Curve(label, tuple(steps), found) if steps else None


def _curves(row: Row, points: Points) -> list[Mapping[str, Mapping[int, float]]]:
    folders = [run.folder for run in row.runs if run.folder is not None]
    return [points[folder] for folder in folders if folder in points]


# ---------------------------------------------------------------------------------------------
# Gates and slopes
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Learned:
    """Gates, or slopes alpha, at step 0 and at the last step that logged them, over n runs."""

    n: int
    last_step: tuple[int, ...]
    """Of each run."""
    heads: tuple[tuple[tuple[float, float], ...], ...]
    """By layer and head the means over runs, at step 0 and at last."""
    first: Aggregate
    """The mean over layers and heads at step 0, over runs."""
    last: Aggregate
    moved: PairedTest
    """last − first, paired by run."""
    by_head: Aggregate
    """The mean over layers and heads of |last − first|, over runs."""


def learned(row: Row, points: Points, kind: str) -> Learned | str | None:
    """Return what a row's runs logged as KIND/LAYER/HEAD, of those that did so from step 0 on.

    kind: gate or alpha. A text says why there is nothing to show; None: no run logged any.
    """
    logged = [heads for found in _curves(row, points) if (heads := _heads(found, kind))]
    runs = [heads for heads in logged if all(0 in values for values in heads.values())]
    if not logged:
        return None
    if not runs:
        return "no run logged it at step 0, and beside another step it says nothing"
    if any(heads.keys() != runs[0].keys() for heads in runs):
        return "the runs have different layers or heads"
    ends = [max(max(values) for values in heads.values()) for heads in runs]

    def mean(key: tuple[int, int], which: int) -> float:
        at = [heads[key][0 if which == 0 else end] for heads, end in zip(runs, ends, strict=True)]
        return sum(at) / len(at)

    keys = sorted(runs[0])
    layers = [
        [key for key in keys if key[0] == layer] for layer in dict.fromkeys(k[0] for k in keys)
    ]
    both = [
        [sum(heads[key][step] for key in keys) / len(keys) for step in (0, end)]
        for heads, end in zip(runs, ends, strict=True)
    ]
    first, last = ([pair[which] for pair in both] for which in (0, 1))
    return Learned(
        n=len(runs),
        last_step=tuple(ends),
        heads=tuple(tuple((mean(key, 0), mean(key, 1)) for key in row_) for row_ in layers),
        first=aggregate(first),
        last=aggregate(last),
        moved=paired_t(last, first),
        by_head=aggregate([
            sum(abs(heads[key][end] - heads[key][0]) for key in keys) / len(keys)
            for heads, end in zip(runs, ends, strict=True)
        ]),
    )  # fmt: skip


def _heads(
    curves: Mapping[str, Mapping[int, float]], kind: str
) -> dict[tuple[int, int], Mapping[int, float]]:
    found = {}
    for name, values in curves.items():
        parts = name.split("/")
        if len(parts) == 3 and parts[0] == kind:
            found[int(parts[1]), int(parts[2])] = values
    return found
