"""How a causal language model is scored on a text: which tokens, with how much before them.

For: the protocols `blocks`, `sliding` and `last_token`, several lengths at once, and the losses of
single tokens, by which models are compared in pairs. Not for: the scores themselves (`causal_lm`).

- blocks: windows that touch. Each token is predicted once, those at the start of a window from few
  others: the perplexity is too high, and falls as the windows grow, whatever the model does with
  what is far away.
- sliding: windows that overlap, each moved on by `stride`. Each token is predicted once, those of
  all windows but the first from at least length − stride + 1 others.
- last_token: a fixed set of tokens, each predicted from exactly `length` others (Chi et al. 2023).
  Since only what stands before them changes with the length, lengths are compared in pairs. The
  set is the same for every model, and for all lengths that are asked for together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ala_encoder.analysis.statistics import aggregate
from ala_encoder.causal_lm import (
    Text,
    Tokens,
    Windows,
    blocks,
    causal_lm_scores,
    token_losses,
)
from ala_encoder.errors import UserError
from ala_encoder.evaluation import Scored
from ala_encoder.keyed import keyed_bits
from ala_encoder.settings.evaluate import Protocol

_TOKENS = 6  # a stream of the keyed hash


def windows(protocol: Protocol, tokens: Tokens, length: int) -> Windows:
    """Return the windows of one of a protocol's lengths.

    Raises UserError for a text that is too short.
    """
    if protocol.name == "blocks":
        return blocks(tokens, length, "held-out")
    if protocol.name == "sliding":
        assert protocol.stride is not None
        return sliding(tokens, length, protocol.stride)
    assert protocol.tokens is not None
    places = fixed_tokens(tokens, max(protocol.lengths), protocol.tokens)
    return last_token(tokens, length, places)


def sliding(tokens: Tokens, length: int, stride: int) -> Windows:
    """Return windows of `length` tokens, each `stride` on from the one before.

    The first predicts all that follows its tokens, the others what has not been predicted yet; with
    stride = length they are `blocks`. Raises UserError as `blocks` does, and for a stride beyond
    the length, which would leave tokens out.
    """
    if not 1 <= stride <= length:
        raise UserError(f"stride = {stride}: allowed are 1 … {length}, the length of a window")
    count = len(blocks(tokens, length, "held-out").tokens) - 1
    starts = np.arange(1 + max(0, -(-(count - length) // stride)), dtype=np.int64) * stride
    ends = np.minimum(starts + length, count)
    return Windows(tokens, starts, ends - starts, np.diff(ends, prepend=0))


def fixed_tokens(tokens: Tokens, longest: int, count: int) -> NDArray[np.int64]:
    """Return `count` places of a text with at least `longest` tokens before them, in order.

    They are those with the smallest hash, so a smaller `longest` leaves most of them as they are.
    Raises UserError where the text has fewer.
    """
    places = np.arange(longest, len(tokens), dtype=np.int64)
    if len(places) < count:
        raise UserError(
            f"tokens = {count}: the text has {len(places):,} with {longest:,} tokens before them"
        )
    chosen = keyed_bits(_TOKENS, places).argsort(kind="stable")[:count]
    return np.sort(places[chosen])


def last_token(tokens: Tokens, length: int, places: NDArray[np.int64]) -> Windows:
    """Return windows that read the `length` tokens before each place and predict what is there."""
    return Windows(tokens, places - length, np.full_like(places, length), np.ones_like(places))


class Found(NamedTuple):
    """What a model scores, and the losses of single tokens."""

    scores: dict[str, float | None]
    """As `causal_lm_scores`; of several lengths each name ends in /LENGTH."""
    arrays: dict[str, NDArray[Any]]
    """nll, float32 [N], or nll/LENGTH of several lengths: in the order of the text from its second
    token on, or of `positions`, int64 [N], where tokens were chosen."""


def score(model: Scored, tokens: Tokens, protocol: Protocol, text: Text, batch_size: int) -> Found:
    """Score a model by a protocol at all its lengths; every rank calls it.

    batch_size: windows of the first length that a rank computes at once, and of another as many as
    have no more tokens. Of last_token there is besides, over the tokens: eval_loss_standard_error.
    """
    found = Found({}, {})
    for length in protocol.lengths:
        made = windows(protocol, tokens, length)
        at_once = max(1, batch_size * protocol.lengths[0] // length)
        losses, observed = token_losses(model, made, at_once)
        is_fixed = protocol.name == "last_token"
        scores = causal_lm_scores(losses, made, replace(text, words=None) if is_fixed else text)
        if is_fixed:
            scores["eval_loss_standard_error"] = aggregate(losses.nll).se
            found.arrays["positions"] = made.positions
        if "eval_gate" in observed:
            scores["eval_gate"] = observed["eval_gate"]
        end = f"/{length}" if len(protocol.lengths) > 1 else ""
        found.scores.update({f"{name}{end}": value for name, value in scores.items()})
        found.arrays[f"nll{end}"] = losses.nll
    return found
