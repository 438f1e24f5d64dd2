"""Weights with Q and K that a model has no place for: dropped with a count, and only those."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ala_encoder import banks, export, hub
from ala_encoder.attention import QKBank
from ala_encoder.cards import TranslationCard
from ala_encoder.errors import UserError
from ala_encoder.heads import HeadTable
from ala_encoder.models import MaskedLM, Seq2Seq
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import EncoderModel
from tests.launched import nmt, small
from tests.test_export import card_of

DIM = 12
TABLES = [
    [["prev1", "band1", "full"]],
    [["prev1#a", "band1#a", "identity"], ["next1", "full", "full#b"], ["full#b", "prev2", "band1"]],
    [["prev1#a", "next1#a", "identity"], ["full#b", "full#b", "full"]],
    [["prev1", "identity", "identity"]],
    [["band1#x", "band1#y", "full"], ["prev1#x", "band1#y", "identity"]],
]


def rows_of_head(bank: QKBank, table: HeadTable, layer: int, head: int, name: str) -> Tensor | None:
    place = table.places_of(layer)[head]
    if place is None:
        return None
    tensor: Tensor = bank.get_parameter(f"projections.{place[0]}.{name}").detach()
    return tensor.chunk(table.blocks[place[0]].num_groups)[place[1]]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", TABLES)
def test_every_head_that_has_q_and_k_keeps_its_own(
    rows: list[list[str]], bias: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    new_table = HeadTable.parse(rows, is_pre_softmax=True)
    old_table = replace(new_table, is_pre_softmax=False)
    old, new = (QKBank(table, DIM, bias=bias) for table in (old_table, new_table))
    state = {f"x.bank.{name}": tensor for name, tensor in old.state_dict().items()}
    other = {"x.other": torch.ones(2)}
    found = banks.fitted(state | other, new_table, DIM, "x.bank.", "here")
    assert found.pop("x.other") is other["x.other"]
    new.load_state_dict({name.removeprefix("x.bank."): t for name, t in found.items()})
    names = ["q_proj.weight", "k_proj.weight"] + (["q_proj.bias", "k_proj.bias"] if bias else [])
    free = 0
    for layer, row in enumerate(rows):
        for head in range(len(row)):
            for name in names:
                kept = rows_of_head(new, new_table, layer, head, name)
                was = rows_of_head(old, old_table, layer, head, name)
                assert was is not None
                if kept is not None:
                    assert torch.equal(kept, was)
            free += kept is None
    numbers = sum(t.numel() for t in state.values()) - sum(t.numel() for t in found.values())
    note = f"note: here: Q and K of {free} heads dropped ({numbers:,} numbers)"
    assert note in capsys.readouterr().err


def test_what_fits_already_or_not_at_all_is_left_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = HeadTable.parse(TABLES[1], is_pre_softmax=True)
    fits = {f"b.{name}": t for name, t in QKBank(table, DIM, bias=True).state_dict().items()}
    for state in (fits, {}, {"b.projections.0.q_proj.weight": torch.zeros(5, DIM)}):
        assert banks.fitted(state, table, DIM, "b.", "here") == state
    assert capsys.readouterr().err == ""


PRE = {"mask_operator": "pre_softmax", "heads": [["prev1", "band1", "full", "identity"]] * 3}


def test_an_export_from_before_is_read_with_a_count(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small.settings(encoder={**PRE, "biases": []})
    tokenizer, _ = small.data(home)
    old_encoder = run.encoder.model_copy(update={"mask_operator": "post_softmax"})
    old = MaskedLM(run.model, old_encoder, tokenizer.vocab_size)
    export.write(tmp_path / "old", card_of(run, tokenizer), tokenizer, old.state_dict())
    read = export.read(tmp_path / "old").build()
    assert "Q and K of 6 heads dropped (3,168 numbers)" in capsys.readouterr().err
    fresh = MaskedLM(run.model, run.encoder, tokenizer.vocab_size)
    export.read(tmp_path / "old").load_encoder(fresh.encoder)
    assert "Q and K of 6 heads dropped" in capsys.readouterr().err
    ids, first = torch.randint(5, 40, (2, 9)), torch.arange(18)
    table_state = read.state_dict()
    assert sum(t.numel() for t in table_state.values()) == (
        sum(t.numel() for t in old.state_dict().values()) - 3_168
    )
    fresh.head.load_state_dict(old.head.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(fresh.eval()(ids, first), read(ids, first))
    export.write(tmp_path / "new", card_of(run, tokenizer), tokenizer, table_state)
    again = export.read(tmp_path / "new").build()
    assert capsys.readouterr().err == ""
    assert all(torch.equal(t, again.state_dict()[name]) for name, t in table_state.items())
    del table_state["encoder.norm.weight"]
    export.write(tmp_path / "lacking", card_of(run, tokenizer), tokenizer, table_state)
    with pytest.raises(UserError, match="missing"):
        export.read(tmp_path / "lacking").build()


def test_a_translation_export_from_before_is_read_with_a_count_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heads = [["prev1", "full", "identity", "band1"], ["full"] * 4]
    decoder = {"mask_operator": "pre_softmax", "heads": heads}
    run = nmt.settings(tmp_path, decoder=decoder)
    tokenizer = nmt.tokenizer_of(run)
    old = nmt.settings(tmp_path, decoder={**decoder, "mask_operator": "post_softmax"})
    state = Seq2Seq(old.model, old.sections, tokenizer.vocab_size).state_dict()
    card = TranslationCard(
        variant="v", seed=1, run_name="r", vocab_size=tokenizer.vocab_size, model=run.model,
        **run.sections, data=run.data, data_name="x", search=run.search,
        parameters={"total": 1, "encoder_attention": 1, "qk_groups": 1},
    )  # fmt: skip
    export.write(tmp_path / "old", card, tokenizer, state)
    capsys.readouterr()
    built = export.read_translation(tmp_path / "old").build()
    numbers = 2 * 2 * 8 * 32  # q and k of two heads, 8 of 32 wide
    assert f"Q and K of 2 heads dropped ({numbers:,} numbers)" in capsys.readouterr().err
    assert sum(t.numel() for t in state.values()) == numbers + sum(
        t.numel() for t in built.state_dict().values()
    )


def test_a_bert_is_read_with_a_count_of_what_it_has_too_much(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Single-key heads may share a group with heads that differ in BERT: they have none here."""
    model = EncoderModel(
        family="encoder", dim=12, num_layers=2, num_heads=3, ffn_dim=8, max_length=8, dropout=0.0
    )
    ours = MaskedLM(model, AttentionSettings(), 19).state_dict()
    bert = hub.to_hub("bert", ours, model, AttentionSettings(), "masked_lm")
    pre = AttentionSettings(
        mask_operator="pre_softmax",
        heads=(("prev1#a", "identity#a", "full"), ("band1", "prev1#a", "full")),
    )
    state = hub.from_hub("bert", bert, model, pre, "masked_lm")
    assert "import of BERT: Q and K of 3 heads dropped (312 numbers)" in capsys.readouterr().err
    built = MaskedLM(model, pre, 19)
    built.load_state_dict(state)
    theirs = bert["bert.encoder.layer.1.attention.self.query.weight"].chunk(3)
    kept = state["encoder.stack.bank.projections.1.q_proj.weight"].chunk(2)
    assert torch.equal(kept[0], theirs[0]) and torch.equal(kept[1], theirs[2])


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "none"])
def test_bert_has_learned_positions_alone(positions: str) -> None:
    model = EncoderModel(family="encoder", positions=positions)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"positions = '{positions}'"):
        hub.config_of("bert", model, 30_522)
