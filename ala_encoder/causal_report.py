"""The part of a comparison that causal language models have: runs, tests, locality, lengths.

For: `compare`: the lines behind a table of the report, its plots and its records. Not for: the
numbers (`analysis.seeds`, `.findings`, `.lengths`), their words (`causal_markdown`), other reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from ala_encoder import causal_markdown as words
from ala_encoder.analysis.figures import FieldCurve, draw_receptive_fields
from ala_encoder.analysis.findings import (
    Fields,
    Localities,
    as_there,
    fields,
    localities,
    own_text,
    records_of,
    untold,
    without,
)
from ala_encoder.analysis.lengths import LengthTable, length_tables
from ala_encoder.analysis.seeds import (
    Points,
    baseline_row,
    curve,
    is_tested_over_seeds,
    learned,
    points_of,
    seed_tests,
)
from ala_encoder.analysis.statistics import aggregate
from ala_encoder.charts import Bars, Line, Lines, draw_bars, draw_lines
from ala_encoder.records import SPEED, Record, RunSummary
from ala_encoder.reporting import Row, Table

PLOTS = ("curves", "bars", "lengths", "receptive_fields")
"""Names of the plots, the first of a kind as NAME.png, another as NAME-2.png."""
_CURVES = {
    "eval_loss": "loss (nats per token)",
    "eval_perplexity": "perplexity",
    "eval_bits_per_token": "bits per token",
    "eval_top1": "top-1",
    "eval_top5": "top-5",
}
_BARS = {
    "eval_perplexity": "perplexity",
    "eval_gate": "mean gate",
    SPEED: "training tokens a second",
}


@dataclass
class Part:
    """What is added to a report."""

    lines: list[str] = field(default_factory=list)
    drawings: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    """File name → what draws it."""
    records: list[Record] = field(default_factory=list)

    def plot(self, kind: str, alt: str, draw: Callable[[Path], None]) -> None:
        """Add a plot behind the lines."""
        assert kind in PLOTS, kind
        number = 1 + sum(name.startswith(kind) for name in self.drawings)
        name = f"{kind}{f'-{number}' if number > 1 else ''}.png"
        self.drawings[name] = draw
        self.lines += [f"![{alt}]({name})", ""]


def parts(
    items: Sequence[Table],
    read: Sequence[tuple[RunSummary, Sequence[Record]]],
    baseline: str | None,
    output: Path,
) -> tuple[dict[tuple[str, str], list[str]], Part]:
    """Return the lines behind each table, by task and data, and all plots and records.

    Of causal language models there is everything, of other tables the paired tests over seeds where
    they have the baseline (translations are tested elsewhere). output: where the report goes.
    Raises UserError for a file of a run that cannot be read.
    """
    points = points_of({run.folder: some for run, some in read if run.folder is not None})
    lines: dict[tuple[str, str], list[str]] = {}
    whole = Part()
    for item in items:
        whole.lines = lines[item.task, item.data_name] = words.other_targets(item)
        is_tested = baseline is not None and is_tested_over_seeds(item.task)
        if item.task == "clm" and item.rows:
            _causal(item, points, baseline, output, whole)
        elif is_tested and (base := baseline_row(item, baseline or "")):
            whole.lines += words.tests(item.unique(base), seed_tests(item, base))
    return lines, whole


def _causal(item: Table, points: Points, baseline: str | None, output: Path, part: Part) -> None:
    found, measured = localities(item), fields(item)
    own, like = own_text(found), as_there(own_text(found), own_text(measured))
    lengths, left_out = length_tables([run for row in item.rows for run in row.runs])
    part.lines += words.other_lengths(item)
    part.lines += words.runs(item)
    if any(run.folder is None for row in item.rows for run in row.runs):
        part.lines += [
            "Curves, locality and lengths are read from run folders, given as `runs`.",
            "",
        ]
    tested = [item, *([] if own is None else [own.table])]
    part.lines += _tests(item, tested, baseline)
    if panels := _curves(item, points):
        alt = "scores over steps, mean and spread over seeds"
        part.plot("curves", alt, partial(draw_lines, panels=panels))
    part.lines += words.localities(found)
    part.lines += words.tested_text(found, own)
    part.lines += words.missing("locality", without(item, "locality.json"), output, like)
    part.lines += words.left_out("told on which text", untold(item))
    alt = "means of the variants, with their standard deviation over seeds"
    part.plot("bars", alt, partial(draw_bars, panels=_bars(item, own)))
    for row in item.rows:
        for kind in ("gate", "alpha"):
            if seen := learned(row, points, kind):
                part.lines += words.learned(item.unique(row), kind, seen)
    for table in lengths:
        part.lines += words.lengths(table, item)
    part.lines += words.left_out("in a table by length", left_out)
    if lengths:
        panels = [_length_lines(one, item) for one in lengths]
        part.plot("lengths", "perplexity over length", partial(draw_lines, panels=panels))
    for group in measured:
        part.lines += words.fields(group, item)
        _draw_fields(group, item, part)
    part.lines += words.missing(
        "receptive field", without(item, "receptive_field.json"), output, like
    )
    part.records += [*records_of(found, measured), *(r for one in lengths for r in one.records())]


def _tests(item: Table, tested: Sequence[Table], baseline: str | None) -> list[str]:
    if len(item.rows) < 2:
        return []
    if baseline is None:
        return ["No paired tests over seeds: `baseline=VARIANT` names what to test against.", ""]
    own = baseline_row(item, baseline)
    if own is None:
        return [f"No paired tests over seeds: no run here is of {baseline}.", ""]
    bases = [(one, _same_row(one, own)) for one in tested]
    found = [test for one, base in bases if base for test in seed_tests(one, base)]
    return words.tests(item.unique(own), found)


def _same_row(item: Table, row: Row) -> Row | None:
    """Return the row of a table with some of the runs of another table's row."""
    folders = {run.folder for run in row.runs}
    return next((one for one in item.rows if folders & {run.folder for run in one.runs}), None)


