"""Parallel corpora: both sides of each pair, aligned, once, and nothing that no longer fits."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from ala_encoder import manifests, parallel_corpus, parallel_manifests
from ala_encoder.parallel import find_sources, pairs
from ala_encoder.parallel_corpus import Pairs, open_pairs, prepare
from ala_encoder.settings.loader import check
from ala_encoder.settings.parallel import TranslationData
from ala_encoder.tokenizer import SPECIAL_TOKENS, Normalisation, Tokenizer, WordPiece, load
from tests.pairs import MULTI30K, PAIRS, files, refusal, settings
from tests.test_corpus import LETTERS, SEP, full_disk, ids, names, silent, tokenizer
from tests.test_tokenizer_fairseq import exactly, moses, trained

SIDES = [f"{split}.{side}.{what}" for split in ("train", "valid", "test")
         for side in ("src", "trg") for what in ("bin", "ends")]  # fmt: skip


def of(tmp_path: Path, own: list[tuple[str, str]], **changes: Any) -> TranslationData:
    """Return settings over letters: the given pairs to train on, few to evaluate on."""
    text = {
        "train": own, "valid": [("a b", "c"), ("", "d"), ("a b c d e f g h", "j")],
        "test": [("a", "b"), ("a", "b")],
    }  # fmt: skip
    given = {
        split: files(tmp_path, split, [s for s, _ in part], [t for _, t in part])
        for split, part in text.items()
    }
    return settings(tmp_path, **given | changes)


def opened(data: TranslationData, used: Tokenizer | None = None, **options: bool) -> Any:
    return open_pairs(data.path, parallel_manifests.read(data.path), used or tokenizer(), **options)


def rows(found: Pairs) -> list[tuple[list[int], list[int]]]:
    both = (found.pair(index) for index in range(len(found)))
    return [(src.tolist(), trg.tolist()) for src, trg in both]


def words(*texts: tuple[str, str]) -> list[tuple[list[int], list[int]]]:
    return [(ids(src + "|"), ids(trg + "|")) for src, trg in texts]


# ---- what is in it


def test_each_pair_is_its_pieces_with_eos_at_both_ends(tmp_path: Path) -> None:
    data = of(tmp_path, [("a b", "c d"), ("e", "f"), ("z", "b")])
    manifest = prepare(data, tokenizer(), say=silent)
    found = opened(data)
    assert rows(found["train"]) == words(("a b", "c d"), ("e", "f"), ("?", "b"))
    assert found["train"].lengths().tolist() == [[3, 3], [2, 2], [2, 2]]
    assert found["train"].lengths().dtype == np.int64
    record = manifest.train
    assert (record.pairs, record.src.tokens, record.trg.tokens) == (3, 7, 7)
    assert (record.src.unknown, record.trg.unknown) == (1, 0)
    assert (manifest.vocab_size, manifest.dtype) == (25, "<u2")
    with pytest.raises(AssertionError):
        found["train"].pair(3)
    with pytest.raises(AssertionError):
        found["train"].pair(-1)


def test_the_held_out_text_is_known_by_its_own_digest(tmp_path: Path) -> None:
    """Not by its place, the tokenizer or the training text."""

    def digest(name: str, own: list[tuple[str, str]], used: Tokenizer, **changes: Any) -> str:
        data = of(tmp_path / name, own, **changes)
        return prepare(data, used, say=silent).held_out_text

    first = digest("a", [("a", "b")], tokenizer())
    assert first == digest("b", [("c d", "e f")], tokenizer("more"))
    turned = files(tmp_path / "turned", "valid", ["", "a b", "a b c d e f g h"], ["d", "c", "j"])
    assert digest("c", [("a", "b")], tokenizer(), valid=turned) != first


def test_b06_evaluation_sets_are_as_they_stand_empty_and_long_lines_and_twins(
    tmp_path: Path,
) -> None:
    cleaning = {"max_length": 3, "max_words": 2, "max_ratio": 1.0}
    data = of(tmp_path, [("a b", "c d")], cleaning=cleaning)
    manifest = prepare(data, tokenizer(), say=silent)
    found = opened(data)
    assert rows(found["valid"]) == words(("a b", "c"), ("", "d"), ("a b c d e f g h", "j"))
    assert rows(found["test"]) == words(("a", "b"), ("a", "b"))
    assert manifest.valid.dropped == {}


def test_c01_a_pair_that_is_too_long_is_dropped_with_a_count_from_train_alone(
    tmp_path: Path,
) -> None:
    long = " ".join("a" * 60)
    data = of(
        tmp_path, [("a", "b"), (long, "b"), ("c", long), ("c", "d")],
        valid=files(tmp_path, "long", [long], [long]),
        cleaning={"max_length": 50, "max_ratio": None},
    )  # fmt: skip
    said: list[str] = []
    manifest = prepare(data, tokenizer(), say=said.append)
    found = opened(data)
    assert rows(found["train"]) == words(("a", "b"), ("c", "d"))
    assert found["valid"].lengths().tolist() == [[61, 61]]
    assert manifest.train.dropped == {"length": 2}
    assert said == [
        f"{data.path}: en-de: train 2 pairs, valid 1 pairs, test 2 pairs",
        "  train: of 4 pairs were dropped 2 of more than max_length",
        "  test: 2 of 2 are in train too",
    ]


def test_what_was_dropped_is_stored_and_told_when_built_and_when_found(tmp_path: Path) -> None:
    train = [("a", ""), ("a b", "c d"), ("a b", "c d"), ("a b c", "d"), ("e", "f"), ("g\r", "h")]
    data = of(tmp_path, train)
    said: list[str] = []
    manifest = prepare(data, tokenizer(), say=said.append)
    assert manifest.train.dropped == {"empty": 1, "duplicate": 1, "ratio": 1}
    assert parallel_manifests.read(data.path) == manifest
    assert said[1:] == [
        "  train: 1 lines ended in CR LF; the CR was stripped",
        "  train: of 6 pairs were dropped 1 with an empty side, 1 as an earlier one, 1 beyond"
        " max_ratio",
    ]
    again: list[str] = []
    prepare(data, tokenizer(), say=again.append)
    assert "is current" in again[0]
    assert again[1:] == said[1:]


def test_the_ratio_is_source_tokens_for_one_target_token(tmp_path: Path) -> None:
    data = of(tmp_path, [("a b c", "d e"), ("a", "b c")], cleaning={"max_ratio": None})
    manifest = prepare(data, tokenizer(), say=silent)
    lengths = opened(data)["train"].lengths()
    assert manifest.ratio == lengths[:, 0].sum() / lengths[:, 1].sum() == 6 / 6
    other = data.model_dump(mode="json") | {"path": str(tmp_path / "other")}
    other["train"] = files(tmp_path, "more", ["a b c", "d"], ["a", "e"])
    assert prepare(check(other, TranslationData), tokenizer(), say=silent).ratio == 6 / 4


def test_random_pairs_stay_aligned_over_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_corpus, "_CHUNK", 7)
    draw = random.Random(2)
    sides: list[list[str]] = [
        [" ".join(draw.choices(LETTERS, k=draw.randint(0, 9))) for _ in range(200)] for _ in "st"
    ]
    train = list(zip(*sides, strict=True))
    off = {"drop_empty": False, "drop_duplicates": False, "max_ratio": None}
    data = of(tmp_path, train, cleaning=off)
    prepare(data, tokenizer(), say=silent)
    assert rows(opened(data)["train"]) == words(*train)


def test_a_languages_own_rules_are_taken_for_its_side(tmp_path: Path) -> None:
    data = settings(tmp_path, cleaning={"max_ratio": None})
    made = trained()
    manifest = prepare(data, made, say=silent)
    found = opened(data, made)
    views = made.of_language("en"), made.of_language("de")
    assert rows(found["train"]) == [
        ([*views[0].encode(src), 2], [*views[1].encode(trg), 2]) for src, trg in PAIRS[:8]
    ]
    back = [[view.decode(side) for view, side in zip(views, row, strict=True)]
            for row in rows(found["train"])]  # fmt: skip
    assert back == [
        [exactly(moses(language)(text), language) for language, text in zip(("en", "de"), pair,
                                                                          strict=True)]
        for pair in PAIRS[:8]
    ]  # fmt: skip
    assert manifest.tokenizer == made.fingerprint
    line = refusal(prepare, settings(tmp_path, trg_lang="fr"), made, say=silent)
    assert "not for language 'fr'; has de, en" in line


# ---- nothing half-written


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_b07_unequal_files_leave_nothing(split: str, tmp_path: Path) -> None:
    data = of(tmp_path, [("a", "b")])
    (tmp_path / f"{split}.de").write_text("a\n" * 9)
    line = refusal(prepare, data, tokenizer(), say=silent)
    assert f"{split}.de: 9 lines" in line
    assert not data.path.exists()
    assert len(names(tmp_path)) == 6


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_b20_a_split_without_a_pair_is_told_by_name(split: str, tmp_path: Path) -> None:
    data = of(tmp_path, [("a", "b")], **{split: files(tmp_path, "none", b"", b"")})
    line = refusal(prepare, data, tokenizer(), say=silent)
    paths = f"{tmp_path}/none.en and {tmp_path}/none.de"
    assert line == f"data.{split}: no pair is left: the text is empty: in {paths}"
    assert not data.path.exists()


def test_a_training_text_of_which_nothing_is_left_says_why(tmp_path: Path) -> None:
    train = files(tmp_path, "own", b"\nab\tc\na b c d\n", b"a\nb\nc\n")
    data = of(tmp_path, [], train=train, on_bad_row="skip")
    line = refusal(prepare, data, tokenizer(), say=silent)
    assert "1 with an empty side, 1 beyond max_ratio; 1 bad ones, the first: " in line


def test_r8_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    data = of(tmp_path, [("a b c", f"d {'e ' * (n % 4)}") for n in range(4000)],
              cleaning={"drop_duplicates": False, "max_ratio": None})  # fmt: skip
    with full_disk():
        line = refusal(prepare, data, tokenizer(), say=silent)
    assert line == f"{data.path}: cannot be written: File too large"
    assert len(names(tmp_path)) == 6


def test_what_a_killed_builder_left_is_removed_by_the_next(tmp_path: Path) -> None:
    data = of(tmp_path, [("a", "b")])
    killed = f"""
