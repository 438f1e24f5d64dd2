"""Tokenizer folders that are damaged, contradictory or of no kind: one line, never a crash."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ala_encoder.errors import UserError
from ala_encoder.settings.tokenizer import (
    ByteBPESettings,
    SentencePieceSettings,
    WordPieceSettings,
)
from ala_encoder.tokenizer import (
    ByteBPE,
    Pretrained,
    SentencePiece,
    WordPiece,
    fetch,
    load,
    train,
)
from ala_encoder.tokenizer.files import MAX_FILE
from tests.strings import (
    SENTENCES,
    generated_text,
    saved_bytes,
    small_gpt2,
    small_sentence_piece,
    written,
)
from tests.test_tokenizer_kinds import unigram_folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small saved folder of each kind."""
    root, texts = tmp_path_factory.mktemp("whole"), [*generated_text(0, 60), *SENTENCES[:3]]
    for settings in (
        WordPieceSettings(path=root / "wordpiece", vocab_size=200),
        ByteBPESettings(path=root / "byte_bpe", kind="byte_bpe", vocab_size=300),
        SentencePieceSettings(path=root / "spm", kind="sentencepiece", vocab_size=150),
    ):
        train(settings, texts).save(settings.path)
    (root / "pretrained").mkdir()
    load(unigram_folder(root / "pretrained")).save(root / "pretrained")
    return {path.name: path for path in root.iterdir()}


@pytest.fixture
def copy(whole: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """Copy a folder, leaving out some files."""

    def copied(kind: str, *without: str) -> Path:
        folder = tmp_path / kind
        shutil.copytree(whole[kind], folder)
        for name in without:
            (folder / name).unlink()
        return folder

    return copied


def refusal(folder: Path) -> str:
    start = time.monotonic()
    with pytest.raises(UserError) as caught:
        load(folder).encode("ab")
    assert time.monotonic() - start < 5
    line = str(caught.value)
    assert "\n" not in line and str(folder) in line
    return line


GARBAGE = {
    "empty": b"", "binary": bytes(range(256)) * 9, "utf-16": "[PAD]\n".encode("utf-16"),
    "deep": b"[" * 200_000, "deep map": b'{"a":' * 100_000, "list": b"[1, 2]", "number": b"17",
    "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
}  # fmt: skip
FILES = {
    "wordpiece": ["vocab.txt", "tokenizer.json"],
    "byte_bpe": ["vocab.json", "merges.txt", "tokenizer.json", "special_tokens_map.json"],
    "spm": ["sentencepiece.model"],
    "pretrained": ["tokenizer.json", "tokenizer_config.json"],
}


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, names in FILES.items() for n in names])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_r20_garbage_is_told_in_one_line(
    kind: str, name: str, garbage: str, copy: Callable[..., Path]
) -> None:
    folder = copy(kind)
    (folder / name).write_bytes(GARBAGE[garbage])
    assert name in refusal(folder)


@pytest.mark.parametrize("count", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_r20_damaged_files_give_a_one_line_error_or_a_tokenizer(
    count: int, copy: Callable[..., Path], capfd: Any
) -> None:
    """Random damages: pieces put in and cut out, bytes changed, ends cut off."""
    rng = random.Random(0)
    folders = {kind: copy(kind) for kind in FILES}
    cases = [(folder, name) for kind, folder in folders.items() for name in FILES[kind]]
    kept = {folder: saved_bytes(folder) for folder in folders.values()}
    refused = 0
    for trial in range(count):
        folder, name = cases[trial % len(cases)]
        content = bytearray(kept[folder][name])
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(content) + 1)
            odd = [b"\xff", b"[]", b"null", b"", b"\n", b"9223372036854775808", b"-1", b'"', b"\0"]
            content[at : at + rng.randint(0, 6)] = rng.choice(odd)
            if rng.random() < 0.1:
                del content[rng.randrange(len(content) + 1) :]
        (folder / name).write_bytes(content)
        try:
            load(folder).encode_batch(["ab the", "é\0"])
        except UserError as error:
            refused += 1
            assert "\n" not in str(error) and str(folder) in str(error)
        (folder / name).write_bytes(kept[folder][name])
    assert refused > count // 2
    assert capfd.readouterr() == ("", "")


def edited(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text("utf-8"))
    change(content)
    written(path, json.dumps(content))


def cut(model: dict[str, Any], kept: int) -> None:
    model["merges"] = model["merges"][:kept]


