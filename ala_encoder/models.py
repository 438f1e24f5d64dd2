"""The models: a BERT-style encoder with a masked-language-model head or a classifier on top.

For: putting stack, embeddings and heads together. The models return logits; losses are in
`objectives`. Not for: settings (`settings.model`), weights of other projects (`hub`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ala_encoder.blocks import Stack, Trace
from ala_encoder.positions import LearnedPositions, SinusoidalPositions, counted, first_real
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.experiment import check_stack
from ala_encoder.settings.model import EncoderModel


class Vocabulary(nn.Module):
    """The tied vocabulary matrix: looks tokens up and gives logits.

    Both go through `forward`, so that ZeRO-3 gathers the one matrix whenever it is needed.
    """

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Token ids, int [...] → vectors [..., dim]; hidden states [..., dim] → logits [..., V]."""
        if x.is_floating_point():
            return F.linear(x, self.weight)
        return F.embedding(x, self.weight)


class Encoder(nn.Module):
    """Token, position and type embeddings, then the stack: a BERT encoder without heads."""

    def __init__(self, model: EncoderModel, attention: AttentionSettings, vocab_size: int) -> None:
        super().__init__()
        table = check_stack(model, attention, model.max_length)
        self.vocabulary = Vocabulary(vocab_size, model.dim)
        self.positions: nn.Module | None = None  # none, or rotary: the stack's
        if model.positions == "learned":
            self.positions = LearnedPositions(model.max_length, model.dim)
        elif model.positions == "sinusoidal":
            self.positions = SinusoidalPositions(model.dim)
        self.token_types = nn.Embedding(2, model.dim)
        self.norm = nn.LayerNorm(model.dim, eps=model.layer_norm_eps)
        self.dropout = nn.Dropout(model.dropout)
        self.stack = Stack(table, model, attention)

    def forward(
        self,
        input_ids: Tensor,
        segments: Tensor | None = None,
        token_types: Tensor | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """input_ids, segments, token_types: int [B, T] → hidden states [B, T, dim]."""
        batch, length = input_ids.shape
        types = torch.zeros_like(input_ids) if token_types is None else token_types
        x = self.vocabulary(input_ids)
        if isinstance(self.positions, LearnedPositions):
            x = x + self.positions(segments, (batch, length))
        elif self.positions is not None:
            # Vaswani et al.: the embeddings are lifted to the size of the sines.
            where = counted(segments, length, x.device)
            x = x * x.shape[-1] ** 0.5 + self.positions(where).to(x.dtype)
        x = self.dropout(self.norm(x + self.token_types(types)))
        hidden: Tensor = self.stack(x, segments, trace)
        return hidden


class PredictionHead(nn.Module):
    """BERT's prediction head: dense, GELU, layer norm, then the tied vocabulary and a bias."""

    def __init__(self, model: EncoderModel, vocab_size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(model.dim, model.dim)
        self.norm = nn.LayerNorm(model.dim, eps=model.layer_norm_eps)
        self.output_bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, x: Tensor, vocabulary: Vocabulary) -> Tensor:
        """[N, dim] → logits [N, V]."""
        logits: Tensor = vocabulary(self.norm(F.gelu(self.proj(x))))
        return logits + self.output_bias


class MaskedLM(nn.Module):
    """Encoder with a prediction head that runs on the target positions alone."""

    def __init__(self, model: EncoderModel, attention: AttentionSettings, vocab_size: int) -> None:
        super().__init__()
        self.encoder = Encoder(model, attention, vocab_size)
        self.head = PredictionHead(model, vocab_size)
        initialise(self, model.init_std)

    def forward(
        self,
        input_ids: Tensor,
        targets: Tensor,
        segments: Tensor | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """Return the logits [N, V] at `targets`, int [N] indices into the flattened [B·T]."""
        hidden = self.encoder(input_ids, segments, token_types)
        picked = hidden.flatten(0, 1).index_select(0, targets)
        logits: Tensor = self.head(picked, self.encoder.vocabulary)
        return logits


def pool_first(hidden: Tensor, segments: Tensor | None) -> Tensor:
    """Return each row's first real token, [CLS]: [B, T, dim] → [B, dim]."""
    if segments is None:
        return hidden[:, 0]
    return hidden[torch.arange(len(hidden), device=hidden.device), first_real(segments)]


def pool_mean(hidden: Tensor, segments: Tensor | None) -> Tensor:
    """Return the mean of each row's real tokens, 0 for a row of padding: [B, T, dim] → [B, dim]."""
    if segments is None:
        return hidden.mean(1)
    real = (segments > 0)[..., None]
    return hidden.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp(min=1)


POOLINGS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "first": pool_first,
    "mean": pool_mean,
}


class Classifier(nn.Module):
    """Encoder with BERT's pooler and a linear layer, on [CLS] or on the mean of the tokens."""

    def __init__(
        self,
        model: EncoderModel,
        attention: AttentionSettings,
        vocab_size: int,
        num_labels: int,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(model, attention, vocab_size)
        self.pooler = nn.Linear(model.dim, model.dim)
        self.dropout = nn.Dropout(model.dropout)
        self.classifier = nn.Linear(model.dim, num_labels)
        self.pool = POOLINGS[model.pooling]
        initialise(self, model.init_std)

    def forward(
        self,
        input_ids: Tensor,
        segments: Tensor | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """Return the logits [B, num_labels]."""
        hidden = self.encoder(input_ids, segments, token_types)
        pooled = self.dropout(torch.tanh(self.pooler(self.pool(hidden, segments))))
        logits: Tensor = self.classifier(pooled)
        return logits


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
