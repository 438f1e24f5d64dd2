"""Head tables: masks by hand, the text of a cell, layouts and Q/K groups by brute force."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from ala_encoder.errors import UserError
from ala_encoder.heads import LAYOUTS, Head, HeadTable, named_layout, parse_head
from ala_encoder.settings import loader
from ala_encoder.settings.experiment import Architecture

BY_HAND = {
    "full": "1111 1111 1111 1111",
    "identity": "1000 0100 0010 0001",
    "prev1": "0000 1000 0100 0010",
    "prev2": "0000 0000 1000 0100",
    "prev3": "0000 0000 0000 1000",
    "next1": "0100 0010 0001 0000",
    "next2": "0010 0001 0000 0000",
    "next3": "0001 0000 0000 0000",
    "band1": "1100 1110 0111 0011",
    "band2": "1110 1111 1111 0111",
    "band3": "1111 1111 1111 1111",
}
"""Rows are queries i, columns keys j: prev-k allows j = i − k."""

NUM_GROUPS = {
    **dict.fromkeys("abcdef", 48),
    **{"g": 36, "h": 24, "i": 12, "j": 6, "k": 25, "l": 1},
    **dict.fromkeys(("bert_full", "bert_band2", "bert_band6"), 144),
    **{"bert_band6_tied144": 1, "bert_band6_tied132": 13, "bert_band6_tied120": 25},
}


def table_of(name: str) -> HeadTable:
    return named_layout(name, len(LAYOUTS[name]), len(LAYOUTS[name][0]))


def random_table(seed: int) -> HeadTable:
    draw = random.Random(seed)
    layers, heads = draw.randint(1, 5), draw.randint(1, 5)
    groups = [f"#g{i}" for i in range(draw.randint(1, 4))] + [""]
    return HeadTable.parse(
        [[draw.choice(["full", "band1", "prev2"]) + draw.choice(groups) for _ in range(heads)]
         for _ in range(layers)]
    )  # fmt: skip


@pytest.mark.parametrize("cell", BY_HAND)
def test_every_mask_is_the_4x4_matrix_written_by_hand(cell: str) -> None:
    head = parse_head(cell)
    rows = ["".join(str(int(head.allows(j - i))) for j in range(4)) for i in range(4)]
    assert " ".join(rows) == BY_HAND[cell]


@pytest.mark.parametrize("cell", BY_HAND)
def test_a_mask_of_a_tensor_is_the_mask_of_its_numbers(cell: str) -> None:
    head = parse_head(cell)
    offset = torch.arange(7)[None, :] - torch.arange(5)[:, None]
    expected = [[head.allows(j - i) for j in range(7)] for i in range(5)]
    assert head.allows(offset).tolist() == expected


def test_prev_looks_to_the_left_and_next_to_the_right() -> None:
    assert parse_head("prev2").allows(3 - 5) and not parse_head("prev2").allows(5 - 3)
    assert parse_head("next2").allows(5 - 3) and not parse_head("next2").allows(3 - 5)


@pytest.mark.parametrize("cell", [*BY_HAND, "prev12#tied", "full#a", "identity#l0g1"])
def test_the_text_of_a_head_reads_back_as_the_same_head(cell: str) -> None:
    assert str(parse_head(cell)) == cell
    assert parse_head(f" {cell} ") == parse_head(cell)


def test_single_key_and_local_heads_are_told_apart() -> None:
    single = {cell for cell in BY_HAND if parse_head(cell).is_single_key}
    local = {cell for cell in BY_HAND if parse_head(cell).is_local}
    assert single == {"identity", "prev1", "prev2", "prev3", "next1", "next2", "next3"}
    assert local == set(BY_HAND) - {"full"}


@pytest.mark.parametrize(
    "cell",
    ["", "prev", "prev0", "prev01", "prev-1", "full2", "identity1", "band", "band2#", "#a",
     "prev1#a b", "prev1 next1", "global"],
)  # fmt: skip
def test_a_bad_cell_is_named_with_what_is_allowed(cell: str) -> None:
    with pytest.raises(UserError) as error:
        parse_head(cell)
    assert repr(cell) in str(error.value) and "bandK" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("cell", "meant"),
    [("prv1", "prev"), ("nxt2", "next"), ("bnad6#a", "band"), ("ful", "full"), ("Prev1", "prev"),
     ("identty", "identity")],
)  # fmt: skip
def test_a_misspelt_cell_gets_the_nearest_mask(cell: str, meant: str) -> None:
    with pytest.raises(UserError, match=rf"did you mean '{meant}'\?"):
        parse_head(cell)


def test_rows_of_unequal_length_and_empty_tables_are_refused() -> None:
    with pytest.raises(UserError, match="rows of 1 and 2 heads"):
        HeadTable.parse([["full"], ["full", "full"]])
    for rows in ([], [[]]):
        with pytest.raises(UserError, match="no heads"):
            HeadTable.parse(rows)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_the_stated_number_of_groups(name: str) -> None:
    assert table_of(name).num_groups == NUM_GROUPS[name]


@pytest.mark.parametrize("name", "bcdefghijkl")
def test_layouts_have_the_stated_numbers_of_local_heads(name: str) -> None:
    local = [sum(head.is_local for head in row) for row in table_of(name).rows]
    expected = {
        "b": [4] * 6,
        "c": [7] * 6,
        "d": [8, 8, 8, 0, 0, 0],
        "e": [0, 0, 0, 8, 8, 8],
        "k": [8, 8, 8, 0, 0, 0],
    }
    assert local == expected.get(name, [8] * 6)


@pytest.mark.parametrize(("name", "tied"), [("tied144", 144), ("tied132", 132), ("tied120", 120)])
def test_tied_bert_layouts_tie_the_first_layers(name: str, tied: int) -> None:
    groups = [head.group for row in table_of(f"bert_band6_{name}").rows for head in row]
    assert groups == ["tied"] * tied + [None] * (144 - tied)


@pytest.mark.parametrize("table", [*map(table_of, LAYOUTS), *map(random_table, range(40))])
def test_blocks_and_columns_find_the_group_of_every_head(table: HeadTable) -> None:
    where: dict[object, tuple[int, int]] = {}
    users: dict[object, set[int]] = {}
    for layer, row in enumerate(table.rows):
        laid = [
            (block, index)
            for block in table.blocks_of(layer)
            for index in range(table.blocks[block].num_groups)
        ]
        columns = table.columns_of(layer)
        assert sorted(set(columns)) == list(range(len(laid))), "a layer projects what it uses"
        for head, cell in enumerate(row):
            identity = cell.group or (layer, head)
            assert where.setdefault(identity, laid[columns[head]]) == laid[columns[head]]
            users.setdefault(identity, set()).add(layer)
    assert len(set(where.values())) == len(where), "two groups have one place"
    for identity, (block, _) in where.items():
        assert table.blocks[block].layers == tuple(sorted(users[identity]))
    assert len({block.layers for block in table.blocks}) == len(table.blocks)
    assert sum(block.num_groups for block in table.blocks) == table.num_groups == len(where)


@pytest.mark.parametrize("seed", range(10))
def test_group_numbers_are_equal_exactly_where_heads_share(seed: int) -> None:
    table = random_table(seed)
    cells = [
        (table.groups[layer][head], cell.group or (layer, head))
        for layer, row in enumerate(table.rows)
        for head, cell in enumerate(row)
    ]
    for number, identity in cells:
        for other_number, other in cells:
            assert (number == other_number) == (identity == other)
    assert {number for number, _ in cells} == set(range(table.num_groups))


def test_full_fits_any_shape() -> None:
    table = named_layout("full", 2, 3)
    assert table.rows == ((Head("full"),) * 3,) * 2 and table.num_groups == 6


def test_unknown_layouts_and_wrong_shapes_are_refused() -> None:
    with pytest.raises(UserError, match=r"did you mean 'bert_band6_tied132'\?"):
        named_layout("bert_band6_tied_132", 12, 12)
    with pytest.raises(UserError, match="layout 'k' has 6 layers x 8 heads, the model 12 x 12"):
        named_layout("k", 12, 12)


def write(path: Path, heads: str) -> Path:
    path.write_text(
        "model: {family: encoder_decoder, num_layers: 6}\n"
        f"tokenizer: {{path: tokens}}\nencoder:\n  heads:\n{heads}",
        encoding="utf-8",
    )
    return path


def test_a_table_with_yaml_anchors_is_the_layout_it_spells(tmp_path: Path) -> None:
    local = "prev1#t, prev2#t, next1#t, next2#t, band1#t, band2#t, identity#t, identity#t"
    full = ", ".join(["full"] * 8)
    rows = f"    - &tied [{local}]\n    - *tied\n    - *tied\n"
    rows += f"    - &all [{full}]\n    - *all\n    - *all\n"
    table = loader.load(write(tmp_path / "k.yaml", rows), [], Architecture).tables["encoder"]
    spelt, named = table, table_of("k")
    assert spelt.groups == named.groups
    assert [[(h.kind, h.k) for h in row] for row in spelt.rows] == [
        [(h.kind, h.k) for h in row] for row in named.rows
    ]


def test_a_bad_cell_in_a_file_is_told_with_its_section(tmp_path: Path) -> None:
    rows = "    - [full, full, full, full, full, full, full, bnad2]\n" * 6
    with pytest.raises(UserError, match=r"encoder.*'bnad2'.*did you mean 'band'"):
        loader.load(write(tmp_path / "bad.yaml", rows), [], Architecture)


def test_repeated_rows_are_counted_in_the_text_of_a_table() -> None:
    table = HeadTable.parse([["full", "prev1#a"]] * 3 + [["full", "full"]])
    assert str(table) == "3 x [full prev1#a]; 1 x [full full]"
