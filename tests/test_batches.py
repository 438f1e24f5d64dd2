"""Plans and pieces: one order of the data, whatever ranks, workers, splits and resumes."""

from __future__ import annotations

import hashlib
import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ala_encoder.batches import (
    Inputs,
    Plan,
    Position,
    StepBatch,
    TokenPlan,
    pieces,
    step_batches,
)
from ala_encoder.examples import MaskedBlocks
from ala_encoder.keyed import keyed_bits
from ala_encoder.models import MaskedLM
from ala_encoder.objectives import Corruption, cross_entropy
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import EncoderModel
from ala_encoder.settings.train import BatchSplit, TrainSettings, split_batch
from ala_encoder.tokenizer import SPECIAL_TOKENS, Normalisation, WordPiece
from tests import memory

WORLDS = range(1, 9)
# more workers than this machine has cores are meant here
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Small tensors: several threads on busy cores only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Numbers:
    """Examples whose inputs are their own numbers; example i has i % 4 targets."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def counts(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return ids % 4 + epoch

    def lengths(self) -> None:
        return None

    def num_tokens(self, ids: np.ndarray) -> int:
        return int(ids.sum())

    def collate(self, ids: np.ndarray, epoch: int) -> Inputs:
        return {"ids": torch.from_numpy(ids.copy())}


def steps(
    size: int, plan: Plan, start: Position, number: int, *, rank: int = 0, world: int = 1,
    split: BatchSplit | None = None, workers: int = 0,
) -> list[StepBatch]:  # fmt: skip
    batches = step_batches(
        Numbers(size), plan, start, rank=rank, world_size=world,
        split=split or BatchSplit(micro=plan.batch_size, accumulation=1), num_workers=workers,
    )  # fmt: skip
    return list(itertools.islice(batches, number))


def unbroken(plan: Plan, number: int) -> list[tuple[Position, list[int]]]:
    """Return the first batches by cutting each epoch's order, without `walk`."""
    found: list[tuple[Position, list[int]]] = []
    epoch = 0
    while len(found) < number:
        order = plan.epoch(0, epoch).tolist()
        for index, first in enumerate(range(0, len(order), plan.batch_size)):
            found.append((Position(0, epoch, index), order[first : first + plan.batch_size]))
        epoch += 1
    return found[:number]


def ragged(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 60, size)


