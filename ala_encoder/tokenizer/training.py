"""Learning a vocabulary from text, the same one from the same text however it arrives.

For: WordPiece, byte-level BPE and SentencePiece. Not for: reading text files (`sources`), fairseq's
style (`fairseq_training`).
Distinct chunks of text are counted first and handed to the libraries in sorted order, so that a
vocabulary depends on the chunks and their counts alone: not on the process, the number of threads,
or the order of files and lines.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ala_encoder.errors import UserError, reason
from ala_encoder.lines import SURROGATES
from ala_encoder.settings.tokenizer import (
    ByteBPESettings,
    FairseqBPESettings,
    SentencePieceSettings,
    TokenizerSettings,
    WordPieceSettings,
)
from ala_encoder.tokenizer.base import InLanguage, Special, Tokenizer
from ala_encoder.tokenizer.byte_bpe import ALPHABET, ByteBPE, splitter
from ala_encoder.tokenizer.fairseq_training import train_fairseq_bpe
from ala_encoder.tokenizer.sentence_piece import SentencePiece
from ala_encoder.tokenizer.wordpiece import (
    CONTINUATION,
    MAX_WORD_LENGTH,
    SPECIAL_TOKENS,
    Normalisation,
    WordPiece,
    normalizer,
)

if TYPE_CHECKING:
    import tokenizers

BYTE_TOKENS = ("<s>", "<pad>", "</s>", "<mask>")
"""RoBERTa's names in its order, without its <unk>, which bytes do not need; ids 0 to 3."""

# GPT-2's pattern never joins what this one parts. Unicode's white space, not Python's `\s`.
_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_CHUNK = re.compile(f" ?[^{_SPACE}]+|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+")


def train(
    settings: TokenizerSettings,
    texts: Iterable[str | InLanguage],
    say: Callable[[str], None] = print,
) -> Tokenizer:
    """Learn the vocabulary that settings ask for; equal texts in any order give equal bytes.

    Only kind fairseq_bpe, which needs it, asks for the language of a text.
    Raises UserError for texts without words, a vocab_size too small for the special tokens and
    letters (naming the smallest), one too large for SentencePiece (naming the largest), and for
    kind pretrained, which is not trained. The other kinds give fewer pieces and say so.
    """
    if isinstance(settings, FairseqBPESettings):
        return train_fairseq_bpe(settings, texts, say)
    plain = (text if isinstance(text, str) else text.text for text in texts)
    clean = (SURROGATES.sub("", text) for text in plain)
    if isinstance(settings, WordPieceSettings):
        return _train_wordpiece(settings, clean, say)
    if isinstance(settings, ByteBPESettings):
        return _train_byte_bpe(settings, clean, say)
    if isinstance(settings, SentencePieceSettings):
        return _train_sentence_piece(settings, clean)
    raise UserError("tokenizer.kind = 'pretrained': is copied, not trained")


# WordPiece


def _train_wordpiece(
    settings: WordPieceSettings, texts: Iterable[str], say: Callable[[str], None]
) -> WordPiece:
    """Ids: the special tokens, the letters seen, the letters seen inside words (`##x`), the merges.

    Each merge joins the most *frequent* pair of adjacent pieces, as the `tokenizers` library does
    (not the likelihood ratio of Schuster and Nakajima 2012); ties go to the pair of smaller ids.
    Words over 100 characters are left out. Left alone, the library's trainer numbers the `##x`
    letters in hash-map order, and as ties between pairs go by id the merges differ in every run.
    So all letters are handed over as "special tokens" in sorted order; after that nothing depends
    on the order in which words arrive.
    """
    from tokenizers import models, trainers

    normalisation = Normalisation(settings.lowercase, settings.lowercase)
    counts = _count_words(texts, normalisation)
    counts = Counter({word: n for word, n in counts.items() if len(word) <= MAX_WORD_LENGTH})
    _check_counts(counts)
    letters = sorted({letter for word in counts for letter in word})
    inside = sorted({letter for word in counts for letter in word[1:]})
    initial = [*SPECIAL_TOKENS, *letters, *(CONTINUATION + letter for letter in inside)]
    if settings.vocab_size < len(initial):
        raise UserError(
            f"vocab_size is {settings.vocab_size}; this text needs at least {len(initial)}: special"
            f" tokens {len(SPECIAL_TOKENS)}, letters {len(letters)}, letters inside words"
            f" {len(inside)}"
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=settings.min_frequency,
        special_tokens=initial,
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    backend = _run(models.WordPiece(unk_token="[UNK]"), trainer, counts)
    pieces = _pieces(backend)
    assert pieces[: len(initial)] == initial, "the trainer renumbered the letters"
    _note(pieces, settings, say)
    return WordPiece(pieces, normalisation)


def _count_words(texts: Iterable[str], normalisation: Normalisation) -> Counter[str]:
    from tokenizers.pre_tokenizers import BertPreTokenizer

    # A space always parts words, so each distinct chunk between spaces is normalised only once.
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(text.split(" "))
    normalise = normalizer(normalisation).normalize_str
    split = BertPreTokenizer().pre_tokenize_str
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word, _ in split(normalise(chunk)):
            words[word] += count
    return words


# Byte-level BPE


def _train_byte_bpe(
    settings: ByteBPESettings, texts: Iterable[str], say: Callable[[str], None]
) -> ByteBPE:
    """Ids: <s> <pad> </s> <mask>, the 256 bytes in GPT-2's order, the merges.

    Each merge joins the most frequent pair of adjacent pieces; ties go to the pair of smaller ids.
    """
    from tokenizers import models, trainers

    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(_CHUNK.findall(text))
    split = splitter().pre_tokenize_str
    counts: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for part, _ in split(chunk):
            counts[part] += count
    _check_counts(counts)
    initial = [*BYTE_TOKENS, *ALPHABET]
    if settings.vocab_size < len(initial):
        raise UserError(f"vocab_size is {settings.vocab_size}; at least {len(initial)} is needed")
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=settings.min_frequency,
        special_tokens=list(BYTE_TOKENS),
        initial_alphabet=list(ALPHABET),
        show_progress=False,
    )
    backend = _run(models.BPE(), trainer, counts)
    pieces = _pieces(backend)
    assert pieces[: len(initial)] == initial, "the trainer renumbered the bytes"
    merges = json.loads(backend.to_str())["model"]["merges"]
    _note(pieces, settings, say)
    special = Special(cls=0, pad=1, sep=2, mask=3)
    return ByteBPE(pieces, [(left, right) for left, right in merges], special)


