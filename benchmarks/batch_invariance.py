"""Translations of one text in batches of several sizes and orders: they are to be the same.

    python -m benchmarks.batch_invariance RUN TEXT [--batches 1,2,7,64] [--json]
                                          [--into benchmarks/batch_invariance.md]

RUN: a trained translation model, TEXT: sentences of its source language, plain or gzip. Each row
says how many sentences differ from what `translate` gives, which sorts them by length, and the
largest difference of the scores of such a pair: a matrix product of another shape adds up in
another order, so that two hypotheses whose scores are that close may change places. The best of
n-best 3 is compared too. Not timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ala_encoder import export
from ala_encoder.batches import padded
from ala_encoder.decoding import Hypothesis, Marks, search, translate
from ala_encoder.errors import UserError
from ala_encoder.lines import Reading, read_lines
from ala_encoder.models import Seq2Seq
from ala_encoder.settings.search import SearchSettings
from benchmarks import harness

Found = list[list[Hypothesis]]


def in_batches(
    model: Seq2Seq,
    sources: list[list[int]],
    settings: SearchSettings,
    marks: Marks,
    size: int,
) -> Found:
    """Translate in batches of `size`, in the order of the text."""
    found: Found = []
    for start in range(0, len(sources), size):
        ids, segments = padded(sources[start : start + size], marks.pad)
        found += search(model, ids, segments, settings, marks)
    return found


def records(run: Path, text: Path, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Compare each way of batching with `translate`; one record a way."""
    exported = export.read_translation(run)
    model, settings = exported.build().eval(), exported.card.search
    source, target = map(exported.tokenizer.of_language, exported.card.pairs.languages)
    marks = Marks.of(target)
    rows = source.encode_sentences([line for _, line in read_lines(text, Reading())])
    sources = [[*ids, source.eos_id] for ids in rows if ids]
    if not sources:
        raise UserError(f"{text}: holds no sentence")
    best_of_3 = settings.model_copy(update={"n_best": min(3, settings.beam_size)})

    def of(size: int | None, texts: list[list[int]], settings: SearchSettings = settings) -> Found:
        if size is None:
            return translate(model, texts, settings, marks)
        return in_batches(model, texts, settings, marks, size)

    expected = of(None, sources)
    ways: dict[str, Callable[[], Found]] = {}
    for size in (*sizes, None):
        name = "translate" if size is None else f"batches of {size}"
        if size is not None:
            ways[name] = partial(of, size, sources)
        ways[f"{name}, reversed"] = lambda size=size: of(size, sources[::-1])[::-1]  # type: ignore[misc]
    ways["translate, 3 best"] = partial(of, None, sources, best_of_3)
    found = []
    for name, way in ways.items():
        pairs = [(a[0], b[0]) for a, b in zip(way(), expected, strict=True)]
        gaps = [abs(a.score - b.score) for a, b in pairs if a.ids != b.ids]
        found.append(
            {"way": name, "sentences": len(pairs), "differ": len(gaps), "gap": max(gaps, default=0)}
        )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or with --json a list of records; a mistake is one line and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    parser = harness.Parser(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("text", type=Path)
    sizes = harness.several(harness.whole(10_000))
    parser.add_argument("--batches", type=sizes, default="1,2,7,64")
    parser.add_argument("--json", action="store_true", help="print records for programs")
    parser.add_argument("--into", type=harness.report, help="file whose results are replaced")
    given = parser.read(argv)
    try:
        found = records(given.run, given.text, given.batches)
    except UserError as error:
        parser.error(str(error))
    names = [given.run.name, given.text.name]
    rest = [word for word in argv if word not in (str(given.run), str(given.text))]
    heading = harness.heading("benchmarks.batch_invariance", [*names, *rest])
    rows = [
        [one["way"], f"{one['differ']:,} of {one['sentences']:,}", f"{one['gap']:.1e}"]
        for one in found
    ]
    table = harness.table(("way", "differ", "largest gap of scores"), rows)
    harness.tell(f"{heading}\n\n{table}", heading, found, given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
