"""Corpora: the text as it is in the files, once, and nothing that no longer fits it."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import os
import random
import resource
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from ala_encoder import corpus, manifests
from ala_encoder.corpus import prepare
from ala_encoder.errors import UserError
from ala_encoder.files import locked
from ala_encoder.lines import Reading
from ala_encoder.manifests import Manifest
from ala_encoder.named_datasets import NamedDataset
from ala_encoder.sources import TextSource
from ala_encoder.tokenizer import SPECIAL_TOKENS, Normalisation, Tokenizer, WordPiece

LETTERS = "abcdefghij"
SEP = SPECIAL_TOKENS.index("[SEP]")
UNK = SPECIAL_TOKENS.index("[UNK]")


def tokenizer(*more: str, lower: bool = True) -> Tokenizer:
    """One piece a letter; words of several letters are cut into letters."""
    pieces = [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), *more]
    return WordPiece(pieces, Normalisation(do_lower_case=lower))


def ids(words: str) -> list[int]:
    """Return the ids of single letters; `|` is [SEP] and `?` is [UNK]."""
    return [{"|": SEP, "?": UNK}.get(c, 5 + LETTERS.find(c)) for c in words if c != " "]


def silent(_: str) -> None:
    pass


def names(folder: Path) -> list[str]:
    """Return what is in a folder but for lock files."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "corpus"


def source(tmp_path: Path, train: bytes | str, valid: bytes | str = "a b\n") -> TextSource:
    files = {}
    for split, text in (("train", train), ("valid", valid)):
        path = tmp_path / f"{split}.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        files[split] = [path]
    return TextSource("toy", "nobody", files)


def open_tokens(folder: Path, used: Tokenizer | None = None, **options: bool) -> dict[str, Any]:
    """Read the manifest and open the arrays, as an evaluation does."""
    return corpus.open_tokens(folder, manifests.read(folder), used or tokenizer(), **options)


def tokens_of(tmp_path: Path, text: bytes | str) -> list[int]:
    """Prepare a training text and return its tokens."""
    where = tmp_path / "c"
    found = source(tmp_path, text)
    prepare(where, found, tokenizer(), say=silent)
    tokens: list[int] = open_tokens(where)["train"].tolist()
    return tokens


def refusal(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Reading text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b\nc\n", "a b c |"),
        ("a\n\nb\n", "a | b |"),
        ("a\n\n\n\n\nb\n\n\n", "a | b |"),
        ("\n\n\na\n", "a |"),
        ("a", "a |"),  # B20: no final LF
        ("a\n   \nb", "a | b |"),
        ("a\r\nb\r\n\r\nc\r\n", "a b | c |"),
        ("a\u2028b\nc", "a b c |"),
        ("a\u2028\u2029\x85\x0b\x0cb", "a b |"),
        ("a z b", "a ? b |"),
        ("A B", "a b |"),
        ("\ufeffa\nb", "a b |"),
    ],
)
def test_b20_a_text_is_its_tokens_with_one_separator_a_document(
    text: str, expected: str, tmp_path: Path
) -> None:
    assert tokens_of(tmp_path, text) == ids(expected)


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("text", ["", "\n", "   \n \t\n\n", "\u200b\n", b"\xef\xbb\xbf"])
def test_b20_a_text_without_a_token_is_refused_by_name(
    split: str, text: str | bytes, tmp_path: Path, folder: Path
) -> None:
    texts = {"train": "a\n", "valid": "a\n", split: text}
    line = refusal(prepare, folder, source(tmp_path, **texts), tokenizer(), say=silent)
    assert f"data.source.{split}" in line
    assert f"{split}.txt" in line
    assert names(tmp_path) == ["train.txt", "valid.txt"]


def test_b21_text_that_is_not_utf_8_is_told_with_file_and_line(
    tmp_path: Path, folder: Path
) -> None:
    line = refusal(prepare, folder, source(tmp_path, b"a\nb \xe9\n"), tokenizer(), say=silent)
    assert "train.txt:2" in line
    assert "bytes e9 at byte 2" in line
    assert not folder.exists()


def test_gzip_is_read_as_the_text_in_it(tmp_path: Path, folder: Path) -> None:
    found = source(tmp_path, "")
    packed = tmp_path / "more.txt.gz"
    packed.write_bytes(gzip.compress(b"a b\n") + gzip.compress(b"c\n\nd"))  # as `cat` joins them
    found.files["train"].append(packed)
    prepare(folder, found, tokenizer(), say=silent)
    assert open_tokens(folder)["train"].tolist() == ids("a b c | d |")


