"""Tables: each row once, each bad row told by place."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ala_encoder.errors import UserError
from ala_encoder.lines import Reading
from ala_encoder.tables import Record, records


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def read(path: Path, content: bytes | str, **policy: str) -> tuple[list[Record], Reading]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    reading = Reading(**policy)  # type: ignore[arg-type]
    return list(records(path, reading)), reading


def cells(found: list[Record]) -> list[list[object]]:
    return [list(record.cells.values()) for record in found]


def refusal(call: Any, *arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# JSONL


def test_a_line_is_a_record_numbered_as_in_the_file(tmp_path: Path) -> None:
    found, _ = read(tmp_path / "a.jsonl", '{"a": 1, "b": [1]}\r\n\n{"b": null, "a": "x\\ud800"}\n')
    assert found == [
        (0, f"{tmp_path}/a.jsonl:1", {"a": 1, "b": [1]}),
        (1, f"{tmp_path}/a.jsonl:3", {"b": None, "a": "x"}),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1]", "a list"), ("3", "a int"), ("null", "a NoneType"),
        ('{"a": 1', "not JSON"), ('{"a": NaN}', "NaN"), ('{"a": [-Infinity]}', "-Infinity"),
        ('{"a": 1e999}', "beyond a float"), ('{"a": 1, "a": 2}', "'a' is given twice"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON"), ('{"a": ' + "[" * 200_000, "deep"),
        ('{"a": 1} {"a": 2}', "not JSON"), ("{'a': 1}", "not JSON"), ('{"a": "\t"}', "not JSON"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_object_is_a_bad_row_by_the_policy(
    line: str, reason: str, tmp_path: Path
) -> None:
    content = f'{{"a": 1}}\n{line}\n{{"a": 2}}\n'
    told = refusal(read, tmp_path / "a.jsonl", content)
    assert "a.jsonl:2: " in told
    assert reason in told
    assert len(told) < 400
    reading = Reading("skip")
    assert cells(list(records(tmp_path / "a.jsonl", reading))) == [[1], [2]]
    assert reading.skipped == 1


# CSV


def test_quoted_cells_hold_commas_quotes_and_line_ends(tmp_path: Path) -> None:
    content = 'a,b\r\n1,"x, ""y""\r\nz"\r\n\r\n2,u\u2028v\r\n,'
    found, _ = read(tmp_path / "a.csv", content)
    assert [record.place.rpartition(":")[2] for record in found] == ["2", "5", "6"]
    assert cells(found) == [["1", 'x, "y"\nz'], ["2", "u\u2028v"], ["", ""]]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("1", "1 cells, the header has 2"), ("1,2,3", "3 cells"), ('1,"x', "never closes"),
        ('1,"x"y"', "never closes"), ('1,"x" y', "not CSV"), ("1,x\ry", "not CSV"),
        ('1,a"b', "never closes"),
    ],
)  # fmt: skip
def test_a_bad_row_of_csv_costs_only_itself(bad: str, reason: str, tmp_path: Path) -> None:
    content = f"a,b\n1,2\n{bad}\n" + "3,4\n" * 50
    told = refusal(read, tmp_path / "a.csv", content)
    assert "a.csv:3: " in told
    assert reason in told
    reading = Reading("skip")
    assert cells(list(records(tmp_path / "a.csv", reading))) == [["1", "2"], *[["3", "4"]] * 50]
    assert reading.skipped == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'{"a": "0"}\n\n{"a": 1\n\xff\n{"a": "3"}\n[]\n{"a": "5"}\n'),
        ("a.csv", b'\na,b\n0,"\n\n"\n\n1\n\xff\n3,"x\ny"\n4,"x\n5,6\n'),
    ],
)
def test_a_row_has_the_number_it_would_have_if_none_were_bad(
    name: str, content: bytes, tmp_path: Path
) -> None:
    found, reading = read(tmp_path / name, content, on_bad_row="skip")
    assert [record.number for record in found] == [0, 3, 5]
    assert [record.cells["a"] for record in found] == ["0", "3", "5"]
    assert reading.skipped == 3


def test_an_open_quote_in_a_large_file_is_told_at_its_line_in_time(tmp_path: Path) -> None:
    content = 'a,b\n1,"x\n' + "some text,more text\n" * 200_000
    start = time.monotonic()
    assert "a.csv:2: a quote that opens here never closes" in refusal(
        read, tmp_path / "a.csv", content
    )
    reading = Reading("skip")
    assert sum(1 for _ in records(tmp_path / "a.csv", reading)) == 200_000
    assert reading.skipped == 1
    assert time.monotonic() - start < 20


def test_a_cell_larger_than_the_library_allows_is_read(tmp_path: Path) -> None:
    found, _ = read(tmp_path / "a.csv", "a\n" + "x" * 1_000_000)
    assert len(str(found[0].cells["a"])) == 1_000_000


@pytest.mark.parametrize(
    ("content", "told"), [("", "empty"), ("\n\n", "empty"), ("a,a\n", "twice")]
)
def test_a_csv_without_a_header_of_its_own_names_is_refused(
    content: str, told: str, tmp_path: Path
) -> None:
    assert told in refusal(read, tmp_path / "a.csv", content)


# Parquet


FEATURES = datasets.Features(
    text=datasets.Value("string"), label=datasets.ClassLabel(names=["negative", "positive"])
)
ROWS = {"text": ["a\0", "b", None], "label": [0, 1, -1]}


def test_parquet_rows_have_numbers_and_the_names_of_their_labels(tmp_path: Path) -> None:
    datasets.Dataset.from_dict(ROWS, features=FEATURES).to_parquet(tmp_path / "a.parquet")
    found = list(records(tmp_path / "a.parquet", Reading()))
    assert cells(found) == [["a", "negative"], ["b", "positive"], [None, -1]]
    assert [record.number for record in found] == [0, 1, 2]
    assert found[2].place == f"{tmp_path}/a.parquet, row 3"


def test_parquet_without_metadata_keeps_its_numbers_over_many_batches(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": list(range(5000))}), tmp_path / "a.parquet", row_group_size=700)
    found = list(records(tmp_path / "a.parquet", Reading()))
    assert cells(found) == [[n] for n in range(5000)]
    assert found[-1].place.endswith("row 5000")


def test_r20_a_damaged_parquet_file_is_told_by_path(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    datasets.Dataset.from_dict(ROWS, features=FEATURES).to_parquet(path)
    assert f"{path}: cannot be read as Parquet" in refusal(read, path, path.read_bytes()[:-20])


def test_another_ending_is_told_with_those_that_are_allowed(tmp_path: Path) -> None:
    assert "allowed endings are .jsonl" in refusal(read, tmp_path / "a.xlsx", "")
