"""Causal language models: running text as windows, each token predicted from those before it.

For: pretraining (`objective: clm`), and the losses of all tokens that windows predict, from which
the scores are made. Not for: which windows an evaluation takes (`protocols`), reading text
(`corpus`), the loss over the vocabulary (`chunked_loss`).

The text is the array of the corpus as it stands: documents, each with the tokenizer's eos behind
it (GPT-2's <|endoftext|>), and the paragraphs of a document one after the other, without a line
end in between. A window goes across documents and attention is not cut there, as GPT-2 has it.
What a window is filled up with on the right no token sees, so no padding token is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ala_encoder import ranks
from ala_encoder.batches import FIXED_EPOCH, Ids, Inputs, pieces
from ala_encoder.errors import UserError
from ala_encoder.evaluation import Forward, Loss, Scored, loss_scores
from ala_encoder.gates import watch_gates
from ala_encoder.language_model import Unigram, perplexity, token_counts
from ala_encoder.objectives import IGNORE
from ala_encoder.settings.train import BatchSplit
from ala_encoder.tokenizer import Tokenizer

Tokens = NDArray[np.unsignedinteger[Any]]


@final
@dataclass(frozen=True)
class Windows:
    """Numbered windows of a text; see `batches.Examples`."""

    tokens: Tokens
    starts: NDArray[np.int64]
    """The first token that each window reads."""
    sizes: NDArray[np.int64]
    """How many tokens it reads."""
    targets: NDArray[np.int64]
    """Of how many of them, the last ones, the next token is predicted."""

    def __len__(self) -> int:
        return len(self.starts)

    def counts(self, ids: Ids, epoch: int) -> NDArray[np.int64]:
        """Return how many tokens each window predicts."""
        counts: NDArray[np.int64] = self.targets[ids]
        return counts

    def lengths(self) -> None:
        """All windows but a few are equally long."""

    def num_tokens(self, ids: Ids) -> int:
        """Return how many tokens the windows read."""
        return int(self.sizes[ids].sum())

    def read(self, ids: Ids) -> NDArray[np.bool_]:
        """Tell which places of the windows' inputs are tokens that they read: bool [B, T]."""
        inside: NDArray[np.bool_] = np.arange(self.sizes.max()) < self.sizes[ids, None]
        return inside

    def collate(self, ids: Ids, epoch: int) -> Inputs:
        """Return input_ids [B, T] and labels [B, T], IGNORE where nothing is predicted.

        An empty `ids` gives one row and no label.
        """
        some = ids if len(ids) else np.zeros(1, dtype=np.int64)
        inside = self.read(some)
        places = np.where(inside, self.starts[some, None] + np.arange(inside.shape[1]), 0)
        first = (self.sizes - self.targets)[some, None]
        predicts = inside & (np.arange(inside.shape[1]) >= first) & (len(ids) > 0)
        labels = np.where(predicts, self.tokens[places + 1].astype(np.int64), IGNORE)
        return {
            "input_ids": torch.from_numpy(self.tokens[places].astype(np.int64)),
            "labels": torch.from_numpy(labels),
        }

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Where the predicted tokens stand in the text, window after window: int64 [N]."""
        ends = np.repeat(self.starts + self.sizes, self.targets)
        behind = np.repeat(self.targets.cumsum(), self.targets) - np.arange(self.targets.sum())
        positions: NDArray[np.int64] = ends + 1 - behind
        return positions


def blocks(tokens: Tokens, length: int, name: str) -> Windows:
    """Return the text as windows that touch: number b reads `length` tokens from b·length on.

    Every token but the first is predicted once; the last window is shorter, never lost. Raises
    UserError for a training text shorter than a window, and for one with nothing to predict.
    """
    count = len(tokens) - 1
    if name == "train" and count < length:
        raise UserError(f"data.length = {length}: the training text has only {len(tokens)} tokens")
    if count < 1:
        raise UserError(f"data: the {name} text has nothing to predict, it is one token long")
    starts = np.arange(0, count, length, dtype=np.int64)
    sizes = np.minimum(length, count - starts)
    return Windows(tokens, starts, sizes, sizes)


def losses(forward: Forward, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return the summed loss of a micro-batch, to be trained and to be reported (`Goal.losses`)."""
    loss = forward({"input_ids": inputs["input_ids"], "next_ids": inputs["labels"]})
    return loss, loss


# ---------------------------------------------------------------------------------------------
# Scores
# ---------------------------------------------------------------------------------------------