@pytest.mark.parametrize("damage", ["no gzip", "cut", "flipped", "bad magic"])
def test_a_broken_gzip_is_refused_by_name_and_leaves_nothing(
    damage: str, tmp_path: Path, folder: Path
) -> None:
    whole = gzip.compress("".join(random.Random(0).choices("abc \n", k=5000)).encode())
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 4
    content = {"no gzip": b"a b c", "cut": whole[:-20], "flipped": bytes(flipped),
               "bad magic": b"\x1f\x8c" + whole[2:]}[damage]  # fmt: skip
    found = source(tmp_path, "a")
    found.files["train"] = [tmp_path / "broken.gz"]
    (tmp_path / "broken.gz").write_bytes(content)
    assert "broken.gz: cannot be read" in refusal(prepare, folder, found, tokenizer(), say=silent)
    assert names(tmp_path) == ["broken.gz", "train.txt", "valid.txt"]


def test_documents_do_not_reach_from_one_file_into_the_next(tmp_path: Path, folder: Path) -> None:
    found = source(tmp_path, "a\nb")
    (tmp_path / "zz.txt").write_text("c\n\nd")
    found.files["train"].append(tmp_path / "zz.txt")
    record = prepare(folder, found, tokenizer(), say=silent).train
    assert open_tokens(folder)["train"].tolist() == ids("a b | c | d |")
    assert (record.documents, record.paragraphs) == (3, 4)


