"""The tokenizer: byte-equal training, faithful files, Hugging Face's ids, text that stays text."""

from __future__ import annotations

import gzip
import json
import logging
import os
import pickle
import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ala_encoder.errors import UserError
from ala_encoder.tokenizer import SPECIAL_TOKENS, Normalisation, Tokenizer, report

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
BERT = SHARED / "tokenizers" / "bert-base-uncased"
REFERENCE = SHARED / "parity" / "minilm-l6" / "reference.json"
WIKIPEDIA = SHARED / "quickstart" / "wikipedia-excerpt" / "articles.txt.gz"

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Café au lait, naïve façade — ÅNGSTRÖM, İstanbul; ﬁne!",
    "don't stop; it's 3.14 (or 1,000,000)...   tabs\tand\nlines\r\nhere",
    "中文字符 mixed with ひらがな and 한국어, Привет мир, مرحبا",
    "zero\u200bwidth, soft\u00adhyphen, nul\x00 and \ufffd and \ufeffmark",
    "nbsp\u00a0here\u2028there, unit\x1cseparator\x85next",
    "emoji \U0001f642\U0001f469\u200d\U0001f52c and \U0001d518\U0001d52b",
    "x" * 100 + " " + "x" * 101 + " " + "ab" * 50 + "c",
    "   ",
    "",
]


