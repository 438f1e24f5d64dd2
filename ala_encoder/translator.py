"""Text into text: what an export makes of lines, with a count of those it could not take whole.

For: `translate`, and whoever has sentences and an export. Not for: the search (`decoding`), reading
lines (`lines`, `streams`), translations of a held-out split, which are scored
(`translation_scores`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch

from ala_encoder import decoding
from ala_encoder.errors import UserError
from ala_encoder.export import TranslationExport
from ala_encoder.settings.search import SearchSettings
from ala_encoder.streams import Line


class Translation(NamedTuple):
    """A translation of a line, and its score."""

    text: str
    score: float
    """See `decoding.Hypothesis`."""


@final
class Translator:
    """A translation model that takes and gives text."""

    def __init__(
        self,
        exported: TranslationExport,
        search: SearchSettings,
        device: torch.device,
        say: Callable[[str], None],
        *,
        cut: bool = True,
    ) -> None:
        """say: is told of the first line that is cut; cut: else a longer line is an error.

        Raises UserError as `TranslationExport.build` and `Tokenizer.of_language` do.
        """
        tokenizer = exported.tokenizer
        self._src, self._trg = map(tokenizer.of_language, exported.card.pairs.languages)
        self._model = exported.build().to(device)
        self._search, self._say, self._cut = search, say, cut
        self.num_cut = 0
        """Lines longer than the model's positions, whose end was left out."""
        self.num_unknown = 0
        """Lines with pieces that the vocabulary does not have."""

    def translate(self, lines: Sequence[Line], name: str) -> list[list[Translation]]:
        """Return the n best translations of each line, best first; none holds a line end.

        A line of white space has the empty translation. name: of the text, for messages. Raises
        UserError when the model gives NaN, and for a line longer than its positions unless `cut`.
        """
        rows = self._src.encode_sentences([text for _, text in lines])
        sources = [
            self._fitting([*ids, self._src.eos_id], f"{name}:{number}")
            for (number, _), ids in zip(lines, rows, strict=True)
        ]
        found = decoding.translate(
            self._model,
            sources,
            self._search,
            decoding.Marks.of(self._trg),
        )
        return [
            [Translation(self._trg.decode_line(one.ids), one.score) for one in best]
            for best in found
        ]

    def _fitting(self, ids: list[int], place: str) -> list[int]:
        """Return a source as the model can read it, and count what it cannot."""
        self.num_unknown += self._src.unk_id in ids
        most = self._model.max_length
        if most is None or len(ids) <= most:
            return ids
        told = f"{place}: {len(ids):,} tokens, the model has {most:,} positions"
        if not self._cut:
            raise UserError(f"{told}; shorten the line, or set too_long=cut")
        if not self.num_cut:
            self._say(f"{told}: its end is not translated")
        self.num_cut += 1
        return [*ids[: most - 1], ids[-1]]

    def notes(self) -> list[str]:
        """Return a sentence for the user on each kind of line that was not taken whole."""
        said = (
            (self.num_cut, "lines are longer than the model's positions: their ends were left out"),
            (self.num_unknown, "lines hold something that the vocabulary cannot spell"),
        )
        return [f"{count:,} {what}" for count, what in said if count]