def number(pieces: dict[str, Any], piece: str, value: object) -> None:
    pieces[piece] = value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: number(v, "the", 2**63), "comes next"),
        (lambda v: number(v, "Ġ", 7), "are not 0 to 299, each once"),
        (lambda v: number(v, "Ġ", -1), "are not 0 to"),
        (lambda v: number(v, "Ġ", 1.5), "must map pieces to ids"),
        (lambda v: number(v, "Ġ", True), "must map pieces to ids"),
        (lambda v: v.pop("Ġ"), "are not 0 to"),
        (lambda v: number(v, "\ud800", 300), "not UTF-8"),
        (lambda v: number(v, "", 300), "empty"),
        (lambda v: number(v, "é?", v.pop("Ġ")), "no 'Ġ', a byte's letter"),
    ],
)  # fmt: skip
def test_a_wrong_vocab_json_is_told(
    change: Callable[[Any], object], message: str, copy: Callable[..., Path]
) -> None:
    folder = copy("byte_bpe", "tokenizer.json")
    edited(folder / "vocab.json", change)
    assert message in refusal(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Ġ zzz", "merges.txt:5: 'zzz' is not in the vocabulary"),
        ("Ġ Ġ", "merges.txt:5: 'ĠĠ' is not in the vocabulary"),
        ("ab", "merges.txt:5: 'ab'; a merge is two pieces"),
        ("a b c", "merges.txt:5: 'a b c'; a merge"),
        ("", "merges.txt:5: ''; a merge"),
        (" a", "merges.txt:5: ' a'; a merge"),
    ],
)
def test_a_wrong_merge_is_told_with_its_line(
    line: str, message: str, copy: Callable[..., Path]
) -> None:
    folder = copy("byte_bpe", "tokenizer.json")
    lines = (folder / "merges.txt").read_text("utf-8").split("\n")
    written(folder / "merges.txt", "\n".join([*lines[:4], line, *lines[4:]]))
    assert message in refusal(folder)
    written(folder / "merges.txt", "\n".join([*lines[:4], lines[3], *lines[4:]]))
    assert "merges.txt:5: the merge" in refusal(folder)
    (folder / "merges.txt").write_bytes(b"#version\n\xff \xff\n")
    assert "merges.txt:2: not UTF-8" in refusal(folder)


def test_merges_with_windows_line_ends_or_without_a_version_are_the_same(
    copy: Callable[..., Path],
) -> None:
    folder = copy("byte_bpe")
    expected = load(folder).fingerprint
    (folder / "tokenizer.json").unlink()
    merges = (folder / "merges.txt").read_text("utf-8")
    for text in (merges.replace("\n", "\r\n"), merges.partition("\n")[2], merges.rstrip("\n")):
        (folder / "merges.txt").write_bytes(text.encode())
        assert load(folder).fingerprint == expected


@pytest.mark.parametrize("kept", [0, 1, 20])
@pytest.mark.parametrize("alone", [True, False])
def test_merges_that_are_cut_off_are_told(
    kept: int, alone: bool, copy: Callable[..., Path]
) -> None:
    """Else every piece that no merge makes would be a special token, which text cannot have."""
    folder = copy("byte_bpe", *(["tokenizer.json"] if alone else ["vocab.json", "merges.txt"]))
    if alone:
        lines = (folder / "merges.txt").read_text("utf-8").split("\n")
        written(folder / "merges.txt", "\n".join(lines[:kept]))
    else:
        edited(folder / "tokenizer.json", lambda v: cut(v["model"], kept))
    said = refusal(folder)
    assert ("merges.txt: no merge makes" if alone else "tokenizer.json: no merge makes") in said
    assert f"the list of {max(0, kept - alone)} merges cut off?" in said


def test_a_vocabulary_like_robertas_is_read(tmp_path: Path) -> None:
    """Fillers and special tokens that no merge makes, among them one that only a map declares."""
    folder = small_gpt2(tmp_path)
    new = ["madeupword0000", "madeupword0001", "<mask>", "[X]", "ENDE"]
    edited(folder / "vocab.json", lambda v: v.update({p: len(v) + n for n, p in enumerate(new)}))
    assert "no merge makes the piece 'ENDE'" in refusal(folder)
    for key, value in [
        ("sep_token", "ENDE"),
        ("additional_special_tokens", ["ENDE"]),
        ("added_tokens_decoder", {"267": {"content": "ENDE"}}),
    ]:
        written(folder / "tokenizer_config.json", json.dumps({key: value}))
        assert sorted(load(folder).special_ids) == [*range(262, 268)]