import os, signal
from ala_encoder import parallel_corpus
from ala_encoder.settings.loader import check
from ala_encoder.settings.parallel import TranslationData
from tests.test_corpus import tokenizer
parallel_corpus.sha256_of = lambda path: os.kill(os.getpid(), signal.SIGKILL)
parallel_corpus.prepare(check({data.model_dump(mode="json")!r}, TranslationData), tokenizer())
"""
    subprocess.run([sys.executable, "-c", killed], check=False)
    assert len(names(tmp_path)) == 7
    prepare(data, tokenizer(), say=silent)
    assert len(names(tmp_path)) == 7
    assert sorted(path.name for path in data.path.iterdir()) == sorted([*SIDES, "manifest.json"])


# ---- nothing stale


def test_a_corpus_that_is_current_is_left_as_it_is(tmp_path: Path) -> None:
    data = of(tmp_path, [("a", "b")])
    first = prepare(data, tokenizer(), say=silent)
    before = {path: path.stat().st_mtime_ns for path in data.path.iterdir()}
    os.utime(tmp_path / "train.en", (1, 1))
    assert prepare(data, tokenizer(), say=silent) == first
    assert {path: path.stat().st_mtime_ns for path in data.path.iterdir()} == before


@pytest.mark.parametrize("name", ["train.en", "train.de", "valid.de", "test.en"])
def test_b18_changed_text_is_refused_on_either_side(name: str, tmp_path: Path) -> None:
    data = of(tmp_path, [("a", "b")])
    prepare(data, tokenizer(), say=silent)
    content = (tmp_path / name).read_text()
    (tmp_path / name).write_text(content.replace(content[0], "i", 1))
    line = refusal(prepare, data, tokenizer(), say=silent)
    assert f"{name} has changed since; delete it or choose another data.path" in line


def test_b18_another_tokenizer_is_refused_when_made_and_when_opened(tmp_path: Path) -> None:
    data = of(tmp_path, [("a", "b")])
    prepare(data, tokenizer(), say=silent)
    for other in (tokenizer("zz"), tokenizer(lower=False)):
        assert "another tokenizer" in refusal(prepare, data, other, say=silent)
        assert "another tokenizer" in refusal(opened, data, other)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("cleaning", {"max_length": 9}, "data.cleaning.max_length = 250, not 9"),
        ("cleaning", {"drop_empty": False}, "data.cleaning.drop_empty = True, not False"),
        ("cleaning", {"max_ratio": None}, "data.cleaning.max_ratio = 1.5, not None"),
        ("on_bad_row", "skip", "data.on_bad_row = 'error', not 'skip'"),
        ("src_lang", "fr", "data.src_lang = 'en', not 'fr'"),
        ("test", None, "made of train, valid, test, not train, valid"),
    ],
)
def test_b18_other_options_are_refused_by_name(
    key: str, value: Any, told: str, tmp_path: Path
) -> None:
    data = of(tmp_path, [("a", "b")])
    prepare(data, tokenizer(), say=silent)
    other = check(data.model_dump(mode="json") | {key: value}, TranslationData)
    assert told in refusal(prepare, other, tokenizer(), say=silent)


def test_b18_other_files_slices_and_orders_are_refused(tmp_path: Path) -> None:
    data = of(tmp_path, [("a", "b"), ("c", "d")])
    more = files(tmp_path, "more", ["e"], ["f"])
    plain = data.model_dump(mode="json")
    both = {side: [*plain["train"][side], *more[side]] for side in ("src", "trg")}
    data = check(plain | {"train": plain["train"] | both}, TranslationData)
    prepare(data, tokenizer(), say=silent)
    swapped = {side: list(reversed(names)) for side, names in both.items()}
    sliced = {side: [f"{names[0]}[:1]", names[1]] for side, names in both.items()}
    fewer = {side: names[:1] for side, names in both.items()}
    for changes in (swapped, sliced, fewer):
        other = check(plain | {"train": plain["train"] | changes}, TranslationData)
        assert "made with data.train.src = [" in refusal(prepare, other, tokenizer(), say=silent)


def test_b18_a_changed_data_set_is_refused(tmp_path: Path) -> None:
    def saved(*letters: str) -> str:
        data = {"en": list(letters), "de": list(letters)}
        split = datasets.DatasetDict({"train": datasets.Dataset.from_dict(data)})
        split.save_to_disk(tmp_path / "saved")
        return str(tmp_path / "saved")

    datasets.disable_progress_bars()
    text = {"kind": "datasets", "name": saved("a", "b"), "split": "train[:1]"}
    data = of(tmp_path, [], train=text)
    manifest = prepare(data, tokenizer(), say=silent)
    assert rows(opened(data)["train"]) == words(("a", "a"))
    assert manifest.train.dataset is not None
    prepare(data, tokenizer(), say=silent)
    saved("c", "b")
    line = refusal(prepare, data, tokenizer(), say=silent)
    assert "saved[train[:1]] has changed since" in line


def test_a_corpus_may_be_moved(tmp_path: Path) -> None:
    data = of(tmp_path, [("a", "b")])
    prepare(data, tokenizer(), say=silent)
    data.path.rename(tmp_path / "moved")
    moved = check(data.model_dump(mode="json") | {"path": str(tmp_path / "moved")}, TranslationData)
    prepare(moved, tokenizer(), say=silent)
    assert len(opened(moved)["train"]) == 1


# ---- widths and damage


@pytest.mark.parametrize(("size", "dtype"), [(65_536, "<u2"), (65_537, "<u4"), (70_001, "<u4")])
def test_b17_the_width_of_an_id_follows_from_the_vocabulary(
    size: int, dtype: str, tmp_path: Path
) -> None:
    big = WordPiece([*SPECIAL_TOKENS, *(f"w{i}" for i in range(size - 5))], Normalisation())
    data = of(tmp_path, [(f"w{size - 6}", "w0")])
    manifest = prepare(data, big, say=silent)
    found = opened(data, big)["train"]
    assert (manifest.dtype, found.src.dtype) == (dtype, np.dtype(dtype))
    assert rows(found) == [([size - 1, SEP], [5, SEP])]
    if size == 70_001:
        plain = json.loads((data.path / "manifest.json").read_text())
        (data.path / "manifest.json").write_text(json.dumps(plain | {"dtype": "<u2"}))
        assert "cannot hold 70001 pieces" in refusal(opened, data, big)


@pytest.fixture
def made(tmp_path: Path) -> TranslationData:
    train = [(a, b) for a in LETTERS for b in LETTERS]
    data = of(tmp_path, train)
    prepare(data, tokenizer(), say=silent)
    return data


def test_r6_every_flipped_bit_is_detected(made: TranslationData) -> None:
    draw = random.Random(0)
    for name in SIDES:
        path = made.path / name
        whole = path.read_bytes()
        for place in draw.sample(range(8 * len(whole)), 16):
            flipped = bytearray(whole)
            flipped[place // 8] ^= 1 << place % 8
            path.write_bytes(flipped)
            assert f"{name}: SHA-256" in refusal(opened, made)
        path.write_bytes(whole)
    assert len(opened(made)["train"]) == 100


@pytest.mark.parametrize("verify", [True, False])
def test_r7_cut_longer_missing_and_swapped_files_are_detected(
    verify: bool, made: TranslationData
) -> None:
    for name in SIDES:
        path = made.path / name
        whole = path.read_bytes()
        for content in (whole[:-1], b"", whole + b"\0\0", None):
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)
            assert f"{name}: {-1 if content is None else len(content)} bytes" in refusal(
                opened, made, verify=verify
            )
        path.write_bytes(whole)
    src, trg = (made.path / f"train.{side}.bin" for side in ("src", "trg"))
    src.rename(made.path / "aside")
    trg.rename(src)
    (made.path / "aside").rename(trg)
    assert "train.src.bin: SHA-256" in refusal(opened, made)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dtype", "O"), ("format", "parallel-2"), ("format", 3), ("train", None), ("extra", 1),
        ("data", {}), ("data", None), ("vocab_size", 0), ("valid", []), ("tokenizer", 7),
    ],
)  # fmt: skip
def test_r20_a_damaged_manifest_is_refused(key: str, value: Any, made: TranslationData) -> None:
    path = made.path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    assert str(path) in refusal(opened, made)


def test_a_corpus_of_running_text_is_no_parallel_one_nor_the_reverse(
    tmp_path: Path, made: TranslationData
) -> None:
    assert "not a corpus of format" in refusal(manifests.read, made.path)
    (made.path / "manifest.json").write_text('{"format": 3}')
    assert "not a parallel corpus" in refusal(parallel_manifests.read, made.path)
    assert "run prepare_data first" in refusal(parallel_manifests.read, tmp_path / "nothing")


# ---- real text

if MULTI30K.exists():

    def test_multi30k_is_prepared_as_a_plain_loop_would(tmp_path: Path) -> None:
        def text(name: str, rows: str = "") -> dict[str, Any]:
            sides = (("src", "en"), ("trg", "de"))
            return {
                "kind": "files",
                **{side: [f"{MULTI30K / name}.{x}.gz{rows}"] for side, x in sides},
            }

        data = settings(
            tmp_path, train=text("train", "[:4000]"), valid=text("val"),
            test=text("test_2016_flickr"),
        )  # fmt: skip
        made = load(MULTI30K.parent.parent / "tokenizers" / "bert-base-uncased")
        manifest = prepare(data, made, say=silent)
        found = opened(data, made)
        assert [len(found[split]) for split in ("valid", "test")] == [1014, 1000]
        expected, seen, dropped = [], set(), 0
        source = find_sources(data)["train"]
        for _, src, trg in pairs(source, source.reading()):
            sizes = sorted((len(made.encode(src)), len(made.encode(trg))))
            if (src, trg) in seen or sizes[1] / sizes[0] > 1.5 or sizes[1] > 250:
                dropped += 1
            else:
                expected.append(
                    ([*made.encode(src), made.eos_id], [*made.encode(trg), made.eos_id])
                )
            seen.add((src, trg))
        assert rows(found["train"]) == expected
        assert sum(manifest.train.dropped.values()) == dropped > 0
        lengths = np.array([[len(src), len(trg)] for src, trg in expected])
        assert manifest.ratio == lengths[:, 0].sum() / lengths[:, 1].sum()


@pytest.mark.parametrize("drop", [True, False])
def test_held_out_pairs_that_are_trained_on_are_counted_and_told(
    drop: bool, tmp_path: Path
) -> None:
    own = [("a b", "c"), ("a b", "c"), ("d", "e"), ("a", "b")]
    manifest = prepare(
        of(tmp_path, own, cleaning={"drop_duplicates": drop, "max_ratio": None}),
        tokenizer(),
        say=silent,
    )
    assert (manifest.valid.in_train, manifest.test and manifest.test.in_train) == (1, 2)
    assert "valid: 1 of 3 are in train too" in manifest.notes()
