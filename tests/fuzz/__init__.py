"""A seeded generator of malformed files: a valid file of some kind, and a few things done to it.

For: `test_fuzz`, and whoever wants to see one input again: `case("tsv sst2", 17)` is the same bytes
on every machine. Not for: knowing what a reader makes of them, but for what is certain: an
unchanged file is read as it is, some changes never matter, some never pass.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ala_encoder.errors import MAX_TEXT
from tests.fuzz.changes import EVERYWHERE, Certain, Files
from tests.fuzz.formats import MORE, override
from tests.fuzz.seeds import OPTIONAL, valid


@dataclass
class Case:
    """One input: the files, the dotted overrides, what was done, and what is certain of it."""

    kind: str
    seed: int
    files: Files
    overrides: list[str] = field(default_factory=list)
    on_bad_row: Literal["error", "skip"] = "error"
    done: list[str] = field(default_factory=list)
    certain: Certain = "unknown"

    def write(self, folder: Path) -> None:
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                (folder / name).mkdir()
            else:
                (folder / name).write_bytes(content)

    def __str__(self) -> str:
        return f"tests.fuzz.case({self.kind!r}, {self.seed})  # {', '.join(self.done) or 'valid'}"


def is_one_line(text: str) -> bool:
    """Tell whether an error's text is one short line without anything that commands a terminal."""
    return 0 < len(text) <= MAX_TEXT and text.isprintable()


def case(kind: str, seed: int) -> Case:
    """Return the input of a kind and a seed."""
    rng = random.Random(f"{kind}/{seed}")
    made = Case(kind, seed, dict(valid(kind)), on_bad_row=rng.choice(("error", "error", "skip")))
    family = kind.split()[0]
    if family == "overrides":
        made.overrides = [override(rng) for _ in range(rng.randint(0, 3))]
        made.certain = "unknown" if made.overrides else "same"
        made.done = made.overrides
        return made
    name = rng.choice(sorted(made.files))
    count = rng.choice((0, *[1] * 12, 2, 2, 3, 4, 6))
    pool = [*EVERYWHERE, *(change for change in MORE[family] for _ in range(2))]
    before = dict(made.files)
    certain: Certain = "same"
    for change in rng.choices(pool, k=count):
        change.apply(rng, made.files, name)
        made.done.append(f"{change.name} {name}")
        certain = change.certain if count == 1 and name not in OPTIONAL else "unknown"
    made.certain = "same" if made.files == before else certain
    return made
