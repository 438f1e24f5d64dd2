"""Distance biases as logarithms of the distance: what ties Sandwich to KERPLE and T5.

For: the fit of Chi et al. 2023 (arXiv:2212.10356) and its figure. A bias b(d), less what it is at
distance 0, is fitted by slope · ln(1 + d) + intercept over d = 0 … n − 1, by least squares. For
(sum of Sandwich's cosines − 64) / 8, d̄ = 128, over 0 … 8191: −0.832 and −0.794. Not for: biases
that depend on the token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from ala_encoder.analysis.locality import rounded
from ala_encoder.biases import Bias, KerpleLog, Sandwich, T5Bias

LENGTH = 8192


@dataclass(frozen=True, eq=False)
class LogFit:
    """A bias by distance, and the logarithm nearest to it."""

    values: NDArray[np.float64]
    """b(d) − b(0), d = 0 … n − 1."""
    slope: float
    intercept: float
    rmse: float
    """Root of the mean squared difference."""

    def record(self) -> dict[str, Any]:
        """Return the line as JSON can say it, numbers to six digits."""
        line = {"slope": self.slope, "intercept": self.intercept, "rmse": self.rmse}
        record: dict[str, Any] = rounded({"distances": len(self.values), **line})
        return record

    @property
    def fitted(self) -> NDArray[np.float64]:
        """slope · ln(1 + d) + intercept, d = 0 … n − 1."""
        return self.slope * np.log1p(np.arange(len(self.values))) + self.intercept


def fit_log(values: ArrayLike) -> LogFit:
    """Fit numbers at distances 0, 1, 2 …, at least two of them."""
    found = np.asarray(values, dtype=np.float64)
    logs = np.log1p(np.arange(len(found)))
    columns = np.stack([logs, np.ones(len(found))], 1)
    slope, intercept = np.linalg.lstsq(columns, found, rcond=None)[0]
    apart = columns @ [slope, intercept] - found
    rmse = float(np.sqrt(np.mean(apart**2)))
    return LogFit(found, float(slope), float(intercept), rmse)


def fit_bias(bias: Bias, length: int = LENGTH) -> list[LogFit]:
    """Return the fit of each head of a bias at keys 0 … length − 1 tokens before the query."""
    distances = -torch.arange(length)[None]
    where = next(bias.parameters(), distances).device
    with torch.no_grad():  # [1 or none, H, 1, length]
        values = bias(distances.to(where), torch.zeros(1, 1, 1, device=where))
    heads = values.reshape(-1, length).double().cpu().numpy()
    return [fit_log(head - head[0]) for head in heads]


def fit_sandwich(dim: int = 128, length: int = LENGTH) -> LogFit:
    """Fit (sum of the cosines − dim/2) / 8: the bias of a head whose 8n/H is 8."""
    (found,) = fit_bias(Sandwich(1, dim), length)
    return found


def fit_kerple_log(r1: float, r2: float, length: int = LENGTH) -> LogFit:
    """Fit −r1 ln(1 + r2 d)."""
    bias = KerpleLog(1)
    with torch.no_grad():
        bias.r1.fill_(r1)
        bias.r2.fill_(r2)
    (found,) = fit_bias(bias, length)
    return found


def fit_t5(table: Sequence[float], max_distance: int = 128, length: int = LENGTH) -> LogFit:
    """Fit a causal T5 bias with these numbers, one for each bucket."""
    bias = T5Bias(1, len(table), max_distance, causal=True)
    with torch.no_grad():
        bias.table.weight.copy_(torch.tensor(table)[:, None])
    (found,) = fit_bias(bias, length)
    return found


def fits_of(model: nn.Module, length: int = LENGTH) -> dict[str, list[LogFit]]:
    """Return the fits of a model's heads for each bias that is nearly a logarithm, by its name.

    A model has one of a kind: Sandwich has no parameters, KERPLE and T5 are shared by all layers.
    """
    found: dict[str, list[LogFit]] = {}
    for part in model.modules():
        for kind, cls in (("sandwich", Sandwich), ("kerple_log", KerpleLog), ("t5", T5Bias)):
            if isinstance(part, cls) and kind not in found:
                found[kind] = fit_bias(part, length)
    return found
