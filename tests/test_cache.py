"""Reading on from a cache gives what reading the whole text gives, to 1e-5."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ala_encoder.blocks import Trace
from ala_encoder.cache import Cache
from ala_encoder.errors import UserError
from ala_encoder.models import CausalLM, Seq2Seq
from ala_encoder.settings.attention import AttentionSettings
from tests import test_causal, test_seq2seq
from tests.test_models import shaken

POSITIONS = ["learned", "sinusoidal", "rotary", "none"]
BLIND = {
    "heads": [["prev1", "identity", "prev2", "identity"]] * 2 + [["full"] * 4],
    "mask_operator": "pre_softmax",
}
"""Layers with heads of one key, of which none has Q and K."""
CAUSAL = {**test_causal.ATTENTION, "blind": BLIND}
CUTS = [[1] * 9, [4, 1, 1, 3]]
RATIOS: dict[str, dict[str, dict[str, Any]]] = {
    kind: {"cross": {"biases": [{"kind": kind, **given}], "ratio": 0.5}}
    for kind, given in {
        "distbias": {"alpha_init": 0.4}, "gated_distbias": {"alpha_init": 0.4}, "alibi": {},
        "t5": {"num_buckets": 4, "max_distance": 3}, "kerple_log": {}, "kerple_power": {},
        "sandwich": {"dim": 8}, "window": {"width": 3},
        "multiscale_distbias": {"ranges": [2, 5], "alpha_init": 0.4},
    }.items()
}  # fmt: skip
"""Each bias alone, across the texts and in the decoder."""
SEQ2SEQ = {**test_seq2seq.SECTIONS, **{k: v | {"decoder": {"biases": v["cross"]["biases"]}}
                                       for k, v in RATIOS.items()}}  # fmt: skip
BOTH = [(name, positions) for name in SEQ2SEQ
        for positions in (POSITIONS if name in test_seq2seq.SECTIONS else ["none"])]  # fmt: skip
"""Sections and positions."""


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def assert_close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def causal(name: str, positions: str) -> CausalLM:
    model = test_causal.build(positions=positions)
    if name == "full":
        return model
    changes = {} if positions == "learned" else {"max_length": None}
    settings = test_causal.MODEL.model_copy(update={"positions": positions, **changes})
    attention = AttentionSettings.model_validate(CAUSAL[name])
    torch.manual_seed(0)
    return shaken(CausalLM(settings, attention, test_causal.VOCAB))  # type: ignore[no-any-return]


def seq2seq(name: str, positions: str) -> Seq2Seq:
    changes: dict[str, Any] = {"positions": positions}
    if positions == "learned":
        changes["max_length"] = 12
    model = test_seq2seq.MODEL.model_copy(update=changes)
    sections = {k: AttentionSettings.model_validate(v) for k, v in SEQ2SEQ[name].items()}
    torch.manual_seed(0)
    return shaken(Seq2Seq(model, sections, test_seq2seq.VOCAB))  # type: ignore[no-any-return]


def pieces(ids: Tensor, cut: list[int]) -> Iterator[tuple[int, int]]:
    assert sum(cut) == ids.shape[1]
    start = 0
    for length in cut:
        yield start, start + length
        start += length


# ---------------------------------------------------------------------------------------------
# One text a row
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_text_read_in_pieces_gives_the_logits_of_the_whole(
    name: str, positions: str, cut: list[int]
) -> None:
    model = causal(name, positions)
    ids, _ = test_causal.batch()
    cache = model.stack.cache()
    found = [model(ids[:, a:b], cache=cache) for a, b in pieces(ids, cut)]
    assert_close(torch.cat(found, 1), model(ids))


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_padding_and_documents_stay_apart_in_pieces(
    name: str, positions: str, cut: list[int]
) -> None:
    model = causal(name, positions)
    ids, _ = test_causal.batch()
    segments = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 9, [0, 3, 3, 3, 1, 1, 1, 1, 0]])
    cache = model.stack.cache()
    found = [model(ids[:, a:b], segments[:, a:b], cache=cache) for a, b in pieces(ids, cut)]
    assert_close(torch.cat(found, 1)[segments > 0], model(ids, segments)[segments > 0])


@pytest.mark.parametrize(("name", "positions"), BOTH)
@pytest.mark.parametrize("cut", [[1] * 6, [2, 1, 3]], ids=str)
def test_a_target_read_in_pieces_gives_the_logits_of_the_whole(
    name: str, positions: str, cut: list[int]
) -> None:
    model = seq2seq(name, positions)
    src_ids, trg_ids, src, _ = test_seq2seq.batch()
    memory, cache = model.encode(src_ids, src), model.decoder.cache()
    found = []
    for a, b in pieces(trg_ids, cut):
        given = {"memory": memory, "src_segments": src} if a == 0 else {}
        found.append(model.logits(model.decode(trg_ids[:, a:b], **given, cache=cache)))
    assert_close(torch.cat(found, 1), model(src_ids, trg_ids, src))


def test_the_weights_of_a_step_are_a_row_of_the_whole_map() -> None:
    model = causal("local", "rotary")
    ids, _ = test_causal.batch()
    whole, last = Trace(), Trace()
    model(ids, trace=whole)
    cache = model.stack.cache()
    model(ids[:, :8], cache=cache)
    model(ids[:, 8:], trace=last, cache=cache)
    for step, weights in zip(last.weights, whole.weights, strict=True):
        assert_close(step, weights[:, :, 8:])


def test_a_text_longer_than_learned_positions_is_refused_at_its_first_token_too_many() -> None:
    model = causal("full", "learned")
    ids = torch.ones(1, 12, dtype=torch.long)
    cache = model.stack.cache()
    model(ids, cache=cache)
    with pytest.raises(UserError, match=r"^input of 13 tokens: the model has 12 positions"):
        model(ids[:, :1], cache=cache)


def test_a_cache_is_not_written_where_gradients_are_taken() -> None:
    model = causal("full", "rotary")
    with torch.enable_grad(), pytest.raises(AssertionError, match="in place"):
        model(torch.ones(1, 2, dtype=torch.long), cache=model.stack.cache())


# ---------------------------------------------------------------------------------------------
# Hypotheses of a row
# ---------------------------------------------------------------------------------------------


class Beam:
    """Hypotheses whose next tokens and parents are drawn, and what each has read."""

    def __init__(self, batch: int, width: int) -> None:
        self.generator = torch.Generator().manual_seed(4)
        self.shape = (batch, width)
        self.read = [[[] for _ in range(width)] for _ in range(batch)]  # type: list[list[list[int]]]

    def next_tokens(self) -> Tensor:
        rows, width = len(self.read), self.shape[1]
        ids = torch.randint(1, test_seq2seq.VOCAB, (rows, width), generator=self.generator)
        for row, new in zip(self.read, ids.tolist(), strict=True):
            for tokens, token in zip(row, new, strict=True):
                tokens.append(token)
        return ids

    def follow(self, cache: Cache) -> None:
        width = self.shape[1]
        parents = torch.randint(width, (len(self.read), width), generator=self.generator)
        self.read = [
            [list(row[parent]) for parent in chosen]
            for row, chosen in zip(self.read, parents.tolist(), strict=True)
        ]
        cache.follow(parents)


@pytest.mark.parametrize(("name", "positions"), BOTH)
def test_hypotheses_that_follow_others_read_on_as_if_alone(name: str, positions: str) -> None:
    """Every step each hypothesis goes on from another one, and once rows leave the batch."""
    model = seq2seq(name, positions)
    src_ids, _, src, _ = test_seq2seq.batch()
    beam, cache = Beam(3, 4), model.decoder.cache(beam=True)
    memory: Tensor | None = model.encode(src_ids, src)
    for step in range(11):
        if step == 3:
            order = torch.tensor([2, 1])
            cache.keep(order)
            src_ids, src = src_ids[order], src[order]
            beam.read = [beam.read[n] for n in order.tolist()]
        ids = beam.next_tokens()
        given = {"memory": memory, "src_segments": src} if step == 0 else {}
        found = model.logits(model.decode(ids, **given, cache=cache))
        for row, texts in enumerate(beam.read):
            alone = src_ids[row : row + 1, : src[row].sum()].expand(4, -1)
            assert_close(found[row], model(alone, torch.tensor(texts))[:, -1])
        beam.follow(cache)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("positions", POSITIONS)
def test_hypotheses_of_a_language_model_read_on_as_if_alone(name: str, positions: str) -> None:
    model = causal(name, positions)
    beam, cache = Beam(2, 3), model.stack.cache(beam=True)
    for _ in range(11):
        found = model(beam.next_tokens(), cache=cache)
        for row, texts in enumerate(beam.read):
            assert_close(found[row], model(torch.tensor(texts))[:, -1])
        beam.follow(cache)


@pytest.mark.parametrize("order", [[1, 0], [2], [0, 2], [2, 0, 1]])
def test_rows_of_a_cache_can_be_kept_in_any_order(order: list[int]) -> None:
    model = causal("shared", "rotary")
    ids, segments = test_causal.batch()
    segments = segments.flip(1)
    cache = model.stack.cache()
    model(ids[:, :5], segments[:, :5], cache=cache)
    cache.keep(torch.tensor(order, dtype=torch.long))
    found = model(ids[order, 5:], segments[order, 5:], cache=cache)
    real = segments[order, 5:] > 0
    assert_close(found[real], model(ids, segments)[order, 5:][real])
