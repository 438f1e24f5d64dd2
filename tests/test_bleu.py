"""BLEU and chrF: equal to sacreBLEU's own, cased, signed, and never over unequal numbers."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ala_encoder.bleu import COMPOUND_SPLIT, METRICS, compound_split, signatures, text_scores
from ala_encoder.errors import UserError
from tests.pairs import write
from tests.strings import ROOT

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


def test_uncased_bleu_is_bleu_of_lower_case_and_says_so() -> None:
    found = text_scores(HYPOTHESES, REFERENCES, "en")
    lower = [[text.lower() for text in side] for side in (HYPOTHESES, REFERENCES)]
    assert found["uncased_bleu"].value == pytest.approx(bleu_by_hand(*lower), rel=1e-9)
    assert found["uncased_bleu"].value > found["bleu"].value
    assert "|case:lc|" in found["uncased_bleu"].signature
    assert tuple(found) == METRICS


# ---- compound splitting


def test_compounds_are_split_as_the_script_of_the_literature_does() -> None:
    """`perl -ple 's{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g'` on Moses' words: matches never overlap."""
    assert compound_split("Die US-Delegation.", "de") == "Die US ##AT##-##AT## Delegation ."
    assert compound_split("a-b-c - x--y", "de") == "a ##AT##-##AT## b-c - x ##AT##-##AT## -y"
    assert (
        compound_split("ein-und-zwanzig", "de_AT") == "ein ##AT##-##AT## und ##AT##-##AT## zwanzig"
    )


def test_compound_split_bleu_is_tokenised_bleu_without_smoothing_and_is_signed_as_such() -> None:
    hypotheses = ["Der gut-bekannte Mann sah die US-Delegation .", "Sie kam aus dem Haus ."]
    references = ["Der gut-bekannte Mann sah eine US-Delegation .", "Sie ging aus dem Haus ."]
    split = [[text.replace("-", " ##AT##-##AT## ") for text in side]
             for side in (hypotheses, references)]  # fmt: skip
    detokenised = [[text.replace(" .", ".") for text in side] for side in (hypotheses, references)]
    names = ("bleu", COMPOUND_SPLIT)
    found = text_scores(detokenised[0], detokenised[1], "de", names)
    assert found[COMPOUND_SPLIT].value == pytest.approx(bleu_by_hand(*split), rel=1e-9)
    assert found[COMPOUND_SPLIT].value > found["bleu"].value
    signature = found[COMPOUND_SPLIT].signature
    assert "|tok:moses-de-compound-split|smooth:none|sacremoses:" in signature
    assert "tok:13a" in found["bleu"].signature
    # as multi-bleu.perl, one n-gram order without a match gives 0
    assert text_scores(["ganz anders"], ["so nicht"], "de", names)[COMPOUND_SPLIT].value == 0.0


# ---- test sets


FETCH = """
import sys
from ala_encoder.bleu import fetch_test_set, text_scores
from ala_encoder.errors import UserError
for word in sys.argv[1:]:
    name, src, trg = word.split(":")
    try:
        print(*fetch_test_set(name, (src, trg)))
    except UserError as error:
        print("error:", error)
"""


def keep_test_set(home: Path, src: list[str], trg: list[str]) -> Path:
    """Write WMT'14 as sacreBLEU keeps it once it is fetched, and return the folder."""
    kept = home / "wmt14" / "full"
    for field in ("src", "ref", "docid", "genre", "origlang"):
        write(kept / f"wmt14_full.en-de.{field}", src if field == "src" else trg)
    return kept


def fetched(home: Path, *words: str) -> list[str]:
    """Ask in a process of its own, whose network goes nowhere."""
    nowhere = "http://127.0.0.1:9"
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "ftp_proxy"), nowhere)
    environment = {**os.environ, **proxies, "SACREBLEU": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FETCH, *words]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return made.stdout.splitlines()


def test_a_test_set_is_found_by_its_name_or_one_line_says_why_not(tmp_path: Path) -> None:
    kept = keep_test_set(tmp_path, ["text"], ["Text"])
    found = fetched(
        tmp_path, "wmt14/full:en:de", "wmt14/full:en:de_AT", "wmt15:en:de", "wmt14/ful:en:de",
        "wmt14/full:en:zh",
    )  # fmt: skip
    both = f"{kept / 'wmt14_full.en-de.src'} {kept / 'wmt14_full.en-de.ref'}"
    assert found[:2] == [both, both]
    assert found[2].startswith(f"error: test_set = wmt15: cannot be fetched into {tmp_path}: ")
    assert found[2].endswith("where there is a network, or give files.src and files.trg")
    assert "has none of this name (did you mean 'wmt14/full'?)" in found[3]
    assert "test_set = wmt14/full: is not for en-zh, but cs-en, " in found[4]
    assert len(found) == 5


def test_the_name_of_a_test_set_is_part_of_the_signature() -> None:
    found = text_scores(["a"], ["a"], "de", ("bleu", "chrf"), "wmt14/full")
    assert all("|test:wmt14/full|" in score.signature for score in found.values())
