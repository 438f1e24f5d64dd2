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
    written,
)
from tests.test_tokenizer_kinds import unigram_folder

TEXTS = [*generated_text(0), *SENTENCES]


@pytest.fixture(scope="module")
def made() -> dict[str, Tokenizer]:
    path = Path("unused")
    byte_bpe = ByteBPESettings(path=path, kind="byte_bpe", vocab_size=900)
    unigram = SentencePieceSettings(path=path, kind="sentencepiece", vocab_size=400)
    made = {"byte_bpe": train(byte_bpe, TEXTS), "unigram": train(unigram, TEXTS)}
    return {**made, "gpt2": load(GPT2)} if GPT2.exists() else made


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


def test_byte_bpe_equals_its_twins(made: dict[str, Tokenizer], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    for kind in ("byte_bpe", "gpt2"):
        if kind not in made:
            continue
        made[kind].save(tmp_path / kind)
        texts = [clean(text) for text in [*SENTENCES, *odd_strings(500), *generated_text(9, 50)]]
        ours = made[kind].encode_batch(texts)
        marked = ("<mask>", "[SEP]", "<s>", "</s>")
        plain = [i for i, text in enumerate(texts) if not any(m in text for m in marked)]
        twin = byte_twin(tmp_path / kind)
        assert [twin.encode(text).ids for text in texts] == ours
        auto = AutoTokenizer.from_pretrained(tmp_path / kind)
        theirs = auto(texts, add_special_tokens=False)["input_ids"]
        assert [theirs[i] for i in plain] == [ours[i] for i in plain]
        assert len(auto) == made[kind].vocab_size
    auto = AutoTokenizer.from_pretrained(tmp_path / "byte_bpe")
    special = Special(auto.pad_token_id, None, auto.cls_token_id, auto.sep_token_id)
    assert special._replace(mask=auto.mask_token_id) == made["byte_bpe"].special
    one, two = made["byte_bpe"].encode_batch(["the mat", " sat"])
    assert auto("the mat", " sat")["input_ids"] == made["byte_bpe"].pair(one, two, 99)[0]


def test_sentencepiece_writes_the_model_it_read(made: dict[str, Tokenizer], tmp_path: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    tokenizer = made["unigram"]
    tokenizer.save(tmp_path)
    twin = SentencePieceProcessor(model_file=str(tmp_path / "sentencepiece.model"))
    assert [twin.encode(clean(t)) for t in TEXTS] == tokenizer.encode_batch(TEXTS)
    names = [twin.id_to_piece(index) for index in range(5)]
    assert names == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.special == (0, 1, 2, 3, 4)


if GPT2.exists():

    def test_gpt2_is_read_as_published_and_written_byte_for_byte(tmp_path: Path) -> None:
        from transformers import GPT2Tokenizer

        tokenizer = load(GPT2)
        assert isinstance(tokenizer, ByteBPE)
        assert tokenizer.vocab_size == 50257
        assert tokenizer.special == Special(cls=50256, sep=50256)
        tokenizer.save(tmp_path)
        for name in ("vocab.json", "merges.txt"):
            assert (tmp_path / name).read_bytes() == (GPT2 / name).read_bytes()
        twin = GPT2Tokenizer.from_pretrained(GPT2)
        texts = [clean(text) for text in [*SENTENCES, *odd_strings(1000)]]
        assert twin(texts)["input_ids"] == tokenizer.encode_batch(texts)

    def test_gpt2s_tokenizer_json_alone_or_without_a_type_is_the_same(tmp_path: Path) -> None:
        load(GPT2).save(tmp_path)
        (tmp_path / "vocab.json").unlink()
        (tmp_path / "merges.txt").unlink()
        assert load(tmp_path).fingerprint == load(GPT2).fingerprint
        path = tmp_path / "tokenizer.json"
        content = json.loads(path.read_text("utf-8"))
        del content["model"]["type"]
        content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
        written(path, json.dumps(content))
        assert load(tmp_path).fingerprint == load(GPT2).fingerprint


if BOTCHAN.exists():

    def test_a_published_sentencepiece_model_is_read_as_it_is(tmp_path: Path) -> None:
        tokenizer = load(BOTCHAN)
        assert isinstance(tokenizer, SentencePiece)
        assert tokenizer.special == Special(unk=0, cls=1, sep=2)
        assert tokenizer.encode("Hello <s> world") == [151, 88, 21, 4, 0, 8, 0, 887]
        tokenizer.save(tmp_path)
        model = (BOTCHAN / "test_model.model").read_bytes()
        assert saved_bytes(tmp_path) == {"sentencepiece.model": model}