# Plans


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize(("size", "batch"), [(1, 1), (1, 9), (7, 3), (9, 3), (1000, 7), (64, 64)])
def test_each_example_comes_once_an_epoch(size: int, batch: int, lengths: bool) -> None:
    plan = Plan(5, size, batch, ragged(size) if lengths else None)
    for epoch in range(3):
        order = plan.epoch(0, epoch)
        assert sorted(order.tolist()) == list(range(size))
        assert order.dtype == np.int64
    assert plan.batches_per_epoch == -(-size // batch)


@pytest.mark.parametrize("lengths", [None, ragged(200)])
def test_an_order_is_a_pure_function_of_seed_phase_and_epoch(lengths: Any) -> None:
    def order(seed: int, phase: int, epoch: int) -> tuple[int, ...]:
        return tuple(Plan(seed, 200, 8, lengths).epoch(phase, epoch).tolist())

    keys = list(itertools.product(range(3), repeat=3))
    orders = {key: order(*key) for key in keys}
    assert len(set(orders.values())) == 27
    random.Random(0).shuffle(keys)
    assert all(order(*key) == orders[key] for key in keys)


def test_asking_for_one_epoch_changes_no_other() -> None:
    lengths = ragged(200)
    before = lengths.copy()
    plan = Plan(1, 200, 8, lengths)
    first = plan.epoch(0, 0).tolist()
    plan.epoch(0, 1)[:] = 0  # nor does writing into what was returned
    assert plan.epoch(0, 0).tolist() == first
    assert (lengths == before).all()


def test_the_order_never_changes() -> None:
    """Golden: a resumed run of last year must see the rest of its data."""

    def digest(plan: Plan) -> str:
        return hashlib.sha256(plan.epoch(0, 3).astype("<i8").tobytes()).hexdigest()

    assert (
        digest(Plan(1337, 1000, 32))
        == "65a72ca30583c4e74be93b480433114e880eb4a1af943312ea8cf8f3781f2530"
    )
    assert (
        digest(Plan(1337, 5000, 32, np.arange(5000) % 37))
        == "f91222ef1ec557f6859eadc8bbd5366d699ee0e0bf99d5fdfd010d74a1277466"
    )


@pytest.mark.parametrize("size", [30, 1000])
def test_the_order_by_length_equals_a_loop(size: int) -> None:
    """Chunks of 50 batches in keyed order, sorted by length, cut, the full ones shuffled."""
    lengths, batch, seed, epoch = ragged(size, 1), 4, 9, 2
    keyed = sorted(range(size), key=lambda i: int(keyed_bits(seed, 0, epoch, i)))
    by_length: list[int] = []
    for first in range(0, size, 50 * batch):
        by_length += sorted(keyed[first : first + 50 * batch], key=lambda i: lengths[i])
    cut = [by_length[first : first + batch] for first in range(0, size, batch)]
    full = size // batch
    shuffled = sorted(range(full), key=lambda i: int(keyed_bits(seed, 0, epoch, 1, i)))
    expected = [i for number in shuffled for i in cut[number]] + by_length[full * batch :]
    assert Plan(seed, size, batch, lengths).epoch(0, epoch).tolist() == expected


def test_batches_by_length_pad_little_and_are_not_ordered_by_it() -> None:
    lengths = ragged(4000)

    def slots(plan: Plan) -> int:
        batches = [ids for position, ids in itertools.islice(plan.walk(Position()), 125)]
        return sum(int(lengths[ids].max()) * len(ids) for ids in batches)

    sorted_plan = Plan(1, 4000, 32, lengths)
    assert slots(sorted_plan) < 1.05 * lengths.sum()
    assert slots(Plan(1, 4000, 32)) > 1.7 * lengths.sum()
    longest = [
        int(lengths[ids].max()) for _, ids in itertools.islice(sorted_plan.walk(Position()), 125)
    ]
    assert abs(np.corrcoef(np.arange(125), longest)[0, 1]) < 0.3


@pytest.mark.parametrize("lengths", [False, True])
def test_planning_4_5_million_examples_takes_at_most_5_seconds(lengths: bool) -> None:
    plan = Plan(1, 4_500_000, 256, ragged(4_500_000) if lengths else None)
    began = time.perf_counter()
    order = plan.epoch(0, 0)
    assert time.perf_counter() - began < 5
    assert len(order) == 4_500_000


# Walking and resuming


def test_d12_the_tail_of_an_epoch_is_a_batch_of_its_own() -> None:
    walked = list(itertools.islice(Plan(1, 10, 4).walk(Position()), 6))
    assert [len(ids) for _, ids in walked] == [4, 4, 2, 4, 4, 2]
    assert [(p.epoch, p.index) for p, _ in walked] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]


@pytest.mark.parametrize(("size", "batch"), [(10, 4), (8, 4), (3, 5), (1, 1), (25, 1)])
def test_r5_resuming_anywhere_gives_the_rest_of_the_unbroken_sequence(
    size: int, batch: int
) -> None:
    plan = Plan(3, size, batch)
    number = 3 * plan.batches_per_epoch + 2
    whole = unbroken(plan, number)
    assert [
        (p, ids.tolist()) for p, ids in itertools.islice(plan.walk(Position()), number)
    ] == whole
    for stop in range(number):
        consumed, _ = whole[stop]
        again = Plan(3, size, batch)
        rest = itertools.islice(again.walk(again.after(consumed)), number - stop - 1)
        assert [(p, ids.tolist()) for p, ids in rest] == whole[stop + 1 :]


def test_a_position_stays_in_its_phase() -> None:
    plan = Plan(1, 4, 2)
    assert plan.after(Position(7, 2, 0)) == Position(7, 2, 1)
    assert plan.after(Position(7, 2, 1)) == Position(7, 3, 0)
    walked = [p.phase for p, _ in itertools.islice(plan.walk(Position(7, 0, 0)), 5)]
    assert walked == [7] * 5


# Pieces


@pytest.mark.parametrize("world", WORLDS)
def test_r4_the_pieces_of_all_ranks_in_turn_are_the_batch(world: int) -> None:
    for size in range(1, 34):
        ids = np.arange(100, 100 + size)
        for accumulation in (1, 2, 3, 5):
            settings = TrainSettings(
                steps=1, batch_size=size, gradient_accumulation_steps=accumulation
            )
            split = split_batch(settings, world)
            shares = [pieces(ids, rank, world, split) for rank in range(world)]
            assert {len(share) for share in shares} == {accumulation}  # F24
            joined = [i for step in range(accumulation) for share in shares for i in share[step]]
            assert joined == ids.tolist()
            assert all(len(piece) <= split.micro for share in shares for piece in share)


