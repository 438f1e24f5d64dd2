"""The embedded pairs as settings name them: found, prepared, named everywhere, and kept apart."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ala_encoder import parallel_corpus, sources
from ala_encoder.lines import Reading
from ala_encoder.parallel import find_sources, pairs
from ala_encoder.settings.corpus import CorpusSettings
from ala_encoder.settings.loader import check
from ala_encoder.settings.parallel import TranslationData
from ala_encoder.tokenizer import Tokenizer
from tests.launched import nmt
from tests.pairs import PAIRS, files, refusal, settings

REAL, STAND_IN = "ui-strings-en-de", "generated-translation"
SPLITS = {"train": PAIRS[:8], "dev": PAIRS[8:10], "test": PAIRS[10:]}


def cached(cache: Path, name: str) -> None:
    """Write a set into the cache as if it had been made: the dozen pairs."""
    folder = cache / f"{name}-v1"
    folder.mkdir(parents=True)
    hashes = {}
    for split, part in SPLITS.items():
        for side, language in enumerate(("en", "de")):
            raw = "".join(f"{pair[side]}\n" for pair in part).encode()
            (folder / f"{split}.{language}").write_bytes(raw)
            hashes[f"{split}.{language}"] = hashlib.sha256(raw).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(hashes))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache that has both sets, and is all that there is."""
    monkeypatch.setenv("ALA_OFFLINE", "1")
    cached(tmp_path / "cache", REAL)
    cached(tmp_path / "cache", STAND_IN)
    return tmp_path / "cache"


def remove(cache: Path, name: str) -> None:
    (cache / f"{name}-v1" / "manifest.json").unlink()


def embedded(cache: Path, split: str) -> dict[str, Any]:
    return {"kind": "embedded", "split": split, "cache": str(cache)}


def of(cache: Path, **changes: Any) -> TranslationData:
    splits = {"train": "train", "valid": "dev", "test": "test"}
    named = {split: embedded(cache, name) for split, name in splits.items()}
    return settings(cache.parent, **(named | changes))


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return nmt.tokenizer_of(nmt.settings(tmp_path))


def prepared(data: TranslationData, tokenizer: Tokenizer) -> tuple[str, list[str]]:
    """Return the data's name in tables, and what was said."""
    said: list[str] = []
    manifest = parallel_corpus.prepare(data, tokenizer, say=said.append)
    return manifest.data_name(data.path), said


@pytest.mark.parametrize(("src", "trg"), [("en", "de"), ("de", "en")])
def test_embedded_pairs_are_read_in_either_direction_and_told_once(
    src: str, trg: str, cache: Path
) -> None:
    said: list[str] = []
    found = find_sources(of(cache, src_lang=src, trg_lang=trg), said.append)
    assert said == [f"{REAL}: cached in {cache / f'{REAL}-v1'}"]
    for split, part in zip(("train", "valid", "test"), SPLITS.values(), strict=True):
        read = [pair[1:] for pair in pairs(found[split], found[split].reading())]
        assert read == (part if src == "en" else [(de, en) for en, de in part])


def test_an_embedded_split_is_not_trained_and_scored_on(cache: Path) -> None:
    told = refusal(find_sources, of(cache, test=embedded(cache, "train")))
    assert "train and test share lines" in told


@pytest.mark.parametrize(("src", "trg"), [("en", "ru"), ("de", "fr")])
def test_other_languages_than_the_embedded_ones_are_refused(
    src: str, trg: str, cache: Path
) -> None:
    told = refusal(of, cache, src_lang=src, trg_lang=trg)
    assert told.endswith(f"the embedded pairs are of en and de, not {src} and {trg}")


def test_the_prepared_set_is_named_by_its_own_name_with_origin_and_licence(
    cache: Path, tokenizer: Tokenizer
) -> None:
    name, said = prepared(of(cache), tokenizer)
    assert name == REAL
    assert sum("Apache-2.0" in line and "homeassistant 2026.11.0" in line for line in said) == 1
    again, said = prepared(of(cache), tokenizer)
    assert again == REAL and any("is current" in line for line in said)


def test_the_stand_in_is_named_as_generated(cache: Path, tokenizer: Tokenizer) -> None:
    remove(cache, REAL)
    name, said = prepared(of(cache), tokenizer)
    assert name == STAND_IN
    assert any(f"{STAND_IN!r} stands in" in line for line in said)


def test_a_mixture_with_files_names_both(cache: Path, tokenizer: Tokenizer) -> None:
    own = files(cache.parent, "own", *(list(side) for side in zip(*PAIRS[:2], strict=True)))
    name, _ = prepared(of(cache, test=own), tokenizer)
    assert name == f"corpus en-de ({REAL})"
    plain = settings(cache.parent, path=str(cache.parent / "plain"))
    assert prepared(plain, tokenizer)[0] == "plain en-de"


def test_pairs_prepared_of_the_stand_in_are_refused_once_the_real_set_is_there(
    cache: Path, tokenizer: Tokenizer
) -> None:
    remove(cache, REAL)
    prepared(of(cache), tokenizer)
    for name in (REAL, STAND_IN):
        (cache / f"{name}-v1").rename(cache / f"old-{name}")
        cached(cache, name)
    told = refusal(prepared, of(cache), tokenizer)
    assert f"train is made of {STAND_IN}, not {REAL}" in told


def test_the_english_side_is_a_text_to_pretrain_on_with_a_name_of_its_own(cache: Path) -> None:
    source = {"kind": "embedded", "text": "interface", "cache": str(cache)}
    data = check({"path": str(cache.parent / "text"), "source": source}, CorpusSettings)
    found = sources.find_source(data, lambda line: None)
    assert (found.name, found.generated) == (f"{REAL} (en)", False)
    for split, part in (("train", SPLITS["train"]), ("valid", SPLITS["dev"])):
        assert list(sources.texts(found, split, Reading())) == [en for en, _ in part]
    remove(cache, REAL)
    found = sources.find_source(data, lambda line: None)
    assert (found.name, found.generated) == (f"{STAND_IN} (en)", True)
