"""Drawings of what attention does: receptive fields, locality, biases as logarithms.

For: `analyze`, from records as they stand in its files (`ReceptiveField.record`,
`Locality.record`). Not for: losses and scores of runs (`plots`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ala_encoder.plots import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ala_encoder.analysis.logfit import LogFit


class FieldCurve(NamedTuple):
    """A receptive field to be drawn."""

    label: str
    record: Mapping[str, Any]
    """Of `ReceptiveField.record`."""
    theory: int | None
    """Window x layers; None: no limit."""


def draw_receptive_fields(
    path: Path, title: str, fields: Sequence[FieldCurve], trained: int | None, threshold: float
) -> None:
    """Draw cumulative normalised gradients over the m nearest tokens, each ERF as a dot.

    trained: the training length, a dotted line; threshold: of the ERF, a dashed line; window x
    layers: a short line in the colour of the curve. Sides of an encoder are drawn apart where one
    field is all there is.
    """
    with new_figure(7.0, 4.6) as figure:
        axes = figure.add_subplot()
        longest = max(len(field.record["curve"]) for field in fields)
        for number, (label, record, theory) in enumerate(fields):
            curve, erf, color = record["curve"], record["erf_of_mean_curve"], f"C{number % 10}"
            label = f"{label}: ERF {erf:,}"
            if theory is not None:
                label += f", window x layers {theory:,}"
                if theory <= longest:
                    axes.axvline(theory, 0.9, 1.0, color=color, linestyle=":", linewidth=1.4)
            places = range(1, len(curve) + 1)
            axes.plot(places, curve, color=color, linewidth=1.4, label=label)
            axes.plot(erf, curve[erf - 1], "o", color=color, markersize=5)
            if len(fields) == 1 and "after" in record:
                for side, style in (("before", "--"), ("after", "-.")):
                    axes.plot(places, record[side], color="0.4", linestyle=style, label=side)
        axes.axhline(threshold, color="0.4", linestyle="--", linewidth=1)
        if trained is not None and trained < longest:
            axes.axvline(trained, color="0.4", linestyle=":", linewidth=1, label="training length")
        axes.set(
            title=title,
            xlabel="m: tokens at a distance below m",
            ylabel="cumulative normalised gradient",
            ylim=(0.0, 1.03),
        )
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        save_figure(figure, path)


def draw_locality(path: Path, title: str, sections: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw the expected distance of each head, gates where there are any, and by position."""
    has_gates = any("gate" in record["mean"] for record in sections.values())
    names = ["expected_distance", *(["gate"] if has_gates else [])]
    with new_figure(4.2 * (len(names) + 1), 3.6 * len(sections)) as figure:
        shape, place = (len(sections), len(names) + 1), 0
        for section, record in sections.items():
            for name in names:
                place += 1
                axes = figure.add_subplot(*shape, place)
                axes.set_title(f"{section}: {name}")
                if name in record["by_head"]:
                    _heads(axes, record["by_head"][name])
            place += 1
            axes = figure.add_subplot(*shape, place)
            values = record["by_position"]["expected_distance"]
            axes.plot(range(len(values)), _numbers(values), linewidth=1.2)
            axes.set(title="by query", xlabel="place in its document", ylabel="expected distance")
            axes.grid(alpha=0.3)
        figure.suptitle(title)
        save_figure(figure, path)


def _heads(axes: Axes, values: Sequence[Sequence[float | None]]) -> None:
    """Draw a number for each layer and head as a map of colours."""
    from matplotlib.ticker import MaxNLocator

    image = axes.imshow(_numbers(values), aspect="auto", interpolation="nearest")
    axes.set(xlabel="head", ylabel="layer")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    axes.figure.colorbar(image, ax=axes)


def draw_log_fits(path: Path, title: str, fits: Mapping[str, Sequence[LogFit]]) -> None:
    """Draw biases of each head over the logarithm of the distance, and the lines nearest to them.

    fits: by label; a head whose bias is no logarithm bends away from its dashed line.
    """
    with new_figure(7.0, 4.6) as figure:
        axes = figure.add_subplot()
        for number, (label, heads) in enumerate(fits.items()):
            for head, fit in enumerate(heads):
                places, color = np.arange(1, len(fit.values) + 1), f"C{number % 10}"
                about = f"{label}: {fit.slope:.3f} ln(1 + d) {fit.intercept:+.3f}"
                if len(heads) > 1:
                    about = f"{label}, {len(heads)} heads" if head == 0 else "_"
                axes.plot(places, fit.values, color=color, linewidth=1.2, label=about)
                axes.plot(places, fit.fitted, color=color, linestyle="--", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set(title=title, xlabel="1 + distance d", ylabel="bias, less that at distance 0")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        save_figure(figure, path)


def _numbers(values: Any) -> Any:
    return np.array(values, dtype=np.float64)  # None becomes NaN, which is left out