class TokenLosses(NamedTuple):
    """What a model makes of each predicted token, in the order of `Windows.positions`."""

    nll: NDArray[np.float32]
    """−log p of the token, in nats."""
    rank: NDArray[np.int64]
    """How many entries of the vocabulary come before it; 0: it is the most likely one."""


@dataclass(frozen=True)
class Text:
    """What is known of a text to be scored, beside its tokens."""

    piece_bytes: NDArray[np.int64] | None
    """UTF-8 bytes that each id stands for; None: they are not known."""
    words: int | None
    """White-space words behind the first token of the text; None: they are not known."""

    @classmethod
    def of(cls, tokens: Tokens, tokenizer: Tokenizer, words: int) -> Text:
        """words: those of the whole text, as its manifest has counted them."""
        pair = tokens[:2].tolist()
        # Without its first token a text lacks a word where that was one.
        lost = len(tokenizer.decode(pair).split()) - len(tokenizer.decode(pair[1:]).split())
        sizes = tokenizer.piece_bytes()
        return cls(None if sizes is None else np.array(sizes, dtype=np.int64), words - lost)


def token_losses(
    forward: Scored, windows: Windows, batch_size: int
) -> tuple[TokenLosses, dict[str, float]]:
    """Return the losses on all ranks, and what the distance biases did (`gates.Watch.values`).

    Every rank makes as many calls. The model must be in evaluation mode.
    """
    world, everything = ranks.world_size(), np.arange(len(windows), dtype=np.int64)
    split = BatchSplit(micro=batch_size, accumulation=1)
    firsts = windows.targets.cumsum() - windows.targets
    places, found = [np.zeros(0, dtype=np.int64)], [np.zeros((2, 0))]
    with torch.no_grad(), watch_gates(forward.module) as watch:
        for first in range(0, len(windows), batch_size * world):
            together = everything[first : first + batch_size * world]
            ids = pieces(together, ranks.rank(), world, split)[0]
            inputs = windows.collate(ids, FIXED_EPOCH)
            counted = inputs["labels"] != IGNORE
            real = windows.read(ids) if len(ids) else np.zeros(counted.shape, dtype=bool)
            watch.real = torch.from_numpy(real)
            asked = {"input_ids": inputs["input_ids"], "scored_ids": inputs["labels"]}
            found.append(forward(asked).cpu()[:, counted].double().numpy())
            places += [np.arange(firsts[i], firsts[i] + windows.targets[i]) for i in ids]
        observed = watch.values()
    nll = np.full(int(windows.targets.sum()), np.nan, dtype=np.float32)
    rank = np.zeros(len(nll), dtype=np.int64)
    for where, of_rank in ranks.gather((np.concatenate(places), np.concatenate(found, 1))):
        nll[where], rank[where] = of_rank
    return TokenLosses(nll, rank), observed


def causal_lm_scores(losses: TokenLosses, windows: Windows, text: Text) -> dict[str, float | None]:
    """Return the scores of a model, each over a count that is named beside it.

    Over eval_targets: eval_loss (nats), eval_perplexity, eval_bits_per_token, eval_top1, eval_top5
    (parts of 1); over eval_bytes: eval_bits_per_byte; over eval_words: eval_word_perplexity. The
    last two are there where bytes and words are known. eos has no bytes and is no word, but its
    loss counts. Sums are in float64, so no batch and no rank changes them.
    """
    total, count = float(losses.nll.sum(dtype=np.float64)), len(losses.nll)
    scores = loss_scores(Loss(total, count))
    if not math.isfinite(total):
        return scores
    scores["eval_bits_per_token"] = total / count / math.log(2)
    scores |= {f"eval_top{k}": float((losses.rank < k).mean()) for k in (1, 5)}
    size = 0
    if text.piece_bytes is not None:
        size = int(text.piece_bytes[windows.tokens[windows.positions]].sum())
    if size:
        scores |= {"eval_bits_per_byte": total / size / math.log(2), "eval_bytes": float(size)}
    if text.words:
        scores |= {
            "eval_word_perplexity": perplexity(total, text.words),
            "eval_words": float(text.words),
        }
    return scores


def unigram_loss(train: Tokens, windows: Windows, vocab_size: int) -> float:
    """Return the loss in nats of a unigram model of the training text on the predicted tokens."""
    return Unigram(token_counts(train, vocab_size)).loss(windows.tokens[windows.positions])
