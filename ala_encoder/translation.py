"""Translation as a task: pairs as training examples, and what is trained on them.

For: `finetune_nmt`. Not for: reading text (`parallel_corpus`), held-out splits (`held_out`) and
their scores (`translation_scores`), what a model starts from (`transfer`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ala_encoder import parallel_corpus, ranks
from ala_encoder.batches import Ids, Inputs, pad, padded
from ala_encoder.errors import UserError
from ala_encoder.objectives import IGNORE, smoothed_cross_entropy
from ala_encoder.parallel_corpus import Pairs
from ala_encoder.parallel_manifests import ParallelManifest
from ala_encoder.settings.parallel import TranslationData
from ala_encoder.tokenizer import Tokenizer


@final
class TranslationPairs:
    """The pairs of a split as numbered examples; see `batches.Examples`."""

    def __init__(
        self, pairs: Pairs, tokenizer: Tokenizer, *, name: str, max_length: int | None = None
    ) -> None:
        """max_length: pairs with a longer side are left out and counted; None: all are taken.

        Raises UserError when none is left.
        """
        self.pairs, self.name = pairs, name
        self.bos_id, self.pad_id, self.eos_id = (
            tokenizer.bos_id,
            tokenizer.pad_id,
            tokenizer.eos_id,
        )
        lengths = pairs.lengths()
        kept = np.arange(len(pairs))
        if max_length is not None:
            kept = np.flatnonzero(lengths.max(1) <= max_length)
        if not len(kept):
            raise UserError(f"train.max_length = {max_length}: every pair of {name} is longer")
        self.places: NDArray[np.int64] = kept.astype(np.int64)
        """The number in the split of each example."""
        self.num_dropped = len(pairs) - len(kept)
        self._lengths = lengths[kept]

    def __len__(self) -> int:
        return len(self.places)

    def counts(self, ids: Ids, epoch: int) -> NDArray[np.int64]:
        """Every target token is predicted, eos too."""
        counts: NDArray[np.int64] = self._lengths[ids, 1]
        return counts

    def lengths(self) -> NDArray[np.int64]:
        """Return the tokens of each pair's source and target, eos included: int64 [N, 2]."""
        return self._lengths

    def num_tokens(self, ids: Ids) -> int:
        """Return the tokens of both sides."""
        return int(self._lengths[ids].sum())

    def collate(self, ids: Ids, epoch: int) -> Inputs:
        """Return src_ids, src_segments [B, S], trg_ids, trg_segments and labels [B, T].

        The decoder reads bos and the target without its eos; the labels are the target. An empty
        `ids` gives one row of a token and no label.
        """
        rows = [self.pairs.pair(int(self.places[i])) for i in ids]
        src = [row.tolist() for row, _ in rows] or [[self.eos_id]]
        trg = [row.tolist() for _, row in rows] or [[IGNORE]]
        src_ids, src_segments = padded(src, self.pad_id)
        trg_ids, trg_segments = padded([[self.bos_id, *row[:-1]] for row in trg], self.pad_id)
        return {
            "src_ids": src_ids,
            "src_segments": src_segments,
            "trg_ids": trg_ids,
            "trg_segments": trg_segments,
            "labels": pad(trg, IGNORE),
        }


def smoothing(
    tokenizer: Tokenizer, epsilon: float
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the objective of training: epsilon is spread evenly over what can be a target."""
    share = torch.ones(tokenizer.vocab_size)
    share[sorted(tokenizer.never_put_out)] = 0.0
    share /= share.sum()
    return lambda logits, labels: smoothed_cross_entropy(logits, labels, epsilon, share)


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Raise UserError for one that loses case, accents or spaces, whatever settings called it."""
    if tokenizer.kind == "wordpiece":
        raise UserError(
            f"{tokenizer.origin}: is a WordPiece vocabulary, which gives no translation back as it "
            "is written; allowed are sentencepiece, byte_bpe, fairseq_bpe and marian"
        )


def prepared(
    data: TranslationData, tokenizer: Tokenizer
) -> tuple[ParallelManifest, dict[str, Pairs]]:
    """Return the corpus of `data`, made first where it is not there; every rank calls it."""
    manifest = parallel_corpus.prepare(data, tokenizer, say=ranks.say)
    pairs = parallel_corpus.open_pairs(data.path, manifest, tokenizer, verify=ranks.is_main())
    return manifest, pairs
