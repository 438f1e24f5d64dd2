"""Files of tokenizer folders, read with suspicion.

For: what every kind shares. Not for: user text (`lines`), the layout of one kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ala_encoder import files, lines
from ala_encoder.errors import UserError, reason, shown
from ala_encoder.lines import SURROGATES, Reading
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
    _check_size(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, strictly; raises UserError when the file holds anything else."""
    return files.read_json(path, MAX_FILE)


def read_lines(path: Path) -> list[str]:
    """Read lines by the rule of `lines`, but mend nothing: each character of a piece counts.

    Raises UserError, naming the line, for a byte-order mark at its start or a NUL, and as there.
    """
    _check_size(path)
    reading, found = Reading(), []
    for number, line in lines.read_lines(path, reading):
        if reading.byte_order_marks or reading.nulls:
            raise UserError(f"{path}:{number}: a byte-order mark or NUL, which no piece has")
        found.append(line)
    return found


def _check_size(path: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from None
    if size > MAX_FILE:
        raise UserError(f"{path}: {size:,} bytes; no vocabulary has more than {MAX_FILE:,}")


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
        if not piece or SURROGATES.search(piece):
            raise UserError(f"{path}: piece {piece!r} is empty or not UTF-8")
    return pieces


def special_of(folder: Path, ids: Mapping[str, int]) -> Special:
    """Roles of special tokens: as special_tokens_map.json or tokenizer_config.json say, else usual.

    `ids` are the tokens that may have a role. A folder that names no cls token means its bos token,
    one that names no sep token its eos token. Raises UserError for a named token that is not there.
    """
    named_by = stated(folder)
    roles: dict[str, int | None] = {}
    for role, keys in _ROLES.items():
        named = [token for key in keys if (token := _token(named_by.get(key))) is not None]
        if named and named[0] not in ids:
            raise UserError(f"{folder}: names {named[0]!r} as {role} token, which is no such token")
        usual = [token for token in _USUAL[role] if token in ids]
        roles[role] = ids[named[0]] if named else ids[usual[0]] if usual else None
    return Special(**roles)


def declared(folder: Path) -> set[str]:
    """Every token that special_tokens_map.json and tokenizer_config.json name."""
    found: list[object] = []
    for key, value in stated(folder).items():
        if key.endswith(("_token", "_tokens")):
            found += value if isinstance(value, list) else [value]
        elif key == "added_tokens_decoder" and isinstance(value, dict):
            found += value.values()
    return {token for entry in found if (token := _token(entry)) is not None}


def stated(folder: Path) -> dict[str, Any]:
    """What special_tokens_map.json and tokenizer_config.json say, null left out.

    Raises UserError when they name different tokens for one role.
    """
    said: dict[str, Any] = {}
    role_keys = {key for keys in _ROLES.values() for key in keys}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        content = read_json(folder / name) if (folder / name).is_file() else {}
        for key in role_keys & content.keys() & said.keys():
            first, second = _token(said[key]), _token(content[key])
            if first and second and first != second:
                raise UserError(
                    f"{folder}: {key} is {shown(first)} in special_tokens_map.json,"
                    f" {shown(second)} in tokenizer_config.json; they must agree"
                )
        said.update({key: value for key, value in content.items() if value is not None})
    return said


def refuse_other_roles(folder: Path, tokens: Mapping[str, str]) -> None:
    """Raise UserError when the folder names another token than `tokens` (role → token)."""
    said = stated(folder)
    for role, token in tokens.items():
        given = _token(said.get(f"{role}_token"))
        if given not in (None, token):
            raise UserError(
                f"{folder}: names {shown(given)} as {role} token; this kind has only {token}"
            )


def check_added(folder: Path, id_of: Callable[[str], int | None]) -> None:
    """Raise UserError when added_tokens.json lists a token that is not in the vocabulary."""
    path = folder / "added_tokens.json"
    for token, index in (read_json(path) if path.is_file() else {}).items():
        if type(index) is not int or id_of(token) != index:
            raise UserError(
                f"{path}: the vocabulary has no token {shown(token)} of id {shown(index)};"
                " a tokenizer.json that holds the added tokens is needed"
            )


def _token(given: object) -> str | None:
    content = given.get("content") if isinstance(given, dict) else given
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
    """Write files into a folder; raises UserError when it cannot be written."""
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)


def guarded(place: str, call: Callable[[], _Made]) -> _Made:
    """Call a native library; whatever it raises, Rust's panics among them, is a UserError."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # pyo3's PanicException is no Exception
        raise UserError(f"{place}: {reason(error)}") from None