@pytest.mark.parametrize("paragraphs", [1, 3, 4, 5, 8, 9, 4001])
@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\n\n\nb", "\n\n\u200b"])
def test_a_long_document_has_one_separator_at_its_true_end(
    paragraphs: int, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if paragraphs < 4000:  # and once with the real number of paragraphs a part
        monkeypatch.setattr(corpus, "_CHUNK", 4)
    text = "\n".join(["a"] * paragraphs) + end
    expected = ids("a" * paragraphs + "|") + (ids("b|") if end.endswith("b") else [])
    assert tokens_of(tmp_path, text) == expected
    record = manifests.read(tmp_path / "c").train
    assert record.documents == (2 if end.endswith("b") else 1)
    assert record.tokens == len(expected)


def test_a_random_text_equals_a_loop_over_its_characters(tmp_path: Path) -> None:
    draw = random.Random(3)
    for trial in range(30):
        text = "".join(draw.choices("ab?  \n\n\r\u2028", k=300)) + "a"
        where = tmp_path / str(trial)
        where.mkdir()
        assert tokens_of(where, text) == by_hand(text)


def by_hand(text: str) -> list[int]:
    """Letters, `?` for a word of unknown letters, a separator after each document."""
    found: list[int] = []
    open_document = False
    for line in text.split("\n"):
        if not line.strip():
            found += [SEP] if open_document else []
            open_document = False
            continue
        open_document = True
        for word in line.replace("?", " ? ").split():
            inside = len(LETTERS)
            found += [UNK] if word == "?" else [
                5 + LETTERS.find(c) + (inside if i else 0) for i, c in enumerate(word)
            ]  # fmt: skip
    return found + ([SEP] if open_document else [])


# Folders


def test_a_corpus_that_is_current_is_left_as_it_is(tmp_path: Path, folder: Path) -> None:
    found = source(tmp_path, "a b\n")
    first = prepare(folder, found, tokenizer(), say=silent)
    before = {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.iterdir()}
    said: list[str] = []
    assert prepare(folder, found, tokenizer(), say=said.append) == first
    after = {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.iterdir()}
    assert after == before
    assert "is current" in said[0]


def test_b18_a_touched_file_with_the_same_content_is_accepted(tmp_path: Path, folder: Path) -> None:
    found = source(tmp_path, "a b\n")
    prepare(folder, found, tokenizer(), say=silent)
    os.utime(found.files["train"][0], (1, 1))
    prepare(folder, found, tokenizer(), say=silent)
    assert len(open_tokens(folder)["train"]) == 3


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("content", [b"a c\n", b"a b c\n"])
def test_b18_changed_text_is_refused_whatever_its_size(
    split: str, content: bytes, tmp_path: Path, folder: Path
) -> None:
    found = source(tmp_path, "a b\n")
    prepare(folder, found, tokenizer(), say=silent)
    found.files[split][0].write_bytes(content)
    os.utime(found.files[split][0], (1, 1))
    line = refusal(prepare, folder, found, tokenizer(), say=silent)
    assert f"{split}.txt has changed since" in line


def test_b18_another_size_is_refused_even_at_the_same_time(tmp_path: Path, folder: Path) -> None:
    found = source(tmp_path, "a b\n")
    prepare(folder, found, tokenizer(), say=silent)
    file = found.files["train"][0]
    before = file.stat()
    file.write_text("a b c\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    line = refusal(prepare, folder, found, tokenizer(), say=silent)
    assert "train.txt has changed since" in line


def test_b18_text_edited_behind_its_old_time_is_refused(tmp_path: Path, folder: Path) -> None:
    found = source(tmp_path, "a b\n")
    prepare(folder, found, tokenizer(), say=silent)
    file = found.files["train"][0]
    before = file.stat()
    while file.stat().st_ctime_ns == before.st_ctime_ns:
        file.write_text("a c\n")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    line = refusal(prepare, folder, found, tokenizer(), say=silent)
    assert "train.txt has changed since" in line


def test_b18_a_manifest_without_change_times_is_compared_by_content(
    tmp_path: Path, folder: Path
) -> None:
    found = source(tmp_path, "a b\n")
    manifest = prepare(folder, found, tokenizer(), say=silent).model_dump(mode="json")
    for split in ("train", "valid"):
        for record in manifest[split]["files"]:
            del record["ctime_ns"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    prepare(folder, found, tokenizer(), say=silent)


@pytest.mark.parametrize(
    "other", [tokenizer("zz"), tokenizer(lower=False)], ids=["pieces", "normalisation"]
)
def test_b18_another_tokenizer_is_refused(other: Tokenizer, tmp_path: Path, folder: Path) -> None:
    found = source(tmp_path, "a b\n")
    prepare(folder, found, tokenizer(), say=silent)
    assert "another tokenizer" in refusal(prepare, folder, found, other, say=silent)
    assert "another tokenizer" in refusal(open_tokens, folder, other)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_b18_other_files_are_refused(split: str, tmp_path: Path, folder: Path) -> None:
    found = source(tmp_path, "a b\n")
    prepare(folder, found, tokenizer(), say=silent)
    extra = tmp_path / "extra.txt"
    extra.write_text("c")
    more = {**found.files, split: [*found.files[split], extra]}
    line = refusal(prepare, folder, TextSource("toy", "", more), tokenizer(), say=silent)
    assert f"other {split} files" in line
    assert "extra.txt" in line
    fewer = {**found.files, split: [extra]}
    line = refusal(prepare, folder, TextSource("toy", "", fewer), tokenizer(), say=silent)
    assert f"other {split} files" in line


def test_a_folder_of_something_else_is_never_overwritten(tmp_path: Path, folder: Path) -> None:
    found = source(tmp_path, "a\n")
    folder.mkdir()
    (folder / "precious").write_text("x")
    assert "no corpus" in refusal(prepare, folder, found, tokenizer(), say=silent)
    assert (folder / "precious").read_text() == "x"
    file = tmp_path / "file"
    file.write_text("x")
    assert "a file" in refusal(prepare, file, found, tokenizer(), say=silent)
    assert "cannot write" in refusal(prepare, file / "sub", found, tokenizer(), say=silent)
    empty = tmp_path / "empty"
    empty.mkdir()
    prepare(empty, found, tokenizer(), say=silent)
    assert sorted(path.name for path in empty.iterdir()) == [
        "manifest.json", "train.bin", "valid.bin"
    ]  # fmt: skip


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Let no file grow past 1,000 bytes, as on a full disk or at a quota."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_r8_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, folder: Path) -> None:
    found = source(tmp_path, "a b c\n" * 10_000)
    with full_disk():
        line = refusal(prepare, folder, found, tokenizer(), say=silent)
    assert line == f"{folder}: cannot be written: File too large"
    assert names(tmp_path) == ["train.txt", "valid.txt"]


def test_text_that_is_gone_is_told_as_text_and_not_as_a_folder_that_cannot_be_written(
    tmp_path: Path, folder: Path
) -> None:
    found = source(tmp_path, "a\n")
    found.files["valid"][0].unlink()
    line = refusal(prepare, folder, found, tokenizer(), say=silent)
    assert line == f"{tmp_path}/valid.txt: cannot be read: No such file or directory"
    assert names(tmp_path) == ["train.txt"]
    (tmp_path / "valid.txt").write_text("a\n")
    prepare(folder, found, tokenizer(), say=silent)
    (tmp_path / "valid.txt").unlink()
    line = refusal(prepare, folder, found, tokenizer(), say=silent)
    assert line == f"{tmp_path}/valid.txt: cannot be read: No such file or directory"


def test_what_a_killed_builder_left_is_removed_by_the_next(tmp_path: Path, folder: Path) -> None:
    killed = f"""
import os, signal
from pathlib import Path
from ala_encoder import corpus, manifests
from tests.test_corpus import source, tokenizer
manifests.sha256_of = lambda path: os.kill(os.getpid(), signal.SIGKILL)
here = Path({str(tmp_path)!r})
corpus.prepare(here / "corpus", source(here, "a"), tokenizer())
"""
    subprocess.run([sys.executable, "-c", killed], check=False)
    assert len(names(tmp_path)) == 3
    prepare(folder, source(tmp_path, "a"), tokenizer(), say=silent)
    assert names(tmp_path) == ["corpus", "train.txt", "valid.txt"]


def test_a_corpus_is_readable_by_the_group_as_other_folders_are(
    tmp_path: Path, folder: Path
) -> None:
    prepare(folder, source(tmp_path, "a\n"), tokenizer(), say=silent)
    other = tmp_path / "other"
    other.mkdir()
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


# Damage


@pytest.fixture
def made(tmp_path: Path, folder: Path) -> Path:
    prepare(folder, source(tmp_path, "a b c d e\n" * 40), tokenizer(), say=silent)
    return folder


def test_r6_every_flipped_bit_of_an_array_is_detected(made: Path) -> None:
    path = made / "train.bin"
    whole = path.read_bytes()
    for place in random.Random(0).sample(range(8 * len(whole)), 100):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        line = refusal(open_tokens, made)
        assert "train.bin: SHA-256" in line
    path.write_bytes(whole)
    assert len(open_tokens(made)["train"]) == 201


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("split", ["train", "valid"])
def test_r7_a_cut_longer_or_missing_array_is_detected(split: str, verify: bool, made: Path) -> None:
    path = made / f"{split}.bin"
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:-2], b"", whole + b"\0\0", None):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        line = refusal(open_tokens, made, verify=verify)
        assert f"{split}.bin: {-1 if content is None else len(content)} bytes" in line


def changed(manifest: Manifest, path: str, value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(manifest.model_dump_json())
    *above, last = path.split(".")
    node = copy
    for key in above:
        node = node[key]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return copy


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("dtype", "O"), ("dtype", ">u2"), ("dtype", None), ("format", 4), ("format", "3"),
        ("train", None), ("valid", []), ("extra", {}), ("tokenizer", None),
        ("tokenizer", 3), ("train.tokens", "201"), ("train.tokens", -1),
        ("train.tokens", 200), ("train.sha256", None), ("train.files", [{}]),
        ("train.sha256", "0" * 64), ("train.files", 5), ("vocab_size", 0),
        ("train.reading.skipped", -1), ("train.reading.on_bad_row", "stop"),
        ("valid.reading.extra", 1), ("valid.reading", 3),
    ],
)  # fmt: skip
def test_r20_a_damaged_manifest_is_refused(path: str, value: Any, made: Path) -> None:
    file = made / "manifest.json"
    file.write_text(json.dumps(changed(manifests.read(made), path, value)))
    assert str(made) in refusal(open_tokens, made)


