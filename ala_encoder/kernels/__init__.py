"""The ways to compute attention, all equal in value and gradient to `dense`.

For: softmax(scale · q k^T + bias, hidden keys out) · keep, times v. Not for: projections
(`attention`), what a mask or a bias means (`heads`, `biases`), which path is taken
(`settings.paths`).

To read: `scoring`, `visibility`, `parts` and `taken` bring the heads of a layer to their paths; the
paths are `dense`, `sdpa`, `slope`, `banded` and `flex`; `features`, `tiles`, `blocks`, `lse` and
`shifted` are what these are made of; `pruned`, `reach` and `windows` leave far keys out; `strays`
and `once` are rules for all.

One rule everywhere: a row with nothing to see gives exactly 0 with finite gradients, and padding
never leaks, not even a NaN (`attention` empties it).
"""

from ala_encoder.kernels.banded import banded_pre
from ala_encoder.kernels.dense import dense
from ala_encoder.kernels.flex import flex
from ala_encoder.kernels.parts import mix, mix_in_the_open
from ala_encoder.kernels.pruned import Pruning, pruned, watch_pruning
from ala_encoder.kernels.scoring import Scoring
from ala_encoder.kernels.sdpa import sdpa
from ala_encoder.kernels.slope import slope
from ala_encoder.kernels.visibility import Visibility, combine

__all__ = [
    "Pruning",
    "Scoring",
    "Visibility",
    "banded_pre",
    "combine",
    "dense",
    "flex",
    "mix",
    "mix_in_the_open",
    "pruned",
    "sdpa",
    "slope",
    "watch_pruning",
]
