"""Seeded corpora from a small grammar of our own: no third-party text, no network, no files.

For: demos that find no package index, and unit tests. Not for: any number that is compared with
published work (tables that show these corpora name them); pairs (`generated_pairs`).

Every draw is `int(random.Random(...).random() * n)`: Python promises that sequence for a seed on
every version and platform, which it does not for `choice` or `shuffle`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def _words(text: str) -> list[str]:
    return text.split()


TOPICS: dict[str, tuple[str, str, str]] = {
    "sea": (
        "sailor harbour anchor boat captain island reef sail wave lighthouse net pirate",
        "launch steer repair follow unload anger",
        "salty stormy coastal deep wooden",
    ),
    "music": (
        "violin singer concert melody drum choir piano song composer rhythm audience guitar",
        "rehearse compose record perform praise conduct",
        "loud gentle famous melodic slow",
    ),
    "kitchen": (
        "cook oven spoon recipe soup onion pepper kettle cake sauce bowl plate",
        "roast season taste serve boil bake",
        "warm bitter sweet fresh spicy",
    ),
    "garden": (
        "gardener rose seed hedge tulip spade fence root flower bee lawn orchard",
        "plant water pick collect gather prune",
        "green shady fragrant tall wild",
    ),
    "railway": (
        "train station driver passenger engine ticket platform signal tunnel carriage bridge track",
        "delay board inspect announce brake divert",
        "crowded late fast rusty electric",
    ),
    "mountain": (
        "climber glacier rope summit valley guide ridge tent slope shepherd path eagle",
        "climb reach explore cross watch approach",
        "steep icy rocky narrow remote",
    ),
    "law": (
        "judge lawyer court witness case jury prisoner verdict contract crime clerk statute",
        "question accuse defend convince dismiss charge",
        "guilty honest legal strict innocent",
    ),
    "science": (
        "chemist laboratory experiment microscope theory sample molecule telescope physicist "
        "measurement crystal lens",
        "measure observe analyse discover publish compare",
        "precise chemical curious unknown complex",
    ),
    "castle": (
        "king queen knight tower dungeon sword horse crown shield gate servant banner",
        "guard attack obey reward conquer summon",
        "noble ancient brave royal dark",
    ),
    "farm": (
        "farmer field cow tractor barn goat plough chicken pumpkin bucket stable mill",
        "milk raise lift carry clean chase",
        "muddy fertile golden hungry young",
    ),
    "computing": (
        "programmer computer keyboard network program error screen file server message robot disk",
        "install test delete update connect encrypt",
        "digital tiny broken secure modern",
    ),
    "hospital": (
        "doctor nurse patient ward surgeon bandage fever tablet needle wound clinic ambulance",
        "examine treat cure help visit weigh",
        "sick calm careful painful healthy",
    ),
}
"""Topic → its nouns, transitive verbs and adjectives; plurals end in -s, -es or -ies by rule."""
_SHE = _words("Anna Clara Edith Grace Ida Laura Marta Nora")
_HE = _words("Arthur Bruno Conrad Emil Felix Hugo Oscar Victor")
_TIMES = _words("morning evening winter summer spring autumn night afternoon")
NUMBERS = _words("two three four five six seven eight nine ten twelve twenty forty")
_ADVERBS = _words("often rarely always sometimes usually slowly quietly quickly")
_DEGREES = _words("very rather quite hardly almost too")
PLACES = _words("near behind above below beside beyond")

_ASPECTS = _words(
    "plot cast script ending music camera dialogue direction story acting humour pacing editing "
    "lead premise finale setting villain romance atmosphere soundtrack opening hero drama"
)
_GOOD = _words(
    "superb charming clever moving funny gripping fresh brilliant delightful honest graceful "
    "inventive tender thrilling warm witty elegant lovely memorable rich"
)
_BAD = _words(
    "dull clumsy tedious bland awful shallow stale lifeless annoying sloppy predictable hollow "
    "noisy boring silly lazy ugly pointless weak flat"
)
_LIKED = _words("loved enjoyed admired liked praised recommended")
_LOATHED = _words("hated disliked regretted endured mocked dreaded")
_VIEWERS = ["critics", "audiences", "my friends", "most viewers", "we all", "people here"]
_FILMS = _words("film movie comedy thriller picture sequel remake documentary western debut")
_NEGATIONS = ["not", "never", "hardly", "anything but", "far from"]


def generated_text(seed: int, num_documents: int) -> list[list[str]]:
    """Return documents of 4 to 8 paragraphs of 3 to 6 English-like sentences each.

    A document has one main topic, a few favourite nouns in it, a protagonist with a fixed pronoun
    and a season, so words far back say what comes; verbs and articles agree with their nouns, so
    near words do too. Document i depends on the seed and i alone.
    """
    assert num_documents >= 0
    return [_document(random.Random(f"text {seed} {i}")) for i in range(num_documents)]


def generated_sentiment(seed: int, num_sentences: int) -> list[tuple[str, int]]:
    """Return different review sentences with label 1 (positive) or 0, half of them each.

    About a fifth negate ("not superb"), a few set a bad clause against a final good one or the
    other way round, and 2 % carry the wrong label; so a bag of words reaches about 0.93, and
    reading in order up to 0.98.
    """
    assert num_sentences >= 0
    rng = random.Random(f"sentiment {seed}")
    seen: dict[str, int] = {}
    while len(seen) < num_sentences:
        positive = len(seen) % 2 == 0
        told = positive if rng.random() >= 0.02 else not positive
        sentence = _review(rng, told)
        seen.setdefault(sentence, int(positive))
    return _shuffled(rng, list(seen.items()))


def pick(rng: random.Random, words: Sequence[str]) -> str:
    """Draw one of the words."""
    return words[int(rng.random() * len(words))]


def _between(rng: random.Random, low: int, high: int) -> int:
    return low + int(rng.random() * (high - low + 1))


def _shuffled(rng: random.Random, rows: list[tuple[str, int]]) -> list[tuple[str, int]]:
    keyed = sorted((rng.random(), i) for i in range(len(rows)))
    return [rows[i] for _, i in keyed]


def with_s(word: str) -> str:
    """Give the plural of a noun, or the third person of a verb."""
    if word.endswith(("s", "sh", "ch", "x")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def _a(phrase: str) -> str:
    """Put the article in front; TOPICS has no word where spelling and sound disagree but these."""
    vowel = phrase[0] in "aeiou" or phrase.startswith("honest")
    return f"{'an' if vowel else 'a'} {phrase}"


class _Topic:
    """The words of one topic as one document uses them: the nouns in the document's own order."""

    def __init__(self, rng: random.Random, name: str) -> None:
        nouns, verbs, adjectives = map(_words, TOPICS[name])
        self._rng = rng
        self._order = [noun for _, noun in sorted((rng.random(), noun) for noun in nouns)]
        self._verbs = verbs
        self._adjectives = adjectives
        self._last = ""

    def noun(self) -> str:
        """Draw a noun, early ones of the order more often, never the same twice running."""
        drawn = self._last
        while drawn == self._last:
            drawn = self._order[int(self._rng.random() ** 2 * len(self._order))]
        self._last = drawn
        return drawn

    def nouns(self) -> str:
        return with_s(self.noun())

    def verb(self) -> str:
        return pick(self._rng, self._verbs)

    def verbs(self) -> str:
        return with_s(self.verb())

    def adjective(self) -> str:
        return pick(self._rng, self._adjectives)


