"""WordPiece: faithful files, Hugging Face's ids, text that stays text."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ala_encoder.errors import UserError
from ala_encoder.settings.tokenizer import WordPieceSettings
from ala_encoder.tokenizer import SPECIAL_TOKENS, Normalisation, WordPiece, load, train
from tests.strings import (
    BERT,
    ROOT,
    SENTENCES,
    SHARED,
    clean,
    common_strings,
    generated_text,
    saved_bytes,
    small_bert,
    written,
)

REFERENCE = SHARED / "parity" / "minilm-l6" / "reference.json"


def learned(texts: list[str], **settings: Any) -> Any:
    return train(WordPieceSettings(path=Path("unused"), **settings), texts)


@pytest.fixture(scope="module")
def trained() -> WordPiece:
    return learned([*generated_text(0), *generated_text(2), *SENTENCES[:7]], vocab_size=600)


@pytest.fixture(scope="module")
def twin(trained: WordPiece, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Hugging Face's reading of our saved folder."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("twin")
    trained.save(folder)
    return AutoTokenizer.from_pretrained(folder)


# Files


def test_saved_and_loaded_tokenizers_are_equal(trained: WordPiece, tmp_path: Path) -> None:
    trained.save(tmp_path / "one")
    loaded = load(tmp_path / "one")
    loaded.save(tmp_path / "two")
    assert loaded.fingerprint == trained.fingerprint
    assert loaded.encode_batch(SENTENCES) == trained.encode_batch(SENTENCES)
    assert saved_bytes(tmp_path / "one") == saved_bytes(tmp_path / "two")


def test_vocab_txt_alone_gives_the_same_tokenizer(trained: WordPiece, tmp_path: Path) -> None:
    trained.save(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / name).unlink()
    assert load(tmp_path).fingerprint == trained.fingerprint


def test_lines_of_vocab_txt_end_as_in_other_text(trained: WordPiece, tmp_path: Path) -> None:
    pieces = (*SPECIAL_TOKENS, "a\u2028b", "\x85", "c\ufeff", "\x0c")
    for text in ("\n".join(pieces), "\r\n".join(pieces) + "\r\n"):
        (tmp_path / "vocab.txt").write_bytes(text.encode("utf-8"))
        assert load(tmp_path).pieces == pieces


def test_normalisation_comes_from_tokenizer_config(trained: WordPiece, tmp_path: Path) -> None:
    written(tmp_path / "vocab.txt", "\n".join(trained.pieces))
    config = tmp_path / "tokenizer_config.json"
    assert load(tmp_path).normalisation == (True, True, True)
    written(config, '{"do_lower_case": false, "strip_accents": null}')
    assert load(tmp_path).normalisation == (False, False, True)
    written(config, '{"strip_accents": false, "tokenize_chinese_chars": false}')
    assert load(tmp_path).normalisation == (True, False, False)


def test_the_fingerprint_tells_vocabulary_and_normalisation_apart(trained: WordPiece) -> None:
    swapped = [*trained.pieces[:-2], trained.pieces[-1], trained.pieces[-2]]
    others = [
        WordPiece(swapped, trained.normalisation),
        WordPiece(trained.pieces[:-1], trained.normalisation),
        WordPiece(trained.pieces, Normalisation(False, True, True)),
        WordPiece(trained.pieces, Normalisation(True, False, True)),
        WordPiece(trained.pieces, Normalisation(True, True, False)),
        trained,
    ]
    assert len({other.fingerprint for other in others}) == 6


def test_saving_makes_the_folder_and_names_one_that_cannot_be(
    trained: WordPiece, tmp_path: Path
) -> None:
    trained.save(tmp_path / "a" / "b")
    assert len(list((tmp_path / "a" / "b").iterdir())) == 4
    blocked = written(tmp_path / "file", "")
    with pytest.raises(UserError, match=f"{blocked}: cannot be written: File exists"):
        trained.save(blocked)


def test_loading_refuses_folders_that_are_not_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="missing: no such folder"):
        load(tmp_path / "missing")
    with pytest.raises(UserError, match=f"{tmp_path}: no tokenizer.json and no vocab.txt"):
        load(tmp_path)
    for text, message in [
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"has no \[MASK\]"),
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\n<MASK>\n", r"did you mean '<MASK>'"),
        ("[PAD]\n\n[UNK]\n", "vocab.txt:2: empty line"),
        ("[PAD]\na\nb\na\n", "vocab.txt:4: 'a' is on line 2"),
        ("\ufeff[PAD]\n[UNK]\n", "vocab.txt:1: a byte-order mark or NUL"),
        ("[PAD]\n[UNK]\nab\0\n", "vocab.txt:3: a byte-order mark or NUL"),
        ("[PAD]\na\rb\n", "vocab.txt:2: a carriage return inside a piece"),
    ]:
        written(tmp_path / "vocab.txt", text)
        with pytest.raises(UserError, match=message):
            load(tmp_path)


def change(content: dict[str, Any], key: str, value: object) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        content = content[parent]
    content[last] = value


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.type", "BPE", "tokenizer.json: not a tokenizer"),
        ("model", None, "holds no model"),
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
    key: str, value: object, message: str, trained: WordPiece, tmp_path: Path
) -> None:
    trained.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content, key, value)
    written(path, json.dumps(content))
    with pytest.raises(UserError, match=message):
        load(tmp_path)


def test_contradicting_files_are_refused(trained: WordPiece, tmp_path: Path) -> None:
    trained.save(tmp_path)
    written(tmp_path / "vocab.txt", "\n".join(trained.pieces[:-1]))
    with pytest.raises(UserError, match="different pieces"):
        load(tmp_path)


# Encoding


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_special_tokens_in_text_stay_text(token: str, lowercase: bool, tmp_path: Path) -> None:
    inner = token[1:-1].lower() if lowercase else token[1:-1]
    pieces = [*SPECIAL_TOKENS, "[", "]", inner, "a"]
    made = WordPiece(pieces, Normalisation(lowercase, lowercase, True))
    made.save(tmp_path)
    for tokenizer in [made, load(tmp_path), pickle.loads(pickle.dumps(made))]:
        for text in (f"a {token} a", f"a{token}a"):
            ids = tokenizer.encode(text)
            assert [pieces[index] for index in ids] == ["a", "[", inner, "]", "a"]
            assert tokenizer.encode_batch([text]) == [ids]


def test_special_ids_are_the_five_special_tokens(trained: WordPiece) -> None:
    named = [trained.pad_id, trained.unk_id, trained.cls_id, trained.sep_id, trained.mask_id]
    assert [trained.pieces[index] for index in named] == list(SPECIAL_TOKENS)
    assert trained.special_ids == set(named)


def test_a_word_of_100_letters_is_encoded_and_one_of_101_is_unknown(trained: WordPiece) -> None:
    assert trained.unk_id not in trained.encode("ab" * 50)
    assert trained.encode("ab" * 50 + "a") == [trained.unk_id]


def test_case_and_accents_are_kept_when_asked() -> None:
    cased = learned(["Été été Ete ete"], vocab_size=30, lowercase=False)
    plain = learned(["Été été Ete ete"], vocab_size=30, lowercase=True)
    assert len({tuple(cased.encode(word)) for word in ("Été", "été", "Ete", "ete")}) == 4
    assert len({tuple(plain.encode(word)) for word in ("Été", "été", "Ete", "ete")}) == 1


@pytest.fixture(scope="module")
def odd() -> WordPiece:
    return learned(common_strings(10_000), vocab_size=2500)


def test_decoded_text_encodes_to_the_same_ids_for_10000_common_strings(odd: WordPiece) -> None:
    ids = odd.encode_batch(common_strings(10_000))
    assert sum(odd.unk_id in row for row in ids) == 0
    assert odd.encode_batch([odd.decode(row) for row in ids]) == ids


def test_encode_batch_equals_encode(odd: WordPiece) -> None:
    strings = [*common_strings(500), *SENTENCES]
    assert odd.encode_batch(strings) == [odd.encode(string) for string in strings]
    assert odd.encode_batch([]) == []


def test_decode_shows_the_words_and_hides_the_layout(trained: WordPiece) -> None:
    ids, _ = trained.pair(trained.encode("Do not, da"), [trained.mask_id, trained.unk_id], 64)
    assert trained.decode([*ids, trained.pad_id]) == "do not , da [MASK] [UNK]"


# The twin: Hugging Face


def test_hugging_face_reads_our_folder_and_gives_the_same_ids(
    trained: WordPiece, twin: Any
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
    normalisation: tuple[bool, bool, bool], trained: WordPiece, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    ours = WordPiece(trained.pieces, Normalisation(*normalisation))
    ours.save(tmp_path)
    twin = AutoTokenizer.from_pretrained(tmp_path)
    assert twin(SENTENCES, add_special_tokens=False)["input_ids"] == ours.encode_batch(SENTENCES)
    assert ours.encode_batch(SENTENCES) != trained.encode_batch(SENTENCES)


def test_pairs_are_laid_out_and_cut_as_hugging_face_does(trained: WordPiece, twin: Any) -> None:
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


def test_pairs_by_hand(trained: WordPiece) -> None:
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


def test_importing_the_module_is_cheap() -> None:
    heavy = ["tokenizers", "transformers", "torch", "sentencepiece", "huggingface_hub"]
    script = f"import ala_encoder.tokenizer, sys; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert result.stdout.strip() == "[]"


# Published vocabularies: a small one always, BERT's where it lies beside the repository

BY_HAND = {
    "The unaffable café!": "[CLS] the un ##aff ##able cafe ! [SEP]",
    "don't,中A [MASK]": "[CLS] don ' t , 中 a [UNK] [UNK] [UNK] [SEP]",
}


def published(name: str, folder: Path) -> tuple[Path, dict[str, list[str]]]:
    """A folder, and the tokens that sentences have in it by another program or by hand."""
    if name == "small":
        return small_bert(folder), {text: tokens.split() for text, tokens in BY_HAND.items()}
    reference = json.loads(REFERENCE.read_text(encoding="utf-8"))
    return BERT, dict(zip(reference["sentences"], reference["tokens"], strict=True))


PUBLISHED = ["small", *(["bert"] if BERT.exists() and REFERENCE.exists() else [])]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_vocabulary_gives_the_reference_tokens(name: str, tmp_path: Path) -> None:
    folder, reference = published(name, tmp_path)
    tokenizer = load(folder)
    assert isinstance(tokenizer, WordPiece)
    size, special = {"small": (17, [0, 2, 3, 4, 5]), "bert": (30522, [0, 100, 101, 102, 103])}[name]
    assert tokenizer.vocab_size == size
    assert sorted(tokenizer.special_ids) == special
    for sentence, tokens in reference.items():
        ids, _ = tokenizer.pair(tokenizer.encode(sentence), None, 512)
        ids += [tokenizer.pad_id] * (len(tokens) - len(ids))
        assert [tokenizer.pieces[index] for index in ids] == tokens


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_vocabulary_gives_hugging_face_ids(name: str, tmp_path: Path) -> None:
    from transformers import BertTokenizer

    folder, _ = published(name, tmp_path)
    twin = BertTokenizer.from_pretrained(folder)
    texts = [*SENTENCES, *generated_text(9, 50), *map(clean, common_strings(2000))]
    ours = load(folder).encode_batch(texts)
    assert twin(texts, add_special_tokens=False)["input_ids"] == ours
