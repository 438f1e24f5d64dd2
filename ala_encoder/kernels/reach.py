"""How far a query has to look: bounds on what the keys beyond a distance can weigh (ours).

For: scores s_ij = q_i·k_j/sqrt(d) − a_i |i − j|, before most of them are computed. For any centre c

    q_i·k_j <= q_i·c + |q_i| max_j |k_j − c|    (Cauchy-Schwarz)

Divided by sqrt(d) the right side is u_i; c is the mean key, since what all keys have in common
makes none of them weigh more. So n keys at the distances D, D + 1, … add up to

    sum exp(s_ij) <= exp(u_i − a_i D) · min(n, 1 / (1 − exp(−a_i)))    (a geometric series)

which is x_i when divided by Z_i, the sum of exp(s_ij) over the keys that are computed. Without the
n keys, whose sum is S <= x_i Z_i, a row loses the weight delta_i = S / (Z_i + S), that is at most
x_i / (1 + x_i). Its output is (1 − delta_i) out'_i + delta_i r_i, with out'_i computed without them
and r_i a mean of their values, so for any c

    |out_i − out'_i| = delta_i |r_i − out'_i| <= delta_i (max_j |v_j − c| + |out'_i − c|).

All this holds up to the rounding of the scores. Not for: the computing itself (`pruned`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BEYOND = 2.0**40
"""A distance longer than any text."""


def mean_key(k: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the mean c of the real keys [B, H, 1, d], and k_j − c, 0 at padding [B, H, T, d].

    real: bool [B, T], None: all.
    """
    if real is None:
        centre = k.mean(2, keepdim=True)
        return centre, k - centre
    is_real = real[:, None, :, None]
    centre = (k * is_real).sum(2, keepdim=True) / is_real.sum(2, keepdim=True).clamp(min=1)
    return centre, (k - centre) * is_real


def highest(q: Tensor, centre: Tensor, away: Tensor) -> Tensor:
    """Return u_i >= q_i·k_j/sqrt(d) for all keys: [B, H, Q]; centre, away: of `mean_key`."""
    length, longest = (torch.linalg.vector_norm(x, dim=-1) for x in (q, away))
    bound = (q @ centre.transpose(2, 3))[..., 0] + length * longest.amax(2, keepdim=True)
    return bound * q.shape[-1] ** -0.5  # type: ignore[no-any-return]


def typical(q: Tensor, centre: Tensor, away: Tensor) -> Tensor:
    """Return roughly log mean_j exp(q_i·k_j/sqrt(d)): [B, H, Q], exact if scores were normal.

    Their mean, and half of their variance.
    """
    scale = q.shape[-1] ** -0.5
    covariance = away.transpose(2, 3) @ away / away.shape[2]
    variance = ((q @ covariance) * q).sum(-1) * scale**2
    return (q @ centre.transpose(2, 3))[..., 0] * scale + variance / 2  # type: ignore[no-any-return]


def series(slopes: Tensor) -> Tensor:
    """Return log(1 / (1 − exp(−a))): infinity for a = 0."""
    return -torch.log(-torch.expm1(-slopes))


def decay(slopes: Tensor, count: Tensor) -> Tensor:
    """Return log sum exp(−a D) over D = 0, …, count − 1."""
    slopes = slopes.clamp(min=2.0**-24)  # 0 would be infinity less infinity
    return series(slopes) - series(slopes * count)


def distance(ratio: Tensor, slopes: Tensor, share: float) -> Tensor:
    """Return D beyond which x_i <= `share` however many keys there are; ratio: u_i − log Z_i."""
    found = (ratio + series(slopes) - math.log(share)) / slopes.clamp(min=1e-30)
    return found.clamp(max=_BEYOND).nan_to_num(_BEYOND)


def lost(ratio: Tensor, slopes: Tensor, nearest: Tensor, count: Tensor) -> Tensor:
    """Return x_i of `count` keys, the nearest at distance D = `nearest`; ratio: u_i − log Z_i."""
    size = torch.minimum(series(slopes), count.clamp(min=1).log())
    return (ratio - slopes * nearest + size).exp().masked_fill(count <= 0, 0.0)
