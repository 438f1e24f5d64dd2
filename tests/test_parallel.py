"""Parallel text: found, read in pairs that never shift, or refused with both files named."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest

from ala_encoder.lines import Reading
from ala_encoder.parallel import Pair, ParallelSource, find_sources, pairs, texts
from ala_encoder.settings.loader import check
from ala_encoder.settings.parallel import TranslationData
from ala_encoder.tokenizer import InLanguage
from tests.pairs import MULTI30K, PAIRS, files, refusal, settings, write

BREAKS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\r"


def read(data: TranslationData, split: str = "train") -> tuple[list[tuple[str, str]], Reading]:
    source = find_sources(data)[split]
    reading = source.reading()
    return [(src, trg) for _, src, trg in pairs(source, reading)], reading


def of(tmp_path: Path, src: Any, trg: Any, **changes: Any) -> TranslationData:
    return settings(tmp_path, train=files(tmp_path, "own", src, trg), **changes)


# ---- lines


def test_the_pairs_are_the_lines_in_order_with_their_numbers(tmp_path: Path) -> None:
    source = find_sources(settings(tmp_path))["train"]
    found = list(pairs(source, source.reading()))
    assert found == [Pair(n, *pair) for n, pair in enumerate(PAIRS[:8])]
    assert list(texts(source, source.reading()))[:3] == [
        InLanguage("en", PAIRS[0][0]), InLanguage("de", PAIRS[0][1]), InLanguage("en", PAIRS[1][0])
    ]  # fmt: skip


def test_b01_a_line_separator_inside_a_sentence_ends_no_line(tmp_path: Path) -> None:
    found, _ = read(of(tmp_path, "one\u2028two\nthree\n".encode(), b"eins zwei\ndrei\n"))
    assert found == [("one\u2028two", "eins zwei"), ("three", "drei")]


def test_b04_crlf_on_one_side_is_stripped_and_noted_once(tmp_path: Path) -> None:
    found, reading = read(of(tmp_path, b"a\r\nb\r\n", b"x\ny\n"))
    assert found == [("a", "x"), ("b", "y")]
    assert reading.notes() == ["2 lines ended in CR LF; the CR was stripped"]


def test_b05_byte_order_marks_at_the_start_of_lines_are_stripped(tmp_path: Path) -> None:
    found, reading = read(of(tmp_path, "\ufeffa\n\ufeffb \ufeff\n".encode(), b"x\ny\n"))
    assert found == [("a", "x"), ("b \ufeff", "y")]
    assert reading.byte_order_marks == 2


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_b06_an_empty_line_keeps_its_place(split: str, tmp_path: Path) -> None:
    text = files(tmp_path, "own", b"a\n\nc\nd\n", b"w\n\ny\nz\n")
    found, _ = read(settings(tmp_path, **{split: text}), split)
    assert found == [("a", "w"), ("", ""), ("c", "y"), ("d", "z")]


@pytest.mark.parametrize("policy", ["error", "skip"])
@pytest.mark.parametrize(
    ("src", "trg", "counts"),
    [
        (b"a\nb\nc\n", b"x\ny\n", "own.en: 3 lines, own.de: 2 lines"),
        (b"a\nb\n", b"x\ny\nz", "own.en: 2 lines, own.de: 3 lines"),
        (b"", b"x\n", "own.en: 0 lines, own.de: 1 lines"),
        (b"a\n\n", b"x\n", "own.en: 2 lines, own.de: 1 lines"),
    ],
)
def test_b07_unequal_numbers_of_lines_are_an_error_with_both(
    src: bytes, trg: bytes, counts: str, policy: str, tmp_path: Path
) -> None:
    data = of(tmp_path, src, trg, on_bad_row=policy)
    line = refusal(read, data).replace(f"{tmp_path}/", "")
    assert line == f"{counts}; each line of one must translate that line of the other"


def test_b07_a_bad_line_is_a_line_when_they_are_counted(tmp_path: Path) -> None:
    found, reading = read(of(tmp_path, b"a\n\xff\n", b"x\ny\n", on_bad_row="skip"))
    assert (found, reading.skipped) == ([("a", "x")], 1)
    line = refusal(read, of(tmp_path, b"a\n\xff\n", b"x\n", on_bad_row="skip"))
    assert "own.en: 2 lines" in line
    assert "own.de: 1 lines" in line


@pytest.mark.parametrize(("side", "src", "trg"), [("en", "b\tB", "y"), ("de", "b", "y\tY")])
def test_b09_a_tab_inside_a_sentence_is_a_bad_row_and_shifts_nothing(
    side: str, src: str, trg: str, tmp_path: Path
) -> None:
    lines = ["a", src, "c"], ["x", trg, "z"]
    line = refusal(read, of(tmp_path, *lines))
    assert f"own.{side}:2: a tab inside a sentence" in line
    found, reading = read(of(tmp_path, *lines, on_bad_row="skip"))
    assert found == [("a", "x"), ("c", "z")]
    assert reading.skipped == 1
    assert f"own.{side}:2" in str(reading.first_skipped)


@pytest.mark.parametrize("bad", [b"\xff", b"b\tb", b"b" * (1 << 24) + b"b"])
def test_a_bad_line_takes_its_partner_with_it(bad: bytes, tmp_path: Path) -> None:
    good = [f"a{n}".encode() for n in range(5)], [f"x{n}".encode() for n in range(5)]
    for where in ((0, 0), (1, 0), (0, 4), (1, 4)):
        sides = [list(side) for side in good]
        sides[where[0]][where[1]] = bad
        content = [b"\n".join([*side, b""]) for side in sides]
        found, reading = read(of(tmp_path, content[0], content[1], on_bad_row="skip"))
        expected = [(f"a{n}", f"x{n}") for n in range(5) if n != where[1]]
        assert (found, reading.skipped) == (expected, 1)
        assert f":{where[1] + 1}: " in refusal(read, of(tmp_path, content[0], content[1]))


def test_numbers_go_on_over_skipped_pairs_and_files(tmp_path: Path) -> None:
    text = files(tmp_path, "one", b"a\n\xff\n", b"x\ny\n")
    more = files(tmp_path, "two", b"c\n", b"z\n")
    both = {"kind": "files", "src": text["src"] + more["src"], "trg": text["trg"] + more["trg"]}
    source = find_sources(settings(tmp_path, train=both, on_bad_row="skip"))["train"]
    assert list(pairs(source, source.reading())) == [Pair(0, "a", "x"), Pair(2, "c", "z")]


def test_files_that_agree_only_as_a_whole_are_refused(tmp_path: Path) -> None:
    """Two and one lines beside one and two: each pair of files would shift."""
    text = {
        "kind": "files",
        "src": [write(tmp_path / "1.en", ["a", "b"]), write(tmp_path / "2.en", ["c"])],
        "trg": [write(tmp_path / "1.de", ["x"]), write(tmp_path / "2.de", ["y", "z"])],
    }
    assert "1.en: 2 lines" in refusal(read, settings(tmp_path, train=text))


def test_gzip_is_read_as_the_text_in_it_and_a_broken_one_is_told(tmp_path: Path) -> None:
    src, trg = write(tmp_path / "z.en.gz", ["a", "b"]), write(tmp_path / "z.de", ["x", "y"])
    data = settings(tmp_path, train={"kind": "files", "src": [src], "trg": [trg]})
    assert read(data)[0] == [("a", "x"), ("b", "y")]
    Path(src).write_bytes(gzip.compress(b"a\n" * 5000)[:-9])
    assert "z.en.gz: cannot be read" in refusal(read, data)


def test_b20_odd_files_are_read_or_told(tmp_path: Path) -> None:
    long = "x" * (3 << 20)
    assert read(of(tmp_path, [long], ["y"]))[0] == [(long, "y")]
    assert read(of(tmp_path, b"a\nb", b"x\ny"))[0] == [("a", "x"), ("b", "y")]
    assert read(of(tmp_path, b"   \n", b" \n"))[0] == [("   ", " ")]
    assert read(of(tmp_path, b"", b""))[0] == []
    assert "UTF-16" in refusal(read, of(tmp_path, "ab\n".encode("utf-16-le"), b"x\n"))


def test_b21_text_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    data = of(tmp_path, ["naïve"], ["日本"])
    code = f"""