def test_f24_where_a_batch_does_not_reach_the_pieces_are_empty() -> None:
    split = BatchSplit(micro=2, accumulation=2)
    shares = [
        [piece.tolist() for piece in pieces(np.arange(5), rank, 4, split)] for rank in range(4)
    ]
    assert shares == [[[0, 1], []], [[2, 3], []], [[4], []], [[], []]]


# Steps on ranks


SPLITS = [(1, 1, 12), (2, 2, 3), (4, 3, 1), (8, 1, 2), (3, 4, 1), (5, 1, 3)]
"""World size, micro-batch, accumulation: some larger than the batch of 12."""


@pytest.mark.parametrize(("world", "micro", "accumulation"), SPLITS)
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_r4_the_global_order_does_not_depend_on_ranks_workers_or_splits(
    world: int, micro: int, accumulation: int, workers: int
) -> None:
    plan, number = Plan(11, 29, 12), 7
    expected = unbroken(plan, number)
    split = BatchSplit(micro=micro, accumulation=accumulation)
    ranks = range(world) if workers == 0 else {0, world - 1}  # a worker is a process
    shares = {
        rank: steps(29, plan, Position(), number, rank=rank, world=world, split=split,
                    workers=workers)
        for rank in ranks
    }  # fmt: skip
    for share in shares.values():
        assert [(step.position, step.ids.tolist()) for step in share] == expected
        assert {len(step.micro_batches) for step in share} == {accumulation}
        for step in share:
            epoch = step.position.epoch
            assert step.count == sum(i % 4 + epoch for i in step.ids.tolist())
            assert step.num_tokens == sum(step.ids.tolist())
    if workers == 0:
        for number, (_, batch) in enumerate(expected):
            joined = [
                i for a in range(accumulation) for rank in ranks
                for i in shares[rank][number].micro_batches[a]["ids"].tolist()
            ]  # fmt: skip
            assert joined == batch


def test_r4_world_workers_and_split_may_change_at_every_step() -> None:
    plan = Plan(11, 29, 12)
    expected = unbroken(plan, 10)
    position, found = Position(), []
    for number, (world, micro, accumulation) in enumerate(SPLITS * 2):
        if number == 10:
            break
        split = BatchSplit(micro=micro, accumulation=accumulation)
        workers = 2 if number in (2, 3) else 0  # 3 crosses into the next epoch
        (step,) = steps(29, plan, position, 1, rank=world - 1, world=world, split=split,
                        workers=workers)  # fmt: skip
        found.append((step.position, step.ids.tolist()))
        position = plan.after(step.position)
    assert found == expected


@pytest.mark.parametrize("workers", [0, 5])
def test_f18_what_workers_prefetch_is_not_consumed(workers: int) -> None:
    """Stop in epoch 2 at batch 3, as the loop does, and go on from the last batch it got."""
    plan = Plan(2, 21, 4)
    whole = [step.ids.tolist() for step in steps(21, plan, Position(), 24)]
    before = steps(21, plan, Position(), 15, workers=workers)
    assert before[-1].position == Position(0, 2, 2)
    after = steps(21, plan, plan.after(before[-1].position), 9, workers=workers)
    assert [step.ids.tolist() for step in [*before, *after]] == whole


def test_d17_six_items_on_four_workers_are_six() -> None:
    plan = Plan(1, 6, 1)
    epoch = steps(6, plan, Position(), 6, workers=4)
    assert sorted(i for step in epoch for i in step.ids.tolist()) == list(range(6))
    assert [step.position.epoch for step in epoch] == [0] * 6


# What is in a batch


TOKENIZER = WordPiece([*SPECIAL_TOKENS, *(f"w{i}" for i in range(25))], Normalisation())


