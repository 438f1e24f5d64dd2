"""The tokenizers of OPUS-MT models: a SentencePiece model for each language, ids of their own.

For: reading, encoding and saving source.spm, target.spm and vocab.json, as MarianTokenizer of
`transformers` does (Tiedemann and Thottingal 2020). Not for: training one.
A decoder starts from <pad>, which is therefore cls here. A source may begin with the language that
is wanted, as in `>>fra<< Hello`, where the vocabulary has that language's token.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from ala_encoder.errors import UserError, nearest
from ala_encoder.tokenizer.base import Special, Tokenizer
from ala_encoder.tokenizer.files import (
    as_json,
    check_added,
    guarded,
    missing_tokens,
    ordered,
    read_bytes,
    read_json,
    refuse_other_roles,
    stated,
    token_files,
    write_folder,
)

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

MODELS = ("source.spm", "target.spm")
"""The SentencePiece models of the source and of the target language."""
VOCABULARY = "vocab.json"
_LANGUAGES = ("source_lang", "target_lang")
_ROLES = {"pad": "<pad>", "unk": "<unk>", "eos": "</s>"}
_WANTED_LANGUAGE = re.compile(r">>[^<>]*<<")


@final
class Marian(Tokenizer):
    """OPUS-MT's kind: texts are of its source or its target language, which `of_language` chooses.

    A piece that the vocabulary lacks is unknown. A text that begins with `>>…<<` which is no token
    of the vocabulary is text, where MarianTokenizer makes it unknown.
    """

    kind: ClassVar[str] = "marian"

    def __init__(
        self,
        models: tuple[bytes, bytes],
        pieces: Sequence[str],
        languages: tuple[str, str],
        language: str | None = None,
        origin: str = Tokenizer.origin,
    ) -> None:
        """Build from serialised models, the vocabulary in order, and languages, one of them chosen.

        For users: `load`. Raises UserError when the library refuses a model, and for a vocabulary
        without <pad>, <unk> and </s>.
        """
        self.models, self.languages, self.origin = models, languages, origin
        self.language = language
        self._pieces = tuple(pieces)
        self._ids = ids = {piece: index for index, piece in enumerate(self._pieces)}
        missing = [token for token in _ROLES.values() if token not in ids]
        if missing:
            raise UserError(f"{origin}: {VOCABULARY} has no {' and no '.join(missing)}")
        pad, unk, eos = (ids[token] for token in _ROLES.values())
        self.special = Special(pad=pad, unk=unk, cls=pad, sep=eos, mask=ids.get("<mask>"))
        self._wanted = {piece: i for piece, i in ids.items() if _WANTED_LANGUAGE.fullmatch(piece)}
        roles_held = (index for index in self.special if index is not None)
        self.special_ids = frozenset([*roles_held, *self._wanted.values()])
        self._processors = tuple(map(self._processor, MODELS, models))

    def _processor(self, name: str, model: bytes) -> SentencePieceProcessor:
        from sentencepiece import SentencePieceProcessor

        made = SentencePieceProcessor()
        reason = f"{self.origin}: {name}: not a SentencePiece model"
        guarded(reason, lambda: made.LoadFromSerializedProto(model))
        return made

    def __reduce__(self) -> tuple[type[Marian], tuple[Any, ...]]:
        return Marian, (self.models, self._pieces, self.languages, self.language, self.origin)

    @classmethod
    def read(cls, folder: Path) -> Marian:
        """Read both models, vocab.json, and the two languages from tokenizer_config.json.

        Raises UserError, naming the path, when one is missing or malformed, for special tokens of
        other names, and for a target vocabulary of its own.
        """
        said = stated(folder)
        if said.get("separate_vocabs") or (folder / "target_vocab.json").exists():
            raise UserError(f"{folder}: has a vocabulary for each language; one of both is allowed")
        languages = tuple(said.get(key) for key in _LANGUAGES)
        if not all(isinstance(one, str) and one for one in languages) or len(set(languages)) < 2:
            raise UserError(
                f"{folder / 'tokenizer_config.json'}: source_lang and target_lang must name two "
                f"languages, are {languages[0]!r} and {languages[1]!r}"
            )
        refuse_other_roles(folder, _ROLES)
        path = folder / VOCABULARY
        pieces = ordered(path, read_json(path), what="the vocabulary")
        source, target = (read_bytes(folder / name) for name in MODELS)
        made = cls((source, target), pieces, languages, origin=str(folder))  # type: ignore[arg-type]
        check_added(folder, made._ids.get)
        return made

    def save(self, folder: Path) -> None:
        """Write the files that MarianTokenizer reads."""
        tokens = _ROLES if self.special.mask is None else {**_ROLES, "mask": "<mask>"}
        languages = dict(zip(_LANGUAGES, self.languages, strict=True))
        config = token_files(tokens, tokenizer_class="MarianTokenizer", **languages)
        models = dict(zip(MODELS, self.models, strict=True))
        write_folder(folder, {**models, VOCABULARY: as_json(self._ids), **config})

    def completed(self) -> tuple[Marian, list[str]]:
        missing = list(missing_tokens(self.special, self._ids.__contains__, "<>").values())
        pieces = (*self._pieces, *missing)
        return Marian(self.models, pieces, self.languages, self.language, self.origin), missing

    def of_language(self, language: str) -> Marian:
        """This tokenizer for texts of `language`; raises UserError when it is none of its own."""
        if language not in self.languages:
            near, allowed = nearest(language, self.languages), " and ".join(self.languages)
            raise UserError(f"{self.origin}: not for language {language!r}; is for {allowed}{near}")
        if language == self.language:
            return self
        return Marian(self.models, self._pieces, self.languages, language, self.origin)

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    def _content(self) -> list[Any]:
        models = [hashlib.sha256(model).hexdigest() for model in self.models]
        return [*models, list(self._pieces), list(self.languages), self.language]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return [self._ids_of(text) for text in texts]

    def _ids_of(self, text: str) -> list[int]:
        found = _WANTED_LANGUAGE.match(text)
        head = [self._wanted[found[0]]] if found and found[0] in self._wanted else []
        if found and head:
            text = text[found.end() :]
        ids, unknown, hidden = self._ids, self._ids["<unk>"], self.special_ids
        pieces: list[str] = self._chosen().encode(text, out_type=str)
        spelt = (ids.get(piece, unknown) for piece in pieces)
        return [*head, *(unknown if i in hidden else i for i in spelt)]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._chosen().decode([self._pieces[index] for index in ids])
        return text.replace("\u2581", " ").strip()

    def _chosen(self) -> SentencePieceProcessor:
        if self.language is None:
            raise UserError(
                f"{self.origin}: is for {' and '.join(self.languages)}; which of them a text is in"
                " is not said"
            )
        return self._processors[self.languages.index(self.language)]
