"""Settings of the tokenizer, one class a kind.

`train_tokenizer` makes the folder `path`; whatever opens one made with other settings refuses it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ala_encoder.settings.base import NonNegativeInt, PositiveInt, Section


class WordPieceSettings(Section):
    """BERT's kind."""

    path: Path
    kind: Literal["wordpiece"] = "wordpiece"
    vocab_size: Annotated[int, Field(ge=16)] = 30_522
    """Pieces to train, special tokens included; a poor text gives fewer."""
    lowercase: bool = True
    min_frequency: PositiveInt = 2
    """Merges seen less often are not learned."""


class ByteBPESettings(Section):
    """GPT-2's kind: any text, given back exactly."""

    path: Path
    kind: Literal["byte_bpe"]
    vocab_size: Annotated[int, Field(ge=260)] = 50_260
    """Pieces to train: 4 special tokens, 256 bytes, and merges."""
    min_frequency: PositiveInt = 2
    """Merges seen less often are not learned."""


class SentencePieceSettings(Section):
    """The sentencepiece library's kinds."""

    path: Path
    kind: Literal["sentencepiece"]
    vocab_size: Annotated[int, Field(ge=7)] = 32_000
    """Pieces to train, special tokens included."""
    model: Literal["unigram", "bpe"] = "unigram"
    character_coverage: Annotated[float, Field(gt=0.9, le=1.0)] = 0.9995
    """Share of the text's characters that get a piece; the rarest others are unknown."""
    normalization: Literal["nmt_nfkc", "nmt_nfkc_cf", "identity"] = "nmt_nfkc"
    """nmt_nfkc_cf also folds case; identity leaves text as it is."""


class FairseqBPESettings(Section):
    """fairseq's style for translation: Moses tokenisation, joint BPE codes of subword-nmt, and a
    dictionary whose size follows from the text and the merges."""

    path: Path
    kind: Literal["fairseq_bpe"]
    num_merges: PositiveInt = 32_000
    """Merges to learn from both languages together; a poor text gives fewer."""
    min_frequency: PositiveInt = 2
    """Merges seen less often are not learned."""
    aggressive_dashes: bool = True
    """Whether Moses cuts words at dashes, as in `foo @-@ bar` (tokenizer.perl -a)."""
    escape: bool = True
    """Whether Moses writes `&`, `|`, quotes and brackets as `&amp;` and so on."""
    vocab_size: PositiveInt | None = None
    """Size of the dictionary, which must have it: for `params`, which reads no files."""


class PretrainedSettings(Section):
    """A published vocabulary, copied to `path` with the special tokens it lacks."""

    path: Path
    kind: Literal["pretrained"]
    name: Annotated[str, Field(min_length=1)]
    """A folder, or a name of the Hugging Face hub."""
    revision: str | None = None
    """Commit or tag on the hub; none: the newest."""
    complete: bool = True
    """Whether pad, cls, sep and mask are appended where it lacks them; a causal model needs sep
    alone, which GPT-2 has."""
    unused: NonNegativeInt = 0
    """Pieces appended that no text has, for a round number of them; of byte-level BPE alone."""
    vocab_size: PositiveInt | None = None
    """Size of the copy, which must have it: for `params`, which reads no files."""


def _wordpiece_by_default(given: Any) -> Any:
    return {"kind": "wordpiece", **given} if isinstance(given, dict) else given


TokenizerSettings = Annotated[
    WordPieceSettings
    | ByteBPESettings
    | SentencePieceSettings
    | FairseqBPESettings
    | PretrainedSettings,
    Field(discriminator="kind"),
    BeforeValidator(_wordpiece_by_default),
]
