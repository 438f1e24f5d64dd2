"""The causal language model: each token is predicted from those before it."""

from __future__ import annotations

from torch import Tensor, nn

from ala_encoder.blocks import Stack, Trace, build_norm
from ala_encoder.cache import Cache
from ala_encoder.dropout import Dropout
from ala_encoder.models.parts import Vocabulary, build_positions, embed, initialise
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.experiment import check_stack
from ala_encoder.settings.model import CausalModel


class CausalLM(nn.Module):
    """Embeddings, a causal stack, and logits of the next token."""

    def __init__(self, model: CausalModel, attention: AttentionSettings, vocab_size: int) -> None:
        super().__init__()
        table = check_stack(model, attention, model.max_length)
        self.vocabulary = Vocabulary(vocab_size, model.dim)
        self.positions = build_positions(model)
        self.embedding_norm = build_norm(model) if model.embedding_norm else None
        self.dropout = Dropout(model.dropout)
        self.stack = Stack(table, model, attention, causal=True)
        self.output = None if model.tied_embeddings else Vocabulary(vocab_size, model.dim)
        initialise(self, model.init_std)

    def forward(
        self,
        input_ids: Tensor,
        segments: Tensor | None = None,
        trace: Trace | None = None,
        cache: Cache | None = None,
        *,
        next_ids: Tensor | None = None,
        scored_ids: Tensor | None = None,
    ) -> Tensor:
        """input_ids, segments: int [B, T] → logits of each next token [B, T, V].

        segments: 0 is padding, equal numbers are one document; documents see nothing of another.
        cache: of `stack.cache()`; the tokens come after those in it. next_ids: int [B, T], what
        does come next, or IGNORE: their summed loss is returned in place of logits. scored_ids: the
        same, of which the loss and the rank of each are returned [2, B, T]: see `Vocabulary`.
        """
        hidden = self.hidden(input_ids, segments, trace, cache)
        if next_ids is not None:
            return self.loss(hidden, next_ids)
        if scored_ids is not None:
            return self.loss(hidden, scored_ids, each=True)
        return self.logits(hidden)

    def hidden(
        self,
        input_ids: Tensor,
        segments: Tensor | None = None,
        trace: Trace | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the stack's last hidden states [B, T, dim]."""
        x = embed(self.vocabulary, self.positions, input_ids, segments, cache)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        hidden: Tensor = self.stack(self.dropout(x), segments, trace, cache=cache)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., dim] → logits [..., V]."""
        logits: Tensor = self._output(hidden)
        return logits

    def loss(self, hidden: Tensor, next_ids: Tensor, *, each: bool = False) -> Tensor:
        """[..., dim], int [...] → the summed loss, or with `each` losses and ranks [2, ...]."""
        loss: Tensor = self._output(hidden, labels=next_ids, each=each)
        return loss

    @property
    def _output(self) -> Vocabulary:
        return self.vocabulary if self.output is None else self.output
