"""The files of a fairseq-style folder: subword-nmt's codes, `dict.LANG.txt`, Moses' options.

For: reading what fairseq's own scripts and releases hold, strictly, and writing it byte for byte.
Not for: encoding (`fairseq`), learning (`fairseq_training`).

A line of a dictionary is `PIECE COUNT`; ids 0 to 3 are `SPECIALS`, which it does not list. A line
of codes is one merge, `LEFT RIGHT`, the earliest first; `</w>` ends a word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ala_encoder.errors import UserError, shown
from ala_encoder.tokenizer.files import as_json, read_json, read_lines

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
MASK = "<mask>"
MOSES = "moses.json"
CODES = ("bpecodes", "code", "codes")
"""Names of the codes in fairseq's releases and scripts; we write the first."""
MULTIPLE = 8
"""The size of a dictionary is one of it."""
_DICT = re.compile(r"dict\.(.+)\.txt")

Merge = tuple[str, str]
Entry = tuple[str, int]


class Codes(NamedTuple):
    """The merges in order, and the version of their format, which says where words end."""

    version: str
    """0.2: `</w>` is part of a word's last letter; 0.1: a symbol of its own."""
    merges: tuple[Merge, ...]

    @property
    def text(self) -> str:
        """The file."""
        head = f"#version: {self.version}\n" if self.version != "0.1" else ""
        return head + "".join(f"{left} {right}\n" for left, right in self.merges)


class Moses(NamedTuple):
    """How Moses cuts text, as fairseq's encoder and scripts have it."""

    aggressive_dashes: bool = True
    escape: bool = True


def find_codes(folder: Path) -> Path:
    """Return the one file of codes; raises UserError for none or several."""
    found = [folder / name for name in CODES if (folder / name).is_file()]
    if len(found) != 1:
        names = " and ".join(path.name for path in found) or "no BPE codes"
        raise UserError(f"{folder}: {names}; allowed is one file {', '.join(CODES)}")
    return found[0]


def read_codes(path: Path) -> Codes:
    """Read subword-nmt's codes; raises UserError, naming the line, for what is no merge."""
    lines = read_lines(path)
    version = "0.1"
    first = 0
    if lines and lines[0].startswith("#version:"):
        version, first = lines[0].partition(":")[2].strip(), 1
        if version not in ("0.1", "0.2"):
            raise UserError(f"{path}:1: version {shown(version)}; allowed are 0.1 and 0.2")
    merges = []
    for number, line in enumerate(lines[first:], start=first + 1):
        parts = line.split(" ")
        if len(parts) != 2 or any(not part or _SPACE.search(part) for part in parts):
            why = "; fastBPE's codes, which hold counts, are not supported" * (len(parts) == 3)
            raise UserError(f"{path}:{number}: {shown(line)} is no merge of two symbols{why}")
        merges.append((parts[0], parts[1]))
    if not merges:
        raise UserError(f"{path}: holds no merge")
    return Codes(version, tuple(merges))


_SPACE = re.compile(r"\s")


def read_dicts(folder: Path) -> tuple[tuple[str, ...], tuple[Entry, ...]]:
    """Return the languages, sorted, and the entries that their dictionaries share.

    Raises UserError, naming the line, for what is no entry or stands there twice, and when
    languages have dictionaries of their own.
    """
    found = {}
    for path in sorted(folder.glob("dict.*.txt")):
        match = _DICT.fullmatch(path.name)
        assert match is not None
        found[match[1]] = read_dict(path)
    if not found:
        raise UserError(f"{folder}: no dict.LANG.txt; its name tells the language")
    (language, entries), *others = found.items()
    for other, its in others:
        if [piece for piece, _ in its] != [piece for piece, _ in entries]:
            raise UserError(
                f"{folder}: dict.{language}.txt and dict.{other}.txt differ; source and target "
                "share one vocabulary here: fairseq-preprocess with --joined-dictionary makes it"
            )
    return tuple(found), entries


def read_dict(path: Path) -> tuple[Entry, ...]:
    """Read one dictionary, ids from 4 on; raises UserError as `read_dicts`."""
    first_line: dict[str, int] = {}
    entries = []
    for number, line in enumerate(read_lines(path), start=1):
        piece, _, count = line.rpartition(" ")
        if not piece or _SPACE.search(piece) or not _COUNT.fullmatch(count):
            raise UserError(f"{path}:{number}: {shown(line)} is no entry PIECE COUNT")
        if piece in SPECIALS:
            raise UserError(f"{path}:{number}: {piece} has its id already; it is listed nowhere")
        if piece in first_line:
            raise UserError(f"{path}:{number}: {piece!r} is on line {first_line[piece]} already")
        first_line[piece] = number
        entries.append((piece, int(count)))
    return tuple(entries)


_COUNT = re.compile("[0-9]{1,18}")


def padded(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return entries with `madeupword0000` and so on, up to a multiple of 8 with the specials."""
    held = {piece for piece, _ in entries}
    made = [*entries]
    number = 0
    while (len(SPECIALS) + len(made)) % MULTIPLE:
        piece = f"madeupword{number:04d}"
        if piece not in held:
            made.append((piece, 0))
        number += 1
    return tuple(made)


def dict_text(entries: Sequence[Entry]) -> str:
    """Return the file of a dictionary."""
    return "".join(f"{piece} {count}\n" for piece, count in entries)


def read_moses(folder: Path) -> Moses:
    """Read moses.json; without one, Moses' options are fairseq's own. UserError when malformed."""
    path = folder / MOSES
    stated = read_json(path) if path.is_file() else {}
    for name, value in stated.items():
        if name not in Moses._fields or not isinstance(value, bool):
            allowed = " and ".join(Moses._fields)
            raise UserError(
                f"{path}: {shown(name)}: {shown(value)}; allowed are {allowed}, true or false"
            )
    return Moses(**stated)


def moses_text(moses: Moses) -> bytes:
    """Return the file of Moses' options."""
    return as_json(moses._asdict())