@pytest.mark.parametrize("content", ["", "[]", "3", "{", "[" * 100_000, "\xff", '{"format": 1}'])
def test_r20_a_manifest_that_is_none_is_refused(content: str, made: Path) -> None:
    (made / "manifest.json").write_bytes(content.encode("latin-1"))
    assert "manifest.json" in refusal(manifests.read, made)


def test_a_folder_without_a_corpus_says_what_to_run(tmp_path: Path) -> None:
    line = refusal(manifests.read, tmp_path / "nothing")
    assert "run prepare_data first" in line


# Widths


@pytest.mark.parametrize(("size", "dtype"), [(65_536, "<u2"), (65_537, "<u4"), (70_001, "<u4")])
def test_b17_the_width_of_an_id_follows_from_the_vocabulary(
    size: int, dtype: str, tmp_path: Path, folder: Path
) -> None:
    words = [f"w{i}" for i in range(size - 5)]
    big = WordPiece([*SPECIAL_TOKENS, *words], Normalisation())
    found = source(tmp_path, f"w{size - 6} w0\n", "w1")
    manifest = prepare(folder, found, big, say=silent)
    tokens = open_tokens(folder, big)["train"]
    assert (manifest.dtype, tokens.dtype) == (dtype, np.dtype(dtype))
    assert tokens.tolist() == [size - 1, 5, SEP]
    assert (folder / "train.bin").read_bytes() == np.array([size - 1, 5, SEP], dtype).tobytes()