@pytest.mark.parametrize("kind", [WordPiece, ByteBPE, SentencePiece, Pretrained])
def test_a_reader_of_one_kind_tells_folders_of_another(
    kind: Any, whole: dict[str, Path], tmp_path: Path
) -> None:
    for folder in (*whole.values(), tmp_path):
        fits = (folder / "tokenizer.json").is_file() if kind is Pretrained else False
        if not fits and not isinstance(kind_of(folder), kind):
            with pytest.raises(UserError, match=str(folder)):
                kind.read(folder)


def kind_of(folder: Path) -> object:
    return load(folder) if any(folder.iterdir()) else None


def test_contradicting_files_of_byte_bpe_are_told(copy: Callable[..., Path]) -> None:
    folder = copy("byte_bpe")
    edited(folder / "special_tokens_map.json", lambda v: number(v, "mask_token", "<nomask>"))
    edited(folder / "tokenizer_config.json", lambda v: v.pop("mask_token"))
    assert "'<nomask>' as mask token" in refusal(folder)
    edited(folder / "special_tokens_map.json", lambda v: number(v, "mask_token", "the"))
    assert "'the' as mask token" in refusal(folder)
    edited(folder / "vocab.json", lambda v: v.update({"a": v["b"], "b": v["a"]}))
    assert "vocab.json and tokenizer.json differ" in refusal(folder)
    (folder / "vocab.json").unlink()
    lines = (folder / "merges.txt").read_text("utf-8").split("\n")
    written(folder / "merges.txt", "\n".join(lines[:-2]) + "\n")
    assert "merges.txt and tokenizer.json differ" in refusal(folder)
    (folder / "tokenizer.json").unlink()
    assert "vocab.json: missing" in refusal(folder)


def test_files_of_two_kinds_are_told(copy: Callable[..., Path], whole: dict[str, Path]) -> None:
    folder = copy("byte_bpe")
    shutil.copy(whole["wordpiece"] / "vocab.txt", folder)
    assert "vocab.txt (wordpiece), vocab.json (byte_bpe)" in refusal(folder)
    folder = copy("spm")
    shutil.copy(whole["wordpiece"] / "vocab.txt", folder)
    assert "files of two kinds" in refusal(folder)
    (folder / "vocab.txt").unlink()
    shutil.copy(folder / "sentencepiece.model", folder / "another.model")
    assert "another.model and sentencepiece.model; one is allowed" in refusal(folder)


def test_a_unigram_tokenizer_json_agrees_with_the_model_beside_it(
    copy: Callable[..., Path], whole: dict[str, Path], tmp_path: Path
) -> None:
    folder = copy("pretrained")
    shutil.copy(whole["spm"] / "sentencepiece.model", folder)
    said = refusal(folder)
    assert "two tokenizers in one folder: sentencepiece.model has the piece" in said
    assert isinstance(load(t5_folder(tmp_path / "t5")), Pretrained)


def t5_folder(folder: Path) -> Path:
    """Write spiece.model and the tokenizer.json of its pieces and more, as T5 has them."""
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    (small_sentence_piece(folder) / "small.model").rename(folder / "spiece.model")
    model = SentencePieceProcessor()
    model.LoadFromFile(str(folder / "spiece.model"))
    pieces = [(model.id_to_piece(i), model.get_score(i)) for i in range(model.vocab_size())]
    backend = Backend(models.Unigram([*pieces, ("<extra_id_0>", 0.0)], unk_id=0))
    backend.add_special_tokens(["<unk>", "<s>", "</s>", "<extra_id_0>"])
    backend.save(str(folder / "tokenizer.json"))
    tokens = {"eos_token": "</s>", "unk_token": "<unk>"}
    written(folder / "tokenizer_config.json", json.dumps({**tokens, "extra_ids": 1}))
    written(folder / "special_tokens_map.json", json.dumps(tokens))
    return folder


def test_a_tokenizer_json_with_dropout_is_told(copy: Callable[..., Path]) -> None:
    folder = copy("pretrained")
    edited(folder / "tokenizer.json", lambda v: number(v["model"], "dropout", 0.1))
    assert "dropout, which makes ids random" in refusal(folder)


