"""Files of tokenizer folders, read with suspicion and written aside.

For: what every kind shares. Not for: user text (`lines`), the layout of one kind.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ala_encoder.errors import UserError
from ala_encoder.tokenizer.base import Special

MAX_FILE = 1 << 26
"""Largest file in bytes: twice the largest vocabulary in use, and small in memory."""

_ROLES = {
    "pad": ("pad_token",),
    "unk": ("unk_token",),
    "cls": ("cls_token", "bos_token"),
    "sep": ("sep_token", "eos_token"),
    "mask": ("mask_token",),
}
_USUAL = {
    "pad": ("<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("<s>", "[CLS]", "<|endoftext|>"),
    "sep": ("</s>", "[SEP]", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]"),
}
_Made = TypeVar("_Made")


def read_bytes(path: Path) -> bytes:
    """Read a file; raises UserError when it cannot be read or is larger than `MAX_FILE`."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE:
            raise UserError(f"{path}: {size:,} bytes, no vocabulary has more than {MAX_FILE:,}")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def read_text(path: Path) -> str:
    """Read a UTF-8 file; raises UserError, naming the line, where it is none."""
    raw = read_bytes(path)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8 text") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises UserError when the file holds anything else."""
    try:
        content = json.loads(read_text(path))
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a readable JSON file: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds a {type(content).__name__}; a JSON object is needed")
    return content


def ordered(path: Path, vocabulary: object, *, what: str) -> list[str]:
    """Pieces in id order of a map from pieces to ids; raises UserError unless ids are 0, 1, 2…"""
    if not isinstance(vocabulary, dict) or not all(type(i) is int for i in vocabulary.values()):
        raise UserError(f"{path}: {what} must map pieces to ids")
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    for number, piece in enumerate(pieces):
        if vocabulary[piece] != number:
            raise UserError(
                f"{path}: the ids of {what} are not 0 to {len(pieces) - 1}, each once:"
                f" {piece!r} has {vocabulary[piece]}, where {number} comes next"
            )
        if not piece or any("\ud800" <= letter <= "\udfff" for letter in piece):
            raise UserError(f"{path}: piece {piece!r} is empty or not UTF-8")
    return pieces


def special_of(folder: Path, ids: Mapping[str, int]) -> Special:
    """Roles of special tokens: as special_tokens_map.json or tokenizer_config.json say, else usual.

    `ids` are the tokens that may have a role. A folder that names no cls token means its bos token,
    one that names no sep token its eos token. Raises UserError for a named token that is not there.
    """
    stated: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            stated.update(read_json(folder / name))
    roles: dict[str, int | None] = {}
    for role, keys in _ROLES.items():
        named = [token for key in keys if (token := _token(stated.get(key))) is not None]
        if named and named[0] not in ids:
            raise UserError(f"{folder}: names {named[0]!r} as {role} token, which is no such token")
        usual = [token for token in _USUAL[role] if token in ids]
        roles[role] = ids[named[0]] if named else ids[usual[0]] if usual else None
    return Special(**roles)


def _token(stated: object) -> str | None:
    content = stated.get("content") if isinstance(stated, dict) else stated
    return content if isinstance(content, str) and content else None


def missing_tokens(special: Special, taken: Callable[[str], bool], brackets: str) -> dict[str, str]:
    """Name a token for each missing role but unk, such as {"mask": "<mask>"} for brackets "<>"."""
    missing = {}
    for role in ("pad", "cls", "sep", "mask"):
        if getattr(special, role) is None:
            names = sorted(_USUAL[role][:2], key=lambda name: name[0] != brackets[0])
            free = [name for name in names if not taken(name)]
            if not free:
                raise UserError(f"both {' and '.join(names)} are ordinary pieces; no name is left")
            missing[role] = free[0]
    return missing


def token_files(names: Mapping[str, str | None], **config: object) -> dict[str, bytes]:
    """tokenizer_config.json and special_tokens_map.json, which Hugging Face's loaders read."""
    tokens = {f"{role}_token": token for role, token in names.items() if token is not None}
    return {
        "tokenizer_config.json": as_json({**config, **tokens}),
        "special_tokens_map.json": as_json(tokens),
    }


def as_json(content: object) -> bytes:
    """JSON as the tokenizer's small files are written."""
    return (json.dumps(content, indent=2) + "\n").encode("ascii")


def write_folder(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files aside and rename them; raises UserError when the folder cannot be written."""
    aside = {name: folder / f".{name}.tmp-{os.getpid()}" for name in contents}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            aside[name].write_bytes(content)
        for name in contents:
            os.replace(aside[name], folder / name)
    except OSError as error:
        raise UserError(f"{folder}: cannot save the tokenizer here: {error}") from error
    finally:
        for path in aside.values():
            if path.exists():
                path.unlink()


def guarded(place: str, call: Callable[[], _Made]) -> _Made:
    """Call a native library; whatever it raises, Rust's panics among them, is a UserError."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # pyo3's PanicException is no Exception
        raise UserError(f"{place}: {' '.join(str(error).split())}") from None
