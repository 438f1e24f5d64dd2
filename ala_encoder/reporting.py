"""Tables over seeds, Markdown and plots of many runs; the loss plot of one.

For: `compare`, and the end of a training run. Not for: reading runs (`records`), drawing (`plots`),
or paired differences between variants.

Only finished runs are averaged, and of two runs of one variant and seed only the newest; whatever
is left out is listed with its reason. ± is the sample standard deviation over seeds (ddof 1).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ala_encoder.errors import UserError, nearest
from ala_encoder.metrics import METRICS
from ala_encoder.plots import Panel, Point, draw_loss, draw_scores
from ala_encoder.records import (
    Record,
    RunSummary,
    final_records,
    find_folders,
    read_folder,
    read_mlflow,
    tidy,
)

_SPLITS = ("test", "test_matched", "test_mismatched", "eval", "eval_matched", "eval_mismatched")
_OFFICIAL = tuple(f"{split}_{name}" for split in _SPLITS for name in METRICS)
_PLOTTED = (*_OFFICIAL, "eval_loss")
_ORDER = (*_OFFICIAL, "test_loss", "eval_loss", "eval_unigram_loss", "eval_perplexity")
Floors = Mapping[str, Mapping[str, float]]
"""Data name → score → the value that a simple baseline reaches."""
_REASONS = {
    "FAILED": "it failed",
    "KILLED": "it was stopped",
    "UNSCORED": "it ended before its final scores",
    "RUNNING": "it has no last word: still running, or its process was killed",
}


@dataclass(frozen=True)
class Row:
    """One variant: its sizes, and each score by seed."""

    variant: str
    pretrained: bool
    parameters: Mapping[str, int]
    runs: tuple[RunSummary, ...]
    """The runs averaged, by seed."""

    def values(self, metric: str) -> tuple[float, ...]:
        """Return a score's values by seed, of the runs that have it."""
        return tuple(run.scores[metric] for run in self.runs if metric in run.scores)


@dataclass(frozen=True)
class Table:
    """The variants on one task and data set."""

    task: str
    data_name: str
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]
    """One sentence a run or score that is not averaged."""


# ---- tables


def tables(summaries: Sequence[RunSummary]) -> list[Table]:
    """Return a table for each task and data set among the runs, in that order."""
    keys = sorted({(run.task, run.data_name) for run in summaries})
    return [table(summaries, task, data_name) for task, data_name in keys]


def table(summaries: Sequence[RunSummary], task: str, data_name: str) -> Table:
    """Return the table of a task and data set: a row for each variant, size and start.

    Rows are sorted by encoder attention parameters, the largest first, then by name. Of runs that
    started at an unknown time the first given counts as the newest.
    """
    groups: dict[tuple[object, ...], dict[int, RunSummary]] = {}
    left_out = []
    mine = [run for run in summaries if (run.task, run.data_name) == (task, data_name)]
    for run in sorted(mine, key=lambda run: -run.started):
        if run.status != "FINISHED":
            left_out.append(f"{run.run}: {_REASONS.get(run.status, run.status)}")
            continue
        left_out += [f"{run.run}: its {name} was not finite" for name in run.nonfinite]
        sizes = tuple(sorted(run.parameters.items()))
        seeds = groups.setdefault((run.variant, run.pretrained_run is not None, sizes), {})
        kept = seeds.setdefault(run.seed, run)
        if kept is not run:
            left_out.append(
                f"{run.run}: variant {run.variant}, seed {run.seed} again; the newest counts"
            )
    rows = [_row(list(seeds.values())) for seeds in groups.values()]
    rows.sort(
        key=lambda row: (
            -row.parameters.get("encoder_attention", 0),
            row.variant,
            row.pretrained,
            row.parameters.get("total", 0),
        )
    )
    names = {name for row in rows for run in row.runs for name in run.scores}
    return Table(task, data_name, _ordered(names), tuple(rows), tuple(sorted(left_out)))


def _row(runs: Sequence[RunSummary]) -> Row:
    runs = sorted(runs, key=lambda run: run.seed)
    first = runs[0]
    return Row(first.variant, first.pretrained_run is not None, first.parameters, tuple(runs))


def _ordered(names: Iterable[str]) -> tuple[str, ...]:
    known = {name: place for place, name in enumerate(_ORDER)}
    return tuple(sorted(names, key=lambda name: (known.get(name, len(known)), name)))


# ---- Markdown


