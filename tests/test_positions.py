"""Learned positions: counted from each row's first token, and refused beyond the last."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ala_encoder import export
from ala_encoder.errors import UserError
from ala_encoder.positions import LearnedPositions
from tests.launched import small
from tests.test_export import card_of

MESSAGE = r"^input of 13 tokens: the model has 12 positions$"


def test_positions_count_from_each_rows_first_real_token() -> None:
    positions = LearnedPositions(4, 2)
    segments = torch.tensor([[1, 1, 1], [0, 0, 1], [1, 0, 0], [0, 0, 0]])
    found = positions(segments, (4, 3))
    rows = [[0, 1, 2], [0, 0, 0], [0, 1, 2], [0, 1, 2]]
    assert torch.equal(found, positions.embedding.weight[torch.tensor(rows)])


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_d18_one_token_too_many_is_refused_before_the_embedding_is_touched(device: str) -> None:
    """Meta tensors have a shape and no values: nothing is read, so no device is waited for."""
    positions = LearnedPositions(12, 4).to(device)
    looked_up: list[object] = []
    positions.embedding.register_forward_hook(lambda *_: looked_up.append(1))
    segments = torch.ones(2, 13, dtype=torch.int, device=device)
    with pytest.raises(UserError, match=MESSAGE):
        positions(segments, (2, 13))
    with pytest.raises(UserError, match=MESSAGE):
        positions(None, (2, 13))
    assert not looked_up
    assert positions(segments[:, :12], (2, 12)).shape == (2, 12, 4)
    assert looked_up


def test_d18_a_model_read_from_an_export_refuses_a_text_that_is_too_long(
    home: Path, tmp_path: Path
) -> None:
    run = small.settings(model={"max_length": 12}, data={"length": 12})
    tokenizer, _ = small.data(home)
    model = small.model(run, tokenizer.vocab_size)
    export.write(tmp_path / "export", card_of(run, tokenizer), tokenizer, model.state_dict())
    read = export.read(tmp_path / "export").build()
    ids = torch.full((1, 13), 7)
    first = torch.tensor([0])
    assert read(ids[:, :12], first).isfinite().all()
    with pytest.raises(UserError, match=MESSAGE):
        read(ids, first)
    assert read(ids[:, :12], first).isfinite().all()
