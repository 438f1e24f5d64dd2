"""Byte-level BPE in GPT-2's file format: every text has ids, and they give it back exactly.

For: reading, encoding and saving such a vocabulary. Not for: learning one (`training`).
Text is cut by GPT-2's pattern, which keeps a space with the word after it; the bytes of each part
are written as 256 visible letters and merged, the earliest merge of the list first (Radford et
al. 2019; Sennrich et al. 2016, arXiv:1508.07909). No space is put before the first word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from ala_encoder.errors import UserError, shown
from ala_encoder.lines import SURROGATES
from ala_encoder.tokenizer.base import Special, Tokenizer
from ala_encoder.tokenizer.files import (
    check_added,
    declared,
    guarded,
    missing_tokens,
    ordered,
    read_json,
    read_lines,
    special_of,
    stated,
    token_files,
    write_folder,
)

if TYPE_CHECKING:
    import tokenizers

Merge = tuple[str, str]

ALPHABET = tuple(
    map(chr, [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100), *range(0x100, 0x144)])
)
"""The letters that stand for the 256 bytes: a visible one for itself, the others from U+0100 on."""
VERSION = "#version: 0.2"


@final
class ByteBPE(Tokenizer):
    """GPT-2's kind. decode(encode(text)) is the text, but for lone surrogates, which are dropped.

    A piece that is neither a byte nor made by a merge is a special token. There is no unknown
    text. Ids that do not make whole UTF-8 characters decode with U+FFFD; a mask is shown.
    """

    kind: ClassVar[str] = "byte_bpe"
    pieces: tuple[str, ...]
    merges: tuple[Merge, ...]

    def __init__(
        self,
        pieces: Sequence[str],
        merges: Sequence[Merge],
        special: Special,
        origin: str = Tokenizer.origin,
    ) -> None:
        """Build from pieces in id order, merges in order and roles; for users: `load`, `train`."""
        self.pieces, self.merges = tuple(pieces), tuple(merges)
        self.special, self.origin = special._replace(unk=None), origin
        self.special_ids = frozenset(_special_tokens(pieces, merges).values())
        assert self.special_ids >= {i for i in self.special if i is not None}
        self._backend = guarded(self.origin, lambda: _backend(self))

    def __reduce__(self) -> tuple[type[ByteBPE], tuple[Any, ...]]:
        return ByteBPE, (self.pieces, self.merges, self.special, self.origin)

    @classmethod
    def read(cls, folder: Path) -> ByteBPE:
        """Read tokenizer.json (preferred), or vocab.json and merges.txt.

        Roles come from special_tokens_map.json and tokenizer_config.json, else from the usual
        names; in GPT-2's own vocabulary <|endoftext|> is cls and sep, pad and mask are missing.

        Raises UserError, naming file and line, when one is malformed or they contradict;
        for add_prefix_space, which would change the ids.
        """
        if stated(folder).get("add_prefix_space"):
            raise UserError(f"{folder}: add_prefix_space = true is not supported; allowed is false")
        full, vocabulary, merge_file = (
            folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt")
        )
        if full.is_file():
            pieces, merges, known = _read_tokenizer_json(full)
            if vocabulary.is_file():
                plain = ordered(vocabulary, read_json(vocabulary), what="the vocabulary")
                added = set(pieces[len(plain) :]) - _special_tokens(pieces, merges).keys()
                if plain != pieces[: len(plain)] or added:
                    raise UserError(f"{folder}: vocab.json and tokenizer.json differ in pieces")
            if merge_file.is_file() and [*_read_merges(merge_file)] != [*merges]:
                raise UserError(f"{folder}: merges.txt and tokenizer.json differ in merges")
        else:
            for path in (vocabulary, merge_file):
                if not path.is_file():
                    raise UserError(f"{path}: missing; vocab.json and merges.txt belong together")
            pieces = ordered(vocabulary, read_json(vocabulary), what="the vocabulary")
            merges, known = _read_merges(merge_file), set()
        _check(folder, pieces, merges)
        check_added(folder, {piece: index for index, piece in enumerate(pieces)}.get)
        for piece in _special_tokens(pieces, merges).keys() - known - declared(folder):
            if not _LOOKS_SPECIAL.fullmatch(piece):
                where = full if full.is_file() else merge_file
                raise UserError(
                    f"{where}: no merge makes the piece {shown(piece)}, which is no special token"
                    f" either; is the list of {len(merges):,} merges cut off?"
                )
        special = special_of(folder, _special_tokens(pieces, merges))
        return cls(pieces, [*merges], special, str(folder))

    def save(self, folder: Path) -> None:
        """Write vocab.json, merges.txt, tokenizer.json, tokenizer_config.json, special_tokens_map.

        GPT-2's own two files come out byte for byte. `AutoTokenizer.from_pretrained(folder)` gives
        the same ids, except that it takes a literal special token in a text for one.

        Raises UserError when the folder cannot be written.
        """
        vocabulary = json.dumps({piece: index for index, piece in enumerate(self.pieces)})
        merges = "".join(f"{line}\n" for line in (VERSION, *map(" ".join, self.merges)))
        contents = {
            "vocab.json": vocabulary.encode("ascii"),
            "merges.txt": merges.encode("utf-8"),
            "tokenizer.json": (self._backend.to_str(pretty=True) + "\n").encode("utf-8"),
        }
        roles = self.special._asdict().items()
        names = {role: None if index is None else self.pieces[index] for role, index in roles}
        config = token_files(names, tokenizer_class="PreTrainedTokenizerFast")
        write_folder(folder, {**contents, **config})

    def completed(self) -> tuple[ByteBPE, list[str]]:
        missing = missing_tokens(self.special, set(self.pieces).__contains__, "<>")
        new = {role: self.vocab_size + number for number, role in enumerate(missing)}
        pieces = (*self.pieces, *missing.values())
        made = ByteBPE(pieces, self.merges, self.special._replace(**new), self.origin)
        return made, list(missing.values())

    def with_unused(self, count: int) -> ByteBPE:
        """This tokenizer with so many pieces more that no text has: special tokens without a role.

        Raises UserError when it has pieces of their names.
        """
        unused = [f"<|unused{number}|>" for number in range(count)]
        taken = set(unused) & set(self.pieces)
        if taken:
            raise UserError(f"{self.origin}: has a piece {min(taken)} already")
        return ByteBPE((*self.pieces, *unused), self.merges, self.special, self.origin)

    def piece_bytes(self) -> list[int]:
        return [
            0 if index in self.special_ids else len(piece)  # a letter is a byte
            for index, piece in enumerate(self.pieces)
        ]

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def _content(self) -> list[Any]:
        return [list(self.special), list(self.pieces), list(self.merges)]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text


def splitter() -> tokenizers.pre_tokenizers.ByteLevel:
    """GPT-2's pattern and its letters for bytes, as the library has them."""
    from tokenizers.pre_tokenizers import ByteLevel

    return ByteLevel(add_prefix_space=False)