def blocks(size: int = 160) -> MaskedBlocks:
    tokens = np.random.default_rng(0).integers(5, 30, size).astype(np.uint16)
    tokens[: size // 2 : 2] = 1  # unknown words: blocks have different numbers of targets
    made = Corruption(0, 30, 4, TOKENIZER.special_ids, probability=0.3)
    return MaskedBlocks(tokens, 16, TOKENIZER, made, name="train")


def test_d15_workers_draw_nothing_corruption_is_keyed_by_the_example() -> None:
    examples, plan = blocks(), Plan(1, len(blocks()), 4)
    shown = []
    for workers in (0, 4):
        batches = step_batches(
            examples, plan, Position(), rank=0, world_size=1,
            split=BatchSplit(micro=2, accumulation=2), num_workers=workers,
        )  # fmt: skip
        shown.append([
            {name: tensor.tolist() for name, tensor in inputs.items()}
            for step in itertools.islice(batches, 6) for inputs in step.micro_batches
        ])  # fmt: skip
    assert shown[0] == shown[1]
    assert shown[0][0] != shown[0][6]  # the same example in another epoch has another mask


@pytest.mark.parametrize(
    ("world", "micro", "accumulation"),
    [(1, 4, 2), (1, 1, 8), (2, 2, 2), (4, 2, 1), (8, 1, 1), (3, 3, 1), (1, 3, 3), (8, 2, 3)],
)
def test_r25_the_gradient_of_a_step_does_not_depend_on_its_split(
    world: int, micro: int, accumulation: int
) -> None:
    """Sums over ranks and micro-batches over the global count equal one batch of 8."""
    examples = blocks()
    torch.manual_seed(0)
    model = MaskedLM(
        EncoderModel(family="encoder", dim=8, num_layers=2, num_heads=2, ffn_dim=16,
                     max_length=16, dropout=0.0, init_std=0.3),
        AttentionSettings.model_validate({"biases": [{"kind": "distbias"}]}),
        30,
    ).double()  # fmt: skip
    plan = Plan(3, len(examples), 8)
    for number in range(2):  # the second is the tail of the epoch, 4 blocks
        whole, expected = gradient(model, examples, plan, number, (1, 8, 1))
        total, found = gradient(model, examples, plan, number, (world, micro, accumulation))
        assert total == pytest.approx(whole, rel=1e-6)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-9, msg=name)


def gradient(
    model: MaskedLM, examples: MaskedBlocks, plan: Plan, number: int, cut: tuple[int, int, int]
) -> tuple[float, dict[str, torch.Tensor]]:
    """Return loss and gradients of one step, summed over (world, micro, accumulation)."""
    world, micro, accumulation = cut
    model.zero_grad()
    total, calls = 0.0, []
    for rank in range(world):
        batches = step_batches(
            examples, plan, Position(0, 0, number), rank=rank, world_size=world,
            split=BatchSplit(micro=micro, accumulation=accumulation),
        )  # fmt: skip
        step = next(batches)
        calls.append(len(step.micro_batches))
        for inputs in step.micro_batches:
            loss, _ = cross_entropy(
                model(**{k: v for k, v in inputs.items() if k != "labels"}), inputs["labels"]
            )
            (loss / step.count).backward()
            total += float(loss.detach()) / step.count
    assert set(calls) == {accumulation}
    return total, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


# Batches of tokens


@pytest.mark.parametrize("tokens", [60, 61, 200, 10_000])
@pytest.mark.parametrize("size", [1, 2, 7, 500])
def test_c02_each_example_comes_once_an_epoch_in_batches_of_padded_tokens(
    size: int, tokens: int
) -> None:
    lengths = ragged(size)
    plan = TokenPlan(5, lengths, tokens)
    for epoch in range(3):
        batches = plan.batches(0, epoch)
        assert len(batches) == plan.batches_per_epoch
        assert sorted(i for ids in batches for i in ids.tolist()) == list(range(size))
        for ids in batches:
            assert 0 < len(ids) * lengths[ids].max() <= tokens


def test_c02_one_long_example_does_not_share_its_padding() -> None:
    plan = TokenPlan(0, np.array([1] * 19 + [50]), 100)
    sizes = sorted(len(ids) for ids in plan.batches(0, 0))
    assert sizes == [2, 18]  # 2 x 50 and 18 x 1, never 20 x 50


def sides(size: int) -> np.ndarray:
    """Return two lengths of each example, one up to half as long as the other."""
    draw = np.random.default_rng(8)
    longer = draw.integers(2, 60, size)
    shorter = (longer * draw.uniform(0.5, 1.0, size)).astype(np.int64)
    return draw.permuted(np.stack([shorter, longer], 1), axis=1)


