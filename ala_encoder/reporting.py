"""Tables over seeds and plots of many runs; the loss plot of one.

For: `compare`, and the end of a training run. Not for: reading runs (`records`), drawing (`plots`),
the report's text (`markdown`), or paired differences between variants.

Only finished runs are averaged, and of two runs of one variant and seed only the newest; whatever
is left out is listed with its reason. ± is the sample standard deviation over seeds (ddof 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ala_encoder.errors import UserError, cut, nearest
from ala_encoder.glue import TASKS, prefix_of
from ala_encoder.metrics import METRICS
from ala_encoder.plots import Panel, Point, draw_loss
from ala_encoder.records import RunSummary, read_folder

_PREFIXES = {
    kind: tuple(dict.fromkeys(prefix_of(s) for t in TASKS.values() for s in t.splits_of(kind)))
    for kind in ("test", "dev")
}
"""Of the scores of every split there is."""
OFFICIAL = (
    *(f"{prefix}_{name}" for some in _PREFIXES.values() for prefix in some for name in METRICS),
    "test_bleu",
    "eval_bleu",
)
"""The official scores of GLUE and translation, in the order of the tables."""
_PLOTTED = (*OFFICIAL, "eval_loss")
_ORDER = (
    *(*OFFICIAL, "test_loss", "eval_loss", "eval_unigram_loss", "eval_perplexity"),
    *("eval_bits_per_token", "eval_bits_per_byte", "eval_word_perplexity"),
    *("eval_top1", "eval_top5", "eval_gate"),
)
_REASONS = {
    "FAILED": "it failed",
    "KILLED": "it was stopped",
    "UNSCORED": "it ended before its final scores",
    "RUNNING": "it has no last word: still running, or its process was killed",
}


_SCRATCH = "scratch"


@dataclass(frozen=True)
class Row:
    """One variant: its sizes, and each score by seed."""

    variant: str
    start: str
    """What the weights were at first: scratch, masked_lm, …"""
    parameters: Mapping[str, int]
    runs: tuple[RunSummary, ...]
    """The runs averaged, by seed."""

    @property
    def attention(self) -> int:
        """Return the attention parameters of the encoder, or of a model that has none."""
        sizes = self.parameters
        return sizes.get("encoder_attention", sizes.get("decoder_attention", 0))

    def values(self, metric: str) -> tuple[float, ...]:
        """Return a score's values by seed, of the runs that have it."""
        return tuple(run.scores[metric] for run in self.runs if metric in run.scores)

    def differing(self) -> dict[str, list[str]]:
        """Return the settings that all its runs state, but not alike, with their values."""
        names = sorted(set.intersection(*(set(run.settings) for run in self.runs)))
        found = {name: {run.settings[name] for run in self.runs} for name in names}
        return {
            name: sorted(cut(" ".join(value.split()), 40) for value in values)
            for name, values in found.items()
            if len(values) > 1
        }


@dataclass(frozen=True)
class Table:
    """The variants on one task and data set."""

    task: str
    data_name: str
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]
    """One sentence a run or score that is not averaged."""

    @property
    def attention(self) -> str:
        """Return whose attention is counted: `encoder attention`, or that of a decoder alone."""
        sizes = [row.parameters for row in self.rows]
        alone = any("decoder_attention" in size for size in sizes)
        is_decoder = alone and not any("encoder_attention" in size for size in sizes)
        return f"{'decoder' if is_decoder else 'encoder'} attention"

    def named(self, row: Row) -> str:
        """Return the variant of a row, with its start where that matters."""
        return f"{row.variant}, {row.start}" if start_matters(self.rows) else row.variant

    def unique(self, row: Row) -> str:
        """Return the same, with its parameters where another row has that name too."""
        name = self.named(row)
        alike = sum(self.named(other) == name for other in self.rows)
        return name if alike == 1 else f"{name}, {row.parameters.get('total', 0):,} parameters"


def start_matters(rows: Iterable[Row]) -> bool:
    """Tell whether the variants started from different things."""
    return len({row.start for row in rows}) > 1


# ---- tables


def tables(summaries: Sequence[RunSummary]) -> list[Table]:
    """Return a table for each task and data set among the runs, in that order.

    Data of one name but of several held-out texts is told apart by the texts' digests.
    """
    summaries = _told_apart(summaries)
    keys = sorted({(run.task, run.data_name) for run in summaries})
    return [table(summaries, task, data_name) for task, data_name in keys]


def _told_apart(summaries: Sequence[RunSummary]) -> list[RunSummary]:
    texts: dict[tuple[str, str], set[str]] = {}
    for run in summaries:
        if run.held_out_text:
            texts.setdefault((run.task, run.data_name), set()).add(run.held_out_text)
    return [
        replace(run, data_name=f"{run.data_name} [{run.held_out_text[:8]}]")
        if run.held_out_text and len(texts[run.task, run.data_name]) > 1
        else run
        for run in summaries
    ]


def table(summaries: Sequence[RunSummary], task: str, data_name: str) -> Table:
    """Return the table of a task and data set: a row for each variant, size and start.

    Rows are sorted by attention parameters, the largest first, then by name. Of runs that
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
        seeds = groups.setdefault((run.variant, _start(run), sizes), {})
        kept = seeds.setdefault(run.seed, run)
        if kept is not run:
            left_out.append(
                f"{run.run}: variant {run.variant}, seed {run.seed} again; the newest counts"
            )
    rows = [_row(list(seeds.values())) for seeds in groups.values()]
    rows.sort(
        key=lambda row: (
            -row.attention,
            row.variant,
            row.start != _SCRATCH,
            row.start,
            row.parameters.get("total", 0),
        )
    )
    names = {name for row in rows for run in row.runs for name in run.scores}
    return Table(task, data_name, _ordered(names), tuple(rows), tuple(sorted(left_out)))


def _row(runs: Sequence[RunSummary]) -> Row:
    runs = sorted(runs, key=lambda run: run.seed)
    first = runs[0]
    return Row(first.variant, _start(first), first.parameters, tuple(runs))


def _start(run: RunSummary) -> str:
    return _SCRATCH if run.pretrained_run is None else run.pretrained_kind or "pretrained"


def _ordered(names: Iterable[str]) -> tuple[str, ...]:
    known = {name: place for place, name in enumerate(_ORDER)}
    return tuple(sorted(names, key=lambda name: (known.get(name, len(known)), name)))


# ---- plots


def panels(found: Sequence[Table], metric: str | None = None) -> list[Panel]:
    """Return a score against attention parameters, a panel a table that has rows.

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
    return [_panel(item, metric or _shared(item)) for item in filled]


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
    points = [
        Point(item.named(row), row.attention, values)
        for row in item.rows
        if (values := row.values(metric))
    ]
    size = f"{item.attention} parameters"
    return Panel(f"{item.task} on {item.data_name}", metric, tuple(points), size)


def plot_run(folder: Path) -> Path | None:
    """Draw the losses in training and on dev over the steps of a run; None without a loss.

    Returns `folder/loss.png`, whose dev loss is of the split that steers the training.
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
        for name in ("loss", *(f"{prefix}_loss" for prefix in _PREFIXES["dev"]))
    }
    curves = {name: curve for name, curve in curves.items() if curve}
    if not curves:
        return None
    floor = summary.scores.get("eval_unigram_loss")
    draw_loss(folder / "loss.png", f"{summary.run} on {summary.data_name}", curves, floor)
    return folder / "loss.png"
