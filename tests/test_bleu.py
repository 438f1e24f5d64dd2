"""BLEU and chrF: equal to sacreBLEU's own, cased, signed, and never over unequal numbers."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from ala_encoder.bleu import signatures, text_scores
from ala_encoder.errors import UserError

HYPOTHESES = ["The cat sat on the mat today", "A dog runs through deep snow", "we know it well"]
REFERENCES = ["The cat sat on the old mat", "A dog is running through deep snow", "We know it well"]


def bleu_by_hand(hypotheses: list[str], references: list[str]) -> float:
    """Return corpus BLEU-4 of sentences without punctuation (Papineni et al. 2002)."""
    logs, long, short = [], 0, 0
    for n in range(1, 5):
        right = total = 0
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            grams = [
                Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
                for words in (hypothesis.split(), reference.split())
            ]
            right += sum((grams[0] & grams[1]).values())
            total += sum(grams[0].values())
        logs.append(math.log(right / total))
    short = sum(len(h.split()) for h in hypotheses)
    long = sum(len(r.split()) for r in references)
    return 100 * math.exp(min(0.0, 1 - long / short) + sum(logs) / 4)


def test_bleu_is_its_formula_cased() -> None:
    found = text_scores(HYPOTHESES, REFERENCES, "en")["bleu"]
    assert found.value == pytest.approx(bleu_by_hand(HYPOTHESES, REFERENCES), rel=1e-9)
    lowered = [text.lower() for text in HYPOTHESES]
    assert text_scores(lowered, REFERENCES, "en")["bleu"].value < found.value


def test_r28_scores_are_sacrebleu_s_own_with_its_signatures() -> None:
    import sacrebleu

    found = text_scores(HYPOTHESES, REFERENCES, "de_AT")
    assert found["bleu"].value == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert found["chrf"].value == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert found["bleu"].signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|")
    assert signatures("de") == {name: score.signature for name, score in found.items()}
    assert "tok:zh" in signatures("zh_CN")["bleu"]


def test_c09_spaces_around_punctuation_cost_bleu() -> None:
    reference = ["Well, he said, it was not so bad after all."]
    assert text_scores(reference, reference, "en")["bleu"].value == pytest.approx(100.0)
    broken = ["Well , he said , it was not so b@@ ad after all ."]
    assert text_scores(broken, reference, "en")["bleu"].value < 100


@pytest.mark.parametrize("count", [2, 4])
def test_b07_unequal_numbers_are_refused_with_both(count: int) -> None:
    with pytest.raises(UserError, match=f"BLEU: 3 translations, {count} references"):
        text_scores(HYPOTHESES, (REFERENCES * 2)[:count], "en")
    with pytest.raises(UserError, match="BLEU: there is no translation"):
        text_scores([], [], "en")


def test_empty_translations_score_zero() -> None:
    assert text_scores(["", "", ""], REFERENCES, "en")["bleu"].value == 0.0
