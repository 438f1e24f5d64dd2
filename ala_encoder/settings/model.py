"""Settings of the model families. The vocabulary size is not here: it is the tokenizer's."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from ala_encoder.errors import UserError
from ala_encoder.settings.base import PositiveFloat, PositiveInt, Probability, Section


class Transformer(Section):
    """What every family has; abstract."""

    sections: ClassVar[tuple[str, ...]]
    """The attention sections that a config of the family may have."""

    family: str
    dim: PositiveInt
    num_layers: PositiveInt
    num_heads: PositiveInt
    ffn_dim: PositiveInt
    max_length: PositiveInt | None = None
    """Positions the model has: given where they are learned, and only there."""
    positions: Literal["learned", "sinusoidal", "rotary", "none"]
    """learned, sinusoidal: added to the embeddings; rotary: turns q and k of self-attention; none:
    biases alone."""
    norm: Literal["post", "pre"] = "pre"
    """post: a norm after each residual, as BERT; pre: before, with a final one."""
    normalization: Literal["layer_norm", "rms_norm"] = "layer_norm"
    """rms_norm: x / sqrt(mean x² + eps), times a weight (Zhang and Sennrich 2019)."""
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    """Of the feed-forward layers; gelu_tanh: the approximation that GPT-2 has."""
    attention_bias: bool
    """Whether the Q, K, V and output projections have bias vectors."""
    dropout: Probability = 0.1
    layer_norm_eps: PositiveFloat = 1e-5
    init_std: PositiveFloat = 0.02

    def layers_of(self, section: str) -> int:
        """Return how many layers have the attention of a section."""
        return self.num_layers

    @model_validator(mode="after")
    def _length_fits(self) -> Transformer:
        if self.positions == "learned" and self.max_length is None:
            raise UserError("max_length: missing, learned positions have a number")
        # An encoder's texts end at max_length whatever its positions.
        if self.positions != "learned" and self.max_length and self.family != "encoder":
            raise UserError(
                f"max_length = {self.max_length}: does nothing, positions are {self.positions!r}"
            )
        return self


def check_reach(name: str, lengths: tuple[int, ...], positions: int | None) -> None:
    """Raise UserError where a setting's lengths go beyond the learned positions; None: none are."""
    if positions is not None and max(lengths, default=0) > positions:
        raise UserError(
            f"{name} = {max(lengths)}: the model has {positions} learned positions and cannot "
            "read further (model.max_length)"
        )


class EncoderModel(Transformer):
    """BERT-style encoder; the defaults are BERT-base."""

    sections: ClassVar[tuple[str, ...]] = ("encoder",)

    family: Literal["encoder"]
    dim: PositiveInt = 768
    num_layers: PositiveInt = 12
    num_heads: PositiveInt = 12
    ffn_dim: PositiveInt = 3072
    max_length: Annotated[int, Field(ge=3)] = 512
    """Positions the model has, [CLS] and [SEP] included."""
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    norm: Literal["post", "pre"] = "post"
    attention_bias: bool = True
    pooling: Literal["first", "mean"] = "first"
    """What a classifier sees: the first token, as BERT, or the mean of all (ours): with local masks
    the first token hears of the others only over several layers."""
    layer_norm_eps: PositiveFloat = 1e-12


class CausalModel(Transformer):
    """Causal language model; the defaults are those of Adaptive Locality Attention."""

    sections: ClassVar[tuple[str, ...]] = ("decoder",)

    family: Literal["causal"]
    dim: PositiveInt = 512
    num_layers: PositiveInt = 8
    num_heads: PositiveInt = 8
    ffn_dim: PositiveInt = 2048
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    attention_bias: bool = False
    embedding_norm: bool = False
    """Whether a norm follows the embeddings, as in Bloom."""
    tied_embeddings: bool = True
    """Whether the vocabulary matrix gives the logits too; else there is an output matrix."""


class EncoderDecoderModel(Transformer):
    """Transformer-base for translation; the defaults are the source's (Transformer-base).

    Source, target and output share one vocabulary matrix.
    """

    sections: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "cross")

    family: Literal["encoder_decoder"]
    dim: PositiveInt = 512
    num_layers: PositiveInt = 6
    num_decoder_layers: PositiveInt = 6
    num_heads: PositiveInt = 8
    ffn_dim: PositiveInt = 2048
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "sinusoidal"
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "relu"
    attention_bias: bool = False
    output_bias: bool = False
    """Whether each entry of the vocabulary has a bias of its logit, as in Marian."""

    def layers_of(self, section: str) -> int:
        return self.num_layers if section == "encoder" else self.num_decoder_layers


ModelSettings = Annotated[
    EncoderModel | CausalModel | EncoderDecoderModel, Field(discriminator="family")
]
