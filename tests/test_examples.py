"""Examples: no token is lost or made up, and what a batch says of itself is true."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from ala_encoder import examples, glue, labelled
from ala_encoder.batches import FIXED_EPOCH
from ala_encoder.errors import UserError
from ala_encoder.examples import LabelledSentences, MaskedBlocks, training_blocks, validation_blocks
from ala_encoder.objectives import IGNORE, Corruption
from ala_encoder.settings.corpus import CorpusSettings
from ala_encoder.tokenizer import SPECIAL_TOKENS, Normalisation, WordPiece

PAD, UNK, CLS, SEP, MASK = range(5)
WORDS = [f"w{i}" for i in range(45)]
TOKENIZER = WordPiece([*SPECIAL_TOKENS, *WORDS], Normalisation())


def blocks(
    size: int, length: int, *, name: str = "valid", selection: str = "exact", seed: int = 1
) -> MaskedBlocks:
    """Return blocks of a text with separators and unknown words in it."""
    tokens = np.random.default_rng(size).integers(5, 50, size).astype(np.uint16)
    tokens[3::11] = SEP
    tokens[5::17] = UNK
    made = Corruption(seed, 50, MASK, TOKENIZER.special_ids, selection=selection)  # type: ignore[arg-type]
    return MaskedBlocks(tokens, length, TOKENIZER, made, name=name)


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def every(made: Any) -> np.ndarray:
    return np.arange(len(made), dtype=np.int64)


# Blocks of running text


@pytest.mark.parametrize("size", [1, 4, 5, 6, 7, 59, 60, 61, 126, 300])
@pytest.mark.parametrize("length", [3, 4, 8, 128])
def test_no_token_is_lost_all_blocks_together_are_the_text(size: int, length: int) -> None:
    made = blocks(size, length)
    rows, sizes = made.blocks(every(made))
    text: list[int] = []
    for row, real in zip(rows.tolist(), sizes.tolist(), strict=True):
        assert row[0] == CLS
        assert row[real - 1] == SEP
        assert row[real:] == [PAD] * (length - real)
        text += row[1 : real - 1]
    assert text == made.tokens.tolist()
    assert rows.shape == (-(-size // (length - 2)), length)
    assert (sizes[:-1] == length).all()


def test_blocks_come_in_any_order_and_number() -> None:
    made = blocks(100, 8)
    rows, sizes = made.blocks(every(made))
    some, real = made.blocks(ids(16, 2, 2, 0))
    assert (some == rows[[16, 2, 2, 0]]).all()
    assert (real == sizes[[16, 2, 2, 0]]).all()


def test_d09_a_text_shorter_than_a_block_is_refused_for_training() -> None:
    with pytest.raises(UserError, match=r"data.length = 128: .* only 100 tokens"):
        blocks(100, 128, name="train")
    assert len(blocks(126, 128, name="train")) == 1
    assert len(blocks(100, 128)) == 1


def test_d09_evaluation_keeps_the_tail() -> None:
    made = blocks(300, 128)
    rows, sizes = made.blocks(every(made))
    assert sizes.tolist() == [128, 128, 50]
    assert rows[2, 1:49].tolist() == made.tokens[252:].tolist()
    batch = made.collate(every(made), FIXED_EPOCH)
    assert batch["segments"].sum(1).tolist() == [128, 128, 50]
    tail = (batch["targets"] // 128 == 2) & (batch["labels"] != IGNORE)
    assert int(tail.sum()) == made.counts(ids(2), FIXED_EPOCH)[0] > 0


@pytest.mark.parametrize("name", ["train", "valid"])
def test_d04_a_text_with_nothing_to_predict_is_refused(name: str) -> None:
    tokens = np.full(1000, UNK, dtype=np.uint16)
    tokens[::10] = SEP
    made = Corruption(1, 50, MASK, TOKENIZER.special_ids)
    with pytest.raises(UserError, match=f"the {name} text has nothing to predict"):
        MaskedBlocks(tokens, 8, TOKENIZER, made, name=name)
    tokens[-1] = 7  # one word at the very end is enough
    assert len(MaskedBlocks(tokens, 8, TOKENIZER, made, name=name)) == 167


def test_d04_a_block_without_a_target_is_read_and_counted_as_none() -> None:
    tokens = np.array([UNK] * 6 + [7, 8, 9, 10, 11, 12], dtype=np.uint16)
    made = MaskedBlocks(
        tokens, 8, TOKENIZER, Corruption(1, 50, MASK, TOKENIZER.special_ids), name="train"
    )
    assert made.counts(every(made), 0).tolist() == [0, 1]
    batch = made.collate(ids(0), 0)
    assert batch["labels"].tolist() == [IGNORE]
    assert batch["input_ids"].tolist() == [[CLS, *[UNK] * 6, SEP]]


# Batches of blocks


@pytest.mark.parametrize("selection", ["exact", "independent"])
@pytest.mark.parametrize("epoch", [0, 3])
def test_a_batch_is_the_blocks_with_targets_at_what_was_changed(selection: str, epoch: int) -> None:
    made = blocks(500, 16, selection=selection)
    chosen = ids(35, 3, 17, 0, 20)
    batch = made.collate(chosen, epoch)
    rows, sizes = made.blocks(chosen)
    real = batch["labels"] != IGNORE
    places, labels = batch["targets"][real], batch["labels"][real]
    flat, shown = rows.reshape(-1), batch["input_ids"].reshape(-1).numpy()
    assert len(set(places.tolist())) == len(places)
    assert labels.tolist() == flat[places.numpy()].tolist()
    assert not set(labels.tolist()) & TOKENIZER.special_ids
    untouched = np.ones(rows.size, dtype=bool)
    untouched[places.numpy()] = False
    assert (shown[untouched] == flat[untouched]).all()
    per_row = Counter((places // 16).tolist())
    counts = made.counts(chosen, epoch)
    assert [per_row[i] for i in range(5)] == counts.tolist()
    assert made.num_tokens(chosen) == int(sizes.sum())
    if selection == "exact":
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            ordinary = sum(token >= 5 for token in row)
            assert count == max(1, round(0.15 * ordinary))


def test_shapes_stay_the_same_from_batch_to_batch() -> None:
    made = blocks(1000, 16)
    shapes = {
        tuple((name, tuple(tensor.shape)) for name, tensor in made.collate(some, 0).items())
        for some in np.arange(68).reshape(17, 4)
    }
    assert len(shapes) == 1
    assert dict(shapes.pop()) == {"input_ids": (4, 16), "targets": (8,), "labels": (8,)}


def test_segments_are_given_only_where_a_row_is_padded() -> None:
    made = blocks(100, 16)
    assert "segments" not in made.collate(ids(0, 1), 0)
    segments = made.collate(ids(0, 7), 0)["segments"]
    assert segments.tolist() == [[1] * 16, [1] * 4 + [0] * 12]


@pytest.mark.parametrize("selection", ["exact", "independent"])
def test_f24_an_empty_piece_is_one_row_without_a_target(selection: str) -> None:
    made = blocks(100, 16, selection=selection)
    batch = made.collate(ids(), 0)
    assert batch["input_ids"].shape == (1, 16)
    assert (batch["labels"] == IGNORE).all()
    assert made.counts(ids(), 0).sum() == 0
    assert made.num_tokens(ids()) == 0


@pytest.mark.parametrize("selection", ["exact", "independent"])
def test_d02_what_happens_to_a_block_does_not_depend_on_its_batch(selection: str) -> None:
    made = blocks(500, 16, selection=selection)
    whole = made.collate(every(made), 2)["input_ids"]
    for some in (ids(4), ids(35, 4, 0), ids(4, 4)):
        assert (made.collate(some, 2)["input_ids"] == whole[some]).all()
    assert not (made.collate(every(made), 3)["input_ids"] == whole).all()


def test_validation_masks_are_one_set_for_every_seed_and_training_masks_are_not() -> None:
    tokens = np.random.default_rng(0).integers(5, 50, 600).astype(np.uint16)
    data = CorpusSettings.model_validate(
        {"path": "x", "source": {"kind": "embedded"}, "length": 32}
    )
    valid = validation_blocks(tokens, data, TOKENIZER)
    again = validation_blocks(tokens, data, TOKENIZER)
    first, second = (training_blocks(tokens, data, TOKENIZER, seed) for seed in (1, 2))
    shown = [made.collate(every(made), 0)["input_ids"].tolist() for made in
             (valid, again, first, second)]  # fmt: skip
    assert shown[0] == shown[1]
    assert shown[2] != shown[3]
    assert shown[2] != shown[0]


def test_the_unigram_floor_equals_a_loop_over_the_validation_targets() -> None:
    train = np.random.default_rng(1).integers(5, 20, 4000).astype(np.uint16)
    train[::9] = SEP
    valid = blocks(300, 16)
    seen = Counter(token for token in train.tolist() if token not in TOKENIZER.special_ids)
    total = sum(seen.values())
    batch = valid.collate(every(valid), FIXED_EPOCH)
    labels = [label for label in batch["labels"].tolist() if label != IGNORE]
    by_hand = -sum(np.log((seen[label] + 1) / (total + 50)) for label in labels) / len(labels)
    assert examples.unigram_loss(train, valid, 50) == pytest.approx(by_hand, rel=1e-12)


# Labelled sentences


def sentences(
    length: int = 8, *, pairs: bool = False, labels: list[int] | None = None
) -> LabelledSentences:
    first = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11 w12", "zzz"]
    second = ["w20", "w21 w22 w23 w24 w25 w26", "w27 w28", ""] if pairs else None
    found = labelled.LabelledRows(first, second, labels, [0, 1, 2, 3], "x.tsv", 0)
    return LabelledSentences(found, glue.TASKS["mrpc" if pairs else "sst2"], length, TOKENIZER)


def test_sentences_are_padded_to_the_longest_of_their_batch() -> None:
    made = sentences(labels=[0, 1, 1, 0])
    batch = made.collate(ids(1, 0), 5)
    assert batch["input_ids"].tolist() == [[CLS, 9, SEP, PAD, PAD], [CLS, 6, 7, 8, SEP]]
    assert batch["segments"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert batch["token_types"].tolist() == [[0] * 5] * 2
    assert batch["labels"].tolist() == [1, 0]
    assert made.lengths().tolist() == [5, 3, 8, 3]
    assert made.num_tokens(ids(0, 1)) == 8
    assert made.counts(ids(0, 1, 2), 0).tolist() == [1, 1, 1]


def test_long_sentences_are_cut_and_counted() -> None:
    made = sentences(labels=[0, 1, 1, 0])
    assert made.num_cut == 1
    assert made.collate(ids(2), 0)["input_ids"].tolist() == [[CLS, *range(10, 16), SEP]]
    assert sentences(10).num_cut == 0
    assert sentences(9).num_cut == 1


def test_pairs_have_two_types_and_are_cut_from_the_longer_side() -> None:
    made = sentences(8, pairs=True, labels=[0, 1, 1, 0])
    assert made.num_cut == 2
    batch = made.collate(ids(0, 1, 2, 3), 0)
    for row, types, segments in zip(
        batch["input_ids"].tolist(), batch["token_types"].tolist(), batch["segments"].tolist(),
        strict=True,
    ):  # fmt: skip
        real = sum(segments)
        middle = row.index(SEP)
        assert row[0] == CLS
        assert row[real - 1] == SEP
        assert types[:real] == [0] * (middle + 1) + [1] * (real - middle - 1)
        assert row[real:] == types[real:] == [0] * (8 - real)
    assert batch["input_ids"][1].tolist() == [CLS, 9, SEP, 26, 27, 28, 29, SEP]


def test_an_unlabelled_split_has_no_target_but_all_its_rows() -> None:
    made = sentences()
    batch = made.collate(ids(0, 2), 0)
    assert batch["labels"].tolist() == [IGNORE, IGNORE]
    assert batch["input_ids"].shape == (2, 8)


def test_f24_an_empty_piece_of_sentences_is_one_row_without_a_target() -> None:
    batch = sentences(labels=[0, 1, 1, 0]).collate(ids(), 0)
    assert batch["labels"].tolist() == [IGNORE]
    assert batch["input_ids"].shape[0] == 1


@pytest.mark.parametrize("wrong", [-1, 2])
def test_d05_a_label_outside_the_task_is_refused_before_training(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"label {wrong}"):
        sentences(labels=[0, wrong, 1, 0])


def scored(labels: list[float] | None) -> LabelledSentences:
    pairs = [f"w{n}" for n in range(4)]
    found = labelled.LabelledRows(pairs, pairs, labels, [0, 1, 2, 3], "x.tsv")
    return LabelledSentences(found, glue.TASKS["stsb"], 8, TOKENIZER)


def test_a08_scores_are_one_float_an_example() -> None:
    labels = scored([0.0, 2.5, 5.0, 1.25]).collate(ids(2, 0, 1), 0)["labels"]
    assert labels.dtype == torch.float32
    assert labels.shape == (3,)
    assert labels.tolist() == [5.0, 0.0, 2.5]


@pytest.mark.parametrize(("labels", "some"), [(None, ids(0, 3)), ([1.0] * 4, ids())])
def test_a_score_that_is_not_there_is_nan(labels: list[float] | None, some: Any) -> None:
    batch = scored(labels).collate(some, 0)
    assert batch["labels"].dtype == torch.float32
    assert batch["labels"].shape == batch["input_ids"].shape[:1]
    assert batch["labels"].isnan().all()
