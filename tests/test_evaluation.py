"""Scores over ranks: equal to a loop over single examples, whatever the ranks and the batch."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ala_encoder import evaluation
from ala_encoder.batches import FIXED_EPOCH, Inputs, pieces
from ala_encoder.evaluation import Loss, classify, language_model_loss, masked_lm_scores, plain
from ala_encoder.examples import MaskedBlocks
from ala_encoder.models import MaskedLM
from ala_encoder.objectives import IGNORE, Corruption, cross_entropy
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import EncoderModel
from ala_encoder.settings.train import BatchSplit
from ala_encoder.tokenizer import SPECIAL_TOKENS, Normalisation, Tokenizer

CLASSES = 3


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Small tensors: several threads on busy cores only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Points:
    """n examples with a class each; a batch is a vector, so that a wrong row is a wrong class."""

    def __init__(self, n: int) -> None:
        draw = np.random.default_rng(n)
        self.vectors = draw.normal(size=(n, CLASSES))
        self.labels = draw.integers(0, CLASSES, n)

    def __len__(self) -> int:
        return len(self.labels)

    def counts(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return np.ones(len(ids), dtype=np.int64)

    def lengths(self) -> None:
        return None

    def num_tokens(self, ids: np.ndarray) -> int:
        return len(ids)

    def collate(self, ids: np.ndarray, epoch: int) -> Inputs:
        assert epoch == FIXED_EPOCH
        if len(ids) == 0:
            return {"x": torch.zeros(1, CLASSES), "labels": torch.tensor([IGNORE])}
        return {
            "x": torch.from_numpy(self.vectors[ids]),
            "labels": torch.from_numpy(self.labels[ids]),
        }


def forward(inputs: Mapping[str, Tensor]) -> Tensor:
    return inputs["x"]


def one_by_one(points: Points) -> tuple[list[int], float]:
    """Return predictions and the summed loss by a loop over single examples."""
    predicted, total = [], 0.0
    for vector, label in zip(points.vectors.tolist(), points.labels.tolist(), strict=True):
        predicted.append(max(range(CLASSES), key=lambda c: vector[c]))
        top = max(vector)
        total += top + float(np.log(sum(np.exp(v - top) for v in vector))) - vector[label]
    return predicted, total


# Every example once


@pytest.mark.parametrize("world", range(1, 9))
def test_r21_every_example_is_scored_once_by_ranks_that_make_equally_many_calls(
    world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank in turn goes through the real batches, as its launcher's variables tell it."""
    monkeypatch.setenv("WORLD_SIZE", str(world))
    for n in range(1, 34):
        points = Points(n)
        expected, _ = one_by_one(points)
        for size in range(1, 6):
            parts, losses, calls = [], [], []
            for rank in range(world):
                monkeypatch.setenv("RANK", str(rank))
                number = 0
                for ids, logits, labels in evaluation._batches(forward, points, size):
                    number += 1
                    assert len(logits) == max(1, len(ids)) <= size
                    losses.append(cross_entropy(logits, labels))
                    parts += zip(ids.tolist(), logits[: len(ids)].argmax(-1).tolist(), strict=True)
                calls.append(number)
            assert len(set(calls)) == 1
            assert [i for i, _ in sorted(parts)] == list(range(n))
            assert [label for _, label in sorted(parts)] == expected
            assert sum(int(count) for _, count in losses) == n


@pytest.mark.parametrize("world", range(1, 9))
def test_r21_the_ranks_pieces_in_turn_are_the_examples_in_order(world: int) -> None:
    for n in range(1, 34):
        for size in range(1, 6):
            split, whole, joined = BatchSplit(micro=size, accumulation=1), np.arange(n), []
            for first in range(0, n, size * world):
                together = whole[first : first + size * world]
                for rank in range(world):
                    (piece,) = pieces(together, rank, world, split)
                    joined += piece.tolist()
            assert joined == list(range(n))


def test_r21_one_process_equals_a_loop_for_every_batch_size() -> None:
    for n in range(1, 34):
        points = Points(n)
        expected, total = one_by_one(points)
        for size in (1, 2, 3, 5, 64):
            predicted, loss = classify(forward, points, size)
            assert predicted == expected
            assert loss.count == n
            assert loss.total == pytest.approx(total, rel=1e-6)
            assert language_model_loss(forward, points, size) == loss


def _rank(rank: int, world: int, store: str, answers: Any) -> None:
    import os

    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    found = [
        (n, size, classify(forward, Points(n), size), language_model_loss(forward, Points(n), size))
        for n in (1, 2, 3, 7, 10) for size in (1, 4)
    ]  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()
    answers.put((rank, found))


