"""Parallel text for tests: a dozen sentences in two languages, and files of them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from ala_encoder.errors import UserError
from ala_encoder.settings.loader import check
from ala_encoder.settings.parallel import TranslationData
from tests.strings import SHARED

MULTI30K = SHARED / "nmt" / "multi30k-en-de"
NEWS = SHARED / "nmt" / "wmt-newstest-en-ru"

PAIRS = [
    ("The cat sleeps on the old sofa.", "Die Katze schläft auf dem alten Sofa."),
    ("A man in a blue shirt is reading a newspaper.", "Ein Mann im blauen Hemd liest Zeitung."),
    ("Two dogs are running through the snow.", "Zwei Hunde rennen durch den Schnee."),
    ("We don't know what he'll do next.", "Wir wissen nicht, was er als Nächstes tut."),
    ('She said: "That is well-known."', "Sie sagte: „Das ist wohlbekannt.“"),
    ("The price rose by 3.5% to $1,200.", "Der Preis stieg um 3,5% auf 1.200 Dollar."),
    ("Is the museum open on Sundays?", "Hat das Museum sonntags geöffnet?"),
    ("Research & development cost < 10 million.", "Forschung & Entwicklung kosten < 10 Millionen."),
    ("An old woman is selling flowers at the market.", "Eine alte Frau verkauft Blumen am Markt."),
    ("The children's playground was rebuilt in 2014.", "Der Spielplatz wurde 2014 neu gebaut."),
    ("Dr. Smith met the U.S. delegation on Oct. 3.", "Dr. Smith traf die US-Delegation am 3. Okt."),
    ("Nobody had expected such a low-cost solution!", "Niemand hatte so eine Lösung erwartet!"),
]


def write(path: Path, lines: list[str] | bytes) -> str:
    """Write lines, or bytes as they are; compressed where the name says so."""
    content = lines if isinstance(lines, bytes) else "".join(f"{x}\n" for x in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return str(path)


def files(folder: Path, name: str, src: list[str] | bytes, trg: list[str] | bytes) -> Any:
    """Write both sides and return the settings that name them."""
    return {
        "kind": "files",
        "src": [write(folder / f"{name}.en", src)],
        "trg": [write(folder / f"{name}.de", trg)],
    }


def settings(folder: Path, **changes: Any) -> TranslationData:
    """Return settings over the dozen: eight to train on, two valid, two test."""
    made: dict[str, Any] = {"path": str(folder / "corpus"), "src_lang": "en", "trg_lang": "de"}
    for split, part in (("train", PAIRS[:8]), ("valid", PAIRS[8:10]), ("test", PAIRS[10:])):
        if split not in changes:
            made[split] = files(folder, split, [s for s, _ in part], [t for _, t in part])
    return check(made | changes, TranslationData)


def refusal(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
