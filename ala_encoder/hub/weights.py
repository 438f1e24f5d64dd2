"""Weights carried over a family's map, both ways.

For: `Row`, a line of the map; `entries`, the map written out for a model; `exported` and
`imported`, which carry the tensors. Not for: what a family is (`family`).

A tensor of theirs is a list of pieces of ours, one below the other: heads that share a Q/K group
are the same piece twice, and a matrix that fuses q, k and v has pieces of three of ours. What only
one side has is 0: written as zeros, and read only when it is nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ala_encoder.errors import UserError
from ala_encoder.heads import HeadTable

State = dict[str, Tensor]


@dataclass(frozen=True)
class Row:
    """A line of the map: our names, theirs, what stands under them, and the sizes of one weight.

    In names {n} is the layer, {block} the block of a bank in which a head of that layer is found.
    """

    ours: str | tuple[str, ...]
    """Several are fused in one of theirs."""
    theirs: str
    """Empty: they have none, and ours is 0."""
    kind: Literal["tensor", "linear", "norm", "attention"]
    """tensor: one array; linear: weight and bias; norm: likewise, both one vector; attention: a
    linear whose bias ours may lack (attention_bias)."""
    sizes: str
    """As ours lie, the outputs first."""
    section: str = ""
    """The attention section whose layers and heads are meant; empty: the model's first."""
    layout: Literal["same", "transposed", "row"] = "same"
    """How theirs lies: as ours, transposed, or a vector as a matrix of one row."""
    by_head: bool = False
    """Of fused ones: q, k and v of the first head, then of the next; else all of q first."""
    in_pairs: bool = False
    """Whether theirs turns the rows (2m, 2m + 1) of a head together; ours turns (m, m + d/2)."""
    scale: tuple[str, float] | None = None
    """A size and its power: ours = theirs · size^power."""
    unless: str = ""
    """A setting of the model; when it is true there is no such row."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return suffix → shape of each tensor under one of our names."""
        weight = tuple(sizes[size] for size in self.sizes.split())
        return {"": weight} if self.kind == "tensor" else {".weight": weight, ".bias": weight[:1]}


@dataclass(frozen=True)
class Piece:
    """Part `index` of the `of` equal parts of our tensor `name`, cut along the outputs."""

    name: str
    index: int = 0
    of: int = 1


