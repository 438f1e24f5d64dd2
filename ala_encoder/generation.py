"""Going on with a text: greedy or sampled tokens from a causal language model, one after the other.

For: `CausalLM`, on ids and (`Continuation`) on lines of text. A token costs one step on the cache;
with `window` that is O(window) in time and memory however long the text, since the oldest keys are
dropped in every layer and none is computed again. Not for: the search for translations
(`decoding`), what is kept between steps (`cache`).

With a window every token sees the `window` tokens up to itself, those of the prompt too: the same
as a window bias of that width in every layer, whatever the model was trained with. Distance biases
mean the same wherever a text has got to (Chi et al. 2023, arXiv:2212.10356). Sinusoidal and rotary
positions go on counting: rotated keys depend on distances alone, sines come to places never trained
on. Learned positions end, and what is dropped frees none, so a window is refused there.

A text's tokens do not depend on the others of its batch, up to rounding: a draw is a hash of seed,
number of the text and place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ala_encoder.cache import Cache, without
from ala_encoder.errors import UserError
from ala_encoder.keyed import keyed_uniform
from ala_encoder.models import CausalLM
from ala_encoder.positions import LearnedPositions
from ala_encoder.settings.generate import Sampling
from ala_encoder.streams import Line
from ala_encoder.tokenizer import Tokenizer

_PIECE = 64
"""Tokens of a prompt longer than the window that are read at once: they are scored in the open."""


@dataclass(frozen=True)
class Generated:
    """What follows a prompt."""

    ids: tuple[int, ...]
    """Without eos."""
    has_ended: bool
    """Whether the model put out eos; else `max_new_tokens` was reached."""


@torch.inference_mode()
def generate(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    settings: Sampling,
    *,
    eos: int,
    forbidden: Collection[int] = (),
    numbers: Sequence[int] | None = None,
    batch_size: int = 16,
) -> list[Generated]:
    """Return what follows each prompt of at least one token, in their order.

    forbidden: ids that are never put out; numbers: of the texts, which their draws depend on; none:
    their places. Raises UserError where learned positions end or `window` meets them, and when the
    model gives NaN.
    """
    assert not model.training, "dropout would make it random"
    assert all(prompts), "a prompt has a token"
    check_positions(model, max(map(len, prompts), default=0), settings)
    given = np.arange(len(prompts)) if numbers is None else np.asarray(numbers)
    order = sorted(range(len(prompts)), key=lambda n: -len(prompts[n]))
    device = next(model.parameters()).device
    banned = torch.tensor(sorted(set(forbidden) - {eos}), dtype=torch.long, device=device)
    found: dict[int, Generated] = {}
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        texts = _together(model, [prompts[n] for n in rows], given[rows], settings, eos, banned)
        found |= dict(zip(rows, texts, strict=True))
    return [found[n] for n in range(len(prompts))]


def check_positions(model: CausalLM, length: int, settings: Sampling) -> None:
    """Raise UserError where learned positions do not reach for a prompt of so many tokens."""
    if not isinstance(model.positions, LearnedPositions):
        return
    if settings.window is not None:
        raise UserError(
            f"window = {settings.window}: learned positions end, what is dropped frees none"
        )
    most = model.positions.max_length
    if length + settings.max_new_tokens - 1 > most:  # the last one is not read
        raise UserError(
            f"{length:,} tokens and max_new_tokens = {settings.max_new_tokens}: the model has "
            f"{most:,} positions"
        )


def _together(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    numbers: NDArray[np.int64],
    settings: Sampling,
    eos: int,
    banned: Tensor,
) -> list[Generated]:
    """Go on with the prompts of one batch, the longest of which is the first."""
    cache = Cache(len(model.stack.layers), window=settings.window)
    hidden = _read(model, prompts, cache, settings.window)
    padded = len(prompts[-1]) < len(prompts[0])
    new: list[list[int]] = [[] for _ in prompts]
    rows = torch.arange(len(prompts), device=hidden.device)
    for step in range(settings.max_new_tokens):
        logits = model.logits(hidden[:, -1]).float()
        logits[:, banned] = -torch.inf
        if logits.isnan().any():
            raise UserError("generate: the model gives NaN")
        drawn = keyed_uniform(settings.seed, numbers[rows.cpu().numpy()], step)
        ids = chosen(logits, settings, torch.from_numpy(drawn).to(logits.device))
        for row, token in zip(rows.tolist(), ids.tolist(), strict=True):
            new[row].append(token)
        done = ids == eos
        if done.all() or step == settings.max_new_tokens - 1:
            break
        if done.any():
            stay = without(done)
            rows, ids = rows[stay], ids[stay]
            cache.keep(stay)
        tokens = ids[:, None]
        hidden = model.hidden(tokens, torch.ones_like(tokens) if padded else None, cache=cache)
    return [
        Generated(tuple(text[:-1]), True) if text[-1] == eos else Generated(tuple(text), False)
        for text in new
    ]


def _read(
    model: CausalLM, prompts: Sequence[Sequence[int]], cache: Cache, window: int | None
) -> Tensor:
    """Read prompts, padded on the left, into a cache; return their last hidden states."""
    width = len(prompts[0])
    device = next(model.parameters()).device
    ids = torch.tensor([[*[0] * (width - len(row)), *row] for row in prompts], device=device)
    begins = torch.tensor([[width - len(row)] for row in prompts], device=device)
    segments = (torch.arange(width, device=device) >= begins).long()
    # a first piece that the window holds is read as training reads, no map of it is made
    first = width if window is None else min(width, window)
    cuts = [0, first, *range(first + _PIECE, width, _PIECE), width]
    for start, end in pairwise(cuts):
        if start < end:
            part = segments[:, start:end] if len(prompts[-1]) < width else None
            hidden = model.hidden(ids[:, start:end], part, cache=cache)
    return hidden


def chosen(logits: Tensor, settings: Sampling, drawn: Tensor) -> Tensor:
    """Return the next token of each row: float [B, V], numbers in [0, 1) [B] → int [B].

    Of softmax(logits / temperature) the `top_k` largest are kept, then of what is left, made to sum
    to 1, the fewest largest that reach `top_p`; equals of the last of them stay too. A number falls
    into the kept ones laid end to end, by id.
    """
    if settings.temperature == 0:
        return logits.argmax(-1)
    # The largest becomes 0 first: over a tiny temperature it would be infinite.
    below = logits.double() - logits.double().amax(-1, keepdim=True)
    probabilities = (below / settings.temperature).softmax(-1)
    if settings.top_k is not None and settings.top_k < logits.shape[1]:
        least = probabilities.topk(settings.top_k).values[:, -1:]
        probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    if settings.top_p is not None:
        largest = probabilities.sort(-1, descending=True).values
        before = largest.cumsum(-1) - largest
        enough = before >= settings.top_p * largest.sum(-1, keepdim=True)
        least = largest.masked_fill(enough, torch.inf).amin(-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    ends = probabilities.cumsum(-1)
    place = (ends <= drawn[:, None] * ends[:, -1:]).sum(-1)
    last = logits.shape[1] - 1 - (probabilities.flip(-1) > 0).int().argmax(-1)
    return place.minimum(last)  # rounding may carry a number to the end


@final
class Continuation:
    """A causal language model that goes on with lines of text."""

    def __init__(
        self, model: CausalLM, tokenizer: Tokenizer, settings: Sampling, batch_size: int
    ) -> None:
        """Raises UserError for a `top_k` that keeps the whole vocabulary."""
        top_k = settings.top_k
        if top_k is not None and top_k >= tokenizer.vocab_size:
            raise UserError(
                f"top_k = {top_k}: does nothing, the vocabulary has {tokenizer.vocab_size} entries"
            )
        self._model, self._tokenizer = model, tokenizer
        self._settings, self._batch_size = settings, batch_size
        self._count = 0

    def texts(self, lines: Sequence[Line], name: str) -> list[str]:
        """Return each line and what follows it, as one line.

        A line begins a document, so eos stands before it, as in training. Its draws depend on how
        many lines came before it, in all calls. name: of the text, for messages. Raises UserError
        as `generate` does, naming the line.
        """
        tokenizer = self._tokenizer
        eos = tokenizer.eos_id
        prompts = [[eos, *ids] for ids in tokenizer.encode_batch([text for _, text in lines])]
        for (number, _), prompt in zip(lines, prompts, strict=True):
            try:
                check_positions(self._model, len(prompt), self._settings)
            except UserError as error:
                raise UserError(f"{name}:{number}: {error}") from None
        found = generate(
            self._model,
            prompts,
            self._settings,
            eos=eos,
            forbidden=tokenizer.never_put_out,
            numbers=range(self._count, self._count + len(lines)),
            batch_size=self._batch_size,
        )
        self._count += len(lines)
        return [
            tokenizer.decode_line([*prompt[1:], *one.ids])
            for prompt, one in zip(prompts, found, strict=True)
        ]
