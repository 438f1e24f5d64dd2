"""Numbered training examples made from token arrays or from labelled sentences.

For: blocks of running text for masked language modelling, and sentences or pairs for a classifier;
both serve `batches.Examples`. Not for: the order they come in (`batches`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ala_encoder import glue, labelled
from ala_encoder.batches import FIXED_EPOCH, Ids, Inputs, pad
from ala_encoder.errors import UserError
from ala_encoder.language_model import Unigram, token_counts
from ala_encoder.objectives import IGNORE, Corruption, check_labels
from ala_encoder.settings.corpus import CorpusSettings
from ala_encoder.tokenizer import Tokenizer

_FIXED_SEED = 0


class MaskedBlocks:
    """Blocks of `length` tokens, [CLS] text [SEP], corrupted for masked language modelling.

    Block b holds tokens b·(length−2) … of the array; the last, shorter one is padded, never lost.
    """

    def __init__(
        self,
        tokens: NDArray[np.unsignedinteger[Any]],
        length: int,
        tokenizer: Tokenizer,
        corruption: Corruption,
        *,
        name: str,
    ) -> None:
        """Raises UserError for less training text than a block, and for text without a target."""
        self.tokens, self.length, self.corruption, self.name = tokens, length, corruption, name
        self.text_length = length - 2
        self.cls_id, self.sep_id, self.pad_id = (
            tokenizer.cls_id,
            tokenizer.sep_id,
            tokenizer.pad_id,
        )
        if name == "train" and len(tokens) < self.text_length:
            raise UserError(
                f"data.length = {length}: the training text has only {len(tokens)} tokens"
            )

        if not self._has_target():
            raise UserError(
                f"data: the {name} text has nothing to predict: its {len(tokens)} tokens are all "
                "[UNK] or special, or too few for data.mask_probability"
            )

    def __len__(self) -> int:
        return -(-len(self.tokens) // self.text_length)

    def _has_target(self) -> bool:
        """Tell whether any block has a target, by looking until one is found."""
        starts = range(0, len(self), 256)
        ids = (np.arange(start, min(start + 256, len(self)), dtype=np.int64) for start in starts)
        return any(self.counts(some, FIXED_EPOCH).sum() > 0 for some in ids)

    def blocks(self, ids: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (input_ids int64 [B, length], real tokens of each row int64 [B])."""
        starts = np.asarray(ids, dtype=np.int64) * self.text_length
        sizes = np.minimum(self.text_length, len(self.tokens) - starts)
        inside = np.arange(self.text_length)[None] < sizes[:, None]
        places = np.where(inside, starts[:, None] + np.arange(self.text_length)[None], 0)
        rows = np.full((len(starts), self.length), self.pad_id, dtype=np.int64)
        rows[:, 0] = self.cls_id
        rows[:, 1:-1] = np.where(inside, self.tokens[places].astype(np.int64), self.pad_id)
        rows[np.arange(len(starts)), sizes + 1] = self.sep_id
        return rows, sizes + 2

    def counts(self, ids: Ids, epoch: int) -> NDArray[np.int64]:
        """Return the number of targets of each block: int64 [B]."""
        rows, _ = self.blocks(ids)
        if self.corruption.selection == "exact":
            return self.corruption.exact_counts(self.corruption.ordinary(rows).sum(1))
        counts: NDArray[np.int64] = self.corruption.selected(rows, np.asarray(ids), epoch).sum(1)
        return counts

    def lengths(self) -> None:
        """All blocks but the last are equally long."""

    def num_tokens(self, ids: Ids) -> int:
        """Return the real tokens of the blocks, [CLS] and [SEP] included."""
        starts = np.asarray(ids, dtype=np.int64) * self.text_length
        return int((np.minimum(self.text_length, len(self.tokens) - starts) + 2).sum())

    def collate(self, ids: Ids, epoch: int) -> Inputs:
        """Return input_ids [B, T], segments [B, T] where a row is padded, targets [N], labels [N].

        An empty `ids` gives one row and no target. `targets` are places in the flattened [B·T],
        filled up to the largest possible number with place 0 and label IGNORE, so that shapes
        stay the same from step to step.
        """
        is_empty = len(ids) == 0
        ids = np.zeros(1, dtype=np.int64) if is_empty else np.asarray(ids)
        rows, sizes = self.blocks(ids)
        corrupted, chosen = self.corruption.apply(rows, ids, epoch)
        if is_empty:
            chosen[:] = False
        places = np.flatnonzero(chosen)
        width = len(places)
        if self.corruption.selection == "exact":
            most = self.corruption.exact_counts(np.array([self.text_length]))
            width = len(ids) * int(most[0])
        targets = np.zeros(width, dtype=np.int64)
        labels = np.full(width, IGNORE, dtype=np.int64)
        targets[: len(places)] = places
        labels[: len(places)] = rows.reshape(-1)[places]
        inputs = {
            "input_ids": torch.from_numpy(corrupted),
            "targets": torch.from_numpy(targets),
            "labels": torch.from_numpy(labels),
        }
        if (sizes < self.length).any():
            segments = (np.arange(self.length)[None] < sizes[:, None]).astype(np.int64)
            inputs["segments"] = torch.from_numpy(segments)
        return inputs

    def target_tokens(self, epoch: int) -> NDArray[np.int64]:
        """Return the true tokens at every target of an epoch: the reference for a unigram."""
        ids = np.arange(len(self), dtype=np.int64)
        rows, _ = self.blocks(ids)
        return rows[self.corruption.selected(rows, ids, epoch)]


