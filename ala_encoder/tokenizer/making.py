"""The tokenizer folder that settings ask for: made whole or not at all, and checked.

For: `train_tokenizer`. Not for: how a vocabulary is learned (`training`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable

from ala_encoder.errors import UserError
from ala_encoder.settings.tokenizer import PretrainedSettings, TokenizerSettings
from ala_encoder.tokenizer.base import Tokenizer
from ala_encoder.tokenizer.byte_bpe import ByteBPE
from ala_encoder.tokenizer.folder import fetch, load
from ala_encoder.tokenizer.sentence_piece import SentencePiece
from ala_encoder.tokenizer.training import train
from ala_encoder.tokenizer.wordpiece import WordPiece

_KINDS: dict[str, type[Tokenizer]] = {
    "wordpiece": WordPiece,
    "byte_bpe": ByteBPE,
    "sentencepiece": SentencePiece,
}


def make(
    settings: TokenizerSettings, texts: Iterable[str], *, say: Callable[[str], None] = print
) -> None:
    """Train on texts, or copy a published tokenizer and append the special tokens it lacks.

    The caller holds the lock of `settings.path`, which does not exist. Raises UserError as `train`,
    `fetch` and `load` do, and when the folder cannot be written.
    """
    if isinstance(settings, PretrainedSettings):
        tokenizer, added = load(fetch(settings.name, settings.revision)).completed()
        if added:
            say(f"appended {', '.join(added)}: {tokenizer.vocab_size:,} pieces")
    else:
        tokenizer = train(settings, texts)
    aside = settings.path.with_name(f".{settings.path.name}.making")
    shutil.rmtree(aside, ignore_errors=True)
    tokenizer.save(aside)
    os.replace(aside, settings.path)


def check(
    tokenizer: Tokenizer, settings: TokenizerSettings, *, say: Callable[[str], None] = print
) -> None:
    """Compare a tokenizer with its settings; another size is said, another kind a UserError."""
    kind = _KINDS.get(settings.kind)
    if kind is not None and not isinstance(tokenizer, kind):
        raise UserError(
            f"tokenizer.kind = {settings.kind!r}: {settings.path} holds a"
            f" {type(tokenizer).__name__}; choose another path, or delete the folder"
        )
    if settings.vocab_size not in (None, tokenizer.vocab_size):
        say(
            f"note: {settings.path} has {tokenizer.vocab_size:,} pieces, not"
            f" tokenizer.vocab_size = {settings.vocab_size:,}; the folder's size counts"
        )
