"""Which keys each attention head may look at, and which Q/K projection it uses.

For: the table "head h of layer l has this mask and this Q/K group", the named layouts of the
literature and the offset predicates behind the masks. Not for: computing attention (`kernels`) or
anything that needs torch: `params` and a settings error must answer at once.

Masks and layouts a to l: Pande et al., "On the Importance of Local Information in Transformer Based
Models", arXiv 2008.05828. The text leaves some cells open; what is our reading says "ours".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ala_encoder.errors import UserError, nearest

_OFFSETS: dict[str, Callable[[int], tuple[int, int]] | None] = {
    "full": None,
    "identity": lambda k: (0, 0),
    "prev": lambda k: (-k, -k),
    "next": lambda k: (k, k),
    "band": lambda k: (-k, k),
}
"""A mask is the least and the largest offset j − i that it lets through; None: every one. The
direction of prev and next is ours, the source contradicts itself."""
_WITHOUT_K = ("full", "identity")

_CELL = re.compile(rf"(?P<kind>{'|'.join(_OFFSETS)})(?P<k>[1-9][0-9]*)?(#(?P<group>\w+))?")


@dataclass(frozen=True)
class Head:
    """One cell of the table: a mask (`kind`, `k`) and the name of a shared Q/K group, if any."""

    kind: str
    k: int = 0
    group: str | None = None

    @property
    def is_local(self) -> bool:
        return _OFFSETS[self.kind] is not None

    @property
    def is_single_key(self) -> bool:
        """True when at most one key is ever allowed (identity, prev-k, next-k)."""
        return self.is_local and len(self.offsets()) == 1

    def allows(self, offset: Any) -> Any:
        """Tell whether the key at `offset` = j − i may be seen; works on an int or an int array."""
        if not self.is_local:
            return offset == offset
        seen = self.offsets()
        return (offset >= seen[0]) & (offset <= seen[-1])

    def offsets(self) -> range:
        """Return every offset j − i that a local head may see.

        prev-k: −k; next-k: k; band-k: −k … k; identity: 0.
        """
        bounds = _OFFSETS[self.kind]
        assert bounds is not None
        low, high = bounds(self.k)
        return range(low, high + 1)

    def __str__(self) -> str:
        return f"{self.kind}{self.k or ''}" + (f"#{self.group}" if self.group else "")


def parse_head(cell: str) -> Head:
    """Read a cell such as `full`, `prev1`, `band6#tied`.

    Raises UserError on anything else, naming the cell and what is allowed.
    """
    match = _CELL.fullmatch(cell.strip())
    takes_k = match is not None and match["kind"] not in _WITHOUT_K
    if match is None or takes_k != (match["k"] is not None):
        word = re.sub(r"[0-9#].*", "", cell)
        near = "" if word in _OFFSETS else nearest(word, _OFFSETS)
        raise UserError(
            f"head {cell!r}: allowed are full, identity, prevK, nextK, bandK (K = 1, 2, …), "
            f"each with an optional #group{near}"
        )
    return Head(match["kind"], int(match["k"] or 0), match["group"])


@dataclass(frozen=True)
class GroupBlock:
    """Q/K groups that exactly the same layers use: one projection computes them together."""

    layers: tuple[int, ...]
    num_groups: int


@dataclass(frozen=True)
class HeadTable:
    """Rows are layers, cells are heads.

    Heads with the same `#group` share one (W_q, W_k), within a layer and across layers; a head
    without a group has its own, and a head that `has_scores` denies has none.
    """

    rows: tuple[tuple[Head, ...], ...]
    is_pre_softmax: bool = False
    """Whether the masks hide keys before the softmax, not multiply the weights after it."""

    @classmethod
    def parse(cls, rows: Sequence[Sequence[str]], *, is_pre_softmax: bool = False) -> HeadTable:
        """Build a table; raises UserError for a bad cell, no cells or rows of unequal length."""
        cells = tuple(tuple(parse_head(cell) for cell in row) for row in rows)
        table = cls(cells, is_pre_softmax)
        widths = sorted({len(row) for row in table.rows})
        if widths in ([], [0]):
            raise UserError("no heads: a table has one row for a layer, one cell for a head")
        if len(widths) != 1:
            raise UserError(f"rows of {' and '.join(map(str, widths))} heads: all must be equal")
        return table

    @property
    def num_layers(self) -> int:
        return len(self.rows)

    @property
    def num_heads(self) -> int:
        return len(self.rows[0])

    def has_scores(self, head: Head) -> bool:
        """Tell whether a head needs Q and K: one key, hidden from all others, has weight 1."""
        return not (self.is_pre_softmax and head.is_single_key)

    @cached_property
    def groups(self) -> tuple[tuple[int | None, ...], ...]:
        """Table [num_layers][num_heads]: the Q/K group of every head, from 0; None: no Q and K."""
        numbers: dict[object, int] = {}
        return tuple(
            tuple(
                numbers.setdefault(head.group or (layer, column), len(numbers))
                if self.has_scores(head)
                else None
                for column, head in enumerate(row)
            )
            for layer, row in enumerate(self.rows)
        )

    @property
    def num_groups(self) -> int:
        """How many distinct (W_q, W_k) pairs the table has."""
        return len({group for row in self.groups for group in row} - {None})

    @cached_property
    def blocks(self) -> tuple[GroupBlock, ...]:
        """The groups, gathered by the exact set of layers that use them, in order of first use."""
        return tuple(GroupBlock(layers, len(groups)) for layers, groups in self._members.items())

    @cached_property
    def _members(self) -> dict[tuple[int, ...], list[int]]:
        members: dict[tuple[int, ...], list[int]] = {}
        for group in range(self.num_groups):
            layers = tuple(i for i, row in enumerate(self.groups) if group in row)
            members.setdefault(layers, []).append(group)
        return members

    def blocks_of(self, layer: int) -> tuple[int, ...]:
        """Numbers of the blocks that `layer` projects with, in the order their outputs are laid."""
        return tuple(i for i, block in enumerate(self.blocks) if layer in block.layers)

    def columns_of(self, layer: int) -> tuple[int | None, ...]:
        """For every head of `layer`, its place among the concatenated outputs of `blocks_of`."""
        members = list(self._members.values())
        laid = [group for block in self.blocks_of(layer) for group in members[block]]
        return tuple(None if group is None else laid.index(group) for group in self.groups[layer])

    def places_of(self, layer: int) -> tuple[tuple[int, int] | None, ...]:
        """For every head of `layer`, its block and the place of its group in that block."""
        laid = [
            (block, index)
            for block in self.blocks_of(layer)
            for index in range(self.blocks[block].num_groups)
        ]
        return tuple(None if column is None else laid[column] for column in self.columns_of(layer))

    def __str__(self) -> str:
        """Short text for tables: rows that repeat are counted."""
        lines: list[tuple[str, int]] = []
        for row in self.rows:
            text = " ".join(map(str, row))
            if lines and lines[-1][0] == text:
                lines[-1] = (text, lines[-1][1] + 1)
            else:
                lines.append((text, 1))
        return "; ".join(f"{count} x [{text}]" for text, count in lines)


# ---------------------------------------------------------------------------------------------
# Named layouts
# ---------------------------------------------------------------------------------------------

SEVEN_PLUS_ONE = ("prev1", "prev2", "next1", "next2", "band1", "band2", "identity", "identity")
"""The seven masks of the source, identity twice, for eight heads."""

_FOUR_LOCAL = ("prev1", "next1", "prev2", "next2", "full", "full", "full", "full")  # ours
_SEVEN_LOCAL = ("prev1", "prev2", "next1", "next2", "band1", "band2", "identity", "full")  # ours
_FULL = ("full",) * 8


def _tie(row: Sequence[str], names: Sequence[str]) -> list[str]:
    """Assign the groups `names` to the heads of `row`, round-robin (ours)."""
    return [f"{cell}#{names[i % len(names)]}" for i, cell in enumerate(row)]


def _shared_in_layer(sets: int) -> list[list[str]]:
    """Layouts g to j: every layer has `sets` unique (W_q, W_k), the counts are ours."""
    return [_tie(SEVEN_PLUS_ONE, [f"l{i}g{g}" for g in range(sets)]) for i in range(6)]


def _bert(cell: str, num_tied_layers: int) -> list[list[str]]:
    """BERT-base: 12 x 12 heads of one mask; the first layers share a single (W_q, W_k)."""
    tied, own = [f"{cell}#tied"] * 12, [cell] * 12
    return [tied if layer < num_tied_layers else own for layer in range(12)]


_TIED = _tie(SEVEN_PLUS_ONE, ["tied"])

LAYOUTS: dict[str, list[list[str]]] = {
    # Transformer-base encoder, 6 layers x 8 heads
    "a": [list(_FULL)] * 6,
    "b": [list(_FOUR_LOCAL)] * 6,
    "c": [list(_SEVEN_LOCAL)] * 6,
    "d": [list(SEVEN_PLUS_ONE)] * 3 + [list(_FULL)] * 3,
    "e": [list(_FULL)] * 3 + [list(SEVEN_PLUS_ONE)] * 3,
    "f": [list(SEVEN_PLUS_ONE)] * 6,
    "g": _shared_in_layer(6),
    "h": _shared_in_layer(4),
    "i": _shared_in_layer(2),
    "j": _shared_in_layer(1),
    "k": [_TIED] * 3 + [list(_FULL)] * 3,
    "l": [_TIED] * 6,
    # BERT-base, 12 layers x 12 heads
    "bert_full": _bert("full", 0),
    "bert_band2": _bert("band2", 0),
    "bert_band6": _bert("band6", 0),
    "bert_band6_tied144": _bert("band6", 12),
    "bert_band6_tied132": _bert("band6", 11),
    "bert_band6_tied120": _bert("band6", 10),
}
"""Every named layout of the source as an explicit table; `full` fits any shape and is not here."""


def named_layout(name: str, num_layers: int, num_heads: int) -> HeadTable:
    """Return a named layout; raises UserError for an unknown name or a shape it is not made for."""
    if name == "full":
        return HeadTable.parse([["full"] * num_heads] * num_layers)
    if name not in LAYOUTS:
        allowed = ["full", *LAYOUTS]
        near = nearest(name, allowed)
        raise UserError(f"layout {name!r}: allowed are {', '.join(allowed)}{near}")
    table = HeadTable.parse(LAYOUTS[name])
    if (table.num_layers, table.num_heads) != (num_layers, num_heads):
        raise UserError(
            f"layout {name!r} has {table.num_layers} layers x {table.num_heads} heads, the model "
            f"{num_layers} x {num_heads}: write `heads:` as a table for other shapes"
        )
    return table
