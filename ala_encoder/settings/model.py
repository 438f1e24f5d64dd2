"""Settings of the model families. The vocabulary size is not here: it is the tokenizer's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ala_encoder.settings.base import PositiveFloat, PositiveInt, Probability, Section


class EncoderModel(Section):
    """BERT-style encoder; the defaults are BERT-base."""

    family: Literal["encoder"]
    dim: PositiveInt = 768
    num_layers: PositiveInt = 12
    num_heads: PositiveInt = 12
    ffn_dim: PositiveInt = 3072
    max_length: Annotated[int, Field(ge=3)] = 512
    """Positions the model has, [CLS] and [SEP] included."""
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    """learned: as BERT, added; sinusoidal: added; rotary: turns q and k; none: biases alone."""
    norm: Literal["post", "pre"] = "post"
    """post: layer norm after each residual, as BERT; pre: before, with a final one."""
    attention_bias: bool = True
    """Whether the Q, K, V and output projections have bias vectors."""
    pooling: Literal["first", "mean"] = "first"
    """What a classifier sees: the first token, as BERT, or the mean of all (ours): with local masks
    the first token hears of the others only over several layers."""
    dropout: Probability = 0.1
    layer_norm_eps: PositiveFloat = 1e-12
    init_std: PositiveFloat = 0.02


class EncoderDecoderModel(Section):
    """Transformer-base for translation; the defaults are the source's (Transformer-base)."""

    family: Literal["encoder_decoder"]
    dim: PositiveInt = 512
    num_layers: PositiveInt = 6
    num_decoder_layers: PositiveInt = 6
    num_heads: PositiveInt = 8
    ffn_dim: PositiveInt = 2048
    norm: Literal["post", "pre"] = "pre"
    attention_bias: bool = False
    dropout: Probability = 0.1


ModelSettings = Annotated[EncoderModel | EncoderDecoderModel, Field(discriminator="family")]