from ala_encoder.settings.loader import check
from ala_encoder.settings.parallel import TranslationData
from ala_encoder.parallel import find_sources, pairs
data = check({data.model_dump(mode="json")!r}, TranslationData)
source = find_sources(data)["train"]
print(ascii(list(pairs(source, source.reading()))[0][1:]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )  # fmt: skip
    assert done.stdout.strip() == ascii(("naïve", "日本")), done.stderr


def test_r27_as_many_lines_come_out_as_went_in_for_1000_random_files(tmp_path: Path) -> None:
    draw = random.Random(0)
    source = find_sources(of(tmp_path, b"", b""))["train"]
    for _ in range(1000):
        lines: tuple[list[str], list[str]] = ([], [])
        for number in range(draw.randint(1, 8)):
            for side, mark in zip(lines, "st", strict=True):
                noise = "".join(draw.choices(f"ab {BREAKS}\ufeff\xa0", k=draw.randint(0, 6)))
                side.append("" if draw.random() < 0.2 else f"{mark}{number}{noise}")
        ends = [draw.choice((b"\n", b"\r\n")) for _ in lines]
        content = [
            end.join(line.encode() for line in side) + draw.choice((end, b"" if side[-1] else end))
            for side, end in zip(lines, ends, strict=True)
        ]
        for path, side in zip(source.files, content, strict=True):
            path.write_bytes(side)
        found = [pair[1:] for pair in pairs(source, source.reading())]
        assert len(found) == len(lines[0])
        for number, side in enumerate(content):
            raw = side.removesuffix(b"\n").decode().split("\n")
            assert [pair[number] for pair in found] == [line.removesuffix("\r") for line in raw]


# ---- slices


def test_a_slice_takes_the_same_lines_of_both_and_no_more(tmp_path: Path) -> None:
    lines = [f"a{n}" for n in range(6)], [f"x{n}" for n in range(6)]
    whole = files(tmp_path, "own", *lines)

    def part(rows: str) -> dict[str, Any]:
        return {**whole, "src": [whole["src"][0] + rows], "trg": [whole["trg"][0] + rows]}

    data = settings(tmp_path, train=part("[2:]"), valid=part("[:1]"), test=part("[1:2]"))
    assert read(data)[0] == [(f"a{n}", f"x{n}") for n in range(2, 6)]
    assert read(data, "valid")[0] == [("a0", "x0")]
    assert read(data, "test")[0] == [("a1", "x1")]
    line = refusal(find_sources, settings(tmp_path, train=part("[2:]"), valid=part("[:3]")))
    assert line == f"data: train and valid share lines of {tmp_path}/own.en"
    write(tmp_path / "own.de", [*lines[1], "x6"])
    assert "own.de: 7 lines" in refusal(read, data, "valid")


def test_bad_lines_outside_a_slice_do_not_matter(tmp_path: Path) -> None:
    whole = files(tmp_path, "own", b"\xff\na\nb\tb\n", b"x\ny\nz\n")
    part = {**whole, "src": [whole["src"][0] + "[1:2]"], "trg": [whole["trg"][0] + "[1:2]"]}
    found, reading = read(settings(tmp_path, train=part))
    assert (found, reading.skipped) == ([("a", "y")], 0)


# ---- settings and files


def test_what_cannot_be_in_pairs_is_told(tmp_path: Path) -> None:
    one, two = (write(tmp_path / name, ["a"]) for name in ("1.en", "2.en"))

    def told(**text: Any) -> str:
        return refusal(settings, tmp_path, train={"kind": "files", **text})

    assert "src names 2 files, trg 1: they belong in pairs" in told(src=[one, two], trg=[one])
    assert "not the same lines of both" in told(src=[one + "[:1]"], trg=[two])
    assert "allowed is NAME or NAME[START:STOP]" in told(src=[one + "[1]"], trg=[two])
    assert "train.src" in told(src=[], trg=[])
    assert "src_lang = trg_lang = 'de'" in refusal(settings, tmp_path, src_lang="de")
    assert "trg_lang" in refusal(settings, tmp_path, trg_lang="../x")
    line = refusal(settings, tmp_path, cleaning={"max_lenght": 1})
    assert "did you mean 'cleaning.max_length'?" in line
    assert "max_ratio" in refusal(settings, tmp_path, cleaning={"max_ratio": 0.5})


def test_files_that_are_not_there_or_are_no_text_are_told(tmp_path: Path) -> None:
    there = write(tmp_path / "a.en", ["a"])
    os.link(there, tmp_path / "link.de")

    def told(src: str, trg: str) -> str:
        text = {"kind": "files", "src": [str(tmp_path / src)], "trg": [str(tmp_path / trg)]}
        return refusal(find_sources, settings(tmp_path, valid=text))

    assert told("a.em", "a.en").endswith("a.em: no such file (did you mean 'a.en'?)")
    assert told("a.en", "gone").startswith("data.valid.trg: ")
    assert told("a.en", "x.jsonl").endswith("x.jsonl: a table, allowed is one sentence a line")
    assert told("a.en", "link.de").endswith("a.en: is on both sides")


def test_a_file_in_train_and_in_another_split_is_refused_whatever_its_name(tmp_path: Path) -> None:
    data = settings(tmp_path)
    os.link(tmp_path / "train.de", tmp_path / "again.de")
    text = files(tmp_path, "other", ["a"] * 8, b"")
    text["trg"] = [str(tmp_path / "again.de")]
    changed = data.model_dump(mode="json") | {"test": text}
    line = refusal(find_sources, check(changed, TranslationData))
    assert "train and test share lines" in line


@pytest.mark.parametrize("split", ["valid", "test"])
def test_an_evaluation_set_stops_at_a_bad_row_under_either_policy(
    split: str, tmp_path: Path
) -> None:
    text = files(tmp_path, "own", b"a\nb\tb\n", b"x\ny\n")
    data = settings(tmp_path, on_bad_row="skip", **{split: text})
    assert "own.en:2: a tab" in refusal(read, data, split)


# ---- data sets


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def saved(folder: Path, rows: dict[str, list[Any]]) -> str:
    data = datasets.Dataset.from_dict(rows)
    parts = {"train": data, "validation": data.select([len(data) - 1])}
    datasets.DatasetDict(parts).save_to_disk(folder)
    return str(folder)


def named(name: str, split: str, **more: Any) -> dict[str, Any]:
    return {"kind": "datasets", "name": name, "split": split, **more}


TRANSLATION = {"translation": [{"de": trg, "en": src} for src, trg in PAIRS]}
COLUMNS = {"id": list(range(12)), "en": [s for s, _ in PAIRS], "de": [t for _, t in PAIRS]}
OTHERS = {"source": COLUMNS["en"], "target": COLUMNS["de"]}


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (TRANSLATION, {}),
        (COLUMNS, {}),
        (OTHERS, {"src_column": "source", "trg_column": "target"}),
    ],
    ids=["translation", "languages", "columns"],
)
def test_a_data_set_gives_the_pairs_of_its_slice(
    rows: dict[str, list[Any]], columns: dict[str, str], tmp_path: Path
) -> None:
    name = saved(tmp_path / "saved", rows)
    text = named(name, "train[2:5]", **columns), named(name, "train[5:]", **columns)
    data = settings(tmp_path, train=text[0], valid=text[1])
    assert read(data)[0] == PAIRS[2:5]
    assert read(data, "valid")[0] == PAIRS[5:]
    sources = find_sources(data)
    assert str(sources["train"]) == f"{name}[train[2:5]]"
    assert sources["train"].dataset is sources["valid"].dataset
    backwards = data.model_dump(mode="json") | {"src_lang": "de", "trg_lang": "en"}
    if not columns:
        found = read(check(backwards, TranslationData))[0]
        assert found == [(trg, src) for src, trg in PAIRS[2:5]]


