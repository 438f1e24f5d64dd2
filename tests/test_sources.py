"""Sources: what a config names is found, and read as documents of paragraphs by one rule."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ala_encoder.errors import UserError
from ala_encoder.lines import Reading
from ala_encoder.settings.corpus import CorpusSettings
from ala_encoder.settings.loader import check
from ala_encoder.sources import TextSource, documents, find_source, texts


def refusal(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def settings(path: Path, train: list[str], valid: list[str], **more: Any) -> CorpusSettings:
    source = {"kind": "files", "train": train, "valid": valid, **more}
    return check({"path": str(path), "source": source}, CorpusSettings)


def test_files_folders_and_globs_are_found_sorted_and_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.txt.gz", "d.md", "sub/e.txt", "x[1].txt", "v.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a")

    def found(*patterns: str) -> list[str]:
        given = [str(tmp_path / pattern) for pattern in patterns]
        files = find_source(settings(tmp_path, given, [str(tmp_path / "v.txt")])).files["train"]
        return [str(file.relative_to(tmp_path)) for file in files]

    assert found("[ab].txt", "a.txt") == ["a.txt", "b.txt"]
    assert found("sub") == ["sub/e.txt"]
    assert found("**/e.txt") == ["sub/e.txt"]
    assert found("x[1].txt") == ["x[1].txt"]
    assert found("c*") == ["c.txt.gz"]
    assert found("d.md") == ["d.md"]


def test_a_pattern_without_a_file_and_a_file_in_both_splits_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "empty").mkdir()
    here = str(tmp_path / "a.txt")
    for missing in ("b.txt", "*.md", "empty", "a.txt/b"):
        pattern = str(tmp_path / missing)
        line = refusal(find_source, settings(tmp_path, [pattern], [here]))
        assert line == f"data.source.train: {pattern!r} matches no file"
    too_long = str(tmp_path / ("a" * 300))
    line = refusal(find_source, settings(tmp_path, [too_long], [here]))
    assert line.startswith("data.source.train: ")
    assert line.endswith(": File name too long")
    line = refusal(find_source, settings(tmp_path, [here], [str(tmp_path / "*.txt")]))
    assert "a.txt is in train and in valid" in line


def test_a_folder_gives_its_tables_and_plain_text(tmp_path: Path) -> None:
    for name in ("a.txt", "b.jsonl", "c.csv.gz", "d.parquet", "e.ndjson", "f.md", "g.JSON", "h.gz"):
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text("")
    (tmp_path / "v.txt").write_text("a")
    found = find_source(settings(tmp_path, [str(tmp_path / "in")], [str(tmp_path / "v.txt")]))
    assert [path.name[0] for path in found.files["train"]] == list("abcdegh")
    assert found.column == "text"


def test_a_column_without_a_table_is_refused_even_when_it_is_the_default(tmp_path: Path) -> None:
    for name in ("a.txt", "v.txt", "a.csv"):
        (tmp_path / name).write_text("text\na\n")
    plain, table, valid = (str(tmp_path / name) for name in ("a.txt", "a.csv", "v.txt"))
    line = refusal(find_source, settings(tmp_path, [plain], [valid], column="text"))
    assert "data.source.column = 'text' has no effect: no file is a table" in line
    assert find_source(settings(tmp_path, [plain], [valid])).column is None
    dumped = json.loads(settings(tmp_path, [plain], [valid]).model_dump_json())
    assert find_source(check(dumped, CorpusSettings)).column is None
    assert find_source(settings(tmp_path, [table], [valid], column="body")).column == "body"


# Reading


def write(path: Path, rows: list[str]) -> Path:
    """Write texts as the kind of file that the path's ending says."""
    kind = path.name.removesuffix(".gz").rsplit(".", 1)[1]
    if kind == "parquet":
        pq.write_table(pa.table({"id": list(range(len(rows))), "text": rows}), path)
        return path
    if kind == "csv":
        quoted = ('"' + row.replace('"', '""') + '"' for row in rows)
        content = "id,text\n" + "".join(f"{i},{row}\n" for i, row in enumerate(quoted))
    else:
        content = "".join(json.dumps({"id": i, "text": row}) + "\n" for i, row in enumerate(rows))
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["t.jsonl", "t.json.gz", "t.csv", "t.csv.gz", "t.parquet"])
def test_b01_b04_b05_every_kind_of_table_gives_the_same_documents(
    name: str, tmp_path: Path
) -> None:
    rows = ['one\u2028two\x85, "three"', "\ufefffour\nfive\r\n\n six", "nul\0l", ""]
    path = write(tmp_path / name, rows)
    reading = Reading()
    found = list(documents(TextSource("", "", {"train": [path]}, column="text"), "train", reading))
    assert found == [
        'one\u2028two\x85, "three"', None, "four", "five", " six", None, "null", None, None
    ]  # fmt: skip
    met = (reading.carriage_returns, reading.byte_order_marks, reading.nulls)
    assert met == (1, 1, 1)


