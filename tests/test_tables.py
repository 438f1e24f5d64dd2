"""Tables: each row once, each bad row told by place, and no code of a data set ever runs."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import time
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ala_encoder.errors import UserError
from ala_encoder.lines import Reading
from ala_encoder.tables import NamedDataset, Record, records


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
        (f"{tmp_path}/a.jsonl:1", {"a": 1, "b": [1]}),
        (f"{tmp_path}/a.jsonl:3", {"b": None, "a": "x"}),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1]", "a JSON list"), ("3", "a JSON int"), ("null", "a JSON NoneType"),
        ('{"a": 1', "not JSON"), ('{"a": NaN}', "NaN"), ('{"a": [-Infinity]}', "-Infinity"),
        ('{"a": 1e999}', "beyond a float"), ('{"a": 1, "a": 2}', "a key appears twice"),
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
    assert found[2].place == f"{tmp_path}/a.parquet, row 3"


def test_parquet_without_metadata_keeps_its_numbers_over_many_batches(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": list(range(5000))}), tmp_path / "a.parquet", row_group_size=700)
    found = list(records(tmp_path / "a.parquet", Reading()))
    assert cells(found) == [[n] for n in range(5000)]
    assert found[-1].place.endswith("row 5000")


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_r20_a_damaged_table_is_told_by_path_or_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "a.parquet":
        datasets.Dataset.from_dict(ROWS, features=FEATURES).to_parquet(path)
    else:
        path.write_text('text,label\n"a",1\n' * 5 if name == "a.csv" else '{"text": "a"}\n' * 9)
    whole, draw = path.read_bytes(), random.Random(0)
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            start = draw.randrange(len(damaged))
            damaged[start : start + draw.choice([0, 1, 30])] = draw.randbytes(draw.choice([0, 1]))
        path.write_bytes(damaged)
        try:
            list(records(path, Reading("skip")))
        except UserError as error:
            assert str(path) in str(error)


def test_another_ending_is_told_with_those_that_are_allowed(tmp_path: Path) -> None:
    assert "allowed endings are .jsonl" in refusal(read, tmp_path / "a.xlsx", "")


# Data sets by name


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    data = datasets.Dataset.from_dict(ROWS, features=FEATURES)
    datasets.DatasetDict({"train": data, "dev": data.select([1])}).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_saved_data_set_has_its_splits_slices_and_label_names(saved: Path) -> None:
    data = NamedDataset(str(saved))
    assert data.splits == ("train", "dev")
    assert cells(list(data.records("dev", Reading()))) == [["b", "positive"]]
    (last,) = data.records("train[-1:]", Reading())
    assert last == (f"{saved}[train], row 3", {"text": None, "label": -1})
    assert data.fingerprint("train") == NamedDataset(str(saved)).fingerprint("train")
    assert len({data.fingerprint(split) for split in ("train", "dev", "train[:1]")}) == 3


def test_a_single_saved_data_set_is_its_train_split(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"a": [1, 2]}).save_to_disk(tmp_path / "one")
    assert cells(list(NamedDataset(str(tmp_path / "one")).records("train", Reading()))) == [
        [1],
        [2],
    ]


def test_a_folder_of_tables_is_a_data_set_with_configs(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (folder / "test.jsonl").write_text('{"a": 3}\n')
    data = NamedDataset(str(folder))
    assert data.splits == ("train", "test")
    assert cells(list(data.records("train", Reading()))) == [[1], [2]]
    told = refusal(lambda: NamedDataset(str(folder), "defualt").splits)
    assert "did you mean 'default'?" in told
    (folder / "train.jsonl").write_text('{"a": 1}\n{"a": 5}\n{"a": 6}\n')
    assert NamedDataset(str(folder)).fingerprint("train") != data.fingerprint("train")


@pytest.mark.parametrize(
    ("split", "told"),
    [
        ("trian", "no split 'trian' (did you mean 'train'?); allowed are train, dev"),
        ("train[", "allowed is a split or one slice of it"),
        ("train[:1]+dev", "allowed is a split or one slice of it"),
        ("train[5:2:1]", "allowed is a split or one slice of it"),
    ],
)
def test_a_split_that_is_not_there_is_one_line(split: str, told: str, saved: Path) -> None:
    assert told in refusal(NamedDataset(str(saved)).fingerprint, split)


def test_a_setting_without_effect_on_a_folder_is_refused(saved: Path) -> None:
    assert "config = 'x' has no effect" in refusal(lambda: NamedDataset(str(saved), "x").splits)
    other = NamedDataset(str(saved), revision="main")
    assert "revision = 'main' has no effect" in refusal(lambda: other.splits)


@pytest.mark.parametrize("name", ["nobody/nothing", "glue", "a/b/c", "./gone", "csv", "a b"])
def test_a_name_without_the_hub_is_one_line_within_seconds(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    start = time.monotonic()
    told = refusal(lambda: NamedDataset(name, "sst2").splits)
    assert time.monotonic() - start < 5
    assert name in told
    if name in ("nobody/nothing", "glue"):
        assert "the hub cannot be reached" in told
        assert "save_to_disk" in told
        assert "HF_HOME" in told


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a data set of the hub into the cache, as a download leaves it, and cut the network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "train.jsonl").write_text('{"a": 1}\n')
    datasets.load_dataset(str(tmp_path / "toy"))
    (made,) = (tmp_path / "cache").rglob("*-train.arrow")
    target = tmp_path / "cache" / "nobody___toy" / "default" / "0.0.0" / "1234"
    shutil.copytree(made.parent, target)
    (target / made.name).rename(target / "toy-train.arrow")
    info = json.loads((target / "dataset_info.json").read_text())
    (target / "dataset_info.json").write_text(json.dumps({**info, "dataset_name": "toy"}))
    return target


def test_a_copy_in_the_cache_is_used_without_the_hub(cached: Path) -> None:
    data = NamedDataset("nobody/toy")
    assert cells(list(data.records("train", Reading()))) == [[1]]
    assert data.fingerprint("train") == NamedDataset("nobody/toy").fingerprint("train")
    told = refusal(lambda: NamedDataset("nobody/toy", "other").splits)
    assert "default" in told


class Bomb:
    """Its pickle writes a file when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.target, "executed")


def test_i05_no_code_of_a_data_set_ever_runs(cached: Path, saved: Path, tmp_path: Path) -> None:
    target = tmp_path / "executed"
    bomb = pickle.dumps(Bomb(target))
    code = f"open({str(target)!r}, 'w').write('executed')\n"
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "train.jsonl").write_text('{"a": 1}\n')
    loads = {cached: "nobody/toy", saved: str(saved), plain: str(plain)}
    for folder in loads:
        for name in ("data.pkl", "train.pickle", "a.pth", "cache-1.arrow"):
            (folder / name).write_bytes(bomb)
        for name in ("toy.py", "saved.py", "plain.py", "__init__.py", "setup.py"):
            (folder / name).write_text(code)
    for arrow in [*cached.glob("*.arrow"), *saved.glob("*/*.arrow"), plain / "train.jsonl", None]:
        for name in loads.values():
            try:
                list(NamedDataset(name).records("train", Reading()))
            except UserError as error:
                assert "\n" not in str(error)
        if arrow is not None:
            arrow.write_bytes(bomb)  # and then the data itself
    assert not target.exists()
    pickle.loads(bomb)
    assert target.exists()