def generated_text(seed: int, lines: int = 400) -> list[str]:
    """Sentences of made-up words, frequent ones often, with accents, digits and punctuation."""
    rng = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "é", "Ä")]
    lexicon = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(1500)]
    weights = [1 / (rank + 1) for rank in range(len(lexicon))]

    def sentence() -> str:
        words = rng.choices(lexicon, weights, k=rng.randint(3, 15))
        words.append(str(rng.randint(0, 99999)))
        return (" ".join(words) + rng.choice([".", "!", " ?", ", 中文"])).capitalize()

    return [sentence() for _ in range(lines)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three text files, one of them gzip, one without a last line end."""
    folder = tmp_path_factory.mktemp("text")
    paths = [folder / "a.txt", folder / "b.txt.gz", folder / "c.txt"]
    paths[0].write_text("\n".join(generated_text(0)) + "\n", encoding="utf-8")
    with gzip.open(paths[1], "wt", encoding="utf-8") as stream:
        stream.write("\n".join(generated_text(1)) + "\n")
    paths[2].write_text("\n".join([*generated_text(2), *SENTENCES[:7]]), encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def trained(files: list[Path]) -> Tokenizer:
    return Tokenizer.train(files, vocab_size=600)


@pytest.fixture(scope="module")
def twin(trained: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Hugging Face's reading of our saved folder."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("twin")
    trained.save(folder)
    return AutoTokenizer.from_pretrained(folder)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def saved_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# Training


def test_training_gives_equal_bytes_in_any_process_thread_count_and_file_order(
    files: list[Path], tmp_path: Path
) -> None:
    orders = [files, files[::-1], [files[1], files[2], files[0]], files, files[::-1]]
    for run, order in enumerate(orders):
        Tokenizer.train(order, vocab_size=600).save(tmp_path / f"run{run}")
    script = (
        "import sys; from pathlib import Path; from ala_encoder.tokenizer import Tokenizer\n"
        "paths = [Path(name) for name in sys.argv[2:]]\n"
        "Tokenizer.train(paths, vocab_size=600).save(Path(sys.argv[1]))"
    )
    settings = [{"RAYON_NUM_THREADS": "1"}, {"RAYON_NUM_THREADS": "4", "PYTHONHASHSEED": "9"}]
    for run, environment in enumerate(settings):
        order = random.Random(run).sample(files, len(files))
        command = [sys.executable, "-c", script, str(tmp_path / f"process{run}"), *map(str, order)]
        subprocess.run(command, env={**os.environ, **environment}, cwd=ROOT, check=True)
    results = [saved_bytes(folder) for folder in sorted(tmp_path.iterdir())]
    assert len(results) == 7
    assert all(result == results[0] for result in results)
    assert list(results[0]) == sorted(
        ["special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
    )


def merges_by_brute_force(counts: Counter[str], vocab_size: int, min_frequency: int) -> list[str]:
    """The training rule straight from its sentence: count all pairs, merge the best, repeat."""
    inside = {letter for word in counts for letter in word[1:]}
    pieces = [*SPECIAL_TOKENS, *sorted(set("".join(counts))), *sorted("##" + x for x in inside)]
    words = {word: [word[0], *("##" + x for x in word[1:])] for word in counts}
    while len(pieces) < vocab_size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in words.items():
            for pair in pairwise(parts):
                pairs[pair] += counts[word]
        if not pairs:
            break
        best = min(pairs, key=lambda p: (-pairs[p], pieces.index(p[0]), pieces.index(p[1])))
        if pairs[best] < min_frequency:
            break
        merged = best[0] + best[1][2:]
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
def test_training_merges_the_most_frequent_pair_and_breaks_ties_by_id(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    words = ["".join(rng.sample("abcdefgh", rng.randint(1, 7))) for _ in range(300)]
    path = written(tmp_path / "text.txt", " ".join(words))
    expected = merges_by_brute_force(Counter(words), 200, 2)
    assert list(Tokenizer.train([path], vocab_size=200).pieces) == expected
    assert len(expected) > 60


def test_a_rich_corpus_fills_the_vocabulary_exactly(
    files: list[Path], trained: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    assert trained.vocab_size == 600 == len(set(trained.pieces))
    assert trained.pieces[:5] == SPECIAL_TOKENS
    with caplog.at_level(logging.WARNING):
        assert Tokenizer.train(files, vocab_size=601).pieces[:600] == trained.pieces
    assert not caplog.records


def test_a_poor_corpus_gives_fewer_pieces_and_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "poor.txt", "ab ab abc\n")
    with caplog.at_level(logging.WARNING):
        tokenizer = Tokenizer.train([path], vocab_size=100)
    assert tokenizer.pieces == (*SPECIAL_TOKENS, "a", "b", "c", "##b", "##c", "ab")
    assert "11 pieces, not vocab_size=100" in caplog.text


def test_words_over_the_limit_are_not_learned_from(tmp_path: Path) -> None:
    path = written(tmp_path / "text.txt", "ab ab " + "xy" * 51 + " " + "xy" * 51)
    tokenizer = Tokenizer.train([path], vocab_size=9)
    assert tokenizer.pieces == (*SPECIAL_TOKENS, "a", "b", "##b", "ab")


def test_line_ends_marks_and_order_of_lines_do_not_change_the_vocabulary(tmp_path: Path) -> None:
    lines = generated_text(5, 100)
    plain = written(tmp_path / "a.txt", "\n".join(lines))
    odd = tmp_path / "b.txt"
    odd.write_bytes(("\ufeff" + "\r\n".join(sorted(lines)) + "\r\n").encode())
    one, two = (Tokenizer.train([path], vocab_size=300) for path in (plain, odd))
    assert one.pieces == two.pieces


def test_special_tokens_in_training_text_are_text(tmp_path: Path) -> None:
    path = written(tmp_path / "text.txt", "[MASK] [SEP] " * 50)
    pieces = Tokenizer.train([path], vocab_size=40).pieces
    assert [p for p in pieces if "[" in p] == [*SPECIAL_TOKENS, "["]
    assert "mask" in pieces


@pytest.mark.parametrize(
    ("content", "keywords", "message"),
    [
        ("abc abd", {"vocab_size": 11}, "vocab_size is 11; this text needs at least 12"),
        ("", {"vocab_size": 50}, "no words"),
        (" \n\t\n", {"vocab_size": 50}, "no words"),
        ("abc", {"vocab_size": 50, "min_frequency": 0}, "min_frequency is 0"),
    ],
)
def test_training_refuses_what_cannot_work(
    content: str, keywords: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "text.txt", content)
    with pytest.raises(UserError, match=message):
        Tokenizer.train([path], **keywords)


def test_the_named_smallest_vocabulary_works(tmp_path: Path) -> None:
    path = written(tmp_path / "text.txt", "abc abd")
    assert Tokenizer.train([path], vocab_size=12).vocab_size == 12


def test_training_names_the_file_it_cannot_read(tmp_path: Path) -> None:
    broken = {
        "latin1.txt": b"caf\xe9",
        "cut.gz": gzip.compress(b"some text " * 99)[:-9],
        "flat.gz": b"not gzip",
    }
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
    for name in [*broken, "missing.txt", "."]:
        with pytest.raises(UserError, match=str(tmp_path / name)):
            Tokenizer.train([tmp_path / name], vocab_size=50)
    with pytest.raises(UserError, match="no text files"):
        Tokenizer.train([], vocab_size=50)


# Files


def test_saved_and_loaded_tokenizers_are_equal(trained: Tokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path / "one")
    loaded = Tokenizer.load(tmp_path / "one")
    loaded.save(tmp_path / "two")
    assert loaded.fingerprint == trained.fingerprint
    assert loaded.encode_batch(SENTENCES) == trained.encode_batch(SENTENCES)
    assert saved_bytes(tmp_path / "one") == saved_bytes(tmp_path / "two")


def test_vocab_txt_alone_gives_the_same_tokenizer(trained: Tokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / name).unlink()
    assert Tokenizer.load(tmp_path).fingerprint == trained.fingerprint


def test_normalisation_comes_from_tokenizer_config(trained: Tokenizer, tmp_path: Path) -> None:
    written(tmp_path / "vocab.txt", "\n".join(trained.pieces))
    config = tmp_path / "tokenizer_config.json"
    assert Tokenizer.load(tmp_path).normalisation == (True, True, True)
    written(config, '{"do_lower_case": false, "strip_accents": null}')
    assert Tokenizer.load(tmp_path).normalisation == (False, False, True)
    written(config, '{"strip_accents": false, "tokenize_chinese_chars": false}')
    assert Tokenizer.load(tmp_path).normalisation == (True, False, False)


def test_the_fingerprint_tells_vocabulary_and_normalisation_apart(trained: Tokenizer) -> None:
    swapped = [*trained.pieces[:-2], trained.pieces[-1], trained.pieces[-2]]
    others = [
        Tokenizer(swapped, trained.normalisation),
        Tokenizer(trained.pieces[:-1], trained.normalisation),
        Tokenizer(trained.pieces, Normalisation(False, True, True)),
        Tokenizer(trained.pieces, Normalisation(True, False, True)),
        Tokenizer(trained.pieces, Normalisation(True, True, False)),
        trained,
    ]
    assert len({other.fingerprint for other in others}) == 6


def test_saving_leaves_no_temporary_file_and_names_a_bad_folder(
    trained: Tokenizer, tmp_path: Path
) -> None:
    trained.save(tmp_path / "a" / "b")
    assert len(list((tmp_path / "a" / "b").iterdir())) == 4
    blocked = written(tmp_path / "file", "")
    with pytest.raises(UserError, match=str(blocked)):
        trained.save(blocked)
    (tmp_path / "c" / "tokenizer.json").mkdir(parents=True)
    with pytest.raises(UserError, match="cannot save"):
        trained.save(tmp_path / "c")
    assert not [path for path in (tmp_path / "c").iterdir() if ".tmp" in path.name]


def test_loading_refuses_folders_that_are_not_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="missing: no such folder"):
        Tokenizer.load(tmp_path / "missing")
    with pytest.raises(UserError, match=f"{tmp_path}: no tokenizer.json and no vocab.txt"):
        Tokenizer.load(tmp_path)
    for text, message in [
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"has no \[MASK\]"),
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\n<MASK>\n", r"did you mean '<MASK>'"),
        ("[PAD]\n\n[UNK]\n", "vocab.txt:2: empty line"),
        ("[PAD]\na\nb\na\n", "vocab.txt:4: 'a' is on line 2"),
    ]:
        written(tmp_path / "vocab.txt", text)
        with pytest.raises(UserError, match=message):
            Tokenizer.load(tmp_path)


def change(content: dict[str, Any], key: str, value: object) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        content = content[parent]
    content[last] = value


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.type", "BPE", "model.type is 'BPE'"),
        ("model.max_input_chars_per_word", 200, "only 100 is supported"),
        ("model.vocab", {"a": 0, "b": 2}, "not 0 to 1"),
        ("model.vocab", {"a": 0, "\ud800": 1}, "not UTF-8"),
        ("model.vocab", {"a": "0"}, "must map pieces to ids"),
        ("normalizer", None, "normalizer.type is None"),
        ("normalizer", [], "normalizer.type is None"),
        ("normalizer", ["x"], "must be JSON objects"),
        ("normalizer.lowercase", "yes", "must be booleans"),
        ("normalizer.lowercase", False, "they must agree"),
        ("pre_tokenizer.type", "Whitespace", "only 'BertPreTokenizer'"),
        ("added_tokens", [{"content": "<tag>", "id": 9}], "<tag>"),
        ("added_tokens", ["x"], "added token 'x'"),
    ],
)
def test_a_tokenizer_json_that_would_encode_otherwise_is_refused(
    key: str, value: object, message: str, trained: Tokenizer, tmp_path: Path
) -> None:
    trained.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content, key, value)
    written(path, json.dumps(content))
    with pytest.raises(UserError, match=message):
        Tokenizer.load(tmp_path)


def test_contradicting_files_are_refused(trained: Tokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    written(tmp_path / "vocab.txt", "\n".join(trained.pieces[:-1]))
    with pytest.raises(UserError, match="different pieces"):
        Tokenizer.load(tmp_path)


def test_damaged_files_give_a_one_line_error_or_a_tokenizer(tmp_path: Path) -> None:
    rng = random.Random(0)
    pieces = [*SPECIAL_TOKENS, "a", "##b"]
    Tokenizer(pieces, Normalisation()).save(tmp_path)
    whole = saved_bytes(tmp_path)
    refused = 0
    for trial in range(600):
        name = ("tokenizer.json", "vocab.txt", "tokenizer_config.json")[trial % 3]
        content = bytearray(whole[name])
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(content))
            content[at : at + rng.randint(0, 4)] = rng.choice([b"\xff", b"[]", b"null", b"", b"\n"])
        (tmp_path / name).write_bytes(content)
        try:
            Tokenizer.load(tmp_path).encode("ab")
        except UserError as error:
            refused += 1
            assert "\n" not in str(error)
        (tmp_path / name).write_bytes(whole[name])
    assert refused > 200


# Encoding


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_special_tokens_in_text_stay_text(token: str, lowercase: bool, tmp_path: Path) -> None:
    inner = token[1:-1].lower() if lowercase else token[1:-1]
    pieces = [*SPECIAL_TOKENS, "[", "]", inner, "a"]
    made = Tokenizer(pieces, Normalisation(lowercase, lowercase, True))
    made.save(tmp_path)
    for tokenizer in [made, Tokenizer.load(tmp_path), pickle.loads(pickle.dumps(made))]:
        for text in (f"a {token} a", f"a{token}a"):
            ids = tokenizer.encode(text)
            assert [pieces[index] for index in ids] == ["a", "[", inner, "]", "a"]
            assert tokenizer.encode_batch([text]) == [ids]


def test_special_ids_are_the_five_special_tokens(trained: Tokenizer) -> None:
    named = [trained.pad_id, trained.unk_id, trained.cls_id, trained.sep_id, trained.mask_id]
    assert [trained.pieces[index] for index in named] == list(SPECIAL_TOKENS)
    assert trained.special_ids == set(named)


def test_a_word_of_100_letters_is_encoded_and_one_of_101_is_unknown(trained: Tokenizer) -> None:
    assert trained.unk_id not in trained.encode("ab" * 50)
    assert trained.encode("ab" * 50 + "a") == [trained.unk_id]


def test_case_and_accents_are_kept_when_asked(tmp_path: Path) -> None:
    path = written(tmp_path / "text.txt", "Été été Ete ete")
    cased = Tokenizer.train([path], vocab_size=30, lowercase=False)
    plain = Tokenizer.train([path], vocab_size=30, lowercase=True)
    assert len({tuple(cased.encode(word)) for word in ("Été", "été", "Ete", "ete")}) == 4
    assert len({tuple(plain.encode(word)) for word in ("Été", "été", "Ete", "ete")}) == 1


def odd_strings(count: int) -> list[str]:
    """Random strings over letters, marks, controls, spaces, signs and lone surrogates."""
    rng = random.Random(3)
    ranges = [(0, 0x250), (0x300, 0x330), (0x370, 0x400), (0x600, 0x620), (0x1E00, 0x1E40)]
    ranges += [(0x2000, 0x2070), (0x4E00, 0x4E20), (0xAC00, 0xAC20), (0xD800, 0xD804)]
    ranges += [(0xE000, 0xE004), (0xF900, 0xF910), (0x1F600, 0x1F610), (0x2F800, 0x2F808)]
    pool = [chr(code) for low, high in ranges for code in range(low, high)] + [" "] * 200
    return ["".join(rng.choices(pool, k=rng.randint(0, 30))) for _ in range(count)]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    text = "\n".join(odd_strings(10_000)).encode("utf-8", "ignore").decode("utf-8")
    path = written(tmp_path_factory.mktemp("odd") / "text.txt", text)
    return Tokenizer.train([path], vocab_size=2500)


def test_decoded_text_encodes_to_the_same_ids_for_10000_odd_strings(odd: Tokenizer) -> None:
    ids = odd.encode_batch(odd_strings(10_000))
    assert sum(odd.unk_id in row for row in ids) == 0
    assert odd.encode_batch([odd.decode(row) for row in ids]) == ids


def test_encode_batch_equals_encode(odd: Tokenizer) -> None:
    strings = [*odd_strings(500), *SENTENCES]
    assert odd.encode_batch(strings) == [odd.encode(string) for string in strings]
    assert odd.encode_batch([]) == []


def test_decode_shows_the_words_and_hides_the_layout(trained: Tokenizer) -> None:
    ids, _ = trained.pair(trained.encode("Do not, da"), [trained.mask_id, trained.unk_id], 64)
    assert trained.decode([*ids, trained.pad_id]) == "do not , da [MASK] [UNK]"


# The twin: Hugging Face


def test_hugging_face_reads_our_folder_and_gives_the_same_ids(
    trained: Tokenizer, twin: Any
) -> None:
    texts = [*SENTENCES, *generated_text(9, 50)]
    assert twin(texts, add_special_tokens=False)["input_ids"] == trained.encode_batch(texts)
    assert [twin.pad_token_id, twin.unk_token_id, twin.mask_token_id] == [
        trained.pad_id,
        trained.unk_id,
        trained.mask_id,
    ]
    assert len(twin) == trained.vocab_size


@pytest.mark.parametrize("normalisation", [(False, False, True), (True, False, False)])
def test_hugging_face_reads_the_normalisation_too(
    normalisation: tuple[bool, bool, bool], trained: Tokenizer, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    ours = Tokenizer(trained.pieces, Normalisation(*normalisation))
    ours.save(tmp_path)
    twin = AutoTokenizer.from_pretrained(tmp_path)
    assert twin(SENTENCES, add_special_tokens=False)["input_ids"] == ours.encode_batch(SENTENCES)
    assert ours.encode_batch(SENTENCES) != trained.encode_batch(SENTENCES)


def test_pairs_are_laid_out_and_cut_as_hugging_face_does(trained: Tokenizer, twin: Any) -> None:
    rng = random.Random(4)
    letters = [p for p in trained.pieces if p.isascii() and p.isalpha() and len(p) == 1]
    for _ in range(400):
        first, second = (" ".join(rng.choices(letters, k=rng.randint(0, 12))) for _ in range(2))
        one, two = trained.encode(first), trained.encode(second)
        length = rng.randint(5, 30)
        cut = {"truncation": "longest_first", "max_length": length}
        # As lists: for one pair of strings Hugging Face takes an empty second for none.
        pair = twin([first], [second], **cut)
        expected = (pair["input_ids"][0], pair["token_type_ids"][0])
        assert trained.pair(one, two, length) == expected
        single = twin(first, **cut)
        assert trained.pair(one, None, length) == (single["input_ids"], single["token_type_ids"])


def test_pairs_by_hand(trained: Tokenizer) -> None:
    cls, sep = trained.cls_id, trained.sep_id
    assert trained.pair([7, 8], None, 9) == ([cls, 7, 8, sep], [0, 0, 0, 0])
    assert trained.pair([7, 8], None, 3) == ([cls, 7, sep], [0, 0, 0])
    assert trained.pair([7, 8], [9], 5) == ([cls, 7, sep, 9, sep], [0, 0, 0, 1, 1])
    assert trained.pair([7, 8], [9, 10], 6) == ([cls, 7, sep, 9, 10, sep], [0, 0, 0, 1, 1, 1])
    assert trained.pair([7], [], 5) == ([cls, 7, sep, sep], [0, 0, 0, 1])
    with pytest.raises(UserError, match="max_length is 2; a single text needs at least 3"):
        trained.pair([7], None, 2)
    with pytest.raises(UserError, match="max_length is 4; a pair of texts needs at least 5"):
        trained.pair([7], [8], 4)


# The report


def test_report_by_hand(tmp_path: Path) -> None:
    tokenizer = Tokenizer([*SPECIAL_TOKENS, "a", "##b", "##c", "."], Normalisation())
    path = written(tmp_path / "text.txt", "ab a. z\nAB " + "ab" * 51 + "\n")
    # words: ab a . z ab <102 letters>; pieces: 2 + 1 + 1 + 1 + 2 + 1
    assert report(tokenizer, [path]) == {
        "words": 6,
        "pieces": 8,
        "pieces_per_word": pytest.approx(8 / 6),
        "unknown_words": 2,
        "unknown_rate": pytest.approx(2 / 6),
        "over_long_words": 1,
        "vocab_size": 9,
        "vocabulary_use": pytest.approx(3 / 4),
    }
    with pytest.raises(UserError, match="no words"):
        report(tokenizer, [written(tmp_path / "empty.txt", "")])


def test_report_counts_the_pieces_that_encode_gives(trained: Tokenizer, files: list[Path]) -> None:
    counts = report(trained, files)
    lines = [*files[0].read_text("utf-8").split("\n"), *files[2].read_text("utf-8").split("\n")]
    with gzip.open(files[1], "rt", encoding="utf-8") as stream:
        lines += stream.read().split("\n")
    ids = [index for row in trained.encode_batch(lines) for index in row]
    assert counts["pieces"] == len(ids)
    assert counts["words"] == sum(not trained.pieces[i].startswith("##") for i in ids)
    assert counts["unknown_words"] == ids.count(trained.unk_id) == 0
    assert counts["vocabulary_use"] == pytest.approx(len(set(ids)) / 595)


def test_importing_the_module_is_cheap() -> None:
    heavy = ["tokenizers", "transformers", "torch"]
    script = f"import ala_encoder.tokenizer, sys; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert result.stdout.strip() == "[]"


# Real data, where it lies beside the repository

if BERT.exists() and REFERENCE.exists():

    def test_bert_vocabulary_gives_the_reference_tokens() -> None:
        tokenizer = Tokenizer.load(BERT)
        assert tokenizer.vocab_size == 30522
        assert sorted(tokenizer.special_ids) == [0, 100, 101, 102, 103]
        reference = json.loads(REFERENCE.read_text(encoding="utf-8"))
        for sentence, tokens in zip(reference["sentences"], reference["tokens"], strict=True):
            ids, _ = tokenizer.pair(tokenizer.encode(sentence), None, 512)
            ids += [tokenizer.pad_id] * (len(tokens) - len(ids))
            assert [tokenizer.pieces[index] for index in ids] == tokens

    def test_bert_vocabulary_gives_hugging_face_ids() -> None:
        from transformers import BertTokenizer

        twin = BertTokenizer.from_pretrained(BERT)
        strings = [text.encode("utf-8", "ignore").decode() for text in odd_strings(2000)]
        texts = [*SENTENCES, *generated_text(9, 50), *strings]
        ours = Tokenizer.load(BERT).encode_batch(texts)
        assert twin(texts, add_special_tokens=False)["input_ids"] == ours


if WIKIPEDIA.exists():

    def test_training_on_wikipedia_gives_equal_pieces_twice() -> None:
        one, two = (Tokenizer.train([WIKIPEDIA], vocab_size=4096) for _ in range(2))
        assert one.vocab_size == 4096
        assert one.fingerprint == two.fingerprint
        assert one.decode(one.encode("The history of the United States")) == (
            "the history of the united states"
        )
