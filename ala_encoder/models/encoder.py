"""A BERT-style encoder, with a masked-language-model head or a classifier on top."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ala_encoder.blocks import ACTIVATIONS, Stack, Trace, build_norm
from ala_encoder.dropout import Dropout
from ala_encoder.models.parts import Vocabulary, build_positions, embed, initialise
from ala_encoder.positions import first_real
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.experiment import check_stack
from ala_encoder.settings.model import EncoderModel


class Encoder(nn.Module):
    """Token, position and type embeddings, then the stack: a BERT encoder without heads."""

    def __init__(self, model: EncoderModel, attention: AttentionSettings, vocab_size: int) -> None:
        super().__init__()
        table = check_stack(model, attention, model.max_length)
        self.vocabulary = Vocabulary(vocab_size, model.dim)
        self.positions = build_positions(model)
        self.token_types = nn.Embedding(2, model.dim)
        self.norm = build_norm(model)
        self.dropout = Dropout(model.dropout)
        self.stack = Stack(table, model, attention)

    def forward(
        self,
        input_ids: Tensor,
        segments: Tensor | None = None,
        token_types: Tensor | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """input_ids, segments, token_types: int [B, T] → hidden states [B, T, dim]."""
        types = torch.zeros_like(input_ids) if token_types is None else token_types
        x = embed(self.vocabulary, self.positions, input_ids, segments)
        x = self.dropout(self.norm(x + self.token_types(types)))
        hidden: Tensor = self.stack(x, segments, trace)
        return hidden


class PredictionHead(nn.Module):
    """BERT's prediction head: dense, activation, norm, then the tied vocabulary and a bias."""

    def __init__(self, model: EncoderModel, vocab_size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(model.dim, model.dim)
        self.norm = build_norm(model)
        self.activation = ACTIVATIONS[model.activation]
        self.output_bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, x: Tensor, vocabulary: Vocabulary) -> Tensor:
        """[N, dim] → logits [N, V]."""
        logits: Tensor = vocabulary(self.norm(self.activation(self.proj(x))))
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
        self.dropout = Dropout(model.dropout)
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