def test_plain_text_is_paragraphs_by_line_and_documents_by_empty_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\nb\n\nc")
    source = TextSource("", "", {"train": [tmp_path / "a.txt"]})
    assert list(documents(source, "train", Reading())) == ["a", "b", None, "c", None]
    assert list(texts(source, "train", Reading())) == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv", "t.parquet"])
def test_a_column_that_is_not_there_is_told_with_place_and_columns(
    name: str, tmp_path: Path
) -> None:
    source = TextSource("", "", {"train": [write(tmp_path / name, ["a"])]}, column="txt")
    line = refusal(list, texts(source, "train", Reading()))
    assert name in line
    assert "no column 'txt' (did you mean 'text'?); found are 'id', 'text'" in line
    number = TextSource("", "", {"train": [write(tmp_path / "n.jsonl", ["a"])]}, column="id")
    line = refusal(list, texts(number, "train", Reading()))
    assert line.endswith("n.jsonl:1: column 'id' holds a value of type int, allowed is text")


def named(tmp_path: Path, **changes: str) -> CorpusSettings:
    rows = {"text": [f"row {i}" for i in range(10)]}
    datasets.disable_progress_bars()
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows)}).save_to_disk(tmp_path / "d")
    given = {"train": "train[:80%]", "valid": "train[80%:]", **changes}
    source = {"kind": "datasets", "name": str(tmp_path / "d"), **given}
    return check({"path": str(tmp_path), "source": source}, CorpusSettings)


def test_slices_of_a_data_set_are_the_splits(tmp_path: Path) -> None:
    source = find_source(named(tmp_path))
    assert list(texts(source, "train", Reading())) == [f"row {i}" for i in range(8)]
    assert list(texts(source, "valid", Reading())) == ["row 8", "row 9"]


@pytest.mark.parametrize("valid", ["train", "train[7:]", "train[:1]"])
def test_rows_in_both_splits_are_refused(valid: str, tmp_path: Path) -> None:
    line = refusal(find_source, named(tmp_path, valid=valid))
    assert "share rows" in line
    assert repr(valid) in line


def test_a_split_that_is_not_there_is_told_before_any_work(tmp_path: Path) -> None:
    line = refusal(find_source, named(tmp_path, valid="trian"))
    assert "no split 'trian' (did you mean 'train'?); allowed are train" in line


@pytest.mark.parametrize("kind", ["dots", "symlink", "hardlink"])
def test_one_file_under_two_names_is_noticed(tmp_path: Path, kind: str) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "valid").mkdir()
    text, other = tmp_path / "train" / "a.txt", tmp_path / "valid" / "b.txt"
    text.write_text("words\n", encoding="utf-8")
    if kind == "dots":
        other = tmp_path / "valid" / ".." / "train" / "a.txt"
    elif kind == "symlink":
        other.symlink_to(text)
    else:
        other.hardlink_to(text)
    source = {"kind": "files", "train": [str(text), str(other)], "valid": [str(other)]}
    settings = check({"path": "tokens", "source": source}, CorpusSettings)
    with pytest.raises(UserError, match="is in train and in valid"):
        find_source(settings)
    own = tmp_path / "valid" / "own.txt"
    own.write_text("other\n", encoding="utf-8")
    source["valid"] = [str(own)]
    found = find_source(check({"path": "tokens", "source": source}, CorpusSettings))
    assert found.files["train"] == [text]


def test_hidden_files_of_a_folder_are_no_text(tmp_path: Path) -> None:
    for name in ("a.txt", ".a.txt"):
        (tmp_path / name).write_text("words\n", encoding="utf-8")
    source = {"kind": "files", "train": [str(tmp_path)], "valid": [str(tmp_path / ".a.txt")]}
    found = find_source(check({"path": "tokens", "source": source}, CorpusSettings))
    assert found.files["train"] == [tmp_path / "a.txt"]