def test_b17_an_array_too_narrow_for_the_vocabulary_is_refused(
    tmp_path: Path, folder: Path
) -> None:
    words = [f"w{i}" for i in range(70_000)]
    big = WordPiece([*SPECIAL_TOKENS, *words], Normalisation())
    manifest = prepare(folder, source(tmp_path, "w69999\n", "w1"), big, say=silent)
    narrow = {**changed(manifest, "train.tokens", 4), "dtype": "<u2"}
    (folder / "manifest.json").write_text(json.dumps(narrow))
    assert "cannot hold 70005 pieces" in refusal(open_tokens, folder, big)


def test_a_manifest_counts_what_is_in_the_array(tmp_path: Path, folder: Path) -> None:
    found = source(tmp_path, "a z b\nz\n\nc\r\n", "b\n")
    manifest = prepare(folder, found, tokenizer(), say=silent)
    record = manifest.train
    counts = {key: value for key, value in record.model_dump().items() if isinstance(value, int)}
    assert counts == {"tokens": 7, "documents": 2, "paragraphs": 3, "words": 5, "unknown": 2}
    assert record.reading == Reading(lines=4, carriage_returns=1)
    assert manifest.column is None
    assert (manifest.name, manifest.credit) == ("toy", "nobody")
    assert manifest.vocab_size == 25
    assert manifests.read(folder) == manifest


def test_a_corpus_of_an_older_version_says_to_prepare_again(made: Path) -> None:
    for older in (1, manifests.FORMAT - 1):
        (made / "manifest.json").write_text(json.dumps({"format": older, "splits": {}}))
        line = refusal(manifests.read, made)
        assert "of an older version, delete the folder and prepare again" in line


# Long paragraphs


def test_a_long_paragraph_is_cut_only_between_words_and_keeps_every_character(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(corpus, "_PART_LENGTH", 8)
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choices(["a", "bc ", "  ", "\t", " d", "é", ". "], k=60))
        counts: Counter[str] = Counter()
        parts = [part for part in corpus._parts([text], counts) if part is not None]
        assert "".join(parts) == text
        assert counts["words"] == len(text.split())
        tokens = [token for part in parts for token in tokenizer().encode(part)]
        assert tokens == tokenizer().encode(text)


