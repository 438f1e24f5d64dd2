"""What the models of every family are put together from: vocabulary, positions, first weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ala_encoder.cache import Cache
from ala_encoder.chunked_loss import chunked_cross_entropy, losses_and_ranks
from ala_encoder.positions import LearnedPositions, SinusoidalPositions, counted
from ala_encoder.settings.model import Transformer


class Vocabulary(nn.Module):
    """The vocabulary matrix: looks tokens up, gives logits, and the loss of labels without them.

    All go through `forward`, so that ZeRO-3 gathers the one matrix whenever it is needed.
    """

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dim))

    def forward(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        each: bool = False,
    ) -> Tensor:
        """Token ids, int [...] → vectors [..., dim]; hidden states [..., dim] → logits [..., V].

        bias: of each logit, [V]. labels: int [...]: hidden states → the summed loss of these in
        place of logits, which are never all there (`chunked_loss`); or with `each` the loss and the
        rank of each, [2, ...], without a gradient.
        """
        if labels is not None:
            assert bias is None
            loss = losses_and_ranks if each else chunked_cross_entropy
            return loss(x, self.weight, labels)
        if x.is_floating_point():
            return F.linear(x, self.weight, bias)
        return F.embedding(x, self.weight)


Positions = LearnedPositions | SinusoidalPositions


def build_positions(model: Transformer) -> Positions | None:
    """Return what is added to the embeddings; None: nothing, or the stack turns q and k."""
    if model.positions == "learned":
        assert model.max_length is not None
        return LearnedPositions(model.max_length, model.dim)
    return SinusoidalPositions(model.dim) if model.positions == "sinusoidal" else None


def embed(
    vocabulary: Vocabulary,
    positions: Positions | None,
    ids: Tensor,
    segments: Tensor | None,
    cache: Cache | None = None,
) -> Tensor:
    """ids: int [B, T], segments: int [B, T] or None → tokens and their positions [B, T, dim].

    cache: what the ids come after.
    """
    length = ids.shape[1]
    x: Tensor = vocabulary(ids)
    if positions is None:
        return x
    if cache is None:
        where = counted(segments, length, x.device)
    else:
        where = cache.places(segments, length, x.device)
        length = cache.length + cache.steps(length)
    if isinstance(positions, LearnedPositions):
        return x + positions(where, length)  # type: ignore[no-any-return]
    # Vaswani et al.: the embeddings are lifted to the size of the sines.
    return x * x.shape[-1] ** 0.5 + positions(where).to(x.dtype)  # type: ignore[no-any-return]


def initialise(module: nn.Module, std: float) -> None:
    """Set every weight as BERT does: N(0, std), biases 0, layer norms 1 and 0.

    Distance biases keep the start their settings ask for (alpha) and a gate bias of 0.
    """
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding, Vocabulary)):
            nn.init.normal_(part.weight, 0.0, std)
        bias = getattr(part, "bias", None)
        if isinstance(part, nn.Linear) and bias is not None:
            nn.init.zeros_(bias)
