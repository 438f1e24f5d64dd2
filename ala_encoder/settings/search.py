"""Settings of the search for translations."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from ala_encoder.errors import UserError
from ala_encoder.settings.base import NonNegativeFloat, NonNegativeInt, PositiveInt, Section
from ala_encoder.settings.loader import check


class SearchSettings(Section):
    """Beam search; the defaults are those of the translation recipe (beam 4, alpha .6)."""

    beam_size: PositiveInt = 4
    """Hypotheses that are kept of each sentence; 1 is greedy."""
    length_penalty: NonNegativeFloat = 0.6
    """alpha; 0: a hypothesis scores its log-probability, which favours short ones."""
    penalty: Literal["gnmt", "average"] = "gnmt"
    """What the log-probability is divided by: gnmt ((5 + length) / 6)^alpha (Wu et al. 2016),
    average length^alpha (fairseq, transformers). eos counts in the length."""
    max_extra_tokens: NonNegativeInt = 50
    """A translation has at most so many tokens more than its source, eos counted in both."""
    n_best: PositiveInt = 1
    """Hypotheses that are handed out of each sentence."""
    batch_tokens: PositiveInt = 4096
    """Most source tokens of a batch, padding counted; a longer sentence is a batch of its own."""

    @model_validator(mode="after")
    def _beam_holds_them(self) -> SearchSettings:
        if self.n_best > self.beam_size:
            raise UserError(f"n_best = {self.n_best}: more than beam_size = {self.beam_size}")
        return self

    @model_validator(mode="after")
    def _penalty_acts(self) -> SearchSettings:
        if self.penalty == "average" and not self.length_penalty:
            raise UserError("penalty = 'average': does nothing where length_penalty is 0")
        return self

    def for_scores(self) -> SearchSettings:
        """Return these settings; raises UserError for what does nothing where one is scored."""
        if self.n_best > 1:
            raise UserError(f"search.n_best = {self.n_best}: only the best one is scored")
        return self

    def over(self, other: SearchSettings) -> SearchSettings:
        """Return `other` with what was given here, which no default is, in place of its own.

        Raises UserError for what does not fit together.
        """
        given = self.model_dump(mode="json", include=self.model_fields_set)
        return check(other.model_dump(mode="json") | given, SearchSettings)
