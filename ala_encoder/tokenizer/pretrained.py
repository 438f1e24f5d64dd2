"""Whatever else a tokenizer.json describes, encoded by the tokenizers library as it stands there.

For: vocabularies of published models that are none of our own kinds. Not for: training.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from ala_encoder.errors import UserError, shown
from ala_encoder.tokenizer.base import Special, Tokenizer
from ala_encoder.tokenizer.files import (
    check_added,
    guarded,
    missing_tokens,
    read_bytes,
    read_json,
    special_of,
    token_files,
    write_folder,
)
from ala_encoder.tokenizer.sentence_piece import SentencePiece

if TYPE_CHECKING:
    import tokenizers

_MAX_PIECE = 10_000
"""The library frees a unigram piece by recursion and overflows the stack at 200,000 bytes."""


@final
class Pretrained(Tokenizer):
    """A tokenizer of the Hugging Face library; what decode keeps is as its files say."""

    kind: ClassVar[str] = "pretrained"

    def __init__(self, content: str, special: Special, origin: str = Tokenizer.origin) -> None:
        """Build from the text of a tokenizer.json and roles; raises UserError when malformed."""
        self.content, self.special, self.origin = content, special, origin
        self._backend = _backend(content, origin)
        self._size = max(self._backend.get_vocab().values(), default=-1) + 1
        special_ids = _special_tokens(self._backend).values()
        self.special_ids = frozenset([*special_ids, *(i for i in special if i is not None)])

    def __reduce__(self) -> tuple[type[Pretrained], tuple[Any, ...]]:
        return Pretrained, (self.content, self.special, self.origin)

    @classmethod
    def read(cls, folder: Path) -> Pretrained:
        """Read tokenizer.json; roles are told as for byte-level BPE, by its special added tokens.

        Truncation and padding are not taken over. Raises UserError when it is malformed, when BPE
        dropout would make ids random, or when a unigram model lies beside an unrelated *.model.
        """
        path = folder / "tokenizer.json"
        content = read_json(path)
        model = content.get("model")
        if not isinstance(model, dict) or model.get("dropout"):
            raise UserError(f"{path}: model is missing, or has a dropout, which makes ids random")
        vocab = model.get("vocab")
        if isinstance(vocab, list) and any(_is_too_long(entry) for entry in vocab):
            raise UserError(f"{path}: a piece of more than {_MAX_PIECE:,} characters")
        text = json.dumps(content)
        backend = _backend(text, str(path))
        check_added(folder, backend.token_to_id)
        if model.get("type") == "Unigram":
            _refuse_unrelated(folder, backend)
        special = special_of(folder, _special_tokens(backend))
        unknown = special.unk
        if unknown is None and isinstance(model.get("unk_token"), str):
            unknown = backend.token_to_id(model["unk_token"])
        if unknown is None and isinstance(model.get("unk_id"), int):
            unknown = model["unk_id"]
        return cls(text, special._replace(unk=unknown), str(folder))

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json."""
        contents = {"tokenizer.json": (self._backend.to_str(pretty=True) + "\n").encode("utf-8")}
        roles = self.special._asdict().items()
        tokens = {i: token for token, i in _special_tokens(self._backend).items()}
        names = {role: tokens.get(index) for role, index in roles if index is not None}
        config = token_files(names, tokenizer_class="PreTrainedTokenizerFast")
        write_folder(folder, {**contents, **config})

    def completed(self) -> tuple[Pretrained, list[str]]:
        held = self._backend.get_vocab()
        brackets = "[]" if "[CLS]" in held or "[UNK]" in held else "<>"
        missing = missing_tokens(self.special, held.__contains__, brackets)
        backend = _backend(self.content, self.origin)
        backend.add_special_tokens(list(missing.values()))
        new = {role: backend.token_to_id(name) for role, name in missing.items()}
        if set(new.values()) & set(held.values()):
            raise UserError(f"{self.origin}: ids are not 0, 1, 2…; no token can be appended")
        made = Pretrained(backend.to_str(), self.special._replace(**new), self.origin)
        return made, list(missing.values())

    @property
    def vocab_size(self) -> int:
        return self._size

    def _content(self) -> list[Any]:
        return [list(self.special), json.loads(self._backend.to_str())]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        encode = self._backend.encode_batch_fast
        encodings = guarded(self.origin, lambda: encode(texts, add_special_tokens=False))
        return [self._spelt(encoding.ids) for encoding in encodings]

    def _spelt(self, ids: list[int]) -> list[int]:
        # A unigram model finds "<s>" in a text when it is among its pieces: spell it by letters.
        hidden = self.special_ids - {self.unk_id}
        if hidden.isdisjoint(ids):
            return ids
        name, spell = self._backend.id_to_token, self._backend.model.tokenize
        letters = {
            i: [t.id for letter in name(i) or "" for t in spell(letter)] for i in hidden & {*ids}
        }
        spelt = (letters.get(index, [index]) for index in ids)
        return [index for row in spelt for index in row if index not in hidden]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text


def _refuse_unrelated(folder: Path, backend: tokenizers.Tokenizer) -> None:
    # Ids need not agree: XLM-R's and CamemBERT's tokenizer.json move those of their *.model.
    for path in sorted(folder.glob("*.model")):
        for piece in SentencePiece(read_bytes(path), str(path)).pieces():
            if backend.token_to_id(piece) is None:
                raise UserError(
                    f"{folder}: two tokenizers in one folder: {path.name} has the piece"
                    f" {shown(piece)}, tokenizer.json has not"
                )


def _is_too_long(entry: object) -> bool:
    piece = entry[0] if isinstance(entry, list) and entry else None
    return isinstance(piece, str) and len(piece) > _MAX_PIECE


def _backend(content: str, place: str) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend

    backend = guarded(f"{place}: not a tokenizer", lambda: Backend.from_str(content))
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = True
    return backend


def _special_tokens(backend: tokenizers.Tokenizer) -> dict[str, int]:
    added = backend.get_added_tokens_decoder()
    return {token.content: index for index, token in sorted(added.items()) if token.special}
