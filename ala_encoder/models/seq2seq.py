"""The encoder-decoder for translation (Vaswani et al. 2017, arXiv:1706.03762)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ala_encoder.blocks import Stack, Trace
from ala_encoder.cache import Cache
from ala_encoder.dropout import Dropout
from ala_encoder.models.parts import Vocabulary, build_positions, embed, initialise
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.experiment import check_stacks
from ala_encoder.settings.model import EncoderDecoderModel


class Seq2Seq(nn.Module):
    """Two stacks, the second looking at what the first makes of the source text.

    One vocabulary matrix serves source, target and logits.
    """

    def __init__(
        self,
        model: EncoderDecoderModel,
        attention: Mapping[str, AttentionSettings | None],
        vocab_size: int,
    ) -> None:
        """attention: the settings of encoder, decoder and cross; None or left out: plain."""
        super().__init__()
        self.vocab_size, self.max_length = vocab_size, model.max_length
        tables = check_stacks(model, attention, model.max_length)
        given = {name: attention.get(name) or AttentionSettings() for name in tables}
        self.vocabulary = Vocabulary(vocab_size, model.dim)
        self.encoder_positions = build_positions(model)
        self.decoder_positions = build_positions(model)
        self.dropout = Dropout(model.dropout)
        self.encoder = Stack(tables["encoder"], model, given["encoder"])
        self.decoder = Stack(
            tables["decoder"],
            model,
            given["decoder"],
            causal=True,
            cross=(tables["cross"], given["cross"]),
        )
        self.output_bias = nn.Parameter(torch.zeros(vocab_size)) if model.output_bias else None
        initialise(self, model.init_std)

    def forward(
        self,
        src_ids: Tensor,
        trg_ids: Tensor,
        src_segments: Tensor | None = None,
        trg_segments: Tensor | None = None,
    ) -> Tensor:
        """src_ids: int [B, S], trg_ids: int [B, T] → logits of each next token [B, T, V].

        trg_ids: what the decoder reads, shifted already. Segments: 0 is padding; several sentences
        may lie in a row, and those of equal number on both sides are a pair.
        """
        memory = self.encode(src_ids, src_segments)
        return self.logits(self.decode(trg_ids, memory, trg_segments, src_segments))

    def encode(
        self, src_ids: Tensor, src_segments: Tensor | None = None, trace: Trace | None = None
    ) -> Tensor:
        """Return the memory [B, S, dim], for `decode` as often as it is needed."""
        x = embed(self.vocabulary, self.encoder_positions, src_ids, src_segments)
        memory: Tensor = self.encoder(self.dropout(x), src_segments, trace)
        return memory

    def decode(
        self,
        trg_ids: Tensor,
        memory: Tensor | None = None,
        trg_segments: Tensor | None = None,
        src_segments: Tensor | None = None,
        trace: Trace | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the decoder's last hidden states [B, T, dim], for `logits`.

        cache: of `decoder.cache()`; the tokens come after those in it, and it keeps memory and
        src_segments, which only the first step is given.
        """
        x = embed(self.vocabulary, self.decoder_positions, trg_ids, trg_segments, cache)
        hidden: Tensor = self.decoder(
            self.dropout(x),
            trg_segments,
            trace,
            memory=memory,
            memory_segments=src_segments,
            cache=cache,
        )
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., dim] → logits [..., V]."""
        logits: Tensor = self.vocabulary(hidden, self.output_bias)
        return logits