@pytest.mark.parametrize("piece", ["Hello", "Привет", "##É"])
def test_cased_pieces_need_a_word_on_lower_casing(piece: str, copy: Callable[..., Path]) -> None:
    folder = copy("wordpiece", "tokenizer.json")
    vocabulary, config = folder / "vocab.txt", folder / "tokenizer_config.json"
    written(vocabulary, vocabulary.read_text("utf-8") + f"[unused-X]\n{piece}\n")
    load(folder)
    edited(config, lambda v: v.update(do_lower_case=False, strip_accents=False))
    assert load(folder).special_ids
    config.unlink()
    said = refusal(folder)
    assert "the pieces are cased, such as" in said and "state do_lower_case" in said
    written(vocabulary, vocabulary.read_text("utf-8").replace(f"{piece}\n", ""))
    load(folder)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("role", ["pad", "cls", "sep", "mask", "unk"])
def test_two_files_that_disagree_on_a_special_token_are_told(
    kind: str, role: str, copy: Callable[..., Path]
) -> None:
    folder, key = copy(kind), f"{role}_token"
    written(folder / "tokenizer_config.json", json.dumps({key: {"content": "<one>"}}))
    written(folder / "special_tokens_map.json", json.dumps({key: "<two>"}))
    assert f"{key} is '<two>' in special_tokens_map.json, '<one>' in" in refusal(folder)


def test_null_in_one_file_leaves_the_word_to_the_other(copy: Callable[..., Path]) -> None:
    folder = copy("byte_bpe")
    expected = load(folder).special
    edited(folder / "tokenizer_config.json", lambda v: number(v, "mask_token", None))
    assert load(folder).special == expected


@pytest.mark.parametrize("alone", [True, False])
def test_wordpiece_with_another_token_for_a_role_is_told(
    alone: bool, copy: Callable[..., Path]
) -> None:
    folder = copy("wordpiece", *(["tokenizer.json"] if alone else []), "special_tokens_map.json")
    edited(folder / "tokenizer_config.json", lambda v: number(v, "cls_token", "<s>"))
    assert "names '<s>' as cls token; this kind has only [CLS]" in refusal(folder)


def test_settings_that_a_kind_does_not_have_are_told(copy: Callable[..., Path]) -> None:
    for kind, key in [("byte_bpe", "add_prefix_space"), ("spm", "do_lower_case")]:
        folder = copy(kind)
        written(folder / "tokenizer_config.json", json.dumps({key: False}))
        load(folder)
        written(folder / "tokenizer_config.json", json.dumps({key: True}))
        said = refusal(folder)
        assert key in said and "not supported" in said


@pytest.mark.parametrize("kind", FILES)
def test_added_tokens_must_be_in_the_vocabulary(kind: str, copy: Callable[..., Path]) -> None:
    folder = copy(kind)
    known = load(folder)
    unknown = known.unk_id or 0
    name = {"wordpiece": "[UNK]", "byte_bpe": "!", "spm": "[UNK]", "pretrained": "<unk>"}[kind]
    if kind == "byte_bpe":
        unknown = known.encode("!")[0]
    added = folder / "added_tokens.json"
    written(added, json.dumps({name: unknown}))
    load(folder)
    for wrong in (
        {"<new>": known.vocab_size},
        {"<new>": unknown},
        {name: unknown + 1},
        {name: "1"},
    ):
        written(added, json.dumps(wrong))
        assert "added_tokens.json: the vocabulary has no token" in refusal(folder)


def test_a_file_too_large_for_a_vocabulary_is_not_read(copy: Callable[..., Path]) -> None:
    for kind, name in [("spm", "sentencepiece.model"), ("wordpiece", "vocab.txt")]:
        folder = copy(kind)
        with (folder / name).open("ab") as file:
            file.truncate(MAX_FILE + 1)
        assert "67,108,865 bytes" in refusal(folder)


def test_a_folder_or_name_that_is_not_there_is_told_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fetch(str(tmp_path)) == tmp_path
    with pytest.raises(UserError, match="does nothing with a folder"):
        fetch(str(tmp_path), "main")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for name in (str(tmp_path / "gone"), "no-such-owner/no-such-name"):
        start = time.monotonic()
        with pytest.raises(UserError, match=r"tokenizer.name = .*: no such folder, and the hub"):
            fetch(name)
        assert time.monotonic() - start < 10