@pytest.mark.parametrize("world", [2, 3])
def test_r21_real_ranks_agree_with_one_process(world: int, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")  # this process may hold a process group
    answers = context.Queue()
    started = [
        context.Process(target=_rank, args=(rank, world, str(tmp_path / "store"), answers))
        for rank in range(world)
    ]
    for process in started:
        process.start()
    found = dict(answers.get(timeout=60) for _ in started)
    for process in started:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert sorted(found) == list(range(world))
    for of_rank in found.values():
        for n, size, (predicted, loss), same in of_rank:
            alone, total = classify(forward, Points(n), size)
            assert predicted == alone
            assert loss.count == total.count == n  # F22: none is counted twice
            assert loss.total == pytest.approx(total.total, rel=1e-6)
            assert same == loss
    assert len({repr(of_rank) for of_rank in found.values()}) == 1


# Masked language models


TOKENIZER = Tokenizer([*SPECIAL_TOKENS, *(f"w{i}" for i in range(25))], Normalisation())


def masked_lm(seed: int = 0) -> MaskedLM:
    torch.manual_seed(seed)
    sizes = EncoderModel(
        family="encoder", dim=8, num_layers=2, num_heads=2, ffn_dim=16, max_length=16, init_std=0.5
    )
    attention = AttentionSettings.model_validate({"biases": [{"kind": "distbias"}]})
    return MaskedLM(sizes, attention, 30).eval()


def blocks(size: int, selection: Any = "exact") -> MaskedBlocks:
    tokens = np.random.default_rng(0).integers(5, 30, size).astype(np.uint16)
    tokens[::5] = 1  # unknown words, so that blocks have different numbers of targets
    made = Corruption(0, 30, 4, TOKENIZER.special_ids, selection=selection)
    return MaskedBlocks(tokens, 16, TOKENIZER, made, name="valid")


def loop_loss(model: MaskedLM, valid: MaskedBlocks) -> tuple[float, int]:
    """Return the loss over single targets of single, unpadded blocks, in float64."""
    total, count = 0.0, 0
    for i in range(len(valid)):
        batch = valid.collate(np.array([i]), FIXED_EPOCH)
        real = int(batch["segments"].sum()) if "segments" in batch else 16
        for place, label in zip(batch["targets"].tolist(), batch["labels"].tolist(), strict=True):
            if label == IGNORE:
                continue
            with torch.no_grad():
                logits = model(batch["input_ids"][:, :real], torch.tensor([place]))[0]
            total -= float(logits.double().log_softmax(-1)[label])
            count += 1
    return total, count


@pytest.mark.parametrize("selection", ["exact", "independent"])
def test_d07_the_perplexity_does_not_depend_on_the_batch(selection: str) -> None:
    model, valid = masked_lm(), blocks(150, selection)
    assert len(valid.tokens) % 14 != 0  # the last block is padded
    total, count = loop_loss(model, valid)
    for size in (1, 2, 3, 8, 64):
        loss = language_model_loss(plain(model), valid, size)
        assert loss.count == count
        assert loss.total == pytest.approx(total, rel=1e-6)
        scores = masked_lm_scores(plain(model), valid, size)
        assert scores["eval_loss"] == pytest.approx(total / count, rel=1e-6)
        assert scores["eval_perplexity"] == pytest.approx(np.exp(total / count), rel=1e-5)
        assert scores["eval_targets"] == count


def test_f24_ranks_without_a_block_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, valid = masked_lm(), blocks(40)
    whole = language_model_loss(plain(model), valid, 8)
    monkeypatch.setenv("WORLD_SIZE", "5")
    total, count = 0.0, 0
    for rank in range(5):
        monkeypatch.setenv("RANK", str(rank))
        part = language_model_loss(plain(model), valid, 1)
        total, count = total + part.total, count + part.count
    assert count == whole.count
    assert total == pytest.approx(whole.total, rel=1e-6)


def test_d06_the_mean_of_a_loss_is_over_targets() -> None:
    parts = [Loss(4.0, 4), Loss(9.0, 1)]
    assert Loss(sum(p.total for p in parts), sum(p.count for p in parts)).mean == 2.6


def test_evaluating_needs_no_gradient_and_leaves_none() -> None:
    model = masked_lm()
    seen: list[bool] = []

    def watched(inputs: Mapping[str, Tensor]) -> Tensor:
        logits = plain(model)(inputs)
        seen.append(logits.requires_grad)
        return logits

    language_model_loss(watched, blocks(60), 2)
    assert seen == [False] * 3
    assert all(parameter.grad is None for parameter in model.parameters())


def test_labels_never_reach_the_model() -> None:
    class Keys(torch.nn.Module):
        def forward(self, **inputs: Tensor) -> Tensor:
            assert sorted(inputs) == ["x"]
            return inputs["x"]

    call: Callable[..., Any] = plain(Keys())
    predicted, _ = classify(call, Points(5), 2)
    assert predicted == one_by_one(Points(5))[0]