def draw(part: Part, output: Path) -> None:
    """Draw all plots into a folder, and remove those of an earlier report that has more."""
    for name, into in part.drawings.items():
        into(output / name)
    for kind in PLOTS:
        for path in [output / f"{kind}.png", *output.glob(f"{kind}-[0-9]*.png")]:
            if path.name not in part.drawings:
                path.unlink(missing_ok=True)


# ---- plots


def _curves(item: Table, points: Points) -> list[Lines]:
    panels = []
    for metric, title in _CURVES.items():
        lines = tuple(_over_steps(item.unique(row), row, points, metric) for row in item.rows)
        if any(line.x for line in lines):
            is_log = metric == "eval_perplexity"
            panels.append(Lines(title, "step", title, lines, log_y=is_log))
    return panels


def _over_steps(label: str, row: Row, points: Points, metric: str) -> Line:
    found = curve(label, row, points, metric)
    if found is None:
        return Line(label, (), (), ())
    means = tuple(one.mean or 0.0 for one in found.values)  # points are finite
    return Line(label, tuple(map(float, found.steps)), means, tuple(o.sd for o in found.values))


def _bars(item: Table, found: Localities | None) -> list[Bars]:
    """Return a panel for each number; found: on the text that is drawn."""
    labels = [item.unique(row) for row in item.rows]
    own = {item.unique(row): row for row in item.rows}
    panels = [_panel(labels, own, metric, title) for metric, title in _BARS.items()]
    if found is not None:
        same = [(item.unique(row), _same_row(found.table, row)) for row in item.rows]
        local = {label: row for label, row in same if row is not None}
        names = [name for name in found.table.metrics if name not in ("gate", "weight")]
        panels += [_panel(labels, local, name, name.replace("_", " ")) for name in names]
    sizes = [(label, float(own[label].parameters.get("total", 0)), None) for label in labels]
    panels.append(Bars("parameters", tuple(sizes)))
    return [panel for panel in panels if any(mean is not None for _, mean, _ in panel.bars)]


def _panel(labels: Sequence[str], rows: Mapping[str, Row], metric: str, title: str) -> Bars:
    found = [
        (label, aggregate(rows[label].values(metric) if label in rows else ())) for label in labels
    ]
    return Bars(title, tuple((label, one.mean, one.sd) for label, one in found))


def _length_lines(table: LengthTable, item: Table) -> Lines:
    lines: list[Line] = []
    scored = {model.run.folder: model for model in table.runs}
    for row in item.rows:
        models = [scored[run.folder] for run in row.runs if run.folder in scored]
        points = {}
        for length in table.lengths:
            values = [
                None if (at := model.at(length)) is None else at.perplexity for model in models
            ]
            found = aggregate(np.array(values, dtype=np.float64))  # None becomes NaN
            if found.mean is not None:
                points[float(length)] = (found.mean, found.sd)
        means, spreads = zip(*points.values(), strict=True) if points else ((), ())
        lines.append(Line(item.unique(row), tuple(points), means, spreads))
    all_means = [y for line in lines for y in line.y]
    trained = {model.trained for model in table.runs if model.trained is not None}
    return Lines(
        title=f"{table.name}: {table.about}",
        xlabel="tokens before the target" if table.is_fixed else "tokens of a window",
        ylabel="perplexity",
        lines=tuple(lines),
        log_x=True,
        log_y=bool(all_means) and max(all_means) > 3 * min(all_means),
        marks=tuple(sorted(trained)),
    )


def _draw_fields(group: Fields, item: Table, part: Part) -> None:
    shared = set.intersection(*({one.length for one in some} for _, _, some in group.runs))
    if not shared:
        return
    length = max(shared)
    labels = words.labels(item)
    drawn = [
        FieldCurve(
            labels[run.folder], next(one.record for one in some if one.length == length), limit
        )
        for run, limit, some in group.runs
    ]
    told = {run.settings.get("data.length") for run, _, _ in group.runs}
    (trained,) = told if len(told) == 1 else (None,)
    title = f"receptive fields in {length:,} tokens"
    draw = partial(
        draw_receptive_fields, title=title, fields=drawn,
        trained=int(trained) if trained else None, threshold=group.threshold,
    )  # fmt: skip
    part.plot("receptive_fields", f"cumulative normalised gradient in {length:,} tokens", draw)