def _document(rng: random.Random) -> list[str]:
    names = list(TOPICS)
    topics = [_Topic(rng, pick(rng, names)), _Topic(rng, pick(rng, names))]
    female = rng.random() < 0.5
    hero = (pick(rng, _SHE), "she", "her") if female else (pick(rng, _HE), "he", "his")
    season = pick(rng, _TIMES)
    return [
        " ".join(
            _sentence(rng, topics[rng.random() < 0.15], hero, season)
            for _ in range(_between(rng, 3, 6))
        )
        for _ in range(_between(rng, 4, 8))
    ]


def _sentence(rng: random.Random, t: _Topic, hero: tuple[str, str, str], season: str) -> str:
    name, she, her = hero
    place, degree, adverb = pick(rng, PLACES), pick(rng, _DEGREES), pick(rng, _ADVERBS)
    kind = int(rng.random() * 10)
    if kind == 0:
        said = f"the {t.adjective()} {t.noun()} {t.verbs()} the {t.noun()}"
    elif kind == 1:
        said = f"many {t.adjective()} {t.nouns()} {t.verb()} the {t.noun()} {place} the {t.noun()}"
    elif kind == 2:
        said = f"{name} {t.verbs()} the {t.noun()} because {she} {t.verbs()} {_a(t.adjective())}"
        said += f" {t.noun()}"
    elif kind == 3:
        thing, other = t.noun(), t.noun()
        said = f"when the {thing} {t.verbs()} the {with_s(other)}, {name} {t.verbs()} them"
    elif kind == 4:
        said = f"in the {season}, both the {t.noun()} and the {t.noun()} are {t.adjective()}"
    elif kind == 5:
        said = f"there are {pick(rng, NUMBERS)} {t.nouns()} and {_a(t.noun())} {place} the"
        said += f" {t.adjective()} {t.noun()}"
    elif kind == 6:
        said = f"{name} and {her} {t.noun()} {adverb} {t.verb()} {_a(t.noun())}"
    elif kind == 7:
        said = f"it is not the {t.noun()} but the {t.noun()} that {name} {adverb} {t.verbs()}"
    elif kind == 8:
        thing = t.noun()
        said = f"{_a(thing)} without {_a(t.noun())} is {degree} {t.adjective()}, and no other"
        said += f" {thing} {t.verbs()} it"
    else:
        said = f"every {season}, {her} {t.adjective()} {t.nouns()} {adverb} {t.verb()} {name}"
    return said[0].upper() + said[1:] + "."


def _review(rng: random.Random, positive: bool) -> str:
    if rng.random() < 0.04:
        first, last = _claim(rng, not positive), _claim(rng, positive)
        said = f"{first}, but {last} and that decides it"
    elif rng.random() < 0.35:
        said = _claim(rng, positive)
    else:
        said = f"{_claim(rng, positive)} and {_claim(rng, positive)}"
    return said[0].upper() + said[1:] + "."


def _claim(rng: random.Random, positive: bool) -> str:
    good, likes = (_GOOD, _LIKED) if positive else (_BAD, _LOATHED)
    thing, degree = pick(rng, _ASPECTS), pick(rng, ("very ", "truly ", "often ", "", ""))
    kind = rng.random()
    # "not good" is said more often than "not bad", as in real reviews: a bag of words then learns
    # that "not" is bad news, and only word order explains the rest.
    if kind < (0.03 if positive else 0.25):
        said = f"the {thing} is {pick(rng, _NEGATIONS)} {pick(rng, _BAD if positive else _GOOD)}"
    elif kind < 0.5:
        said = f"the {thing} is {degree}{pick(rng, good)}"
    elif kind < 0.75:
        said = f"it is {_a(degree + pick(rng, good))} {pick(rng, _FILMS)}"
    else:
        said = f"{pick(rng, _VIEWERS)} {pick(rng, likes)} the {thing}"
    return said
