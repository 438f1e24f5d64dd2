"""Files and folders, written aside and renamed: a reader sees the old one or the new one.

For: JSON, read strictly, and one builder at a time for a folder. Not for: lines of users (`lines`).
"""

from __future__ import annotations

import glob
import json
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ala_encoder.errors import UserError, reason, shown

_REFUSED = ("(os error ", "inline_container", "Parent directory ")
"""In what safetensors and torch say of a file that could not be written."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise UserError, with the path, for what the system refuses to write, as on a full disk.

    Its own errors mostly lack the path, and torch and safetensors have others for it.
    """
    try:
        yield
    except UserError:  # which has a path of its own
        raise
    except Exception as error:
        if not isinstance(error, OSError) and not any(word in str(error) for word in _REFUSED):
            raise
        raise UserError(f"{path}: cannot be written: {reason(error)}") from error


def write_aside(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` on a temporary neighbour of `path`, sync it and rename it into place.

    Raises UserError when that cannot be written.
    """
    with writing(path):
        _write_aside(path, write)


def _write_aside(path: Path, write: Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    aside = Path(name)
    try:
        write(aside)
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.chmod(0o644)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text with LF line ends, aside and renamed."""
    write_aside(path, lambda aside: aside.write_bytes(text.encode("utf-8")))


def write_json(path: Path, data: Any) -> None:
    """Write strict JSON: a NaN or infinity is a ValueError here, never a bare word in the file."""
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, max_bytes: int | None = None) -> dict[str, Any]:
    """Read a JSON object, strictly as `parse_json`.

    Raises UserError, naming the path, for a file that is not there, not UTF-8, not a JSON object,
    or larger than `max_bytes`.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(-1 if max_bytes is None else max_bytes + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from None
    if max_bytes is not None and len(raw) > max_bytes:
        raise UserError(f"{path}: larger than {max_bytes:,} bytes")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8 text") from None
    return parse_json(text, str(path))


def parse_json(text: str, place: str) -> dict[str, Any]:
    """Return the JSON object in `text`; raises UserError, naming `place`, as `json_object` does."""
    try:
        return json_object(text)
    except ValueError as error:
        raise UserError(f"{place}: {error}") from None


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`, by RFC 8259 and no more.

    Raises ValueError with the reason for anything else, a key given twice, a number beyond a float
    or a bare NaN among it.
    """
    try:
        data = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"holds a {type(data).__name__}, not an object {{…}}")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {shown(twice)} is given twice")
    return data


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not a finite number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is beyond a float")
    return number


@contextmanager
def folder_aside(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside `folder` to write into; rename it onto `folder` at the end.

    `folder` may be missing or empty. After an error nothing is left. Raises UserError, naming
    `folder`, for an OSError inside.
    """
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{folder.name}.", suffix=".aside", dir=folder.parent
        ) as scratch:
            aside = Path(scratch) / folder.name  # its own mode; the temporary one is private
            aside.mkdir()
            yield aside
            os.replace(aside, folder)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed `folder_aside` of this folder left; call it under the folder's lock."""
    for path in folder.parent.glob(f".{glob.escape(folder.name)}.{'?' * 8}.aside"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def locked(folder: Path, say: Callable[[str], None] = print) -> Iterator[None]:
    """Let one process at a time be here for a folder, by the file `.NAME.lock` beside it.

    `say` gets one line when another process has to be waited for; the lock of a process that died
    is free. Raises UserError when the lock file cannot be written.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder.parent / f".{folder.name}.lock")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"{folder}: another process is at it, waiting …")
            lock.acquire()
    except (OSError, NotImplementedError) as error:  # the latter: a file system without locks
        raise UserError(f"{folder}: cannot write {lock.lock_file}: {reason(error)}") from None
    try:
        yield
    finally:
        lock.release()
