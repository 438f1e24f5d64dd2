"""The kinds give the ids of other programs, and read and write their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ala_encoder.settings.tokenizer import ByteBPESettings, SentencePieceSettings
from ala_encoder.tokenizer import (
    ByteBPE,
    Pretrained,
    SentencePiece,
    Special,
    Tokenizer,
    load,
    train,
)
from tests.strings import (
    BOTCHAN,
    GPT2,
    SENTENCES,
    clean,
    generated_text,
    odd_strings,
    saved_bytes,
    small_gpt2,
    small_sentence_piece,
    written,
)
from tests.test_tokenizer_kinds import unigram_folder

TEXTS = [*generated_text(0), *SENTENCES]


@pytest.fixture(scope="module")
def made() -> dict[str, Tokenizer]:
    path = Path("unused")
    byte_bpe = ByteBPESettings(path=path, kind="byte_bpe", vocab_size=900)
    unigram = SentencePieceSettings(path=path, kind="sentencepiece", vocab_size=400)
    return {"byte_bpe": train(byte_bpe, TEXTS), "unigram": train(unigram, TEXTS)}


def test_a_pretrained_folder_gives_the_ids_of_its_library(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend

    tokenizer = load(unigram_folder(tmp_path))
    assert isinstance(tokenizer, Pretrained)
    assert tokenizer.special == Special(pad=1, unk=3, cls=0, sep=2)
    twin = Backend.from_file(str(tmp_path / "tokenizer.json"))
    twin.no_padding()
    twin.no_truncation()
    for text in map(clean, [*SENTENCES, *odd_strings(100)]):
        assert tokenizer.encode(text) == twin.encode(text, add_special_tokens=False).ids


def byte_twin(folder: Path) -> Any:
    """The library's own byte-level BPE, another implementation of reading and of cutting."""
    from tokenizers import ByteLevelBPETokenizer

    return ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))


GPT2_FOLDERS = ["small", *(["gpt2"] if GPT2.exists() else [])]


def gpt2_folder(name: str, folder: Path) -> Path:
    return GPT2 if name == "gpt2" else small_gpt2(folder)


@pytest.mark.parametrize("kind", ["byte_bpe", *GPT2_FOLDERS])
def test_byte_bpe_equals_its_twins(kind: str, made: dict[str, Tokenizer], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = made.get(kind) or load(gpt2_folder(kind, tmp_path / "published"))
    tokenizer.save(tmp_path / "saved")
    texts = [clean(text) for text in [*SENTENCES, *odd_strings(500), *generated_text(9, 50)]]
    ours = tokenizer.encode_batch(texts)
    marked = ("<mask>", "[SEP]", "<s>", "</s>")
    plain = [i for i, text in enumerate(texts) if not any(m in text for m in marked)]
    twin = byte_twin(tmp_path / "saved")
    assert [twin.encode(text).ids for text in texts] == ours
    auto = AutoTokenizer.from_pretrained(tmp_path / "saved")
    theirs = auto(texts, add_special_tokens=False)["input_ids"]
    assert [theirs[i] for i in plain] == [ours[i] for i in plain]
    assert len(auto) == tokenizer.vocab_size


def test_hugging_face_lays_out_pairs_of_byte_bpe_as_we_do(
    made: dict[str, Tokenizer], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer = made["byte_bpe"]
    tokenizer.save(tmp_path)
    auto = AutoTokenizer.from_pretrained(tmp_path)
    special = Special(auto.pad_token_id, None, auto.cls_token_id, auto.sep_token_id)
    assert special._replace(mask=auto.mask_token_id) == tokenizer.special
    one, two = tokenizer.encode_batch(["the mat", " sat"])
    assert auto("the mat", " sat")["input_ids"] == tokenizer.pair(one, two, 99)[0]


def test_sentencepiece_writes_the_model_it_read(made: dict[str, Tokenizer], tmp_path: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    tokenizer = made["unigram"]
    tokenizer.save(tmp_path)
    twin = SentencePieceProcessor(model_file=str(tmp_path / "sentencepiece.model"))
    assert [twin.encode(clean(t)) for t in TEXTS] == tokenizer.encode_batch(TEXTS)
    names = [twin.id_to_piece(index) for index in range(5)]
    assert names == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.special == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("name", GPT2_FOLDERS)
def test_gpt2_is_read_as_published_and_written_byte_for_byte(name: str, tmp_path: Path) -> None:
    from transformers import GPT2Tokenizer

    folder = gpt2_folder(name, tmp_path / "published")
    tokenizer = load(folder)
    assert isinstance(tokenizer, ByteBPE)
    end = {"gpt2": 50256, "small": 262}[name]
    assert tokenizer.vocab_size == end + 1
    assert tokenizer.special == Special(cls=end, sep=end)
    assert tokenizer.special_ids == {end}
    tokenizer.save(tmp_path / "saved")
    for file in ("vocab.json", "merges.txt"):
        assert (tmp_path / "saved" / file).read_bytes() == (folder / file).read_bytes()
    twin = GPT2Tokenizer.from_pretrained(folder)
    texts = [clean(text) for text in [*SENTENCES, *odd_strings(1000)]]
    assert twin(texts)["input_ids"] == tokenizer.encode_batch(texts)


def test_a_small_gpt2_by_hand(tmp_path: Path) -> None:
    tokenizer = load(small_gpt2(tmp_path))
    assert isinstance(tokenizer, ByteBPE)
    ids = tokenizer.encode("the thing é")
    assert [tokenizer.pieces[i] for i in ids] == ["t", "he", "Ġt", "h", "ing", "Ġ", "Ã©"]


@pytest.mark.parametrize("name", GPT2_FOLDERS)
def test_gpt2s_tokenizer_json_alone_or_without_a_type_is_the_same(
    name: str, tmp_path: Path
) -> None:
    published = load(gpt2_folder(name, tmp_path / "published"))
    folder = tmp_path / "saved"
    published.save(folder)
    (folder / "vocab.json").unlink()
    (folder / "merges.txt").unlink()
    assert load(folder).fingerprint == published.fingerprint
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    del content["model"]["type"]
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    written(path, json.dumps(content))
    assert load(folder).fingerprint == published.fingerprint


@pytest.mark.parametrize("name", ["small", *(["botchan"] if BOTCHAN.exists() else [])])
def test_a_published_sentencepiece_model_is_read_as_it_is(name: str, tmp_path: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    folder = BOTCHAN if name == "botchan" else small_sentence_piece(tmp_path / "published")
    (path,) = folder.glob("*.model")
    tokenizer = load(folder)
    assert isinstance(tokenizer, SentencePiece)
    assert tokenizer.special == Special(unk=0, cls=1, sep=2)
    texts = [clean(text) for text in [*SENTENCES, *odd_strings(100), "Hello <s> world"]]
    twin = SentencePieceProcessor(model_file=str(path))
    assert tokenizer.encode_batch(texts) == [twin.encode(text) for text in texts]
    if name == "botchan":
        assert tokenizer.encode("Hello <s> world") == [151, 88, 21, 4, 0, 8, 0, 887]
    tokenizer.save(tmp_path / "saved")
    assert saved_bytes(tmp_path / "saved") == {"sentencepiece.model": path.read_bytes()}
