"""A seeded parallel corpus from a grammar of our own: English-like text and an invented language.

For: demos that find no package index, and unit tests. Not for: any number that is compared with
published work; tables that show this corpus name it. No third-party text, no network, no files.

Both sides grow together. The other language puts the verb last, what describes a noun after it,
places first and conditions last; a noun is of one of two genders, which article and adjective
follow, and has endings for plural and object. So a translation needs a dictionary, word order and
agreement. Draws are as in `generated`.
"""

from __future__ import annotations

import random
from functools import cache
from typing import NamedTuple

from ala_encoder.generated import NUMBERS, PLACES, TOPICS, pick, with_s


class _Phrase(NamedTuple):
    """A part of a sentence in both languages."""

    english: str
    other: str
    plural: bool = False


def generated_translation(seed: int, num_pairs: int) -> list[tuple[str, str]]:
    """Return pairs of a sentence and its translation, 5 to 25 words each; no sentence twice."""
    assert num_pairs >= 0
    rng = random.Random(f"translation {seed}")
    pairs: dict[str, str] = {}
    while len(pairs) < num_pairs:
        sentence = _sentence(rng, pick(rng, list(TOPICS)))
        pairs.setdefault(_capital(sentence.english), _capital(sentence.other))
    return list(pairs.items())


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


@cache
def _invented(word: str) -> str:
    """Return a word of the other language, two or three syllables, always the same for `word`."""
    rng = random.Random(f"word {word}")
    syllables = 2 + int(rng.random() * 2)
    return "".join(pick(rng, "ptkbdgmnslrvz") + pick(rng, "aeiou") for _ in range(syllables))


def _sentence(rng: random.Random, topic: str) -> _Phrase:
    kind = int(rng.random() * 6)
    if kind == 0:
        one, two = _clause(rng, topic), _clause(rng, topic)
        return _Phrase(f"when {one.english}, {two.english}.", f"{two.other}, kel {one.other}.")
    if kind == 1:
        place, where = pick(rng, PLACES), _noun(rng, topic, "m")
        said = _clause(rng, topic)
        return _Phrase(
            f"{said.english} {place} {where.english}.",
            f"{where.other} {_invented(place)} {said.other}.",
        )
    if kind == 2:
        said = _clause(rng, topic, helped=True)
        return _Phrase(f"{said.english}?", f"{said.other} ka?")
    said = _clause(rng, topic)
    return _Phrase(f"{said.english}.", f"{said.other}.")


def _clause(rng: random.Random, topic: str, helped: bool = False) -> _Phrase:
    """Return a statement; helped: a question, with do or does first."""
    who, what = _subject(rng, topic), _noun(rng, topic, "m")
    verb = pick(rng, TOPICS[topic][1].split())
    does = "do" if who.plural else "does"
    other = f"{who.other} {what.other} {_invented(verb)}{'len' if who.plural else 'l'}"
    if helped:
        return _Phrase(f"{does} {who.english} {verb} {what.english}", other)
    if rng.random() < 0.2:
        return _Phrase(f"{who.english} {does} not {verb} {what.english}", f"{other} nu")
    inflected = verb if who.plural else with_s(verb)
    return _Phrase(f"{who.english} {inflected} {what.english}", other)


def _subject(rng: random.Random, topic: str) -> _Phrase:
    one = _noun(rng, topic, "")
    if rng.random() >= 0.15:
        return one
    two = _noun(rng, topic, "")
    return _Phrase(f"{one.english} and {two.english}", f"{one.other} e {two.other}", plural=True)


def _noun(rng: random.Random, topic: str, case: str) -> _Phrase:
    """Return a noun with article or number and perhaps an adjective; case: ending of the noun."""
    nouns, _, adjectives = map(str.split, TOPICS[topic])
    noun, adjective, plural = pick(rng, nouns), pick(rng, adjectives), rng.random() < 0.4
    stem = _invented(noun)
    gender = "k" if stem[-1] in "aei" else "s"
    english, after = [with_s(noun) if plural else noun], [f"{stem}{'ri' if plural else ''}{case}"]
    if rng.random() < 0.5:
        english.insert(0, adjective)
        after.append(_invented(adjective) + gender)
    if plural and rng.random() < 0.5:
        number = pick(rng, NUMBERS)
        english.insert(0, number)
        after.append(_invented(number))
    else:
        english.insert(0, "the")
        after.insert(0, ("te" if plural else "ta") + gender)
    return _Phrase(" ".join(english), " ".join(after), plural)