def is_gpt2(content: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json encodes as GPT-2 does, its vocabulary and merges apart."""
    model, cut = content.get("model"), content.get("pre_tokenizer")
    added = content.get("added_tokens") or []
    return (
        isinstance(model, dict)
        and model.get("type", "BPE") == "BPE"
        and not any(model.get(key) for key in _OTHER_BPE)
        and not content.get("normalizer")
        and isinstance(cut, dict)
        and (cut.get("type"), cut.get("add_prefix_space")) == ("ByteLevel", False)
        and cut.get("use_regex", True) is True
        and isinstance(added, list)
        and all(isinstance(entry, dict) and entry.get("special") is True for entry in added)
    )


_OTHER_BPE = (
    "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback",
    "ignore_merges",
)  # fmt: skip


def _backend(tokenizer: ByteBPE) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, processors

    pieces, special = tokenizer.pieces, tokenizer.special
    ids = {piece: index for index, piece in enumerate(pieces)}
    backend = Backend(models.BPE(ids, list(tokenizer.merges)))
    backend.pre_tokenizer = splitter()
    backend.decoder = decoders.ByteLevel()
    if special.cls is not None and special.sep is not None and special.cls != special.sep:
        cls, sep = pieces[special.cls], pieces[special.sep]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=[(cls, special.cls), (sep, special.sep)],
        )
    backend.add_special_tokens([pieces[index] for index in sorted(tokenizer.special_ids)])
    backend.encode_special_tokens = True
    return backend


_LOOKS_SPECIAL = re.compile(r"<.+>|\[.+\]|madeupword\d+")
"""The last are fairseq's fillers, which RoBERTa's vocabulary holds."""


def _special_tokens(pieces: Sequence[str], merges: Iterable[Merge]) -> dict[str, int]:
    reachable = {*ALPHABET, *(left + right for left, right in merges)}
    return {piece: index for index, piece in enumerate(pieces) if piece not in reachable}


def _read_merges(path: Path) -> dict[Merge, str]:
    """The merges in order, each with its place for messages."""
    lines = enumerate(read_lines(path), start=1)
    return _placed(
        (f"{path}:{number}", line)
        for number, line in lines
        if number > 1 or not line.startswith("#version")
    )


def _placed(entries: Iterable[tuple[str, Any]]) -> dict[Merge, str]:
    merges: dict[Merge, str] = {}
    for place, entry in entries:
        parts = entry.split(" ") if isinstance(entry, str) else entry
        is_pair = isinstance(parts, list) and [type(part) for part in parts] == [str, str]
        if not is_pair or not all(parts):
            raise UserError(f"{place}: {shown(entry)}; a merge is two pieces and one space")
        left, right = parts
        if (left, right) in merges:
            raise UserError(f"{place}: the merge {left} {right} was listed before")
        merges[left, right] = place
    return merges


def _read_tokenizer_json(path: Path) -> tuple[list[str], dict[Merge, str], set[str]]:
    """Pieces, merges with their places, and the added tokens."""
    content = read_json(path)
    if not is_gpt2(content):
        raise UserError(f"{path}: not a byte-level BPE as GPT-2's")
    model = content["model"]
    pieces = ordered(path, model.get("vocab"), what="model.vocab")
    given = model.get("merges")
    if not isinstance(given, list):
        raise UserError(f"{path}: model.merges must be a list")
    merges = _placed(
        (f"{path}: model.merges[{number}]", entry) for number, entry in enumerate(given)
    )
    ids = {piece: index for index, piece in enumerate(pieces)}
    added = content.get("added_tokens") or []
    if not all(type(e.get("id")) is int and isinstance(e.get("content"), str) for e in added):
        raise UserError(f"{path}: added_tokens must have a whole number as id and a content")
    for entry in sorted(added, key=lambda entry: int(entry["id"])):
        token, index = entry["content"], entry["id"]
        if not token or SURROGATES.search(token):
            raise UserError(f"{path}: added token {shown(token)} is empty or not UTF-8")
        if ids.setdefault(token, len(pieces)) != index:
            raise UserError(f"{path}: added token {shown(token)} has id {index}, not {ids[token]}")
        if index == len(pieces):
            pieces.append(token)
    return pieces, merges, {entry["content"] for entry in added}


def _check(folder: Path, pieces: Sequence[str], merges: dict[Merge, str]) -> None:
    """Raise UserError for what the library would crash on or silently drop text for."""
    held = set(pieces)
    for letter in ALPHABET:
        if letter not in held:
            raise UserError(f"{folder}: the vocabulary has no {letter!r}, a byte's letter")
    for (left, right), place in merges.items():
        for piece in (left, right, left + right):
            if piece not in held:
                raise UserError(f"{place}: {shown(piece)} is not in the vocabulary")
