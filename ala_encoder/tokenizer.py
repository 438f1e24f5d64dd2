"""Text to ids and back: one final `Tokenizer` over a WordPiece vocabulary in BERT's file format.

For: training a vocabulary, reading an existing one, encoding, the [CLS]/[SEP] layout of pairs.
Not for: masking (objectives) or storing ids on disk (corpus).
WordPiece encoding is greedy, longest match first (Devlin et al. 2018, arXiv:1810.04805): text is
cleaned, CJK characters are set apart, letters lower-cased and accents stripped if so asked, words
cut at white space and punctuation. A word of more than 100 characters is one [UNK].
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

from ala_encoder.errors import UserError, nearest

if TYPE_CHECKING:
    import tokenizers

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_WORD_LENGTH = 100
CONTINUATION = "##"

_log = logging.getLogger(__name__)
_SURROGATES = re.compile("[\ud800-\udfff]")
_STORABLE = re.compile("[^\n\r\ud800-\udfff]+")


class Normalisation(NamedTuple):
    """What BERT's normaliser does besides cleaning; the keys of tokenizer_config.json."""

    do_lower_case: bool = True
    strip_accents: bool = True
    tokenize_chinese_chars: bool = True


@final
class Tokenizer:
    """Turns text into ids of a fixed vocabulary; text is never read as a special token."""

    pieces: tuple[str, ...]
    normalisation: Normalisation

    def __init__(self, pieces: Sequence[str], normalisation: Normalisation) -> None:
        """Build from the pieces in id order; asserts that they are distinct and hold the specials.

        For users: `Tokenizer.load` and `Tokenizer.train`.
        """
        self.pieces = tuple(pieces)
        self.normalisation = normalisation
        ids = {piece: index for index, piece in enumerate(self.pieces)}
        assert len(ids) == len(self.pieces), "a piece appears twice"
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            ids[token] for token in SPECIAL_TOKENS
        )
        self.special_ids = frozenset(ids[token] for token in SPECIAL_TOKENS)
        self._backend = _backend(ids, normalisation)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[tuple[str, ...], Normalisation]]:
        # The library's own pickle forgets that special tokens in text are to stay text.
        return Tokenizer, (self.pieces, self.normalisation)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read a folder with tokenizer.json (preferred) or a BERT vocab.txt.

        Beside vocab.txt, tokenizer_config.json may say `do_lower_case` (default true),
        `strip_accents` (default: as do_lower_case) and `tokenize_chinese_chars` (default true).
        Truncation and padding stored in a tokenizer.json are not taken over.

        Raises UserError, naming the path, when neither file is there, one is malformed or of
        another kind, files contradict each other, or a special token is missing.
        """
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; a tokenizer folder is needed")
        full, plain = folder / "tokenizer.json", folder / "vocab.txt"
        config = _read_config(folder / "tokenizer_config.json")
        if full.is_file():
            pieces, normalisation = _read_tokenizer_json(full)
            for key, given in config.items():
                if given != getattr(normalisation, key):
                    raise UserError(
                        f"{folder}: tokenizer_config.json says {key}={given}, tokenizer.json says"
                        f" {getattr(normalisation, key)}; they must agree"
                    )
            if plain.is_file() and _read_vocab_txt(plain) != pieces:
                raise UserError(f"{folder}: vocab.txt and tokenizer.json hold different pieces")
        elif plain.is_file():
            pieces = _read_vocab_txt(plain)
            lower = config.get("do_lower_case", True)
            normalisation = Normalisation(**{"strip_accents": lower, **config})
        else:
            raise UserError(f"{folder}: no tokenizer.json and no vocab.txt in this folder")
        for token in SPECIAL_TOKENS:
            if token not in pieces:
                hint = nearest(token, (p for p in pieces if len(p) > 2 and p[0] in "[<"))
                raise UserError(f"{folder}: the vocabulary has no {token}{hint}")
        return cls(pieces, normalisation)

    @classmethod
    def train(
        cls,
        files: Sequence[Path],
        *,
        vocab_size: int,
        lowercase: bool = True,
        min_frequency: int = 2,
    ) -> Tokenizer:
        """Learn a WordPiece vocabulary from UTF-8 text files, plain or `.gz`.

        Ids: the special tokens, the letters seen, the letters seen inside words (`##x`), then the
        merges. Each merge joins the most *frequent* pair of adjacent pieces, as the `tokenizers`
        library does (not the likelihood ratio of Schuster and Nakajima 2012); ties go to the pair
        of smaller ids. Words over 100 characters are left out. The result depends on the words
        and their counts alone: not on the process, threads, or order of files and lines.
        A corpus too poor for `vocab_size` pieces gives fewer and logs a warning.

        Raises UserError for no files, unreadable or empty ones, min_frequency below 1, and a
        vocab_size too small for the special tokens and letters (naming the smallest possible).
        """
        if min_frequency < 1:
            raise UserError(f"min_frequency is {min_frequency}; it must be at least 1")
        normalisation = Normalisation(do_lower_case=lowercase, strip_accents=lowercase)
        counts = _count_words(files, normalisation)
        kept = {word: n for word, n in counts.items() if len(word) <= MAX_WORD_LENGTH}
        if not kept:
            raise UserError(f"no words to train on in {_names(files)}")
        pieces = _train_pieces(kept, vocab_size, min_frequency)
        if len(pieces) < vocab_size:
            _log.warning(
                "the vocabulary has %d pieces, not vocab_size=%d: no pair of pieces occurs"
                " min_frequency=%d times any more",
                len(pieces),
                vocab_size,
                min_frequency,
            )
        return cls(pieces, normalisation)

    def save(self, folder: Path) -> None:
        """Write vocab.txt, tokenizer.json, tokenizer_config.json and special_tokens_map.json.

        Hugging Face's `AutoTokenizer.from_pretrained(folder)` reads them and gives the same ids,
        except that it takes a literal "[MASK]" in a text for the special token.

        Raises UserError when the folder cannot be written.
        """
        names = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
        config = {"tokenizer_class": "BertTokenizer", **self.normalisation._asdict(), **names}
        contents = {
            "vocab.txt": "".join(f"{piece}\n" for piece in self.pieces),
            "tokenizer.json": self._backend.to_str(pretty=True) + "\n",
            "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
            "special_tokens_map.json": json.dumps(names, indent=2) + "\n",
        }
        aside = {name: folder / f".{name}.tmp-{os.getpid()}" for name in contents}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in contents.items():
                aside[name].write_bytes(content.encode("utf-8"))
            for name in contents:
                os.replace(aside[name], folder / name)
        except OSError as error:
            raise UserError(f"{folder}: cannot save the tokenizer here: {error}") from error
        finally:
            for path in aside.values():
                if path.exists():
                    path.unlink()

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""
        return len(self.pieces)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over kind, vocabulary and normalisation: the key of caches of ids."""
        content = ["WordPiece", MAX_WORD_LENGTH, list(self.normalisation), list(self.pieces)]
        return hashlib.sha256(json.dumps(content).encode("ascii")).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens; "[MASK]" in it is a bracket and a word.

        Control characters and lone surrogates are dropped, as cleaning does.
        """
        ids: list[int] = self._backend.encode(_encodable(text), add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, in order; equal to `encode` one by one, in parallel threads."""
        clean = [_encodable(text) for text in texts]
        encodings = self._backend.encode_batch_fast(clean, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def pair(
        self, first: Sequence[int], second: Sequence[int] | None, max_length: int
    ) -> tuple[list[int], list[int]]:
        """Lay out one or two id sequences as BERT's input, at most `max_length` long.

        Returns (ids, token types): [CLS] first [SEP] of type 0, then second [SEP] of type 1.
        Too long pairs are cut at the right end, the longer side first, as `longest_first` of
        Hugging Face does: when both sides must be cut each gets half of the room, and an odd
        position goes to the side that was longer, to `second` when they were equally long.

        Raises UserError when max_length is below 3 (single) or 5 (pair).
        """
        smallest = 3 if second is None else 5
        if max_length < smallest:
            what = "a single text" if second is None else "a pair of texts"
            raise UserError(f"max_length is {max_length}; {what} needs at least {smallest}")
        if second is None:
            ids = [self.cls_id, *first[: max_length - 2], self.sep_id]
            return ids, [0] * len(ids)
        keep_first, keep_second = _longest_first(len(first), len(second), max_length - 3)
        head = [self.cls_id, *first[:keep_first], self.sep_id]
        tail = [*second[:keep_second], self.sep_id]
        return head + tail, [0] * len(head) + [1] * len(tail)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids: words and punctuation joined by single spaces.

        [PAD], [CLS] and [SEP] are left out; [UNK] and [MASK] are shown. What normalisation took
        (case, accents, spacing) is lost, but encode(decode(encode(text))) equals encode(text)
        wherever no [UNK] occurs. Asserts that the ids are of this vocabulary.
        """
        layout = {self.pad_id, self.cls_id, self.sep_id}
        shown = [index for index in ids if index not in layout]
        assert all(0 <= index < self.vocab_size for index in shown), "id outside the vocabulary"
        text: str = self._backend.decode(shown, skip_special_tokens=False)
        return text


def report(tokenizer: Tokenizer, files: Sequence[Path]) -> dict[str, int | float]:
    """Say how a vocabulary fits text files.

    Returns counts `words`, `pieces` ([UNK] is one piece), `unknown_words`, of these
    `over_long_words` (more than 100 characters), `vocab_size`; and the ratios `unknown_rate`
    (unknown words / words), `pieces_per_word`, `vocabulary_use` (share of the ids that are not
    special which occur). Words are what white space and punctuation cut out.

    Raises UserError for unreadable or empty files.
    """
    counts = _count_words(files, tokenizer.normalisation)
    if not counts:
        raise UserError(f"no words in {_names(files)}")
    model = tokenizer._backend.model
    seen: set[int] = set()
    pieces = unknown = 0
    for word, count in counts.items():
        ids = [token.id for token in model.tokenize(word)]
        seen.update(ids)
        pieces += count * len(ids)
        unknown += count * (ids == [tokenizer.unk_id])
    words = sum(counts.values())
    ordinary = tokenizer.vocab_size - len(tokenizer.special_ids)
    return {
        "words": words,
        "pieces": pieces,
        "pieces_per_word": pieces / words,
        "unknown_words": unknown,
        "unknown_rate": unknown / words,
        "over_long_words": sum(n for word, n in counts.items() if len(word) > MAX_WORD_LENGTH),
        "vocab_size": tokenizer.vocab_size,
        "vocabulary_use": len(seen - tokenizer.special_ids) / max(1, ordinary),
    }


def _encodable(text: str) -> str:
    # The library takes UTF-8 only; a lone surrogate can still come from a JSON escape.
    return _SURROGATES.sub("", text)


def _backend(ids: Mapping[str, int], normalisation: Normalisation) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, processors

    model = models.WordPiece(
        dict(ids),
        unk_token="[UNK]",
        max_input_chars_per_word=MAX_WORD_LENGTH,
        continuing_subword_prefix=CONTINUATION,
    )
    backend = Backend(model)
    backend.normalizer = _normalizer(normalisation)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    # The library's cleanup would turn " do not" into " don't".
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION, cleanup=False)
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.encode_special_tokens = True
    return backend


def _normalizer(normalisation: Normalisation) -> tokenizers.normalizers.Normalizer:
    from tokenizers.normalizers import BertNormalizer

    return BertNormalizer(
        clean_text=True,
        handle_chinese_chars=normalisation.tokenize_chinese_chars,
        strip_accents=normalisation.strip_accents,
        lowercase=normalisation.do_lower_case,
    )


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths to keep of two sequences so that they fill at most `room` positions."""
    if first + second <= room:
        return first, second
    short = min(first, second, room // 2)
    return (room - short, short) if first > second else (short, room - short)


def _names(files: Sequence[Path]) -> str:
    shown = ", ".join(str(path) for path in files[:3])
    return f"{shown} and {len(files) - 3} more" if len(files) > 3 else shown


def _lines(path: Path) -> Iterator[str]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", newline="\n") as stream:
            yield from stream
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def _count_words(files: Sequence[Path], normalisation: Normalisation) -> Counter[str]:
    from tokenizers.pre_tokenizers import BertPreTokenizer

    if not files:
        raise UserError("no text files were given; at least one is needed")
    # A space always parts words, so each distinct chunk between spaces is normalised only once.
    chunks: Counter[str] = Counter()
    for path in files:
        for line in _lines(path):
            chunks.update(line.rstrip("\n").split(" "))
    normalise = _normalizer(normalisation).normalize_str
    split = BertPreTokenizer().pre_tokenize_str
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word, _ in split(normalise(chunk)):
            words[word] += count
    return words


def _train_pieces(counts: Mapping[str, int], vocab_size: int, min_frequency: int) -> list[str]:
    """Pieces in id order, by the library's trainer made deterministic.

    Left alone, the trainer numbers the `##x` letters in hash-map order, and as ties between pairs
    go by id the merges differ in every run. So all letters are handed over as "special tokens" in
    sorted order; after that nothing depends on the order in which words arrive.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, trainers

    letters: Counter[str] = Counter()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    if max(letters.values()) >= 2**31:
        raise UserError("more than 2**31 occurrences of one letter; train on a part of the text")
    inside = sorted({letter for word in counts for letter in word[1:]})
    initial = [*SPECIAL_TOKENS, *sorted(letters), *(CONTINUATION + letter for letter in inside)]
    if vocab_size < len(initial):
        raise UserError(
            f"vocab_size is {vocab_size}; this text needs at least {len(initial)}: special tokens"
            f" {len(SPECIAL_TOKENS)}, letters {len(letters)}, letters inside words {len(inside)}"
        )
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=initial,
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    backend.train_from_iterator(_repeated(counts), trainer)
    ids = backend.get_vocab(with_added_tokens=True)
    pieces = sorted(ids, key=ids.__getitem__)
    assert pieces[: len(initial)] == initial, "the trainer renumbered the letters"
    return pieces


def _repeated(counts: Mapping[str, int], at_once: int = 1024) -> Iterator[str]:
    # The trainer takes text, not counts; a word per line keeps its memory small.
    for word in sorted(counts):
        for start in range(0, counts[word], at_once):
            yield f"{word} " * min(at_once, counts[word] - start)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a readable JSON file: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds a {type(content).__name__}; a JSON object is needed")
    return content


def _read_config(path: Path) -> dict[str, bool]:
    """The normalisation settings that a tokenizer_config.json states, {} when there is none."""
    if not path.is_file():
        return {}
    content = _read_json(path)
    stated = {key: content[key] for key in Normalisation._fields if content.get(key) is not None}
    for key, value in stated.items():
        if not isinstance(value, bool):
            raise UserError(f"{path}: {key} is {value!r}; it must be true or false")
    return stated


def _read_vocab_txt(path: Path) -> list[str]:
    try:
        # Not str.splitlines: it also cuts at characters that may be pieces, such as U+2028.
        pieces = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    first_line: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        if not piece:
            raise UserError(f"{path}:{number}: empty line; each line holds one piece")
        if piece in first_line:
            raise UserError(f"{path}:{number}: {piece!r} is on line {first_line[piece]} already")
        first_line[piece] = number
    return pieces


def _read_tokenizer_json(path: Path) -> tuple[list[str], Normalisation]:
    """Pieces and normalisation; UserError for what would encode differently from ours."""
    content = _read_json(path)
    parts = {key: content.get(key) or {} for key in ("model", "normalizer", "pre_tokenizer")}
    if not all(isinstance(part, dict) for part in parts.values()):
        raise UserError(f"{path}: model, normalizer and pre_tokenizer must be JSON objects")
    model, normalizer, pre_tokenizer = parts.values()
    expected = [
        ("model.type", model.get("type", "WordPiece"), "WordPiece"),
        ("model.unk_token", model.get("unk_token"), "[UNK]"),
        ("model.continuing_subword_prefix", model.get("continuing_subword_prefix"), CONTINUATION),
        ("model.max_input_chars_per_word", model.get("max_input_chars_per_word"), MAX_WORD_LENGTH),
        ("normalizer.type", normalizer.get("type"), "BertNormalizer"),
        ("normalizer.clean_text", normalizer.get("clean_text"), True),
        ("pre_tokenizer.type", pre_tokenizer.get("type"), "BertPreTokenizer"),
    ]
    for key, given, allowed in expected:
        if given != allowed:
            raise UserError(f"{path}: {key} is {given!r}; only {allowed!r} is supported")
    pieces = _ordered(path, model.get("vocab"))
    for entry in content.get("added_tokens") or []:
        if not isinstance(entry, dict) or entry.get("content") not in SPECIAL_TOKENS:
            raise UserError(f"{path}: added token {entry!r}; allowed are {SPECIAL_TOKENS}")
    lower, accents = normalizer.get("lowercase"), normalizer.get("strip_accents")
    accents = lower if accents is None else accents
    chinese = normalizer.get("handle_chinese_chars")
    if not all(isinstance(option, bool) for option in (lower, accents, chinese)):
        raise UserError(f"{path}: lowercase, strip_accents, handle_chinese_chars must be booleans")
    return pieces, Normalisation(bool(lower), bool(accents), bool(chinese))


def _ordered(path: Path, vocabulary: object) -> list[str]:
    if not isinstance(vocabulary, dict) or not all(type(i) is int for i in vocabulary.values()):
        raise UserError(f"{path}: model.vocab must map pieces to ids")
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    for piece in pieces:
        if not _STORABLE.fullmatch(piece):
            raise UserError(f"{path}: piece {piece!r} is empty, holds a line end or is not UTF-8")
    if [vocabulary[piece] for piece in pieces] != list(range(len(pieces))):
        raise UserError(f"{path}: the ids of model.vocab are not 0 to {len(pieces) - 1}, each once")
    return pieces
