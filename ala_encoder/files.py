"""Small files, written aside and renamed, so that a reader sees the old one or the new one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ala_encoder.errors import UserError


def write_aside(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` on a temporary neighbour of `path`, sync it and rename it into place."""
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


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises UserError, naming the path, when it is not there or not one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot read it: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: holds a {type(data).__name__}, not an object")
    return data


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
        raise UserError(f"{folder}: cannot write {lock.lock_file}: {error}") from None
    try:
        yield
    finally:
        lock.release()
