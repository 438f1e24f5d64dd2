"""Lines and bars of many runs, as PNG files that are the same byte for byte each time.

For: scores over steps or lengths with their spread, and means of variants side by side. Not for:
which numbers these are (`causal_report`), scores against parameters (`plots`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ala_encoder.plots import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Line:
    """Means over an abscissa, each with its spread where there is one."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    sd: tuple[float | None, ...]
    """Their standard deviations, or what the label says."""


@dataclass(frozen=True)
class Lines:
    """One panel of lines; a line has the colour of its place, so an empty one keeps its own.

    All panels of a figure have the same labels in the same order.
    """

    title: str
    xlabel: str
    ylabel: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False
    marks: tuple[int, ...] = ()
    """Dotted upright lines, such as the training length."""


@dataclass(frozen=True)
class Bars:
    """One panel of bars: by label a mean and a standard deviation; a mean of None is a gap."""

    title: str
    bars: tuple[tuple[str, float | None, float | None], ...]


def draw_lines(path: Path, panels: Sequence[Lines]) -> None:
    """Draw panels, three in a row at most; the band around a line is ± its spread."""
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    with new_figure(max(6.4, 4.6 * columns), max(4.4, 3.6 * rows)) as figure:
        for place, panel in enumerate(panels, 1):
            _lines(figure.add_subplot(rows, columns, place), panel)
        # a line may be in one panel and not in another
        lines = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
        named = [line.label for line in panels[0].lines if line.label in lines]
        handles = [lines[label] for label in named]
        figure.legend(handles, named, loc="outside lower center", ncols=min(5, len(named)),
                      fontsize=8)  # fmt: skip
        save_figure(figure, path)


def _lines(axes: Axes, panel: Lines) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set(title=panel.title, xlabel=panel.xlabel, ylabel=panel.ylabel)
    if panel.log_x:
        axes.set_xscale("log", base=2)
    if panel.log_y:
        axes.set_yscale("log")
    for number, line in enumerate(panel.lines):
        if not line.x:
            continue
        color, marker = f"C{number % 10}", "o" if len(line.x) < 12 else ""
        # ten colours are there, and the next ten lines are dashed
        style = "-" if number < 10 else "--"
        axes.plot(line.x, line.y, style, color=color, marker=marker, markersize=3.5,
                  linewidth=1.4, label=line.label)  # fmt: skip
        sd = [value or 0.0 for value in line.sd]
        if any(sd):
            low = [y - s for y, s in zip(line.y, sd, strict=True)]
            high = [y + s for y, s in zip(line.y, sd, strict=True)]
            axes.fill_between(line.x, low, high, color=color, alpha=0.2, linewidth=0)
    for mark in panel.marks:
        axes.axvline(mark, color="0.4", linestyle=":", linewidth=1)
    if panel.log_x:
        places = sorted({x for line in panel.lines for x in line.x})
        axes.xaxis.set_major_locator(FixedLocator(places))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.grid(alpha=0.3)


def draw_bars(path: Path, panels: Sequence[Bars]) -> None:
    """Draw panels, four in a row at most; the mark on a bar is ± one standard deviation."""
    columns = min(4, len(panels))
    rows = math.ceil(len(panels) / columns)
    with new_figure(max(5.0, 3.2 * columns), 3.4 * rows) as figure:
        for place, panel in enumerate(panels, 1):
            axes = figure.add_subplot(rows, columns, place)
            axes.set_title(panel.title, fontsize=10)
            for number, (_, mean, sd) in enumerate(panel.bars):
                if mean is not None:
                    axes.bar(number, mean, 0.7, yerr=sd, capsize=3, color=f"C{number % 10}")
            labels = [label for label, _, _ in panel.bars]
            axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right", fontsize=8)
            axes.set_xlim(-0.6, len(labels) - 0.4)
            axes.set_axisbelow(True)
            axes.grid(axis="y", alpha=0.3)
        save_figure(figure, path)
