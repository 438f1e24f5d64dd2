"""How a set becomes files: a recipe, the cache that keeps what it made, and its stand-in.

For: the sets of this folder. Not for: how a set is cleaned (a file each), archives (`archives`).
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ala_encoder.errors import UserError
from ala_encoder.files import locked
from ala_encoder.quickstart.archives import Say, Source, Unavailable, members_of

VERSION = 1
"""Part of the folder names in the cache: raise it with any change of what a recipe (or `generated`)
produces, so that an older cache is never taken for the new files."""
OURS = "made by this project's seeded grammar (no third-party text)"


@dataclass(frozen=True)
class EmbeddedData:
    """A ready data set: its name, where it comes from, its files, whether it is the stand-in."""

    name: str
    credit: str
    files: dict[str, Path]
    generated: bool


@dataclass(frozen=True)
class Recipe:
    """How a set is made: `build` maps the members' bytes (none without a source) to files."""

    name: str
    credit: str
    files: Mapping[str, str]
    """By split; `build` may make more."""
    source: Source | None
    build: Callable[[Mapping[str, bytes]], dict[str, str]]


def bucket_of(text: str) -> int:
    """Return 0 to 99 by a hash of the lower-cased text: SHA-256's first 32 bits modulo 100."""
    return int(hashlib.sha256(text.lower().encode()).hexdigest()[:8], 16) % 100


def first_of(real: Recipe, stand_in: Recipe, cache: Path, say: Say) -> EmbeddedData:
    """Return the real set, or the stand-in when its archive can not be had; `say` tells which.

    Any number of processes may call it at once: one downloads and builds, the others wait and find
    it. Raises UserError when the cache can not be written.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        try:
            return ready(real, cache, say)
        except Unavailable as why:
            say(f"{real.name}: {why}; {stand_in.name!r} stands in")
            return ready(stand_in, cache, say)
    except OSError as error:
        raise UserError(
            f"cache folder {cache}: {error.strerror or error}; give a folder that can be written"
        ) from error


def ready(recipe: Recipe, cache: Path, say: Say) -> EmbeddedData:
    """Return the set from the cache, building it when it is not there or not as it was written.

    Raises Unavailable when its archive can not be had.
    """
    folder = cache / f"{recipe.name}-v{VERSION}"
    fault = _fault(folder, recipe)
    if fault is not None:
        with locked(folder, say):
            fault = _fault(folder, recipe)  # another process may have made it meanwhile
            if fault is not None:
                say(f"{recipe.name}: {fault}, making it")
                members = members_of(recipe.source, cache, say) if recipe.source else {}
                _store(recipe.build(members), folder)
    if fault is None:
        say(f"{recipe.name}: cached in {folder}")
    files = {split: folder / name for split, name in recipe.files.items()}
    return EmbeddedData(recipe.name, recipe.credit, files, generated=recipe.source is None)


def _fault(folder: Path, recipe: Recipe) -> str | None:
    """Say what is wrong with the cached files, or None when all are as they were written."""
    if not (folder / "manifest.json").exists():
        return f"not in {folder} yet"
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        for name in [*recipe.files.values(), *manifest]:
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != manifest[name]:
                return f"{folder / name} is not as it was written"
    except FileNotFoundError as error:
        return f"{error.filename} is gone"
    except (ValueError, TypeError, KeyError):
        return f"{folder / 'manifest.json'} can not be read"
    return None


def _store(contents: dict[str, str], folder: Path) -> None:
    """Write the files aside and rename each, the manifest last."""
    data = {name: text.encode() for name, text in contents.items()}
    manifest = {name: hashlib.sha256(raw).hexdigest() for name, raw in data.items()}
    data["manifest.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".aside-") as aside:
        for name, raw in data.items():
            (Path(aside) / name).write_bytes(raw)
            os.replace(Path(aside) / name, folder / name)
