"""Drawings, as PNG files that are the same byte for byte each time.

For: the loss of one run over its steps, and scores against parameter counts. Not for: which runs
and numbers are drawn (`reporting`), curves and bars of many runs (`charts`), what attention does
(`analysis.figures`). matplotlib is
imported when something is drawn.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ala_encoder.files import write_aside

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DOTS_PER_INCH = 120


@dataclass(frozen=True)
class Point:
    """One variant of a scatter: a value per seed over one abscissa."""

    label: str
    x: int
    values: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """One scatter of a figure."""

    title: str
    metric: str
    points: tuple[Point, ...]
    size: str = "encoder attention parameters"
    """What the abscissa counts."""


def draw_loss(
    path: Path, title: str, curves: Mapping[str, Sequence[tuple[int, float]]], floor: float | None
) -> None:
    """Draw curves of (step, loss in nats); `floor` is the unigram loss, a dashed line."""
    from matplotlib.ticker import MaxNLocator

    with new_figure(7.0, 4.2) as figure:
        axes = figure.add_subplot()
        for name, curve in curves.items():
            marker = "o" if name.startswith("eval") or len(curve) == 1 else ""
            steps, values = zip(*curve, strict=True)
            axes.plot(steps, values, marker=marker, markersize=4, linewidth=1.4, label=name)
        if floor is not None:
            axes.axhline(floor, color="0.4", linestyle="--", linewidth=1, label="eval_unigram_loss")
        axes.set(title=title, xlabel="step", ylabel="loss (nats per target)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend()
        save_figure(figure, path)


def draw_scores(path: Path, panels: Sequence[Panel]) -> None:
    """Draw scores against attention parameters, side by side, each mark labelled.

    A mark is the mean over seeds, its bar ± the sample standard deviation (ddof 1), and the small
    dots are the single seeds. Variants of about one size stand side by side around it.
    """
    with new_figure(7.2 * len(panels), 5.0) as figure:
        marks = [
            _scatter(figure.add_subplot(1, len(panels), number), panel)
            for number, panel in enumerate(panels, 1)
        ]
        figure.draw_without_rendering()
        for axes, placed in zip(figure.axes, marks, strict=True):
            _label(axes, placed)
        save_figure(figure, path)


class _Mark(NamedTuple):
    text: str
    x: float
    """Parameters, moved aside from variants of about the same size."""
    mean: float
    spread: float
    color: str


def _scatter(axes: Axes, panel: Panel) -> list[_Mark]:
    from matplotlib.ticker import EngFormatter

    marks = []
    for number, (point, x) in enumerate(_side_by_side(panel.points)):
        values = point.values
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        text = f"{point.label} (n={len(values)})"
        mark = _Mark(text, x, statistics.fmean(values), spread, f"C{number % 10}")
        axes.errorbar(x, mark.mean, spread or None, color=mark.color, marker="o", capsize=3)
        if spread:
            axes.plot([x] * len(values), values, ".", color=mark.color, alpha=0.5)
        marks.append(mark)
    moved = {mark.x for mark in marks} - {float(point.x) for point in panel.points}
    size = panel.size + (", about equal ones side by side" if moved else "")
    axes.set(title=panel.title, xlabel=size, ylabel=panel.metric)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.margins(0.3, 0.15)
    axes.grid(alpha=0.3)
    return marks


def _side_by_side(points: Sequence[Point]) -> Iterator[tuple[Point, float]]:
    """Yield each point, by size, with its abscissa: variants of about one size stand apart."""
    ordered = sorted(points, key=lambda point: point.x)
    apart = 0.025 * (ordered[-1].x - ordered[0].x or max(ordered[0].x, 1))
    groups: list[list[Point]] = []
    for point in ordered:
        if groups and point.x - groups[-1][0].x < apart:
            groups[-1].append(point)
        else:
            groups.append([point])
    for group in groups:
        middle = statistics.fmean([point.x for point in group])
        for number, point in enumerate(group):
            yield point, middle + apart * (number - (len(group) - 1) / 2)


def _label(axes: Axes, marks: Sequence[_Mark]) -> None:
    """Write each label at the nearest place that hides no mark and no other label."""
    from matplotlib.transforms import Bbox

    scale = _DOTS_PER_INCH / 72
    taken = []
    for mark in marks:
        x, low = axes.transData.transform((mark.x, mark.mean - mark.spread))
        high = axes.transData.transform((mark.x, mark.mean + mark.spread))[1]
        taken.append(Bbox.from_extents(x - 5, low - 7, x + 5, high + 7))
    frame = axes.get_window_extent()
    for mark in marks:
        note = axes.annotate(
            mark.text,
            (mark.x, mark.mean),
            (0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8,
            color=mark.color,
        )
        note.set_in_layout(False)
        home = note.get_window_extent()
        places = [home.translated(scale * x, scale * y) for x, y in _offsets(home.width / scale)]
        inside = [
            box
            for box in places
            if frame.fully_containsx(box.x0)
            and frame.fully_containsx(box.x1)
            and frame.fully_containsy(box.y0)
            and frame.fully_containsy(box.y1)
        ]
        best = min(inside or places, key=lambda box: sum(box.overlaps(other) for other in taken))
        note.set_position(((best.x0 - home.x0) / scale, (best.y0 - home.y0) / scale))
        taken.append(best)


def _offsets(width: float) -> list[tuple[float, float]]:
    """Return where the middle of a label may go, in points from its mark, the nearest first."""
    beside = width / 2 + 6
    spots = [
        (side * (beside + x), 11.0 * y)
        for x in range(0, 80, 8)
        for y in range(-14, 15)
        for side in (1, -1)
    ]
    spots += [(0.0, 11.0 * y) for y in range(-14, 15) if y]
    return sorted(
        spots, key=lambda spot: (max(0.0, abs(spot[0]) - beside) + abs(spot[1]), -spot[0], -spot[1])
    )


@contextmanager
def new_figure(width: float, height: float) -> Iterator[Figure]:
    """Give an empty figure with matplotlib's own defaults, whatever the user's matplotlibrc.

    width, height: in inches.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        figure = Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, aside and renamed, the same bytes for the same figure."""
    options: dict[str, Any] = {"format": "png", "metadata": {"Software": None}}
    write_aside(path, lambda aside: figure.savefig(aside, **options))
