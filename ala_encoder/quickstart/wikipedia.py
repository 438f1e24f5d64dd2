"""Wikipedia articles as running text: the excerpt in gensim's test data, cleaned of its markup.

For: a corpus to pretrain on. Not for: other dumps, whose markup may need more rules.
"""

from __future__ import annotations

import bz2
import hashlib
import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass

from ala_encoder.generated import generated_text
from ala_encoder.quickstart.archives import Source
from ala_encoder.quickstart.recipes import OURS, Recipe


@dataclass(frozen=True)
class Article:
    """One article of the dump, cleaned: its identity for the credit, and its paragraphs."""

    title: str
    page_id: str
    revision_time: str
    paragraphs: list[str]


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


def _text_files(documents: dict[str, list[str]]) -> dict[str, str]:
    valid = held_out(documents, share=0.05)

    def joined(wanted: bool) -> str:
        texts = [text for title, text in documents.items() if (title in valid) == wanted]
        return "\n\n".join("\n".join(text) for text in texts) + "\n"

    return {"train.txt": joined(False), "valid.txt": joined(True)}


def _wikipedia_files(members: Mapping[str, bytes]) -> dict[str, str]:
    (dump,) = members.values()
    articles = articles_of(bz2.decompress(dump))
    rows = ["title\tpage_id\trevision_time"]
    rows += [f"{a.title}\t{a.page_id}\t{a.revision_time}" for a in articles]
    documents = {a.title: a.paragraphs for a in articles if a.paragraphs}
    return {**_text_files(documents), "titles.tsv": "\n".join(rows) + "\n"}


def _generated_text_files(_: Mapping[str, bytes]) -> dict[str, str]:
    documents = generated_text(seed=0, num_documents=600)
    return _text_files({f"document {i}": text for i, text in enumerate(documents)})


_FILES = {"train": "train.txt", "valid": "valid.txt"}
# The dump is the same in every wheel of the release: the one for this machine is asked for first,
# since a mirror may hold no other, then one that a Python without a wheel can read just as well.
_ANY_WHEEL = ("--python-version=3.11", "--implementation=cp", "--platform=manylinux_2_28_x86_64")
GENSIM = Source(
    requirement="gensim==4.4.0",
    size="wheel, 28 MB",
    pattern="gensim-4.4.0-*.whl",
    attempts=(("--only-binary", ":all:"), ("--only-binary", ":all:", *_ANY_WHEEL)),
    members="gensim/test/test_data/"
    "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
    member_sha256="a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d",
)
WIKIPEDIA = Recipe(
    "wikipedia-excerpt",
    "English Wikipedia, 102 articles as of 2014 to 2016 (Wikipedia contributors; CC BY-SA 3.0; "
    "listed in titles.tsv), from the test data of gensim 4.4.0",
    _FILES,
    GENSIM,
    _wikipedia_files,
)
GENERATED = Recipe("generated-text", OURS, _FILES, None, _generated_text_files)
