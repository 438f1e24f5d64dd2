"""The models, one file a family: encoders with heads, causal language model, encoder-decoder.

For: putting stacks, embeddings and heads together. The models return logits; losses are in
`objectives`. Not for: settings (`settings.model`), weights of other projects (`hub`).
"""

from ala_encoder.models.causal import CausalLM
from ala_encoder.models.encoder import POOLINGS, Classifier, Encoder, MaskedLM, PredictionHead
from ala_encoder.models.parts import Vocabulary, initialise
from ala_encoder.models.seq2seq import Seq2Seq

__all__ = [
    "POOLINGS",
    "CausalLM",
    "Classifier",
    "Encoder",
    "MaskedLM",
    "PredictionHead",
    "Seq2Seq",
    "Vocabulary",
    "initialise",
]