def test_rows_of_train_in_another_split_are_refused(tmp_path: Path) -> None:
    name = saved(tmp_path / "saved", COLUMNS)
    data = settings(tmp_path, train=named(name, "train[:9]"), valid=named(name, "train[8:]"))
    assert refusal(find_sources, data) == f"data: train and valid share rows of {name}[train]"
    data = settings(tmp_path, train=named(name, "train"), valid=named(name, "validation"))
    assert set(find_sources(data)) == {"train", "valid", "test"}


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        (None, "en is None, allowed is a text"),
        ("a\tb", "en holds a line end or a tab"),
        ("a\nb", "en holds a line end or a tab"),
    ],
)
def test_b09_a_cell_that_is_no_sentence_is_a_bad_row(
    cell: str | None, told: str, tmp_path: Path
) -> None:
    name = saved(tmp_path / "saved", {"en": ["a", cell, "\ufeffc\0"], "de": ["x", "y", "z"]})
    text = named(name, "train")
    line = refusal(read, settings(tmp_path, train=text))
    assert line.startswith(f"{name}[train], row 2: {told}")
    found, reading = read(settings(tmp_path, train=text, on_bad_row="skip"))
    assert found == [("a", "x"), ("c", "z")]
    assert (reading.skipped, reading.nulls, reading.byte_order_marks) == (1, 1, 1)