def render_markdown(
    found: Sequence[Table],
    plot: str | None,
    floors: Floors | None = None,
    floors_source: str | None = None,
) -> str:
    """Return the report: the summary, a section a table, then the plot when there is one.

    Raises UserError for a floor of data or a score that the summary does not have.
    """
    lines = ["# Comparison", "", *_summary(found, floors or {}, floors_source)]
    for item in found:
        lines += _section(item)
    if plot is not None:
        lines += [f"![scores against encoder attention parameters]({plot})", ""]
    return "\n".join(lines).rstrip() + "\n"


def _summary(found: Sequence[Table], floors: Floors, source: str | None) -> list[str]:
    """Return one table of all runs: a row for each row of `found` and each of its main scores."""
    shown = [(item, name) for item in found for name in _main(item)]
    _check_floors(floors, shown)
    if not shown:
        return []
    starts = len({row.pretrained for item in found for row in item.rows}) > 1
    words = ["task", "data", "variant", *(["start"] if starts else []), "metric"]
    numbers = ["n", "median", "mean", "sd", *(["floor"] if floors else [])]
    body = []
    for item, name in shown:
        digits = _digits(item, name)
        floor = floors.get(item.data_name, {}).get(name)
        for row in item.rows:
            values = row.values(name)
            if not values:
                continue
            start = [_start(row)] if starts else []
            n = str(len(values)) + f" of {len(row.runs)}" * (len(values) < len(row.runs))
            spread = statistics.stdev(values) if len(values) > 1 else None
            figures = [statistics.median(values), statistics.fmean(values), spread]
            figures += [floor] if floors else []
            cells = ["-" if value is None else f"{value:.{digits}f}" for value in figures]
            body.append([item.task, item.data_name, row.variant, *start, name, n, *cells])
    text = "Over n seeds; sd is the sample standard deviation (ddof 1)."
    if floors:
        text += f" Floor: {source or 'given by the settings'}."
    return ["## Summary", "", text, "", *_pipes([*words, *numbers], body, len(words)), ""]


def _main(item: Table) -> list[str]:
    """Return the official scores of a table; of a language model its loss."""
    official = [name for name in item.metrics if name in _OFFICIAL]
    return official or [name for name in item.metrics if name == "eval_loss"]


def _check_floors(floors: Floors, shown: Sequence[tuple[Table, str]]) -> None:
    known: dict[str, list[str]] = {}
    for item, name in shown:
        known.setdefault(item.data_name, []).append(name)
    for data, values in floors.items():
        if data not in known:
            raise UserError(
                f"floors.{data}: no finished run has this data; there are "
                f"{', '.join(known) or 'none'}{nearest(data, known)}"
            )
        for name in values:
            if name not in known[data]:
                raise UserError(
                    f"floors.{data}.{name}: no such score in the summary; there are "
                    f"{', '.join(known[data])}{nearest(name, known[data])}"
                )


def _section(item: Table) -> list[str]:
    lines = [f"## {item.task} on {item.data_name}", "", _caption(item), ""]
    if item.rows:
        lines += [*_grid(item), ""]
    if item.left_out:
        lines += ["Not averaged:", "", *(f"- {text}" for text in item.left_out), ""]
    return lines


def _caption(item: Table) -> str:
    data = f"Data: {item.data_name}"
    if "generated" in item.data_name.lower():
        data += ", a generated data set: its scores do not compare with published ones"
    text = f"{data}. Mean ± sample standard deviation (ddof 1) over n seeds; {_units(item)}."
    runs = [run for row in item.rows for run in row.runs]
    taken = []
    for split in sorted({split for run in runs for split in run.counts}):
        sizes = sorted({run.counts[split] for run in runs if split in run.counts})
        size = " to ".join(f"{number:,}" for number in dict.fromkeys((sizes[0], sizes[-1])))
        taken.append(f"{split} {size} {'targets' if item.task == 'mlm' else 'examples'}")
    return f"{text} Scores taken over: {', '.join(taken)}." if taken else text


def _units(item: Table) -> str:
    names = {name.partition("_")[2] for name in item.metrics}
    if names & {"pearson", "spearmanr"}:
        return "losses are mean squared errors"
    return "losses in nats" + ", perplexity per target piece" * ("perplexity" in names)


def _start(row: Row) -> str:
    return "pretrained" if row.pretrained else "scratch"


