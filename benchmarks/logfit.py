"""Sandwich, KERPLE and T5 as logarithms of the distance: the fit of Chi et al., and its figure.

    python -m benchmarks.logfit [--plot logfit.png]

Each bias b(d), less what it is at distance 0, and slope · ln(1 + d) + intercept nearest to it. Chi
et al. (arXiv 2212.10356) state −.832 and −.794 for (Sandwich − 64) / 8 over 8,192 distances.
KERPLE-log with r1 = .832, r2 = 1 is that slope's logarithm itself; T5 with 32 buckets, each of
which has the value of the logarithm at its first distance, is its stairs, up to 128 tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ala_encoder.analysis.figures import draw_log_fits
from ala_encoder.analysis.logfit import LogFit, fit_kerple_log, fit_sandwich, fit_t5
from benchmarks import harness

_SLOPE, _INTERCEPT = -0.832, -0.794
_BUCKETS, _FARTHEST = 32, 128
_SANDWICH = "(Sandwich − 64) / 8"


def fits() -> dict[str, LogFit]:
    """Return the fit of each bias, by its label."""
    line = fit_sandwich()
    of_distance = fit_t5([float(n) for n in range(_BUCKETS)], _FARTHEST, _FARTHEST + 1).values
    first = np.unique(of_distance, return_index=True)[1]
    stairs = (line.slope * np.log1p(first)).tolist()
    return {
        _SANDWICH: line,
        "KERPLE-log": fit_kerple_log(-_SLOPE, 1.0),
        "T5": fit_t5(stairs, _FARTHEST, _FARTHEST + 1),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the lines beside what is stated and draw them; a mistake is one line, exit code 2."""
    parser = harness.Parser(__doc__)
    parser.add_argument("--plot", type=Path, default=Path("logfit.png"), help="PNG that is drawn")
    given = parser.read(argv)
    found = fits()
    rows = [
        [
            label,
            f"{len(fit.values):,}",
            f"{fit.slope:.3f}",
            f"{round(fit.intercept, 3) + 0.0:.3f}",
            f"{fit.rmse:.3f}",
            f"{_SLOPE:.3f} and {_INTERCEPT:.3f}" if label == _SANDWICH else "-",
        ]
        for label, fit in found.items()
    ]
    print(harness.table(["bias", "distances", "slope", "intercept", "rmse", "stated"], rows))
    title = "biases over the distance, dashed the logarithm nearest to each"
    draw_log_fits(given.plot, title, {label: [fit] for label, fit in found.items()})
    print(f"drawn in {given.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
