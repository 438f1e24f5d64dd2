"""Positions: by their equations and as others have them, counted from each row's first token."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ala_encoder import export
from ala_encoder.errors import UserError
from ala_encoder.models import MaskedLM
from ala_encoder.positions import LearnedPositions, Rotary, SinusoidalPositions, counted, rotate
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.experiment import check_stack
from ala_encoder.settings.model import EncoderModel
from tests.launched import small
from tests.test_export import card_of

MESSAGE = r"^input of 13 tokens: the model has 12 positions$"


def test_positions_count_from_each_rows_first_real_token() -> None:
    positions = LearnedPositions(4, 2)
    segments = torch.tensor([[1, 1, 1], [0, 0, 1], [1, 0, 0], [0, 0, 0]])
    found = positions(counted(segments, 3, segments.device), 3)
    rows = [[0, 1, 2], [0, 0, 0], [0, 1, 2], [0, 1, 2]]
    assert torch.equal(found, positions.embedding.weight[torch.tensor(rows)])


def test_positions_begin_anew_with_every_document_of_a_row() -> None:
    rows = torch.tensor([[0, 1, 1, 2, 2, 2, 0], [3, 3, 1, 0, 0, 1, 1], [0, 0, 5, 6, 7, 7, 7]])
    expected = [[0, 0, 1, 0, 1, 2, 3], [0, 1, 0, 1, 2, 0, 1], [0, 0, 0, 0, 0, 1, 2]]
    assert counted(rows, 7, rows.device).tolist() == expected


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_d18_one_token_too_many_is_refused_before_the_embedding_is_touched(device: str) -> None:
    """Meta tensors have a shape and no values: nothing is read, so no device is waited for."""
    positions = LearnedPositions(12, 4).to(device)
    looked_up: list[object] = []
    positions.embedding.register_forward_hook(lambda *_: looked_up.append(1))
    segments = torch.ones(2, 13, dtype=torch.int, device=device)
    for given in (segments, None):
        with pytest.raises(UserError, match=MESSAGE):
            positions(counted(given, 13, segments.device), 13)
    assert not looked_up
    assert positions(counted(segments[:, :12], 12, segments.device), 12).shape == (2, 12, 4)
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


# ---------------------------------------------------------------------------------------------
# Sinusoidal, rotary
# ---------------------------------------------------------------------------------------------


def test_sinusoidal_positions_equal_a_loop_over_the_equation() -> None:
    found = SinusoidalPositions(6)(torch.tensor([[0, 1, 7, 500]]))
    assert found.dtype == torch.float32 and found.shape == (1, 4, 6)
    for place, p in enumerate((0, 1, 7, 500)):
        for m in range(3):
            angle = p / 10_000 ** (2 * m / 6)
            assert found[0, place, m].item() == pytest.approx(math.sin(angle), abs=2e-5)
            assert found[0, place, 3 + m].item() == pytest.approx(math.cos(angle), abs=2e-5)


def test_sinusoidal_positions_are_those_of_marian() -> None:
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    theirs = MarianSinusoidalPositionalEmbedding(40, 12)
    theirs.weight = torch.nn.Parameter(theirs.create_weight(), requires_grad=False)
    found = SinusoidalPositions(12)(torch.arange(40)[None])
    torch.testing.assert_close(found[0], theirs.weight, atol=1e-6, rtol=0)


def test_rotation_is_the_one_of_llama() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    q, k = torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    where = torch.arange(9)[None].expand(2, 9)
    config = LlamaConfig(hidden_size=24, num_attention_heads=3, max_position_embeddings=64)
    cos, sin = LlamaRotaryEmbedding(config)(q, where)
    rotation = Rotary(8)(where)
    ours = [rotate(x, rotation) for x in (q, k)]
    for a, b in zip(ours, apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_a_rotated_score_depends_on_the_offset_alone() -> None:
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    scores: dict[int, list[float]] = {}
    for i in (0, 3, 100):
        for j in (0, 3, 97, 103):
            turned = [rotate(x, Rotary(8)(torch.tensor([[p]]))) for x, p in ((q, i), (k, j))]
            scores.setdefault(j - i, []).append((turned[0] * turned[1]).sum().item())
    assert scores[0][0] == pytest.approx((q * k).sum().item(), abs=1e-5)
    shared = [found for found in scores.values() if len(found) > 1]
    assert shared
    for found in shared:
        assert found == pytest.approx([found[0]] * len(found), abs=1e-4)
    assert len({round(found[0], 4) for found in scores.values()}) == len(scores)


def test_rotation_keeps_the_length_and_the_dtype() -> None:
    x = torch.randn(2, 3, 5, 8)
    turned = rotate(x, Rotary(8)(torch.arange(5)[None]))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert rotate(x.bfloat16(), Rotary(8)(torch.arange(5)[None])).dtype == torch.bfloat16
    torch.testing.assert_close(turned[:, :, 0], x[:, :, 0])


POSITIONS = ["learned", "sinusoidal", "rotary", "none"]
ENCODERS: dict[str, dict[str, Any]] = {
    "full": {},
    "local": {"heads": [["band1", "prev1", "full", "full#a"]] * 2},
    "hidden": {
        "heads": [["band1", "prev1", "full", "full#a"]] * 2, "mask_operator": "pre_softmax"
    },
    "biases": {"biases": [{"kind": "gated_distbias"}, {"kind": "t5"}, {"kind": "kerple_log"}]},
}  # fmt: skip


def encoder(positions: Any, **attention: Any) -> MaskedLM:
    model = EncoderModel(
        family="encoder", dim=16, num_layers=2, num_heads=4, ffn_dim=16, max_length=24,
        dropout=0.0, positions=positions,
    )  # fmt: skip
    torch.manual_seed(0)
    built = MaskedLM(model, AttentionSettings.model_validate(attention), 30)
    for name, parameter in built.named_parameters():
        if "raw_alpha" not in name and "norm" not in name:
            torch.nn.init.normal_(parameter, 0.0, 0.3)
    return built.eval()


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("name", ENCODERS)
def test_e10_r22_logits_are_the_same_alone_and_padded_on_either_side(
    positions: str, name: str
) -> None:
    """In batches of 1 and 3, with 2 or 9 tokens of padding, no position ids given."""
    built = encoder(positions, **ENCODERS[name])
    ids = torch.randint(5, 30, (3, 7))
    with torch.no_grad():
        alone = [built(ids[b : b + 1], torch.arange(7)) for b in range(3)]
        for left, right in ((2, 0), (0, 2), (9, 0), (4, 5)):
            rows = F.pad(torch.ones(3, 7, dtype=torch.long), (left, right))
            wide = F.pad(ids, (left, right))
            found = built(wide, rows.flatten().nonzero()[:, 0], rows)
            torch.testing.assert_close(found, torch.cat(alone), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("positions", POSITIONS)
def test_only_without_positions_is_the_order_of_tokens_invisible(positions: str) -> None:
    built = encoder(positions)
    ids = torch.randint(5, 30, (1, 6))
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    with torch.no_grad():
        straight = built(ids, torch.arange(6))[order]
        turned = built(ids[:, order], torch.arange(6))
    assert torch.allclose(straight, turned, atol=1e-5) == (positions == "none")


def test_what_has_no_table_of_positions_takes_longer_texts() -> None:
    for positions in POSITIONS[1:]:
        built = encoder(positions)
        assert not [name for name in built.state_dict() if "positions" in name]
        assert built(torch.full((1, 40), 7), torch.tensor([0])).isfinite().all()


@pytest.mark.parametrize(
    ("changes", "attention", "line"),
    [
        ({"dim": 12, "num_heads": 4}, {}, "model.positions = 'rotary': turns pairs, a head is 3"),
        ({}, {"heads": [["prev1", "identity"]], "mask_operator": "pre_softmax"},
         "model.positions = 'rotary': does nothing, no head has Q and K"),
        ({"dim": 9, "num_heads": 3, "positions": "sinusoidal"}, {}, "model.dim = 9: odd"),
    ],
)  # fmt: skip
def test_positions_that_cannot_be_are_refused(
    changes: dict[str, Any], attention: dict[str, Any], line: str
) -> None:
    given = {"dim": 8, "num_heads": 2, "num_layers": 1, "positions": "rotary", **changes}
    model = EncoderModel(family="encoder", **given)
    with pytest.raises(UserError) as caught:
        check_stack(model, AttentionSettings.model_validate(attention), 16)
    assert line in str(caught.value)
