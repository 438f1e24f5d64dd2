"""BLEU and chrF of translations, by sacreBLEU, with the signature that says how they were taken.

For: whole sentences as text against one reference each, case kept (Post 2018, arXiv:1804.08771).
Not for: making text of tokens (`tokenizer`), finding translations (`decoding`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ala_encoder.errors import UserError


@dataclass(frozen=True)
class TextScore:
    """A corpus score from 0 to 100."""

    value: float
    signature: str


def text_scores(
    hypotheses: Sequence[str], references: Sequence[str], language: str
) -> dict[str, TextScore]:
    """Return `bleu` and `chrf` of a corpus; language: of the text, which decides how BLEU cuts it.

    Raises UserError for unequal numbers, of which sacreBLEU would score what there is, and for no
    sentence at all.
    """
    import sacrebleu

    if len(hypotheses) != len(references):
        raise UserError(f"BLEU: {len(hypotheses)} translations, {len(references)} references")
    if not hypotheses:
        raise UserError("BLEU: there is no translation")
    metrics = {
        "bleu": sacrebleu.BLEU(trg_lang=language.replace("_", "-").partition("-")[0]),
        "chrf": sacrebleu.CHRF(),
    }
    found = {}
    for name, metric in metrics.items():
        score = metric.corpus_score(list(hypotheses), [list(references)])
        found[name] = TextScore(float(score.score), str(metric.get_signature()))
    return found


def signatures(language: str) -> dict[str, str]:
    """Return the signatures that `text_scores` gives for texts of a language."""
    return {name: found.signature for name, found in text_scores(["a"], ["a"], language).items()}