# SentencePiece


def _train_sentence_piece(settings: SentencePieceSettings, texts: Iterable[str]) -> SentencePiece:
    """Ids: [PAD], [UNK], [CLS], [SEP], [MASK], the pieces as the library orders them.

    White space always parts pieces. BPE is given each word once, with its count; unigram, which
    counts its first pieces before it counts words, is given each word as often as it occurs.
    """
    from sentencepiece import SentencePieceTrainer

    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.replace("\0", "").split())
    _check_counts(counts)
    with_counts = settings.model == "bpe"
    lines = (f"{word}\t{counts[word]}" for word in sorted(counts))
    written = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=lines if with_counts else _repeated(counts),
            input_format="tsv" if with_counts else "text",
            model_writer=written,
            model_type=settings.model,
            vocab_size=settings.vocab_size,
            character_coverage=settings.character_coverage,
            normalization_rule_name=settings.normalization,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            pad_piece=SPECIAL_TOKENS[0],
            unk_piece=SPECIAL_TOKENS[1],
            bos_piece=SPECIAL_TOKENS[2],
            eos_piece=SPECIAL_TOKENS[3],
            control_symbols=[SPECIAL_TOKENS[4]],
            # Written into the model, and floating-point sums follow it: never the machine's.
            num_threads=1,
            minloglevel=3,
        )
    except RuntimeError as error:
        raise UserError(_explained(settings, error)) from None
    return SentencePiece(written.getvalue())


def _explained(settings: SentencePieceSettings, error: RuntimeError) -> str:
    """Say in one line what the library's assertions mean."""
    message = str(error)
    if largest := re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", message):
        return f"vocab_size is {settings.vocab_size}; this text gives at most {largest[1]} pieces"
    if smallest := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"vocab_size is {settings.vocab_size}; this text needs at least {smallest[1]} pieces:"
            " special tokens and letters (a lower character_coverage needs fewer)"
        )
    return f"sentencepiece cannot train on this text: {reason(error)}"


# What they share


def _check_counts(counts: Mapping[str, int]) -> None:
    if not counts:
        raise UserError("no words to train on: the text is empty")
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    if max(letters.values()) >= 2**31:
        raise UserError("more than 2**31 occurrences of one letter; train on a part of the text")


def _run(
    model: tokenizers.models.Model, trainer: tokenizers.trainers.Trainer, counts: Mapping[str, int]
) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers import pre_tokenizers

    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(_repeated(counts), trainer)
    return backend


def _repeated(counts: Mapping[str, int], width: int = 4000) -> Iterator[str]:
    # Text, not counts, is what the libraries take; a word a line keeps their memory small, and
    # sentencepiece leaves out lines of more than 4192 bytes.
    for word in sorted(counts):
        at_once = max(1, width // (len(word.encode("utf-8", "replace")) + 1))
        for start in range(0, counts[word], at_once):
            yield f"{word} " * min(at_once, counts[word] - start)


def _pieces(backend: tokenizers.Tokenizer) -> list[str]:
    ids = backend.get_vocab(with_added_tokens=True)
    return sorted(ids, key=ids.__getitem__)


def _note(
    pieces: Sequence[str],
    settings: WordPieceSettings | ByteBPESettings,
    say: Callable[[str], None],
) -> None:
    if len(pieces) < settings.vocab_size:
        say(
            f"note: {len(pieces):,} pieces, not vocab_size = {settings.vocab_size:,}: in this text"
            f" no pair of pieces occurs min_frequency = {settings.min_frequency} times any more"
        )