def _grid(item: Table) -> list[str]:
    starts = len({row.pretrained for row in item.rows}) > 1
    head = [
        "variant",
        *(["start"] if starts else []),
        "n",
        "seeds",
        "encoder attention",
        "Q/K groups",
        "total",
        *item.metrics,
    ]
    digits = {name: _digits(item, name) for name in item.metrics}
    body = []
    for row in item.rows:
        start = [_start(row)] if starts else []
        sizes = [
            f"{row.parameters[name]:,}" if name in row.parameters else "-"
            for name in ("encoder_attention", "qk_groups", "total")
        ]
        seeds = ", ".join(str(run.seed) for run in row.runs)
        cells = [_cell(row, name, digits[name]) for name in item.metrics]
        body.append([row.variant, *start, str(len(row.runs)), seeds, *sizes, *cells])
    return _pipes(head, body, 2 if starts else 1)


def _pipes(head: Sequence[str], body: Sequence[Sequence[str]], texts: int) -> list[str]:
    """Return the lines of a Markdown table, padded so that it reads as plain text too.

    The first `texts` columns are words and stand left, those of numbers right.
    """
    widths = [max(3, *map(len, column)) for column in zip(head, *body, strict=True)]
    rule = [":" + "-" * (w - 1) if i < texts else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return [
        "| "
        + " | ".join(
            cell.ljust(width) if number < texts else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        + " |"
        for cells in (head, rule, *body)
    ]


def _digits(item: Table, metric: str) -> int:
    largest = max(abs(value) for row in item.rows for value in row.values(metric))
    return 4 if largest < 10 else 2 if largest < 1000 else 1


def _cell(row: Row, metric: str, digits: int) -> str:
    values = row.values(metric)
    if not values:
        return "-"
    text = f"{statistics.fmean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.{digits}f}"
    return text if len(values) == len(row.runs) else f"{text} (n={len(values)})"


# ---- plots


def plot_scores(path: Path, found: Sequence[Table], metric: str | None = None) -> bool:
    """Draw a score against encoder attention parameters, a panel a table; False: nothing to draw.

    metric: None takes the first of the official scores, eval_loss, then any other score, that all
    averaged runs of the table have. Raises UserError when there is none, and for a metric
    no run has.
    """
    filled = [item for item in found if item.rows]
    if metric is not None:
        names = sorted({name for item in filled for name in item.metrics})
        if filled and metric not in names:
            raise UserError(
                f"metric = {metric!r}: no run has it; there are {', '.join(names) or 'none'}"
                + nearest(metric, names)
            )
        filled = [item for item in filled if metric in item.metrics]
    panels = [_panel(item, metric or _shared(item)) for item in filled]
    if panels:
        draw_scores(path, panels)
    return bool(panels)


def _shared(item: Table) -> str:
    runs = [run for row in item.rows for run in row.runs]
    shared = set.intersection(*(set(run.scores) for run in runs))
    for name in (*_PLOTTED, *_ordered(shared)):
        if name in shared:
            return name
    raise UserError(
        f"task {item.task} on {item.data_name}: its {len(runs)} runs share no metric; "
        "name fewer runs"
    )


def _panel(item: Table, metric: str) -> Panel:
    starts = len({row.pretrained for row in item.rows}) > 1
    points = []
    for row in item.rows:
        if values := row.values(metric):
            start = f", {_start(row)}" if starts else ""
            size = row.parameters.get("encoder_attention", 0)
            points.append(Point(f"{row.variant}{start}", size, values))
    return Panel(f"{item.task} on {item.data_name}", metric, tuple(points))


def plot_run(folder: Path) -> Path | None:
    """Draw loss and eval_loss over the steps of a run as `folder/loss.png`; None without a loss.

    Raises UserError as `read_folder` does.
    """
    folder = Path(folder)
    summary, records = read_folder(folder)
    curves = {
        name: [
            (r.step, r.value)
            for r in records
            if r.metric == name and not r.final and r.step is not None
        ]
        for name in ("loss", "eval_loss")
    }
    curves = {name: curve for name, curve in curves.items() if curve}
    if not curves:
        return None
    floor = summary.scores.get("eval_unigram_loss")
    draw_loss(folder / "loss.png", f"{summary.run} on {summary.data_name}", curves, floor)
    return folder / "loss.png"


__all__ = [
    "Record",
    "Row",
    "RunSummary",
    "Table",
    "final_records",
    "find_folders",
    "plot_run",
    "plot_scores",
    "read_folder",
    "read_mlflow",
    "render_markdown",
    "table",
    "tables",
    "tidy",
]
