"""Training vocabularies: equal bytes however the text arrives, and the rule as it is stated."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ala_encoder.errors import UserError
from ala_encoder.settings.tokenizer import (
    ByteBPESettings,
    PretrainedSettings,
    SentencePieceSettings,
    TokenizerSettings,
    WordPieceSettings,
)
from ala_encoder.tokenizer import SPECIAL_TOKENS, ByteBPE, Tokenizer, WordPiece, load, train
from ala_encoder.tokenizer.byte_bpe import ALPHABET, splitter
from ala_encoder.tokenizer.training import _CHUNK
from tests.strings import MARKS, ROOT, SENTENCES, clean, generated_text, odd_strings, saved_bytes

UNUSED = Path("unused")
KINDS: dict[str, dict[str, Any]] = {
    "wordpiece": {"kind": "wordpiece", "vocab_size": 600},
    "byte_bpe": {"kind": "byte_bpe", "vocab_size": 600},
    "unigram": {"kind": "sentencepiece", "vocab_size": 400},
    "bpe": {"kind": "sentencepiece", "vocab_size": 400, "model": "bpe"},
}
CLASSES = {
    "wordpiece": WordPieceSettings, "byte_bpe": ByteBPESettings,
    "sentencepiece": SentencePieceSettings,
}  # fmt: skip


def settings(kind: str, **changes: Any) -> TokenizerSettings:
    given = {**KINDS[kind], **changes}
    return CLASSES[given["kind"]](path=UNUSED, **given)


def learned(texts: list[str], **keywords: Any) -> Any:
    return train(WordPieceSettings(path=UNUSED, **keywords), texts)


TEXTS = [*generated_text(0), *generated_text(1), *SENTENCES, MARKS]


@pytest.fixture(scope="module")
def made() -> dict[str, Tokenizer]:
    return {kind: train(settings(kind), TEXTS) for kind in KINDS}


# Equal bytes


@pytest.mark.parametrize("kind", KINDS)
def test_r26_training_gives_equal_bytes_in_any_order(
    kind: str, made: dict[str, Tokenizer], tmp_path: Path
) -> None:
    made[kind].save(tmp_path / "first")
    for run in range(2):
        shuffled = random.Random(run).sample(TEXTS, len(TEXTS))
        train(settings(kind), shuffled).save(tmp_path / f"run{run}")
        assert saved_bytes(tmp_path / f"run{run}") == saved_bytes(tmp_path / "first")


SCRIPT = """
import random, sys
from pathlib import Path
from ala_encoder.tokenizer import train
from tests.test_tokenizer_training import KINDS, TEXTS, settings
texts = random.Random(sys.argv[2]).sample(TEXTS, len(TEXTS))
for kind in KINDS:
    train(settings(kind), texts).save(Path(sys.argv[1]) / kind)
