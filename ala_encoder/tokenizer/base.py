"""The interface of every tokenizer: text to ids, ids to text, and the layout of a model's input.

For: what models, corpora and tasks need to know. Not for: the kinds themselves, one file each.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ala_encoder.errors import UserError
from ala_encoder.lines import SURROGATES


class Special(NamedTuple):
    """Ids of the special tokens by their role; None where a vocabulary has none."""

    pad: int | None = None
    unk: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None


class InLanguage(NamedTuple):
    """A text whose language is known."""

    language: str
    text: str


class Tokenizer(ABC):
    """Turns text into ids of a fixed vocabulary; text is never read as a special token, but for the
    language that a source of OPUS-MT's may begin with."""

    kind: ClassVar[str]
    """Its name in settings."""
    special: Special
    special_ids: frozenset[int]
    """Every id that stands for no text, those of `special` among them."""
    origin: str = "the tokenizer"
    """The folder it was read from, for messages."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""

    @abstractmethod
    def _content(self) -> list[Any]:
        """Everything that changes ids, as JSON can say it."""

    @abstractmethod
    def _encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of texts that hold no lone surrogate."""

    @abstractmethod
    def _decode(self, ids: list[int]) -> str:
        """Text of ids without layout, all of this vocabulary."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the files of this kind one by one; the caller makes sure that the folder is new.

        Raises UserError when the folder cannot be written.
        """

    @abstractmethod
    def completed(self) -> tuple[Tokenizer, list[str]]:
        """This tokenizer with the missing of pad, cls, sep and mask appended, and their names."""

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the kind and everything that changes ids: the key of caches."""
        content = [type(self).__name__, *self._content()]
        return hashlib.sha256(json.dumps(content).encode("ascii")).hexdigest()

    @cached_property
    def word_prefix(self) -> str:
        """What a word inside a sentence begins with: a space where pieces hold the one before."""
        return "" if self.encode("a a") == self.encode("a") * 2 else " "

    def of_language(self, language: str) -> Tokenizer:
        """This tokenizer for texts of one language; most kinds read every language alike."""
        return self

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens; "[MASK]" in it is a bracket and a word.

        Lone surrogates are dropped: they are no text, and the libraries take UTF-8 only.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, in order; equal to `encode` one by one, in parallel threads."""
        return self._encode([SURROGATES.sub("", text) for text in texts])

    def encode_sentences(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each sentence, none of one that is white space alone.

        White space has pieces in some vocabularies; a model would make up a translation of them.
        """
        return self.encode_batch([text if text.strip() else "" for text in texts])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids: pad, cls and sep are left out; asserts that ids are of this vocabulary."""
        layout = {self.special.pad, self.special.cls, self.special.sep}
        shown = [int(index) for index in ids if index not in layout]
        assert all(0 <= index < self.vocab_size for index in shown), "id outside the vocabulary"
        return self._decode(shown)

    @property
    def never_put_out(self) -> frozenset[int]:
        """The ids that are no target: bos, padding and so on, but neither eos nor unknown."""
        return self.special_ids - {self.eos_id, self.unk_id}

    def decode_line(self, ids: Sequence[int]) -> str:
        """Text of ids as one line, whatever line ends are in it."""
        return " ".join(self.decode(ids).splitlines())

    def piece_bytes(self) -> list[int] | None:
        """How many UTF-8 bytes of a text each id stands for, 0 for special tokens.

        None where pieces do not give the text back byte for byte.
        """
        return None

    def over_long(self, word: str) -> bool:
        """Whether a limit on length alone makes the word unknown."""
        return False

    def pair(
        self, first: Sequence[int], second: Sequence[int] | None, max_length: int
    ) -> tuple[list[int], list[int]]:
        """Lay out one or two id sequences as BERT's input, at most `max_length` long.

        Returns (ids, token types): cls first sep of type 0, then second sep of type 1.
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

    @property
    def unk_id(self) -> int | None:
        """The id of what the vocabulary cannot spell; None where it can spell everything."""
        return self.special.unk

    @property
    def pad_id(self) -> int:
        """The id that fills batches; like the next three, raises UserError where there is none."""
        return self._needed(self.special.pad, "pad", "batches of unequal lengths need")

    @property
    def cls_id(self) -> int:
        return self._needed(self.special.cls, "cls", "the start of an input needs")

    @property
    def sep_id(self) -> int:
        return self._needed(self.special.sep, "sep", "the end of a text needs")

    @property
    def bos_id(self) -> int:
        """What a decoder starts from: cls, by translation's name for it."""
        return self.cls_id

    @property
    def eos_id(self) -> int:
        """What ends a sentence: sep, by translation's name for it."""
        return self.sep_id

    @property
    def mask_id(self) -> int:
        return self._needed(self.special.mask, "mask", "pretraining needs")

    def _needed(self, index: int | None, role: str, purpose: str) -> int:
        if index is None:
            raise UserError(
                f"{self.origin}: has no {role} token, which {purpose}; train_tokenizer with"
                f" tokenizer.kind=pretrained and tokenizer.name=FOLDER makes a copy that has it"
            )
        return index


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths to keep of two sequences so that they fill at most `room` positions."""
    if first + second <= room:
        return first, second
    short = min(first, second, room // 2)
    return (room - short, short) if first > second else (short, room - short)
