"""Scores over ranks: equal to a loop over single examples, whatever the ranks and the batch."""

from __future__ import annotations

import json
import math
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ala_encoder import metrics
from ala_encoder.batches import FIXED_EPOCH, Inputs
from ala_encoder.evaluation import (
    Loss,
    Part,
    language_model_loss,
    masked_lm_scores,
    merge,
    plain,
    predict,
    predict_part,
    write_scores,
)
from ala_encoder.examples import MaskedBlocks
from ala_encoder.metrics import Score
from ala_encoder.models import MaskedLM
from ala_encoder.objectives import IGNORE, Corruption
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import EncoderModel
from ala_encoder.tokenizer import SPECIAL_TOKENS, Normalisation, WordPiece
from pipelines.evaluate import _shown

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


class Scored(Points):
    """n examples with a number each."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.vectors = self.vectors[:, :1]
        self.labels = np.random.default_rng(n + 1).integers(0, 6, n) / 1.0

    def collate(self, ids: np.ndarray, epoch: int) -> Inputs:
        if len(ids) == 0:
            return {"x": torch.zeros(1, 1), "labels": torch.tensor([math.nan])}
        return super().collate(ids, epoch)


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


def parts_of(
    points: Points, world: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Part], list[int]]:
    """Return what each rank finds, as its launcher's variables tell it, and its forward calls."""
    parts, calls = [], []
    monkeypatch.setenv("WORLD_SIZE", str(world))
    for rank in range(world):
        monkeypatch.setenv("RANK", str(rank))
        seen: list[int] = []

        def counted(inputs: Mapping[str, Tensor], seen: list[int] = seen) -> Tensor:
            seen.append(len(inputs["x"]))
            return inputs["x"]

        parts.append(predict_part(counted, points, size))
        assert max(seen) <= size
        calls.append(len(seen))
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.delenv("RANK")
    return parts, calls


def scored(points: Points, predicted: list[Any], loss: Loss) -> dict[str, float | None]:
    """Return every metric that such labels have, and the mean loss."""
    names = ["accuracy", "f1", "matthews_correlation"]
    if isinstance(points, Scored):
        names = ["pearson", "spearmanr"]
    found = metrics.scores(names, predicted, points.labels)
    values = {name: score.value for name, score in found.items()}
    return {**values, "loss": loss.mean, "count": loss.count}


def check_same(found: dict[str, float | None], alone: dict[str, float | None]) -> None:
    """The requirement: counts exactly equal, floats within 1e-12, no value on both sides alike."""
    assert found.keys() == alone.keys()
    for name, value in found.items():
        wanted = alone[name]
        if value is None or wanted is None or isinstance(wanted, int):
            assert value == wanted, name
        else:
            assert abs(value - wanted) <= 1e-12 * max(1.0, abs(wanted)), name