def test_b20_a_line_of_6_megabytes_without_a_space_stays_in_memory(
    tmp_path: Path, folder: Path
) -> None:
    found = source(tmp_path, "漢字仮名" * 500_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    record = prepare(folder, found, tokenizer(), say=silent).train
    assert (record.tokens, record.paragraphs) == (2_000_001, 1)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 600 << 10  # KiB; uncut it is 860 MiB, and 2.1 GiB at 15 MB


# Tables, data sets and options


def jsonl(path: Path, texts: list[object]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_a_row_is_a_document_and_lf_in_it_ends_a_paragraph(tmp_path: Path, folder: Path) -> None:
    found = dataclasses.replace(source(tmp_path, ""), column="text")
    texts = ["a\nb\n\nc", "", " \n", "d\r\n\ufeffa"]
    found.files["train"] = [jsonl(tmp_path / "t.jsonl", list(texts))]
    record = prepare(folder, found, tokenizer(), say=silent).train
    assert open_tokens(folder)["train"].tolist() == ids("a b c | d a |")
    assert (record.documents, record.paragraphs, record.words) == (2, 5, 5)
    assert (record.reading.carriage_returns, record.reading.byte_order_marks) == (1, 1)


def test_skipped_rows_are_told_when_built_and_when_found_and_all_bad_is_an_error(
    tmp_path: Path, folder: Path
) -> None:
    found = dataclasses.replace(source(tmp_path, ""), column="text")
    found.files["train"] = [jsonl(tmp_path / "t.jsonl", ["a", None, 3, "b"])]
    said: list[str] = []
    manifest = prepare(folder, found, tokenizer(), on_bad_row="skip", say=said.append)
    assert (manifest.train.documents, manifest.train.reading.skipped) == (2, 2)
    assert "train: 2 bad rows were skipped, the first: " in said[1]
    assert "t.jsonl:2" in said[1]
    prepare(folder, found, tokenizer(), on_bad_row="skip", say=said.append)
    assert "is current" in said[2]
    assert said[3:] == said[1:2]
    jsonl(tmp_path / "t.jsonl", [None, 3])
    line = refusal(prepare, tmp_path / "other", found, tokenizer(), on_bad_row="skip", say=silent)
    assert "no token" in line
    assert "2 bad rows, the first:" in line
    assert "t.jsonl:1: column 'text' holds null" in line


def test_b18_other_options_are_refused(tmp_path: Path, folder: Path) -> None:
    found = dataclasses.replace(source(tmp_path, ""), column="text")
    found.files["train"] = [jsonl(tmp_path / "t.jsonl", ["a"])]
    prepare(folder, found, tokenizer(), say=silent)
    other = dataclasses.replace(found, column="body")
    line = refusal(prepare, folder, other, tokenizer(), say=silent)
    assert "made with column = text, not body" in line
    line = refusal(prepare, folder, found, tokenizer(), on_bad_row="skip", say=silent)
    assert "made with on_bad_row = error, not skip" in line


def test_b18_another_data_set_or_changed_rows_are_refused(tmp_path: Path, folder: Path) -> None:
    def of(slice_: str, texts: list[str], name: str = "toy") -> TextSource:
        saved = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": texts})})
        saved.save_to_disk(tmp_path / name)
        return TextSource(
            name, "", dataset=NamedDataset(str(tmp_path / name)), column="text",
            slices={"train": slice_, "valid": "train[-1:]"},
        )  # fmt: skip

    datasets.disable_progress_bars()
    found = of("train[:2]", ["a", "b", "c"])
    prepare(folder, found, tokenizer(), say=silent)
    assert open_tokens(folder)["train"].tolist() == ids("a | b |")
    prepare(folder, of("train[:2]", ["a", "b", "c"]), tokenizer(), say=silent)
    for other, told in (
        (of("train[:1]", ["a", "b", "c"]), "another train data set"),
        (of("train[:2]", ["a", "b", "c"], "b"), "another train data set"),
        (of("train[:2]", ["a", "d", "c"]), "toy[train[:2]] has changed since"),
        (source(tmp_path, "a"), "column"),
        (dataclasses.replace(source(tmp_path, "a"), column="text"), "another train data set"),
    ):
        assert told in refusal(prepare, folder, other, tokenizer(), say=silent)


# Several processes


_PREPARE = """
import sys
from pathlib import Path
from ala_encoder.corpus import prepare
from tests.test_corpus import six_documents, tokenizer
folder = Path(sys.argv[1])
say = lambda line: print(line, flush=True)
print(prepare(folder, six_documents(folder.parent), tokenizer(), say=say).train)
"""


def six_documents(folder: Path) -> TextSource:
    files = {"train": [folder / "six.jsonl"], "valid": [folder / "valid.txt"]}
    return TextSource("six", "", files, column="text")


def test_d17_six_documents_prepared_by_four_processes_at_once_are_six(
    tmp_path: Path, folder: Path
) -> None:
    jsonl(tmp_path / "six.jsonl", list("abcdef"))
    (tmp_path / "valid.txt").write_text("a")
    command = [sys.executable, "-c", _PREPARE, str(folder)]
    with locked(folder):
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        first = [process.stdout.readline() for process in started if process.stdout]
        assert all("another process is at it, waiting" in line for line in first)
    rest = [process.communicate(timeout=60)[0].splitlines() for process in started]
    assert [process.returncode for process in started] == [0] * 4
    assert sorted("is current" in lines[0] for lines in rest) == [False, True, True, True]
    assert len({lines[1] for lines in rest}) == 1
    assert manifests.read(folder).train.documents == 6
    assert names(tmp_path) == ["corpus", "six.jsonl", "valid.txt"]
