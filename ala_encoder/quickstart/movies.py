"""Rated snippets of movie reviews as sentences with a label, in SST-2's layout.

For: a classification task. Not for: training beside an evaluation on SST-2, or the other way round:
both were made from the same reviews.
"""

from __future__ import annotations

from collections.abc import Mapping

from ala_encoder.generated import generated_sentiment
from ala_encoder.quickstart.archives import Source, read_members
from ala_encoder.quickstart.recipes import OURS, Recipe, bucket_of


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


def _files(rows: list[tuple[str, int]]) -> dict[str, str]:
    lines = {name: ["sentence\tlabel\n"] for name in _FILES.values()}
    for sentence, label in rows:
        bucket = bucket_of(sentence)
        name = "dev.tsv" if bucket < 8 else "test.tsv" if bucket < 16 else "train.tsv"
        lines[name].append(f"{sentence}\t{label}\n")
    return {name: "".join(of_split) for name, of_split in lines.items()}


def _movie_files(members: Mapping[str, bytes]) -> dict[str, str]:
    (archive,) = members.values()
    wanted = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
    (raw,) = read_members(archive, "hutto_ICWSM_2014.tar.gz", wanted).values()
    return _files(rated_snippets(raw.decode()))


def _generated_files(_: Mapping[str, bytes]) -> dict[str, str]:
    return _files(generated_sentiment(seed=0, num_sentences=10_000))


_FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
# pip runs a source archive's setup for its metadata, so its hash is checked before (by pip) too.
VADER = Source(
    requirement="vaderSentiment==3.3.2",
    size="source archive, 2.4 MB",
    pattern="vader[Ss]entiment-3.3.2.tar.gz",
    attempts=(("--no-binary", "vaderSentiment", "--require-hashes"),),
    members="vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz",
    archive_sha256="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
    member_sha256="d5bb07d87474b3eb8d30b4deccbc23f19d742a6c5718fbacc65485b70b95c5fa",
)
MOVIES = Recipe(
    "movie-snippets",
    "movie-review snippets rated for VADER (Hutto and Gilbert 2014; texts after Pang and Lee "
    "2005; MIT licence, C. J. Hutto), from vaderSentiment 3.3.2",
    _FILES,
    VADER,
    _movie_files,
)
GENERATED = Recipe("generated-sentiment", OURS, _FILES, None, _generated_files)
