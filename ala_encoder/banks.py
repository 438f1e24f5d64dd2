"""Weights of Q/K banks that hold more than a model needs.

For: reading weights of models whose pre-softmax heads of one key still had Q and K. Such a head's
weight is 1 whatever they are, so they are left out, and how many is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ala_encoder import ranks
from ala_encoder.attention import QKBank
from ala_encoder.heads import HeadTable


def fitted(
    state: Mapping[str, Tensor], table: HeadTable, dim: int, prefix: str, where: str
) -> dict[str, Tensor]:
    """Return `state` with the Q/K groups that `table` has, when it holds those of all heads.

    prefix: what stands before the bank's keys; where: named in the note on what was dropped. A
    state whose shapes are those of `table`, or of neither, is returned as it is, for the caller's
    own check.
    """
    whole = replace(table, is_pre_softmax=False)
    bank = {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
    bias = any(name.endswith("bias") for name in bank)
    shapes = {name.removeprefix(prefix): tensor.shape for name, tensor in bank.items()}
    if shapes in (_shapes(table, dim, bias=bias), {}) or shapes != _shapes(whole, dim, bias=bias):
        return dict(state)
    old, new, head_dim = _places(whole), _places(table), dim // table.num_heads
    kinds = {name.split(".", prefix.count(".") + 2)[-1] for name in bank}
    found: dict[str, Tensor] = {}
    for kind in kinds:
        rows: dict[tuple[int, int], Tensor] = {}
        for head, place in new.items():
            block, index = old[head]
            tensor = bank[f"{prefix}projections.{block}.{kind}"]
            rows[place] = tensor[index * head_dim : (index + 1) * head_dim]
        for block, shape in enumerate(table.blocks):
            parts = [rows[block, index] for index in range(shape.num_groups)]
            found[f"{prefix}projections.{block}.{kind}"] = torch.cat(parts)
    count = sum(x.numel() for x in bank.values()) - sum(x.numel() for x in found.values())
    say_dropped(where, len(old) - len(new), count)
    return {name: x for name, x in state.items() if name not in bank} | found


def say_dropped(where: str, heads: int, numbers: int) -> None:
    """Say how much of the weights read has no place in the model."""
    ranks.say(
        f"note: {where}: Q and K of {heads} heads dropped ({numbers:,} numbers): before the "
        "softmax a head of one key has none"
    )


def _shapes(table: HeadTable, dim: int, *, bias: bool) -> dict[str, torch.Size]:
    with torch.device("meta"):
        bank = QKBank(table, dim, bias=bias)
    return {name: tensor.shape for name, tensor in bank.state_dict().items()}


def _places(table: HeadTable) -> dict[tuple[int, int], tuple[int, int]]:
    """Return (layer, head) → (block, place in it) of every head that has Q and K."""
    return {
        (layer, head): place
        for layer in range(table.num_layers)
        for head, place in enumerate(table.places_of(layer))
        if place is not None
    }
