"""Which pairs of a training text are dropped, each counted under its first reason.

For: `settings.parallel.CleaningSettings`, pair by pair. Not for: evaluation sets, which are never
cleaned, and lines that cannot be read (`parallel`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from hashlib import blake2b

from ala_encoder.settings.parallel import CleaningSettings

REASONS = {
    "empty": "with an empty side",
    "words": "of more than max_words",
    "duplicate": "as an earlier one",
    "length": "of more than max_length",
    "ratio": "beyond max_ratio",
}
"""What each means for a pair, in the order in which it is tried."""


class Cleaner:
    """Tells pair by pair what stays, and counts what does not."""

    def __init__(self, settings: CleaningSettings) -> None:
        self.settings = settings
        self.dropped: Counter[str] = Counter()
        """Pairs by reason."""
        self._seen: set[int] = set()  # of each pair 64 bits: some 70 bytes, whatever its length

    def has_seen(self, src: str, trg: str) -> bool:
        """Tell whether a pair was among those of the training text."""
        return _key(src, trg) in self._seen

    def keeps_texts(self, src: str, trg: str) -> bool:
        """Tell whether a pair stays as far as its text can tell; to be asked before its pieces."""
        return self._count(self._reason_of_texts(src, trg))

    def keeps_pieces(self, src: Sized, trg: Sized) -> bool:
        """Tell whether a pair stays by the number of its pieces."""
        return self._count(self._reason_of_pieces(len(src), len(trg)))

    def _count(self, reason: str | None) -> bool:
        if reason is not None:
            self.dropped[reason] += 1
        return reason is None

    def _reason_of_texts(self, src: str, trg: str) -> str | None:
        settings = self.settings
        if settings.drop_empty and not (src.strip() and trg.strip()):
            return "empty"
        if settings.max_words and max(len(src.split()), len(trg.split())) > settings.max_words:
            return "words"
        key = _key(src, trg)
        if settings.drop_duplicates and key in self._seen:
            return "duplicate"
        self._seen.add(key)
        return None

    def _reason_of_pieces(self, src: int, trg: int) -> str | None:
        settings = self.settings
        shorter, longer = sorted((src, trg))
        if settings.drop_empty and not shorter:
            return "empty"
        if settings.max_length and longer > settings.max_length:
            return "length"
        if settings.max_ratio and shorter and longer / shorter > settings.max_ratio:
            return "ratio"
        return None


def _key(src: str, trg: str) -> int:
    """Return 64 bits of a pair's hash; a line end is in neither side."""
    return int.from_bytes(blake2b(f"{src}\n{trg}".encode(), digest_size=8).digest(), "little")
