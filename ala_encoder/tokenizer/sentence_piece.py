"""SentencePiece models, unigram or BPE, by the sentencepiece library.

For: reading, encoding and saving a .model file. Not for: learning one (`training`).
Text is normalised as the model says, spaces become U+2581, and one goes before the text (Kudo and
Richardson 2018, arXiv:1808.06226). Hugging Face reads these files by a conversion of its own,
which we do not write: read an export's file with the sentencepiece library.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar, final

from ala_encoder.errors import UserError
from ala_encoder.tokenizer.base import Special, Tokenizer
from ala_encoder.tokenizer.files import (
    check_added,
    guarded,
    missing_tokens,
    read_bytes,
    stated,
    write_folder,
)

FILE = "sentencepiece.model"


@final
class SentencePiece(Tokenizer):
    """SentencePiece's kind; a run of characters that no piece spells is one unknown id.

    encode(decode(encode(text))) equals encode(text) wherever nothing is unknown, but for two
    rarities: U+2581 in a text is a space, and NFKC of a ligature with a combining mark after it can
    change again when applied again (5 of 10,000 random strings). An unknown id is decoded as " ⁇ ",
    spaces included, so that its neighbours move apart once; from the decoded text on the ids stay
    equal. A mask is not shown: control pieces have no text.
    """

    kind: ClassVar[str] = "sentencepiece"

    def __init__(self, model: bytes, origin: str = Tokenizer.origin) -> None:
        """Build from a serialised model; raises UserError when the library refuses it."""
        from sentencepiece import SentencePieceProcessor

        self.model, self.origin = model, origin
        self._processor = processor = SentencePieceProcessor()
        reason = f"{origin}: not a SentencePiece model"
        guarded(reason, lambda: processor.LoadFromSerializedProto(model))
        control = {
            processor.id_to_piece(index): index
            for index in range(processor.vocab_size())
            if processor.is_control(index)
        }
        named = {
            role: next((control[name] for name in names if name in control), None)
            for role, names in _NAMES.items()
        }
        self.special = Special(
            pad=_id(processor.pad_id(), named["pad"]),
            unk=processor.unk_id(),
            cls=_id(-1 if named["cls"] is not None else processor.bos_id(), named["cls"]),
            sep=_id(-1 if named["sep"] is not None else processor.eos_id(), named["sep"]),
            mask=named["mask"],
        )
        self.special_ids = frozenset([processor.unk_id(), *control.values()])

    def __reduce__(self) -> tuple[type[SentencePiece], tuple[Any, ...]]:
        return SentencePiece, (self.model, self.origin)

    @classmethod
    def read(cls, folder: Path) -> SentencePiece:
        """Read the one *.model file.

        cls is [CLS], <cls> or the model's bos; sep is [SEP], <sep> or its eos; mask is [MASK] or
        <mask>; each only where it is a control piece, which text cannot spell.
        Raises UserError, naming the path, when it is malformed or files beside it contradict it.
        """
        found = sorted(folder.glob("*.model"))
        if len(found) != 1:
            names = " and ".join(path.name for path in found) or "no *.model file"
            raise UserError(f"{folder}: {names}; one is allowed")
        if stated(folder).get("do_lower_case"):
            raise UserError(
                f"{folder}: tokenizer_config.json says do_lower_case = true, which is not"
                " supported; a SentencePiece model itself says how text is normalised"
            )
        made = cls(read_bytes(found[0]), str(found[0]))
        check_added(folder, made._id_of)
        return made

    def save(self, folder: Path) -> None:
        """Write sentencepiece.model; raises UserError when the folder cannot be written."""
        write_folder(folder, {FILE: self.model})

    def completed(self) -> tuple[SentencePiece, list[str]]:
        from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

        proto = ModelProto.FromString(self.model)
        held = {piece.piece for piece in proto.pieces}
        missing = missing_tokens(self.special, held.__contains__, "[]")
        for name in missing.values():
            proto.pieces.add(piece=name, score=0.0, type=ModelProto.SentencePiece.CONTROL)
        made = SentencePiece(proto.SerializeToString(deterministic=True), self.origin)
        return made, list(missing.values())

    @property
    def vocab_size(self) -> int:
        size: int = self._processor.vocab_size()
        return size

    def pieces(self) -> list[str]:
        """Every piece that stands for text or bytes, in id order."""
        hidden, name = self.special_ids, self._processor.id_to_piece
        return [name(index) for index in range(self.vocab_size) if index not in hidden]

    def _id_of(self, piece: str) -> int | None:
        index: int = self._processor.piece_to_id(piece)
        return index if self._processor.id_to_piece(index) == piece else None

    def _content(self) -> list[Any]:
        return [hashlib.sha256(self.model).hexdigest()]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self._processor.encode(texts)
        return ids

    def _decode(self, ids: list[int]) -> str:
        text: str = self._processor.decode(ids)
        return text


_NAMES = {
    "pad": ("<pad>", "[PAD]"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}


def _id(given: int, named: int | None) -> int | None:
    return given if given >= 0 else named
