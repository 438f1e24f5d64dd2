"""How a vocabulary fits a text, by hand and against the ids of whole sentences."""

from __future__ import annotations

import pytest

from ala_encoder.errors import UserError
from ala_encoder.tokenizer import (
    SPECIAL_TOKENS,
    Normalisation,
    Tokenizer,
    WordPiece,
    fit_report,
    train,
)
from tests.strings import generated_text
from tests.test_tokenizer_training import KINDS, TEXTS, settings


@pytest.fixture(scope="module")
def made() -> dict[str, Tokenizer]:
    return {kind: train(settings(kind), TEXTS) for kind in KINDS}


def test_b10_report_by_hand() -> None:
    pieces = [*SPECIAL_TOKENS, "a", "##b", "##c", "."]
    tokenizer = WordPiece(pieces, Normalisation())
    # words: ab a. z AB ab·51; pieces: 2 + 2 + 1 + 2 + 1
    assert fit_report(tokenizer, ["ab a. z", "AB " + "ab" * 51]) == {
        "words": 5,
        "pieces": 8,
        "pieces_per_word": pytest.approx(8 / 5),
        "words_cut": pytest.approx(3 / 5),
        "unknown_words": 2,
        "unknown_rate": pytest.approx(2 / 5),
        "over_long_words": 1,
        "vocab_size": 9,
        "vocabulary_use": pytest.approx(3 / 4),
    }
    assert fit_report(tokenizer, ["b" * 100, "한" * 40, "b," * 99])["over_long_words"] == 1
    with pytest.raises(UserError, match="no words"):
        fit_report(tokenizer, ["", " "])


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_counts_the_pieces_that_sentences_have(
    kind: str, made: dict[str, Tokenizer]
) -> None:
    """Without odd spaces, and with a space first, a text's ids are those of its words in turn."""
    texts = [" " + text if kind == "byte_bpe" else text for text in generated_text(7, 100)]
    rows = made[kind].encode_batch(texts)
    counts = fit_report(made[kind], texts)
    assert counts["pieces"] == sum(map(len, rows))
    assert counts["words"] == sum(len(text.split()) for text in texts)
    assert counts["unknown_words"] == 0
    used = {index for row in rows for index in row}
    ordinary = made[kind].vocab_size - len(made[kind].special_ids)
    assert counts["vocabulary_use"] == pytest.approx(len(used) / ordinary)
