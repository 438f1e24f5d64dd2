"""Positions that are added to the token embeddings.

For: learned positions (BERT). Not for: relative positions, which are biases.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ala_encoder.errors import UserError


class LearnedPositions(nn.Module):
    """One vector for each of `max_length` positions."""

    def __init__(self, max_length: int, dim: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.embedding = nn.Embedding(max_length, dim)

    def forward(self, segments: Tensor | None, shape: tuple[int, int]) -> Tensor:
        """Return [B, T, dim], or [1, T, dim] when every row counts from 0.

        segments: int [B, T] or None; shape: (B, T). With padding on the left a row counts from
        its first real token, so that a sentence gets the same positions wherever it lies.

        Raises UserError when T is longer than the model.
        """
        length = shape[1]
        if length > self.max_length:
            raise UserError(f"input of {length} tokens: the model has {self.max_length} positions")
        device = self.embedding.weight.device
        positions = torch.arange(length, device=device)[None]
        if segments is not None:
            positions = (positions - first_real(segments)[:, None]).clamp(min=0)
        embedded: Tensor = self.embedding(positions)
        return embedded


def first_real(segments: Tensor) -> Tensor:
    """Return where each row's first real token lies, int [B]; 0 in a row of padding alone."""
    return (segments > 0).int().argmax(dim=1)
