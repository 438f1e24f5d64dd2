"""fairseq's style of translation: Moses tokens, cut by BPE codes, in the order of `dict.LANG.txt`.

For: encoding, decoding, and fairseq's own files. Not for: learning them (`fairseq_training`).
Text is tokenised by sacremoses, whose rules are a language's own, and each token is spelt by the
earliest merges first, its pieces but the last marked by `@@` (Sennrich et al. 2016,
arXiv:1508.07909). What is not in the dictionary is <unk>.

Decoding joins marked pieces, a dangling last one too, and detokenises: without unknown pieces it
gives back exactly what sacremoses makes of its own tokens. That is not always the text: Moses drops
control characters and runs of spaces; sets apart `/`, `@`, `&`, `»` and others for good; guesses
on which side of an odd quotation mark a space was; takes its own escapes (`&amp;`, `DOTMULTI`) for
what they stand for. `report.round_trip_report` counts such lines: 63 of the 3,003 of newstest2014
in English, 72 in German, and 428 in Russian, whose `« »` come apart.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from ala_encoder.errors import UserError, nearest
from ala_encoder.tokenizer.base import Special, Tokenizer
from ala_encoder.tokenizer.fairseq_files import (
    CODES,
    MASK,
    MOSES,
    SPECIALS,
    Codes,
    Entry,
    Moses,
    dict_text,
    find_codes,
    moses_text,
    read_codes,
    read_dicts,
    read_moses,
)
from ala_encoder.tokenizer.files import guarded, write_folder

if TYPE_CHECKING:
    import sacremoses
    from subword_nmt.apply_bpe import BPE

MARK = "@@"
"""Ends every piece that another one of its word follows."""
MAX_WORD = 200
"""Longer words are cut into parts of so many letters, on which subword-nmt does not take hours."""
_NO_END = "\uffff"
"""Keeps the last letters of a part from being merged as those of a word are."""
_WORDS_KEPT = 1 << 16


@final
class FairseqBPE(Tokenizer):
    """fairseq's kind: texts are of one of its languages, which `of_language` chooses.

    Without more than one language none has to be chosen. No text is read as a special token, since
    Moses parts `<` from what follows it. An unknown piece is decoded as `<unk>`.
    """

    kind: ClassVar[str] = "fairseq_bpe"

    def __init__(
        self,
        codes: Codes,
        entries: Sequence[Entry],
        moses: Moses,
        languages: Sequence[str],
        language: str | None = None,
        origin: str = Tokenizer.origin,
    ) -> None:
        """Build from codes, the dictionary's entries in order, and languages, one of them chosen.

        For users: `load` and `train`.
        """
        self.codes, self.entries, self.moses = codes, tuple(entries), moses
        self.languages, self.origin = tuple(languages), origin
        self.language = self.languages[0] if len(self.languages) == 1 else language
        self._pieces = (*SPECIALS, *(piece for piece, _ in entries))
        ids = {piece: index for index, piece in enumerate(self._pieces)}
        assert len(ids) == len(self._pieces), "a piece appears twice"
        self.special = Special(pad=1, unk=3, cls=0, sep=2, mask=ids.get(MASK))
        self.special_ids = frozenset(index for index in self.special if index is not None)
        bpe = read_bpe(codes)
        unknown = ids["<unk>"]

        @lru_cache(_WORDS_KEPT)
        def ids_of_word(word: str) -> tuple[int, ...]:
            return tuple(ids.get(piece, unknown) for piece in spell(bpe, word))

        self._ids_of_word = ids_of_word

    def __reduce__(self) -> tuple[type[FairseqBPE], tuple[Any, ...]]:
        return FairseqBPE, self._arguments(self.language)

    def _arguments(self, language: str | None) -> tuple[Any, ...]:
        return self.codes, self.entries, self.moses, self.languages, language, self.origin

    @classmethod
    def read(cls, folder: Path) -> FairseqBPE:
        """Read codes (bpecodes, code or codes) and dict.LANG.txt, as fairseq has them.

        Moses' options are fairseq's own unless moses.json states others. Raises UserError, naming
        file and line, when one is malformed, and when languages have dictionaries of their own.
        """
        languages, entries = read_dicts(folder)
        codes = read_codes(find_codes(folder))
        return cls(codes, entries, read_moses(folder), languages, origin=str(folder))

    def save(self, folder: Path) -> None:
        """Write bpecodes, a dict.LANG.txt for each language, moses.json; fairseq reads them."""
        dictionary = dict_text(self.entries).encode("utf-8")
        contents = {
            CODES[0]: self.codes.text.encode("utf-8"),
            **{f"dict.{language}.txt": dictionary for language in self.languages},
            MOSES: moses_text(self.moses),
        }
        write_folder(folder, contents)

    def completed(self) -> tuple[FairseqBPE, list[str]]:
        if self.special.mask is not None:
            return self, []
        made = list(self._arguments(self.language))
        made[1] = (*self.entries, (MASK, 0))
        return FairseqBPE(*made), [MASK]

    def of_language(self, language: str) -> FairseqBPE:
        """This tokenizer for texts of `language`; raises UserError when it is none of its own."""
        if language not in self.languages:
            near, allowed = nearest(language, self.languages), ", ".join(self.languages)
            raise UserError(f"{self.origin}: not for language {language!r}; has {allowed}{near}")
        return self if language == self.language else FairseqBPE(*self._arguments(language))

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    def _content(self) -> list[Any]:
        chosen = [list(self.moses), list(self.languages), self.language]
        return [*chosen, self.codes.version, list(self.codes.merges), list(self._pieces)]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        language, ids_of_word = self._chosen(), self._ids_of_word
        return [
            [
                index
                for word in moses_tokens(text, language, self.moses)
                for index in ids_of_word(word)
            ]
            for text in texts
        ]

    def _decode(self, ids: list[int]) -> str:
        pieces = (self._pieces[index] for index in ids)
        joined = "".join(p[: -len(MARK)] if p.endswith(MARK) else f"{p} " for p in pieces)
        _, detokenizer = _moses(self._chosen())
        escape = self.moses.escape
        text: str = guarded(
            self.origin, lambda: detokenizer.detokenize(joined.split(), unescape=escape)
        )
        return text

    def _chosen(self) -> str:
        if self.language is None:
            allowed = " and ".join(self.languages)
            raise UserError(
                f"{self.origin}: is for {allowed}; which of them a text is in is not said"
            )
        return self.language


def moses_tokens(text: str, language: str, moses: Moses) -> list[str]:
    """Return the tokens of a text; none holds white space."""
    tokenizer, _ = _moses(language)
    found: list[str] = tokenizer.tokenize(
        text, aggressive_dash_splits=moses.aggressive_dashes, escape=moses.escape
    )
    return found


@cache
def _moses(language: str) -> tuple[sacremoses.MosesTokenizer, sacremoses.MosesDetokenizer]:
    from sacremoses import MosesDetokenizer, MosesTokenizer

    code = moses_code(language)
    return MosesTokenizer(code), MosesDetokenizer(code)


def moses_code(language: str) -> str:
    """Return the language as Moses names it: zh for zh_CN."""
    return re.split("[_-]", language)[0]


def read_bpe(codes: Codes) -> BPE:
    """Return the library's own form of codes."""
    from subword_nmt.apply_bpe import BPE

    return BPE(io.StringIO(codes.text), separator=MARK)


def spell(bpe: BPE, word: str) -> list[str]:
    """Return the pieces of one word, all but the last marked."""
    *first, last = parts(word)
    pieces: list[str] = []
    for part in first:
        pieces += bpe.segment_tokens((part + _NO_END,))[:-1]
    pieces += bpe.segment_tokens((last,))
    bpe.cache.clear()  # it would hold every word there ever was
    return pieces


def parts(word: str) -> list[str]:
    """Cut a word of more than 200 letters."""
    return [word[start : start + MAX_WORD] for start in range(0, len(word), MAX_WORD)]