@dataclass(frozen=True)
class Entry:
    """One tensor of theirs and the pieces of ours that it consists of."""

    row: Row
    theirs: str
    shape: tuple[int, ...]
    """As ours lie, the outputs first."""
    pieces: tuple[Piece | None, ...]
    """None: rows of theirs that ours has no place for."""
    factor: float
    is_ours: bool
    """False: a bias that our model lacks."""

    @property
    def kept(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece is not None and self.is_ours]

    @property
    def their_shape(self) -> tuple[int, ...]:
        if self.row.layout == "row":
            return (1, *self.shape)
        return self.shape[::-1] if self.row.layout == "transposed" else self.shape

    def head_of(self, index: int) -> int:
        """Return the head that the piece of this index belongs to."""
        fused = len(self.row.names)
        return index // fused if self.row.by_head else index % (len(self.pieces) // fused)

    def piece_shape(self, piece: Piece) -> tuple[int, ...]:
        """Return the shape of the tensor that `piece` is a part of."""
        return (self.shape[0] // len(self.pieces) * piece.of, *self.shape[1:])


def entries(
    rows: Iterable[Row],
    sizes: Mapping[str, int],
    tables: Mapping[str, HeadTable],
    *,
    attention_bias: bool,
) -> list[Entry]:
    """Write the map out: one entry for each tensor of theirs, and for each that only ours has."""
    found = []
    for row in rows:
        table = tables[row.section or next(iter(tables))]
        factor = 1.0 if row.scale is None else sizes[row.scale[0]] ** row.scale[1]
        layers = table.num_layers if "{n}" in row.theirs or "{n}" in row.names[0] else 1
        for layer in range(layers):
            for suffix, shape in row.shapes(sizes).items():
                is_ours = attention_bias or row.kind != "attention" or suffix == ".weight"
                pieces = _pieces(row, suffix, layer, table)
                theirs = row.theirs.format(n=layer) + suffix if row.theirs else ""
                whole = (shape[0] * len(row.names), *shape[1:])
                found.append(Entry(row, theirs, whole, tuple(pieces), factor, is_ours))
    return found


def _pieces(row: Row, suffix: str, layer: int, table: HeadTable) -> Sequence[Piece | None]:
    columns: list[list[Piece | None]] = []
    for name in (name + suffix for name in row.names):
        if "{block}" in name:
            columns.append(
                [
                    None
                    if place is None
                    else Piece(
                        name.format(block=place[0]), place[1], table.blocks[place[0]].num_groups
                    )
                    for place in table.places_of(layer)
                ]
            )
        else:
            parts = table.num_heads if len(row.names) > 1 else 1
            columns.append([Piece(name.format(n=layer), index, parts) for index in range(parts)])
    if row.by_head:
        return [piece for head in zip(*columns, strict=True) for piece in head]
    return [piece for column in columns for piece in column]


def exported(what: str, state: Mapping[str, Tensor], found: Sequence[Entry]) -> State:
    """Return copies of our tensors as theirs; `what` begins the text of a UserError.

    Raises UserError for missing, left-over or misshapen parameters, and for what theirs has no
    place for and is not 0.
    """
    check_names(what, set(state), {piece.name for entry in found for piece in entry.kept})
    like = next(iter(state.values()))
    theirs: State = {}
    for entry in found:
        tensors = []
        for piece in entry.kept:
            check_shape(what, piece.name, state[piece.name], entry.piece_shape(piece))
            part = state[piece.name].detach().tensor_split(piece.of)[piece.index]
            tensors.append(_together(part) if entry.row.in_pairs else part)
        tensor = torch.cat(tensors) if tensors else like.new_zeros(entry.shape)
        if entry.theirs:
            theirs[entry.theirs] = _laid(_scaled(tensor, 1 / entry.factor), entry.row.layout)
        elif tensor.any():
            raise UserError(f"{what}: {entry.kept[0].name} is not 0, there is no place for it")
    return theirs


def imported(what: str, state: Mapping[str, Tensor], found: Sequence[Entry]) -> tuple[State, int]:
    """Return copies of their tensors as ours, and how many numbers had no place in ours.

    Raises UserError for missing, left-over or misshapen tensors, for heads that differ though they
    share one Q/K group, and for attention biases that our model lacks and that are not 0.
    """
    check_names(what, set(state), {entry.theirs for entry in found if entry.theirs})
    like = next(iter(state.values()))
    parts: dict[Piece, tuple[str, Tensor]] = {}
    dropped = 0
    for entry in found:
        if entry.theirs:
            check_shape(what, entry.theirs, state[entry.theirs], entry.their_shape)
            tensor = _unlaid(state[entry.theirs], entry.row.layout)
        else:
            tensor = like.new_zeros(entry.shape)
        if not entry.is_ours:
            if tensor.any():
                raise UserError(
                    f"{what}: {entry.theirs} is not 0, but model.attention_bias is false"
                )
            continue
        split = _scaled(tensor, entry.factor).tensor_split(len(entry.pieces))
        for index, (piece, rows) in enumerate(zip(entry.pieces, split, strict=True)):
            if piece is None:
                dropped += rows.numel()
                continue
            part = _apart(rows) if entry.row.in_pairs else rows
            here = f"{entry.theirs} of head {entry.head_of(index)}"
            first, known = parts.setdefault(piece, (here, part))
            if known is not part and not torch.equal(known, part):
                raise UserError(f"{what}: {first} and {here} differ, but share one Q/K group")
    names = {piece.name: piece.of for piece in parts}
    ours = {
        name: torch.cat([parts[Piece(name, index, of)][1] for index in range(of)])
        for name, of in names.items()
    }
    return ours, dropped


def check_names(what: str, given: set[str], wanted: set[str]) -> None:
    """Raise UserError that lists what is missing and what is left over."""
    lists = [
        f"{word} {', '.join(sorted(names))}"
        for word, names in (("missing", wanted - given), ("left over", given - wanted))
        if names
    ]
    if lists:
        raise UserError(f"{what}: keys {'; '.join(lists)}")


def check_shape(what: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise UserError for another shape than `shape`."""
    if tuple(tensor.shape) != shape:
        raise UserError(f"{what}: {name} has shape {list(tensor.shape)}, needed is {list(shape)}")


def sines(length: int, width: int) -> Tensor:
    """Return sin, then cos of p / 10000^(2m/width), float32 [length, width]: a frozen table."""
    powers = torch.arange(0, width, 2, dtype=torch.float64) / width
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10_000.0**powers
    return torch.cat([angles.sin(), angles.cos()], 1).float()


def _laid(tensor: Tensor, layout: str) -> Tensor:
    if layout == "row":
        return tensor[None]
    return tensor.t().contiguous() if layout == "transposed" else tensor


def _unlaid(tensor: Tensor, layout: str) -> Tensor:
    if layout == "row":
        return tensor[0]
    return tensor.t() if layout == "transposed" else tensor


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    # In double precision, so that no power of two costs a bit and another factor one rounding.
    return tensor if factor == 1.0 else (tensor.double() * factor).to(tensor.dtype)


def _apart(rows: Tensor) -> Tensor:
    """Put the rows 2m and 2m + 1 of a head at m and m + d/2."""
    return rows.reshape(-1, 2, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)


def _together(rows: Tensor) -> Tensor:
    """Put the rows m and m + d/2 of a head at 2m and 2m + 1."""
    return rows.reshape(2, -1, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)