class LabelledSentences:
    """Sentences or pairs with a class or a score each, tokenised once; rows are padded to the
    longest."""

    def __init__(
        self, rows: labelled.LabelledRows, task: glue.Task, length: int, tokenizer: Tokenizer
    ) -> None:
        self.task, self.pad_id = task, tokenizer.pad_id
        self.source, self.ids, self.labels = rows.source, rows.ids, rows.labels
        first = tokenizer.encode_batch(rows.first)
        second = [None] * len(first) if rows.second is None else tokenizer.encode_batch(rows.second)
        special = 2 if rows.second is None else 3
        self.num_cut = sum(
            len(a) + len(b or ()) + special > length for a, b in zip(first, second, strict=True)
        )
        self.rows = [tokenizer.pair(a, b, length) for a, b in zip(first, second, strict=True)]
        if self.labels is not None and not task.is_regression:
            check_labels(np.asarray(self.labels, dtype=np.int64), task.num_outputs)

    def __len__(self) -> int:
        return len(self.rows)

    def counts(self, ids: Ids, epoch: int) -> NDArray[np.int64]:
        """Every example is one target."""
        return np.ones(len(ids), dtype=np.int64)

    def lengths(self) -> NDArray[np.int64]:
        """Return the tokens of each example: int64 [N]."""
        return np.array([len(tokens) for tokens, _ in self.rows], dtype=np.int64)

    def num_tokens(self, ids: Ids) -> int:
        """Return the real tokens of the examples."""
        return sum(len(self.rows[i][0]) for i in ids)

    def collate(self, ids: Ids, epoch: int) -> Inputs:
        """Return input_ids, segments, token_types [B, T] and labels [B]; see `batches.Examples`.

        labels: int64 classes, or float32 scores; IGNORE or NaN where there is none.
        """
        is_empty = len(ids) == 0
        rows = [self.rows[i] for i in ids] or [self.rows[0]]
        labels: list[Any] = [math.nan if self.task.is_regression else IGNORE] * len(rows)
        if self.labels is not None and not is_empty:
            labels = [self.labels[i] for i in ids]
        return {
            "input_ids": pad([tokens for tokens, _ in rows], self.pad_id),
            "segments": pad([[1] * len(tokens) for tokens, _ in rows], 0),
            "token_types": pad([types for _, types in rows], 0),
            "labels": torch.tensor(
                labels, dtype=torch.float32 if self.task.is_regression else torch.int64
            ),
        }


def training_blocks(
    tokens: NDArray[np.unsignedinteger[Any]], data: CorpusSettings, tokenizer: Tokenizer, seed: int
) -> MaskedBlocks:
    """Return training blocks, whose masks change with the seed and the epoch."""
    return MaskedBlocks(
        tokens, data.length, tokenizer, _corruption(data, tokenizer, seed), name="train"
    )


def validation_blocks(
    tokens: NDArray[np.unsignedinteger[Any]], data: CorpusSettings, tokenizer: Tokenizer
) -> MaskedBlocks:
    """Return validation blocks; all variants and seeds share their one mask set."""
    return MaskedBlocks(
        tokens, data.length, tokenizer, _corruption(data, tokenizer, _FIXED_SEED), name="valid"
    )


def _corruption(data: CorpusSettings, tokenizer: Tokenizer, seed: int) -> Corruption:
    return Corruption(
        seed=seed,
        vocab_size=tokenizer.vocab_size,
        mask_id=tokenizer.mask_id,
        special_ids=tokenizer.special_ids,
        probability=data.mask_probability,
        selection=data.mask_selection,
    )


def unigram_loss(
    train: NDArray[np.unsignedinteger[Any]], valid: MaskedBlocks, vocab_size: int
) -> float:
    """Return the loss in nats of a unigram model of the training text on the validation targets."""
    counts = token_counts(train, vocab_size)
    counts[list(valid.corruption.special_ids)] = 0  # never a target
    return Unigram(counts).loss(valid.target_tokens(FIXED_EPOCH))
