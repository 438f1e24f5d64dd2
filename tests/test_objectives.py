"""Corruption and losses, against loops: who is chosen, how many, and what becomes of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.batches import pad
from ala_encoder.objectives import (
    IGNORE,
    Corruption,
    check_labels,
    cross_entropy,
    smoothed_cross_entropy,
    squared_error,
    summed_loss,
)

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = frozenset(range(5))


def corruption(vocab_size: int = 1000, seed: int = 1, **options: object) -> Corruption:
    return Corruption(seed, vocab_size, MASK, SPECIAL, **options)  # type: ignore[arg-type]


def batch(lengths: list[int], vocab_size: int, seed: int) -> np.ndarray:
    """Return rows [CLS] words [SEP] [PAD]…, a few words unknown, padded to the longest."""
    draw = np.random.default_rng(seed)
    rows = np.full((len(lengths), max(lengths)), PAD, dtype=np.int64)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = draw.integers(5, vocab_size, length)
        row[1 : length - 1 : 7] = UNK
        row[0], row[length - 1] = CLS, SEP
    return rows


def wanted(n: int, probability: float = 0.15) -> int:
    """max(1, round(p · n)), halves to even as Python rounds, and 0 of 0."""
    return max(1, round(probability * n)) if n else 0


# Which positions


@pytest.mark.parametrize("selection", ["exact", "independent"])
def test_d01_padding_and_specials_are_never_chosen(selection: str) -> None:
    rows = batch([3, 30], 1000, 0)
    rows[1, 5] = MASK  # a special token inside the text stays one
    drawn = 0
    for start in range(0, 10_000, 500):
        ids = np.arange(start, start + 500)
        many = np.concatenate([rows] * 250)
        chosen = corruption(selection=selection).selected(many, ids, epoch=0)
        assert not chosen[np.isin(many, list(SPECIAL))].any()
        drawn += len(ids)
    assert drawn == 10_000


@pytest.mark.parametrize("selection", ["exact", "independent"])
def test_d01_every_ordinary_position_is_chosen_sometimes(selection: str) -> None:
    row = batch([30], 1000, 0)
    rows = np.repeat(row, 2000, axis=0)
    share = corruption(selection=selection).selected(rows, np.arange(2000), 0).mean(0)
    ordinary = ~np.isin(row[0], list(SPECIAL))
    expected = wanted(int(ordinary.sum())) / ordinary.sum() if selection == "exact" else 0.15
    spread = 5 * math.sqrt(expected * (1 - expected) / 2000)
    assert (abs(share[ordinary] - expected) < spread).all()
    assert (share[~ordinary] == 0).all()


@pytest.mark.parametrize("probability", [0.01, 0.15, 0.5, 0.999])
def test_d02_each_example_has_exactly_its_rounded_share(probability: float) -> None:
    lengths = list(range(2, 200))
    rows = batch(lengths, 1000, 1)
    made = corruption(probability=probability)
    chosen = made.selected(rows, np.arange(len(lengths)), 0)
    for row, found in zip(rows, chosen.sum(1), strict=True):
        ordinary = sum(token not in SPECIAL for token in row.tolist())
        assert found == wanted(ordinary, probability)
        assert made.exact_counts(np.array([ordinary]))[0] == found


def test_d02_targets_split_80_10_10_within_one_percent() -> None:
    rows = np.random.default_rng(2).integers(5, 1000, (1000, 100))
    corrupted, chosen = corruption(probability=0.5).apply(rows, np.arange(1000), 0)
    targets = chosen.sum()
    assert rows.size == 100_000
    masked = (corrupted[chosen] == MASK).sum() / targets
    kept = (corrupted[chosen] == rows[chosen]).sum() / targets
    other = 1 - masked - kept
    assert abs(masked - 0.8) < 0.01
    assert abs(kept - 0.1) < 0.01  # a random token equals the old one once in 995
    assert abs(other - 0.1) < 0.01


@pytest.mark.parametrize("selection", ["exact", "independent"])
def test_d02_the_share_of_targets_is_15_percent_within_half_a_percent(selection: str) -> None:
    rows = np.random.default_rng(3).integers(5, 1000, (1000, 100))
    chosen = corruption(selection=selection).selected(rows, np.arange(1000), 0)
    if selection == "exact":
        assert chosen.sum() == 15_000
    else:
        assert abs(chosen.mean() - 0.15) < 0.005
        assert len(set(chosen.sum(1).tolist())) > 5


@pytest.mark.parametrize("selection", ["exact", "independent"])
def test_d02_what_is_not_chosen_stays(selection: str) -> None:
    rows = batch([3, 30, 17, 2], 1000, 4)
    before = rows.copy()
    corrupted, chosen = corruption(selection=selection).apply(rows, np.arange(4), 0)
    assert (corrupted[~chosen] == rows[~chosen]).all()
    assert (rows == before).all()


def test_a_replacement_is_never_special() -> None:
    """A vocabulary of 10 with 5 specials, scattered: plain drawing would hit one half the time."""
    special = frozenset({0, 3, 4, 7, 9})
    rows = np.random.default_rng(5).choice([1, 2, 5, 6, 8], (2000, 30))
    made = Corruption(1, 10, 4, special, probability=0.9)
    corrupted, chosen = made.apply(rows, np.arange(2000), 0)
    random = corrupted[chosen & (corrupted != 4) & (corrupted != rows)]
    assert set(random.tolist()) == {1, 2, 5, 6, 8}
    counts = np.bincount(random, minlength=10)[[1, 2, 5, 6, 8]]
    assert (abs(counts / counts.sum() - 0.2) < 0.03).all()


# What the choice depends on


@pytest.mark.parametrize("selection", ["exact", "independent"])
def test_corruption_does_not_depend_on_the_batch(selection: str) -> None:
    lengths = [3, 30, 12, 7, 25]
    rows, ids = batch(lengths, 1000, 6), np.array([40, 7, 19, 3, 8])
    made = corruption(selection=selection)
    whole, chosen = made.apply(rows, ids, epoch=2)
    for order in ([4, 2, 0, 1, 3], [1], [3, 0], [2, 2]):
        part, picked = made.apply(rows[order], ids[order], epoch=2)
        assert (part == whole[order]).all()
        assert (picked == chosen[order]).all()
    for i, length in enumerate(lengths):  # nor on how far the batch is padded
        part, picked = made.apply(rows[i : i + 1, :length], ids[i : i + 1], epoch=2)
        assert (part[0] == whole[i, :length]).all()
        assert (picked[0] == chosen[i, :length]).all()


def test_corruption_depends_on_seed_epoch_and_example() -> None:
    row = np.arange(5, 105)[None]
    seen = {
        corruption(seed=seed).apply(row, np.array([example]), epoch)[0].tobytes()
        for seed in range(3) for epoch in range(3) for example in range(3)
    }  # fmt: skip
    assert len(seen) == 27
    again = corruption(seed=1).apply(row, np.array([1]), 1)[0].tobytes()
    assert again in seen


def test_choice_and_action_are_independent() -> None:
    """The chosen positions are those with small hashes; what becomes of them must not be."""
    rows = np.random.default_rng(7).integers(5, 1000, (2000, 40))
    shares = []
    for probability in (0.05, 0.5):
        corrupted, chosen = corruption(probability=probability).apply(rows, np.arange(2000), 0)
        shares.append((corrupted[chosen] == MASK).mean())
    assert abs(shares[0] - shares[1]) < 0.03


@pytest.mark.parametrize("selection", ["exact", "independent"])
def test_d04_a_text_without_a_known_word_has_no_target(selection: str) -> None:
    rows = np.full((2, 9), UNK)
    rows[:, 0], rows[:, -1] = CLS, SEP
    corrupted, chosen = corruption(selection=selection).apply(rows, np.arange(2), 0)
    assert not chosen.any()
    assert (corrupted == rows).all()
    assert corruption().exact_counts(np.array([0, 1, 2])).tolist() == [0, 1, 1]


def test_d04_no_target_is_a_loss_of_zero_with_zero_gradients() -> None:
    for count in (0, 3):
        logits = torch.randn(count, 7, requires_grad=True)
        loss, targets = cross_entropy(logits, torch.full((count,), IGNORE))
        loss.backward()
        assert loss.item() == 0
        assert int(targets) == 0
        assert logits.grad is not None
        assert not logits.grad.any()


# Losses


def loop_cross_entropy(logits: torch.Tensor, labels: list[int]) -> tuple[float, int]:
    total, count = 0.0, 0
    for row, label in zip(logits.double().tolist(), labels, strict=True):
        if label == IGNORE:
            continue
        top = max(row)
        total += math.log(sum(math.exp(value - top) for value in row)) + top - row[label]
        count += 1
    return total, count


def test_cross_entropy_is_a_sum_and_a_count_equal_to_a_loop() -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 11) * 5
    labels = torch.randint(0, 11, (40,))
    labels[::3] = IGNORE
    loss, count = cross_entropy(logits, labels)
    total, number = loop_cross_entropy(logits, labels.tolist())
    assert int(count) == number == 26
    assert float(loss) == pytest.approx(total, rel=1e-6)


def test_cross_entropy_is_in_float32_whatever_the_logits() -> None:
    logits = (torch.randn(64, 50) * 5).bfloat16()
    labels = torch.randint(0, 50, (64,))
    loss, _ = cross_entropy(logits, labels)
    assert loss.dtype == torch.float32
    total, _ = loop_cross_entropy(logits, labels.tolist())
    assert float(loss) == pytest.approx(total, rel=1e-5)


def test_a_squared_error_is_a_sum_and_a_count_equal_to_a_loop() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(40, 1) * 5, torch.rand(40) * 5
    labels[::3] = math.nan
    loss, count = squared_error(logits, labels)
    pairs = zip(logits[:, 0].tolist(), labels.tolist(), strict=True)
    errors = [(x - y) ** 2 for x, y in pairs if not math.isnan(y)]
    assert int(count) == len(errors) == 26
    assert float(loss) == pytest.approx(sum(errors), rel=1e-6)


@pytest.mark.parametrize("broken", [0.0, math.nan, math.inf])
def test_an_unlabelled_example_counts_nowhere_and_has_a_gradient_of_zero(broken: float) -> None:
    logits = torch.tensor([[1.0], [broken], [4.0]], requires_grad=True)
    loss, count = squared_error(logits, torch.tensor([3.0, math.nan, 4.5]))
    loss.backward()
    assert (loss.item(), int(count)) == (4.25, 2)
    assert logits.grad is not None
    assert logits.grad.tolist() == [[-4.0], [0.0], [-1.0]]


def test_d04_no_score_is_a_loss_of_zero_with_zero_gradients() -> None:
    for size in (0, 3):
        logits = torch.randn(size, 1, requires_grad=True)
        loss, count = summed_loss(logits, torch.full((size,), math.nan))
        loss.backward()
        assert (loss.item(), int(count)) == (0, 0)
        assert logits.grad is not None and not logits.grad.any()


@pytest.mark.parametrize(
    ("logits", "labels"), [((3,), (3,)), ((3, 1), (3, 1)), ((1, 3), (3,)), ((3, 2), (3,)),
                           ((3, 1), (1,)), ((1, 1), (3,))]
)  # fmt: skip
def test_a08_shapes_that_would_broadcast_are_refused(
    logits: tuple[int, ...], labels: tuple[int, ...]
) -> None:
    with pytest.raises(AssertionError, match=r"logits .* labels"):
        squared_error(torch.zeros(logits), torch.zeros(labels))


def test_a08_scores_that_are_all_right_are_a_loss_of_zero() -> None:
    """[N, 1] against [N] compares each with each: a loss of 2.5 a score instead of 0."""
    labels = torch.arange(5.0)
    loss, count = squared_error(labels[:, None], labels)
    assert (float(loss), int(count)) == (0.0, 5)


def test_the_type_of_the_labels_chooses_the_loss() -> None:
    logits = torch.randn(4, 1)
    for floating in (torch.float32, torch.float64):
        labels = torch.ones(4, dtype=floating)
        assert summed_loss(logits, labels) == squared_error(logits, labels)
    classes = torch.tensor([0, 1, 2, IGNORE])
    logits = torch.randn(4, 3)
    assert summed_loss(logits, classes) == cross_entropy(logits, classes)


def test_losses_are_at_least_float32_and_float64_where_the_logits_are() -> None:
    for given in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        kept = torch.float64 if given == torch.float64 else torch.float32
        logits = (torch.randn(9, 1) * 40).to(given)
        loss, _ = squared_error(logits, torch.zeros(9))
        assert loss.dtype == kept
        expected = sum(value**2 for value in logits[:, 0].tolist())
        assert float(loss) == pytest.approx(expected, rel=1e-6)
        assert cross_entropy(logits, torch.zeros(9, dtype=torch.int64))[0].dtype == kept


def test_d06_a_mean_over_batches_weighs_targets_and_not_batches() -> None:
    """Losses 1, 1, 1, 1 and 9 in two batches: 2.6, where a mean of means says 5."""
    logits, label = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
    logits[0, 1] = math.log(math.e - 1)  # a loss of exactly one nat
    one, _ = cross_entropy(logits, label)
    assert float(one) == pytest.approx(1)
    logits[0, 1] = math.log(math.e**9 - 1)
    nine, _ = cross_entropy(logits, label)
    total = count = 0.0
    for losses in ([one] * 4, [nine]):
        total, count = total + float(sum(losses)), count + len(losses)
    assert total / count == pytest.approx(2.6)


@pytest.mark.parametrize("wrong", [-1, 5, -101, 2**40])
def test_d05_a_label_that_is_no_class_is_refused_before_the_device(wrong: int) -> None:
    check_labels(np.array([0, 4, IGNORE]), 5)
    check_labels(np.array([], dtype=np.int64), 5)
    with pytest.raises(ValueError, match=f"label {wrong}: allowed are 0 … 4 and -100"):
        check_labels(np.array([0, IGNORE, wrong]), 5)


def test_rows_are_padded_on_the_right() -> None:
    assert pad([[1], [2, 3, 4], []], 9).tolist() == [[1, 9, 9], [2, 3, 4], [9, 9, 9]]
    assert pad([[1]], 0).dtype == torch.int64
    assert pad([], 0).shape == (0, 0)


# Label smoothing


def smoothed_by_hand(
    logits: Tensor, labels: Tensor, epsilon: float, share: list[float]
) -> tuple[float, float]:
    """Return the smoothed and the plain loss by a double loop over targets and vocabulary."""
    total = plain = 0.0
    for row, label in zip(logits.flatten(0, -2).tolist(), labels.flatten().tolist(), strict=True):
        if label == -100:
            continue
        log_sum = math.log(math.fsum(math.exp(x) for x in row))
        for k, x in enumerate(row):
            wanted = (1 - epsilon) * (k == label) + epsilon * share[k]
            total -= wanted * (x - log_sum)
        plain -= row[label] - log_sum
    return total, plain


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.7])
def test_label_smoothing_is_its_double_loop(epsilon: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 5, 7, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[1, 6, 3, 3, -100], [2, -100, -100, -100, -100]])
    share = [0.0, 0.25, 0.25, 0.25, 0.0, 0.0, 0.25]
    loss, plain = smoothed_cross_entropy(logits, labels, epsilon, torch.tensor(share))
    expected = smoothed_by_hand(logits.detach(), labels, epsilon, share)
    assert (loss.item(), plain.item()) == pytest.approx(expected, rel=1e-12)
    assert plain.item() == pytest.approx(cross_entropy(logits, labels)[0].item(), rel=1e-12)
    (grad,) = torch.autograd.grad(loss, logits)
    log_p = logits.detach().log_softmax(-1)
    wanted = (1 - epsilon) * F.one_hot(labels.clamp(min=0), 7) + epsilon * torch.tensor(share)
    by_hand = (log_p.exp() - wanted) * (labels != -100)[..., None]
    assert torch.allclose(grad, by_hand, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_smoothing_is_that_of_autograd(dtype: torch.dtype) -> None:
    """Of a loss that is scaled, as the engine scales it, and of logits in half precision."""
    torch.manual_seed(3)
    logits = (torch.randn(4, 5, 11) * 3).to(dtype).requires_grad_()
    labels = torch.randint(0, 11, (4, 5))
    labels[1, 2:] = -100
    share = torch.rand(11).softmax(0)
    loss, plain = smoothed_cross_entropy(logits, labels, 0.1, share)
    assert not plain.requires_grad
    log_p = logits.float().log_softmax(-1)
    wanted = 0.9 * F.one_hot(labels.clamp(min=0), 11) + 0.1 * share
    by_hand = -(wanted * log_p).sum(-1)[labels != -100].sum()
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-6)
    (grad,), (expected,) = (torch.autograd.grad(x * 0.37, logits) for x in (loss, by_hand))
    assert grad.dtype == dtype
    assert torch.allclose(grad, expected, atol=1e-7, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5)


def test_smoothing_over_the_whole_vocabulary_is_that_of_torch() -> None:
    torch.manual_seed(1)
    logits, labels = torch.randn(6, 9), torch.tensor([0, 3, -100, 8, 8, 1])
    loss, _ = smoothed_cross_entropy(logits, labels, 0.1, torch.full((9,), 1 / 9))
    expected = F.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


def test_c07_padding_changes_no_smoothed_loss() -> None:
    torch.manual_seed(2)
    logits, labels = torch.randn(3, 4, 6), torch.randint(0, 6, (3, 4))
    share = torch.tensor([0.0, 0.2, 0.2, 0.2, 0.2, 0.2])
    wide = torch.cat([logits, torch.randn(3, 10, 6)], 1)
    padded = torch.cat([labels, torch.full((3, 10), -100)], 1)
    found = [float(x) for x in smoothed_cross_entropy(wide, padded, 0.1, share)]
    expected = [float(x) for x in smoothed_cross_entropy(logits, labels, 0.1, share)]
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_batch_without_a_label_gives_zero_and_a_gradient_of_zero() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss, plain = smoothed_cross_entropy(
        logits, torch.full((2, 3), -100), 0.1, torch.full((5,), 0.2)
    )
    loss.backward()
    assert loss.item() == plain.item() == 0.0
    assert logits.grad is not None and not logits.grad.any()