def test_of_two_sides_the_longer_counts() -> None:
    lengths = sides(500)
    plan, longest = TokenPlan(5, lengths, 400), TokenPlan(5, lengths.max(1), 400)
    for epoch in range(3):
        batches, others = plan.batches(1, epoch), longest.batches(1, epoch)
        assert sorted(i for ids in batches for i in ids.tolist()) == list(range(500))
        assert [len(ids) for ids in batches] == [len(ids) for ids in others]
        for ids, as_long in zip(batches, others, strict=True):
            found = sorted(lengths[ids].max(1).tolist())
            assert found == sorted(lengths[as_long].max(1).tolist())
            assert len(ids) * max(found) <= 400


def test_the_shorter_side_is_little_padded_too() -> None:
    lengths = sides(20_000)
    padded = []
    for plan in (TokenPlan(0, lengths, 2000), TokenPlan(0, lengths.max(1), 2000)):
        room = sum(len(ids) * lengths[ids].max(0).sum() for ids in plan.batches(0, 0))
        padded.append(1 - lengths.sum() / room)
    assert padded[0] < 0.08 < 0.11 < padded[1]


def test_pairs_of_the_same_lengths_are_mixed_anew_in_every_epoch() -> None:
    plan = TokenPlan(0, np.full((40, 2), 5), 50)
    members = {tuple(sorted(ids.tolist())) for e in range(3) for ids in plan.batches(0, e)}
    assert len(members) == 12


def test_c01_an_example_longer_than_a_batch_is_a_batch_of_its_own() -> None:
    batches = TokenPlan(0, np.array([60, 3, 60, 4]), 50).batches(0, 0)
    assert sorted(map(len, batches)) == [1, 1, 2]


def test_batches_of_tokens_are_a_pure_function_of_seed_phase_and_epoch() -> None:
    lengths = ragged(300)
    keys = list(itertools.product(range(3), repeat=3))

    def batches(seed: int, phase: int, epoch: int) -> tuple[tuple[int, ...], ...]:
        found = TokenPlan(seed, lengths, 200).batches(phase, epoch)
        return tuple(tuple(ids.tolist()) for ids in found)

    orders = {key: batches(*key) for key in keys}
    assert len(set(orders.values())) == 27
    assert all(batches(*key) == order for key, order in orders.items())
    # the cuts are the same in every epoch, who is in them is not
    assert len({len(order) for order in orders.values()}) == 1
    members = {frozenset(map(frozenset, order)) for order in orders.values()}
    assert len(members) == 27


def test_little_is_padded() -> None:
    lengths = ragged(5000)
    batches = TokenPlan(0, lengths, 1000).batches(0, 0)
    room = sum(len(ids) * lengths[ids].max() for ids in batches)
    assert lengths.sum() / room > 0.98


def test_r04_the_pieces_of_a_batch_of_tokens_are_the_batch_on_any_ranks() -> None:
    for size, world, accumulation in itertools.product(range(12), WORLDS, range(1, 4)):
        ids = np.arange(size)
        split = BatchSplit(micro=99, accumulation=accumulation, unit="tokens")
        shares = [pieces(ids, rank, world, split) for rank in range(world)]
        assert {len(share) for share in shares} == {accumulation}
        together = [
            i for step in range(accumulation) for share in shares for i in share[step].tolist()
        ]
        assert together == ids.tolist()
        most = -(-size // (world * accumulation))
        assert all(len(piece) <= most for share in shares for piece in share)


def test_a_walk_through_tokens_resumes_anywhere() -> None:
    plan = TokenPlan(3, ragged(40), 150)
    whole = list(itertools.islice(plan.walk(Position()), 3 * plan.batches_per_epoch))
    for start, (position, _) in enumerate(whole[: 2 * plan.batches_per_epoch]):
        again = list(itertools.islice(plan.walk(position), 3))
        expected = whole[start : start + 3]
        assert [p for p, _ in again] == [p for p, _ in expected]
        assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(again, expected, strict=True))


def test_four_and_a_half_million_pairs_are_planned_in_five_seconds_and_a_gigabyte() -> None:
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(3.2, 0.6, 4_500_000).astype(np.int64), 2, 250)
    both = np.stack([lengths, np.clip(lengths + draw.integers(-9, 9, len(lengths)), 2, 250)], 1)
    with memory.at_most(1 << 30):
        began = time.process_time()  # other tests run beside it
        plan = TokenPlan(1, both, 25_000)
        assert len(plan.batches(0, 0)) == plan.batches_per_epoch
        assert time.process_time() - began < 5