def test_a_column_or_language_that_is_not_there_is_told_with_the_nearest(tmp_path: Path) -> None:
    name = saved(tmp_path / "saved", OTHERS)
    text = named(name, "train", src_column="sorce", trg_column="target")
    line = refusal(read, settings(tmp_path, train=text))
    assert "no text 'sorce' (did you mean 'source'?); found are 'source', 'target'" in line
    name = saved(tmp_path / "more", TRANSLATION)
    line = refusal(read, settings(tmp_path, train=named(name, "train"), trg_lang="fr"))
    assert "row 1: no text 'fr'; found are " in line
    line = refusal(settings, tmp_path, train=named(name, "train", src_column="a", trg_column="a"))
    assert "src_column = trg_column = 'a'" in line


def test_a_data_set_that_is_not_there_is_told_before_anything_is_read(tmp_path: Path) -> None:
    name = saved(tmp_path / "saved", COLUMNS)
    data = settings(tmp_path, test=named(name, "tset"))
    assert "no split 'tset'" in refusal(find_sources, data)


# ---- real text, and the checker itself


def shifted(source: ParallelSource) -> list[tuple[str, str]]:
    """Reads as `str.splitlines` would."""
    sides = [path.read_text(encoding="utf-8").splitlines() for path in source.files]
    return list(zip(*sides, strict=False))