"""


def test_r26_b12_training_gives_equal_bytes_in_processes_with_other_threads_and_hashes(
    made: dict[str, Tokenizer], tmp_path: Path
) -> None:
    for run, threads in enumerate(["1", "2"]):
        variables = {"RAYON_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        environment = {**os.environ, **variables, "PYTHONHASHSEED": str(run)}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / str(run)), str(run)]
        subprocess.run(command, env=environment, cwd=ROOT, check=True)
    for kind, tokenizer in made.items():
        tokenizer.save(tmp_path / "here" / kind)
        for run in ("0", "1"):
            assert saved_bytes(tmp_path / run / kind) == saved_bytes(tmp_path / "here" / kind)


@pytest.mark.slow
def test_r26_five_processes_two_thread_counts_and_shuffled_order(tmp_path: Path) -> None:
    for run in range(10):
        variables = {name: str(1 + run % 2) for name in ("RAYON_NUM_THREADS", "OMP_NUM_THREADS")}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / str(run)), str(run // 2)]
        subprocess.run(command, env={**os.environ, **variables}, cwd=ROOT, check=True)
    for kind in KINDS:
        assert len({str(saved_bytes(tmp_path / str(run) / kind)) for run in range(10)}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_tokenizer_is_read_back_equal(
    kind: str, made: dict[str, Tokenizer], tmp_path: Path
) -> None:
    made[kind].save(tmp_path / "one")
    back = load(tmp_path / "one")
    back.save(tmp_path / "two")
    assert type(back) is type(made[kind])
    assert back.fingerprint == made[kind].fingerprint
    assert back.special == made[kind].special
    assert back.encode_batch(TEXTS) == made[kind].encode_batch(TEXTS)
    assert saved_bytes(tmp_path / "one") == saved_bytes(tmp_path / "two")


@pytest.mark.parametrize("kind", KINDS)
def test_b17_the_vocabulary_size_is_one_more_than_the_largest_id(
    kind: str, made: dict[str, Tokenizer]
) -> None:
    tokenizer = made[kind]
    assert tokenizer.vocab_size == KINDS[kind]["vocab_size"]
    assert max(max(row, default=0) for row in tokenizer.encode_batch(TEXTS)) < tokenizer.vocab_size
    assert max(tokenizer.special_ids) < tokenizer.vocab_size
    with pytest.raises(AssertionError, match="outside the vocabulary"):
        tokenizer.decode([tokenizer.vocab_size])


# The rule


def merges_by_brute_force(
    words: dict[str, list[str]], counts: Counter[str], pieces: list[str], size: int, cut: int
) -> list[str]:
    """The training rule straight from its sentence: count all pairs, merge the best, repeat.

    `cut` is how many characters of the second piece the merge leaves out: 2 for `##`.
    """
    while len(pieces) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in words.items():
            for pair in pairwise(parts):
                pairs[pair] += counts[word]
        if not pairs:
            break
        best = min(pairs, key=lambda p: (-pairs[p], pieces.index(p[0]), pieces.index(p[1])))
        if pairs[best] < 2:
            break
        merged = best[0] + best[1][cut:]
        if merged not in pieces:
            pieces.append(merged)
        for parts in words.values():
            at = 0
            while at < len(parts) - 1:
                if (parts[at], parts[at + 1]) == best:
                    parts[at : at + 2] = [merged]
                at += 1
    return pieces


@pytest.mark.parametrize("seed", range(5))
def test_training_merges_the_most_frequent_pair_and_breaks_ties_by_id(seed: int) -> None:
    rng = random.Random(seed)
    words = ["".join(rng.sample("abcdefgh", rng.randint(1, 7))) for _ in range(300)]
    counts = Counter(words)
    inside = sorted({"##" + letter for word in counts for letter in word[1:]})
    first = [*SPECIAL_TOKENS, *sorted(set("".join(counts))), *inside]
    parts = {word: [word[0], *("##" + x for x in word[1:])] for word in counts}
    expected = merges_by_brute_force(parts, counts, first, 200, 2)
    assert list(learned([" ".join(words)], vocab_size=200).pieces) == expected
    assert len(expected) > 60
    counts = Counter([words[0], *("Ġ" + word for word in words[1:])])
    first = ["<s>", "<pad>", "</s>", "<mask>", *ALPHABET]
    expected = merges_by_brute_force({w: list(w) for w in counts}, counts, first, 400, 0)
    trained = train(settings("byte_bpe", vocab_size=400), [" ".join(words)])
    assert list(trained.pieces) == expected


def test_chunks_are_cut_only_where_gpt2s_pattern_cuts() -> None:
    split = splitter().pre_tokenize_str
    for text in map(clean, [*odd_strings(2000), *SENTENCES]):
        apart = [part for chunk in _CHUNK.findall(text) for part, _ in split(chunk)]
        assert apart == [part for part, _ in split(text)]


def test_a_rich_corpus_fills_the_vocabulary_exactly(made: dict[str, Tokenizer]) -> None:
    said: list[str] = []
    for kind in ("wordpiece", "byte_bpe"):
        assert made[kind].vocab_size == 600
        longer: Any = train(settings(kind, vocab_size=601), TEXTS, said.append)
        assert longer.pieces[:600] == made[kind].pieces  # type: ignore[attr-defined]
    assert not said


def test_a_poor_corpus_gives_fewer_pieces_and_a_note() -> None:
    said: list[str] = []
    tokenizer, poor = (
        train(settings(kind, vocab_size=size), ["ab ab abc"], said.append)
        for kind, size in (("wordpiece", 100), ("byte_bpe", 600))
    )
    assert isinstance(tokenizer, WordPiece) and isinstance(poor, ByteBPE)
    assert tokenizer.pieces == (*SPECIAL_TOKENS, "a", "b", "c", "##b", "##c", "ab")
    assert poor.pieces[260:] == ("ab", "Ġab")
    assert ["11 pieces, not vocab_size = 100" in said[0], "262 pieces, not" in said[1]] == [
        True
    ] * 2


def test_b10_words_over_100_letters_are_not_learned_from() -> None:
    tokenizer = learned(["ab ab " + "xy" * 51 + " " + "xy" * 51], vocab_size=16)
    assert tokenizer.pieces == (*SPECIAL_TOKENS, "a", "b", "##b", "ab")


def test_special_tokens_in_training_text_are_text() -> None:
    pieces = learned(["[MASK] [SEP] " * 50], vocab_size=40).pieces
    assert [p for p in pieces if "[" in p] == [*SPECIAL_TOKENS, "["]
    assert "mask" in pieces
    for kind in ("byte_bpe", "bpe", "unigram"):
        size = 270 if kind == "byte_bpe" else 25
        text = ["<mask> [MASK] <s> [SEP] abcdefg <|endoftext|>"] * 50
        tokenizer = train(settings(kind, vocab_size=size), text)
        assert not set(tokenizer.encode(text[0])) & (tokenizer.special_ids - {tokenizer.unk_id})


# What cannot work


@pytest.mark.parametrize(
    ("kind", "texts", "changes", "message"),
    [
        ("wordpiece", ["abcdefg abd"], {"vocab_size": 17},
         "vocab_size is 17; this text needs at least 18"),
        ("wordpiece", [""], {}, "no words"),
        ("wordpiece", [], {}, "no words"),
        ("byte_bpe", [""], {}, "no words"),
        ("unigram", [" \t "], {}, "no words"),
        ("bpe", ["abc"], {"vocab_size": 100}, "vocab_size is 100; this text gives at most 1"),
        ("unigram", ["abc"], {"vocab_size": 100}, "vocab_size is 100; this text gives at most 9"),
        ("unigram", ["abc"], {"vocab_size": 8}, "vocab_size is 8; this text needs at least 9"),
    ],
)  # fmt: skip
def test_training_refuses_what_cannot_work(
    kind: str, texts: list[str], changes: dict[str, Any], message: str, capfd: Any
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        train(settings(kind, **changes), texts)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_named_sizes_work_and_the_next_ones_do_not(kind: str, capfd: Any) -> None:
    text = ["the cat sat on the mat, the rat ate the fat cat"] * 3
    named = []
    for wrong in (7, 4000):
        with pytest.raises(UserError) as caught:
            train(settings(kind, vocab_size=wrong), text)
        named.append(int(re.findall(r"\d+", str(caught.value))[1]))
    smallest, largest = named
    assert train(settings(kind, vocab_size=smallest), text).vocab_size == smallest
    assert train(settings(kind, vocab_size=largest), text).vocab_size == largest
    for size in (smallest - 1, largest + 1):
        with pytest.raises(UserError):
            train(settings(kind, vocab_size=size), text)
    assert capfd.readouterr() == ("", "")


def test_the_named_smallest_vocabulary_works() -> None:
    assert learned(["abcdefg abd"], vocab_size=18).vocab_size == 18


def test_a_pretrained_tokenizer_is_not_trained() -> None:
    with pytest.raises(UserError, match="copied, not trained"):
        train(PretrainedSettings(path=UNUSED, kind="pretrained", name="x"), ["a"])
