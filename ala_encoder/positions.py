"""Where a token stands: added to the embeddings, or turned into q and k.

For: learned (BERT), sinusoidal and rotary positions. Not for: distances, which are biases. All
count from a document's first token, so that a sentence gets the same wherever it lies.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ala_encoder.errors import UserError

BASE = 10_000.0


class LearnedPositions(nn.Module):
    """One vector for each of `max_length` positions."""

    def __init__(self, max_length: int, dim: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.embedding = nn.Embedding(max_length, dim)

    def forward(self, positions: Tensor, length: int) -> Tensor:
        """positions: int [B, T], of a text of `length` tokens → [B, T, dim].

        Raises UserError when the text is longer than the model.
        """
        if length > self.max_length:
            raise UserError(f"input of {length} tokens: the model has {self.max_length} positions")
        embedded: Tensor = self.embedding(positions)
        return embedded


class SinusoidalPositions(nn.Module):
    """sin and cos of p / 10000^(2m/dim), m < dim/2 (Vaswani et al. 2017, arXiv:1706.03762).

    All sines come first, then all cosines, as in tensor2tensor and Marian; the paper alternates
    them, which is the same up to the order of the dimensions.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, positions: Tensor) -> Tensor:
        """positions: int [B, T] → float32 [B, T, dim]."""
        angle = angles(positions, self.dim)
        return torch.cat([angle.sin(), angle.cos()], -1)


class Rotary(nn.Module):
    """Pairs (m, m + d/2) of q and k turned by p / 10000^(2m/d): RoPE (Su et al. 2021, 2104.09864).

    q_i·k_j then depends on j − i; all dimensions of a head take part.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions: int [B, T] → cos and sin, float32 [B, 1, T, d/2], for `rotate`."""
        angle = angles(positions, self.head_dim)[:, None]
        return angle.cos(), angle.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn x [B, H, T, d] by the angles of `Rotary`, in float32 or better whatever its dtype."""
    cos, sin = rotation
    first, second = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, -1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(x.dtype)


def angles(positions: Tensor, dim: int) -> Tensor:
    """Return p / 10000^(2m/dim), m < dim/2: int [B, T] → float32 [B, T, dim/2]."""
    powers = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim
    return positions[..., None].float() / BASE**powers


def counted(segments: Tensor | None, length: int, device: torch.device) -> Tensor:
    """Return positions from each document's first token: int [B, T], [1, T] without segments."""
    positions = torch.arange(length, device=device)[None]
    if segments is None or length == 0:
        return positions
    begins = (segments > 0) & (segments != F.pad(segments[:, :-1], (1, 0)))
    starts = (positions * begins).cummax(1).values
    # In front of the first document nothing has begun.
    return (positions - starts.maximum(first_real(segments)[:, None])).clamp(min=0)


def first_real(segments: Tensor) -> Tensor:
    """Return where each row's first real token lies, int [B]; 0 in a row of padding alone."""
    return (segments > 0).int().argmax(dim=1)
