"""Sentences of a program's interface with their translations: Home Assistant, English-German.

For: a translation task. Not for: a benchmark; the sentences are short and much alike.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from ala_encoder.generated_pairs import generated_translation
from ala_encoder.quickstart.archives import Source
from ala_encoder.quickstart.recipes import OURS, Recipe, bucket_of

_MARKUP = re.compile(r"[{}<>]|https?://|%[sd]")
"""Placeholders, tags and links."""
_WORD = re.compile(r"[^\W\d_]+")
_MAX_CHARACTERS = 500
_MAX_RATIO = 2.85


def most_common_pairs(languages: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return each English string once, in order, with its most common German translation.

    languages: by "…/en.json" and "…/de.json" what these hold: texts in nested objects, of which
    those of the same keys belong together. White space is one space. Of equally common
    translations that is taken whose characters come first.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, english in languages.items():
        german = languages.get(name.removesuffix("en.json") + "de.json")
        if name.endswith("/en.json") and german is not None:
            translated = dict(_texts(german))
            for keys, text in _texts(english):
                if keys in translated:
                    counts[text][translated[keys]] += 1
    return [
        (text, min(found, key=lambda translation: (-found[translation], translation)))
        for text, found in sorted(counts.items())
    ]


def _texts(data: Mapping[str, Any], keys: tuple[str, ...] = ()) -> Iterator[tuple[Any, str]]:
    for key, value in data.items():
        if isinstance(value, str):
            yield (*keys, key), " ".join(value.split())
        else:
            yield from _texts(value, (*keys, key))


def is_sentence_pair(src: str, trg: str) -> bool:
    """Tell whether a text and its translation are plain, no mere name, and of similar length."""
    shorter, longer = sorted((len(src), len(trg)))
    return (
        not _MARKUP.search(f"{src} {trg}")
        and len(_WORD.findall(src)) >= 3
        and len(_WORD.findall(trg)) >= 2
        and src != trg
        and len(src) <= _MAX_CHARACTERS
        and longer <= _MAX_RATIO * shorter
    )


def _files(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Split by the letters of the source: what differs in a number or a point stays together."""
    lines: dict[str, list[str]] = {name: [] for name in _FILES.values()}
    for src, trg in pairs:
        bucket = bucket_of(re.sub("[^a-z]", "", src.lower()))
        split = "dev" if bucket < 4 else "test" if bucket < 8 else "train"
        lines[f"{split}.en"].append(f"{src}\n")
        lines[f"{split}.de"].append(f"{trg}\n")
    return {name: "".join(of_side) for name, of_side in lines.items()}


def _interface_files(members: Mapping[str, bytes]) -> dict[str, str]:
    languages = {name: json.loads(raw) for name, raw in members.items()}
    return _files([pair for pair in most_common_pairs(languages) if is_sentence_pair(*pair)])


def _generated_files(_: Mapping[str, bytes]) -> dict[str, str]:
    return _files(generated_translation(seed=0, num_pairs=18_000))


_FILES = {
    f"{split}.{language}": f"{split}.{language}"
    for split in ("train", "dev", "test")
    for language in ("en", "de")
}
HOME_ASSISTANT = Source(
    requirement="homeassistant==2026.11.0",
    size="wheel, 68 MB",
    pattern="homeassistant-2026.11.0-*.whl",
    # Files are read, nothing runs: which Python the release asks for does not matter.
    attempts=(("--ignore-requires-python", "--only-binary", ":all:"),),
    members="homeassistant/components/*/translations/[de][en].json",
    archive_sha256="7ca5fbde9dea879ac7723949fc84347aac5182e6309c357b2e4973fd391b00f7",
)
INTERFACE = Recipe(
    "ui-strings-en-de",
    "interface sentences of Home Assistant in English and German (the Home Assistant authors and "
    "translators; Apache-2.0), from homeassistant 2026.11.0",
    _FILES,
    HOME_ASSISTANT,
    _interface_files,
)
GENERATED = Recipe("generated-translation", OURS, _FILES, None, _generated_files)