def test_a_reader_that_shifts_would_be_noticed(tmp_path: Path) -> None:
    source = find_sources(of(tmp_path, "one\u2028two\nthree\n".encode(), b"x\ny\n"))["train"]
    right = [(src, trg) for _, src, trg in pairs(source, source.reading())]
    assert shifted(source) != right


def test_a_source_names_what_it_reads(tmp_path: Path) -> None:
    source = find_sources(settings(tmp_path))["train"]
    assert str(source) == f"{tmp_path}/train.en and {tmp_path}/train.de"
    assert source.files == [tmp_path / "train.en", tmp_path / "train.de"]


if MULTI30K.exists():

    def test_multi30k_has_the_lines_that_zcat_counts(tmp_path: Path) -> None:
        def text(name: str) -> dict[str, Any]:
            sides = {
                s: [str(MULTI30K / f"{name}.{x}.gz")] for s, x in (("src", "en"), ("trg", "de"))
            }
            return {"kind": "files", **sides}

        data = settings(
            tmp_path, train=text("train"), valid=text("val"), test=text("test_2016_flickr"),
            on_bad_row="skip",
        )  # fmt: skip
        found = {split: read(data, split)[0] for split in ("train", "valid", "test")}
        assert {k: len(v) for k, v in found.items()} == {
            "train": 28_999,
            "valid": 1014,
            "test": 1000,
        }
        raw = [gzip.decompress((MULTI30K / f"train.{x}.gz").read_bytes()) for x in ("en", "de")]
        lines = [side.decode().split("\n")[:-1] for side in raw]
        expected = [pair for pair in zip(*lines, strict=True) if "\t" not in "".join(pair)]
        assert found["train"] == expected
