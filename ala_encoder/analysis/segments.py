"""Pieces of a text to look into a model with: the same for every model, and comparable by length.

For: `receptive_field` and `locality`. Not for: training and scoring (`examples`, `evaluation`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ala_encoder.errors import UserError
from ala_encoder.tokenizer import Tokenizer

Tokens = NDArray[np.unsignedinteger[Any]]


def causal_segments(tokens: Tokens, length: int, num: int, longest: int) -> Tensor:
    """Return segments for `receptive_field`: int [num, length + 1].

    The predicted tokens are spread evenly over the text and the same for every length up to
    `longest`. Raises UserError for a text that is too short.
    """
    places = longest + _places(len(tokens) - longest, num, len(tokens))
    return _rows(tokens, places - length, length + 1)


def masked_segments(
    tokens: Tokens, length: int, num: int, longest: int, tokenizer: Tokenizer
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, places and labels for `masked_receptive_field`: [CLS] text [SEP], one mask each.

    The masked tokens stand in the middle, are ordinary ones spread evenly over the text, and are
    the same for every length up to `longest`. Raises UserError for a text that is too short.
    """
    side, size = (longest - 2) // 2, length - 2
    inside = np.asarray(tokens[side : len(tokens) - side])
    special = [*tokenizer.special_ids, *([] if tokenizer.unk_id is None else [tokenizer.unk_id])]
    ordinary = side + np.flatnonzero(~np.isin(inside, special))
    places = ordinary[_places(len(ordinary), num, len(tokens))]
    rows = _rows(tokens, places - size // 2, size)
    ends = rows.new_tensor([[tokenizer.cls_id, tokenizer.sep_id]]).expand(num, -1)
    ids = torch.cat([ends[:, :1], rows, ends[:, 1:]], 1)
    where = torch.full((num,), size // 2 + 1)
    labels = ids[:, size // 2 + 1].clone()
    ids[:, size // 2 + 1] = tokenizer.mask_id
    return ids, where, labels


def blocks(tokens: Tokens, length: int, num: int) -> Tensor:
    """Return blocks of `length` tokens, at most `num`, spread evenly: int [N, length].

    Raises UserError for a text shorter than one.
    """
    count = len(tokens) // length
    if not count:
        raise UserError(f"a text of {len(tokens):,} tokens is shorter than a block of {length:,}")
    return _rows(tokens, length * evenly(count, min(num, count)), length)


def evenly(count: int, num: int) -> NDArray[np.int64]:
    """Return `num` numbers from 0 on, below `count`, spread evenly."""
    return np.arange(num, dtype=np.int64) * count // num


def _places(count: int, num: int, size: int) -> NDArray[np.int64]:
    """Return `num` numbers below `count`; size: of the text, for the message."""
    if count < num:
        raise UserError(
            f"segments = {num}: a text of {size:,} tokens has {max(0, count):,} places with enough "
            "text around them"
        )
    return evenly(count, num)


def _rows(tokens: Tokens, starts: NDArray[np.int64], size: int) -> Tensor:
    return torch.from_numpy(tokens[starts[:, None] + np.arange(size)].astype(np.int64))