@pytest.mark.parametrize("kind", [Points, Scored])
@pytest.mark.parametrize("world", range(1, 9))
def test_r21_every_metric_over_ranks_is_that_of_one_process(
    kind: type[Points], world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    defined = 0
    for n in range(1, 34):
        points = kind(n)
        alone = scored(points, *predict(forward, points, n))
        defined += all(value is not None for value in alone.values())
        for size in range(1, 6):
            parts, calls = parts_of(points, world, size, monkeypatch)
            assert len(set(calls)) == 1
            predicted, loss = merge(parts, n)
            assert loss.count == n
            check_same(scored(points, predicted, loss), alone)
    assert defined > 28


@pytest.mark.parametrize("kind", [Points, Scored])
def test_r21_padded_duplicates_are_noticed_by_the_merge_and_by_the_comparison(
    kind: type[Points], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a padding sampler does to 10 examples on 4 ranks: the first two are scored again."""
    points = kind(10)
    alone = scored(points, *predict(forward, points, 10))
    parts, _ = parts_of(points, 4, 3, monkeypatch)
    again = Part(parts[0].predictions[:2], Loss(parts[0].loss.total / 3 * 2, 2))
    lost = [*parts[:-1], Part(parts[-1].predictions[:-1], parts[-1].loss)]
    for broken in ([*parts, again], lost, parts[1:]):
        with pytest.raises(AssertionError, match="each example exactly once"):
            merge(broken, 10)
    # without that assertion the comparison above would fail too
    padded = [*points.labels, *points.labels[:2]]
    pairs = [pair for part in (*parts, again) for pair in part.predictions]
    names = [name for name in alone if name not in ("loss", "count")]
    found = metrics.scores(names, [value for _, value in pairs], padded)
    values = {name: score.value for name, score in found.items()}
    total, count = merge(parts, 10)[1].total + again.loss.total, 12
    with pytest.raises(AssertionError):
        check_same({**values, "loss": total / count, "count": count}, alone)
    for name in (*names, "loss"):
        with pytest.raises(AssertionError):
            check_same({**alone, name: {**values, "loss": total / count}[name]}, alone)


def test_r21_one_process_equals_a_loop_for_every_batch_size() -> None:
    for n in range(1, 34):
        points = Points(n)
        expected, total = one_by_one(points)
        for size in (1, 2, 3, 5, 64):
            predicted, loss = predict(forward, points, size)
            assert predicted == expected
            assert loss.count == n
            assert loss.total == pytest.approx(total, rel=1e-12)
            assert language_model_loss(forward, points, size) == loss


def test_r21_a_regression_s_predictions_are_its_outputs_and_the_loss_is_their_squared_error() -> (
    None
):
    for n in range(1, 34):
        points = Scored(n)
        points.labels[0] = math.nan
        outputs = points.vectors[:, 0].tolist()
        pairs = list(zip(outputs, points.labels.tolist(), strict=True))[1:]
        for size in (1, 2, 3, 5, 64):
            predicted, loss = predict(forward, points, size)
            assert predicted == outputs
            assert loss.count == n - 1
            assert loss.total == pytest.approx(sum((x - y) ** 2 for x, y in pairs), rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_whose_logits_are_not_finite_has_no_class(bad: float) -> None:
    points = Points(5)
    expected, _ = one_by_one(points)
    points.vectors[3, 2] = bad
    predicted, _ = predict(forward, points, 2)
    assert predicted == [*expected[:3], -1, expected[4]]


def _rank(rank: int, world: int, store: str, answers: Any) -> None:
    import os

    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    found = [
        (n, size, predict(forward, Points(n), size), language_model_loss(forward, Points(n), size),
         predict(forward, Scored(n), size))
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
        for n, size, (predicted, loss), same, numbers in of_rank:
            alone, total = predict(forward, Points(n), size)
            one = scored(Scored(n), *predict(forward, Scored(n), n))
            check_same(scored(Scored(n), *numbers), one)
            assert predicted == alone
            assert loss.count == total.count == n  # F22: none is counted twice
            assert loss.total == pytest.approx(total.total, rel=1e-12)
            assert same.count == n and same.total == pytest.approx(loss.total, rel=1e-12)
    assert len({repr(of_rank) for of_rank in found.values()}) == 1


# Masked language models


TOKENIZER = WordPiece([*SPECIAL_TOKENS, *(f"w{i}" for i in range(25))], Normalisation())


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


def test_d10_a_reported_perplexity_has_its_denominator_printed_in_full(tmp_path: Path) -> None:
    """The perplexity is per target piece: exp of the summed loss over exactly that many targets."""
    model, valid = masked_lm(), blocks(150)
    total, count = loop_loss(model, valid)
    scores = masked_lm_scores(plain(model), valid, 8)
    write_scores(tmp_path, "mlm", "valid", "x", {n: Score(v) for n, v in scores.items()})
    found = json.loads((tmp_path / "valid.json").read_text("utf-8"))["scores"]
    assert found["eval_targets"] == count
    assert found["eval_perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)
    assert _shown("eval_targets", found["eval_targets"]) == str(count)
    assert _shown("eval_targets", 1_234_567.0) == "1234567"
    assert _shown("eval_perplexity", 25.8123456) == "25.8123"


def test_a_score_without_a_value_is_null_with_a_reason_and_notes_stand_beside(
    tmp_path: Path,
) -> None:
    note = "0 by rule: all 3 predictions are of class 1"
    scores = {
        "eval_loss": Score(math.nan),
        "eval_perplexity": Score(math.inf),
        "eval_pearson": Score(None, "all are 2.5"),
        "eval_matthews_correlation": Score(0.0, note=note),
        "eval_examples": Score(3.0),
    }
    write_scores(tmp_path, "x", "dev", "y", scores)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    text = (tmp_path / "dev.json").read_text("utf-8")
    found = json.loads(text, parse_constant=refuse)
    assert found["scores"] == {**dict.fromkeys(scores), "eval_matthews_correlation": 0.0,
                               "eval_examples": 3.0}  # fmt: skip
    assert found["undefined"] == {
        "eval_loss": "it is not finite",
        "eval_perplexity": "it is not finite",
        "eval_pearson": "all are 2.5",
    }
    assert found["notes"] == {"eval_matthews_correlation": note}


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
    predicted, _ = predict(call, Points(5), 2)
    assert predicted == one_by_one(Points(5))[0]
