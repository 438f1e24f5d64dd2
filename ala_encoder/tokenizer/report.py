"""How a vocabulary fits a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from ala_encoder.errors import UserError
from ala_encoder.tokenizer.base import Tokenizer

_AT_ONCE = 4096  # encodings of the library are large


def fit_report(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[str, int | float]:
    """Say how a vocabulary of any kind fits texts.

    Words are what white space parts; each distinct one is encoded once, as inside a sentence.
    Returns counts `words`, `pieces`, `unknown_words` (with an unknown id), of these
    `over_long_words` (a part of more than 100 characters, WordPiece only), `vocab_size`; and the
    ratios `pieces_per_word`, `words_cut` (words of more than one piece), `unknown_rate`, each over
    words, and `vocabulary_use` (share of the ids that are not special which occur).

    Raises UserError for texts without words.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.split())
    if not counts:
        raise UserError("no words in the text to report on")
    prefix, unk_id = tokenizer.word_prefix, tokenizer.unk_id
    seen: set[int] = set()
    totals = Counter[str]()
    words = list(counts)
    for start in range(0, len(words), _AT_ONCE):
        part = words[start : start + _AT_ONCE]
        for word, ids in zip(part, tokenizer.encode_batch([prefix + w for w in part]), strict=True):
            count = counts[word]
            seen.update(ids)
            totals["words"] += count
            totals["pieces"] += count * len(ids)
            totals["cut"] += count * (len(ids) > 1)
            totals["unknown"] += count * (unk_id in ids)
            totals["over_long"] += count * tokenizer.over_long(word)
    total, ordinary = totals["words"], tokenizer.vocab_size - len(tokenizer.special_ids)
    return {
        "words": total,
        "pieces": totals["pieces"],
        "pieces_per_word": totals["pieces"] / total,
        "words_cut": totals["cut"] / total,
        "unknown_words": totals["unknown"],
        "unknown_rate": totals["unknown"] / total,
        "over_long_words": totals["over_long"],
        "vocab_size": tokenizer.vocab_size,
        "vocabulary_use": len(seen - tokenizer.special_ids) / max(1, ordinary),
    }


def round_trip_report(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[str, int]:
    """Count the lines that decoding gives back and those it does not, white space apart.

    Returns `lines`; `unknown_lines`, with a piece that is not in the vocabulary; and of the others
    `changed_lines`, which normalisation or tokenisation cannot undo.
    """
    counts: Counter[str] = Counter()
    source = iter(texts)
    while part := list(islice(source, _AT_ONCE)):
        for text, ids in zip(part, tokenizer.encode_batch(part), strict=True):
            is_unknown = tokenizer.unk_id in ids
            changed = tokenizer.decode(ids).split() != text.split()
            counts["lines"] += 1
            counts["unknown_lines"] += is_unknown
            counts["changed_lines"] += changed and not is_unknown
    return {name: counts[name] for name in ("lines", "unknown_lines", "changed_lines")}
