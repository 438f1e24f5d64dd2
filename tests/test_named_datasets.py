"""Data sets by name: their splits and rows, within seconds, and no code of one ever runs."""

from __future__ import annotations

import json
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import datasets
import pytest

from ala_encoder import named_datasets
from ala_encoder.errors import UserError
from ala_encoder.lines import Reading
from ala_encoder.named_datasets import NamedDataset
from tests.test_tables import cells, refusal


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    named_datasets._why_away.cache_clear()


FEATURES = datasets.Features(
    text=datasets.Value("string"), label=datasets.ClassLabel(names=["negative", "positive"])
)
ROWS = {"text": ["a\0", "b", None], "label": [0, 1, -1]}


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
    assert last == (2, f"{saved}[train], row 3", {"text": None, "label": -1})
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
    said: list[str] = []
    data = NamedDataset("nobody/toy", say=said.append)
    assert cells(list(data.records("train", Reading()))) == [[1]]
    (line,) = said
    assert line.startswith("nobody/toy: the hub was not reached (")
    assert line.endswith("), using the cached copy")
    assert data.fingerprint("train") == NamedDataset("nobody/toy").fingerprint("train")
    told = refusal(lambda: NamedDataset("nobody/toy", "other").splits)
    assert "default" in told


def test_the_hub_is_asked_once_for_a_name_however_often_it_is_loaded(cached: Path) -> None:
    for _ in range(3):
        NamedDataset("nobody/toy").fingerprint("train")
        refusal(lambda: NamedDataset("nobody/toy", "other").splits)
    asked = named_datasets._why_away.cache_info()
    assert (asked.misses, asked.currsize) == (1, 1)


def test_a_mistake_of_ours_is_no_hub_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def broken(*_: object, **__: object) -> None:
        raise TypeError("a wrong call")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", broken)
    with pytest.raises(TypeError):
        _ = NamedDataset("nobody/toy").splits


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


@pytest.mark.parametrize("name", ["train.tsv", "deep/a.txt", "b.TXT.gz"])
def test_a01_a_folder_that_the_library_would_read_by_another_rule_is_refused(
    tmp_path: Path, name: str
) -> None:
    """It takes quotes in TSV for quoting: of 3,000 rows of RTE's test set 2,985 came back."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("a\tb\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"is no file to read by `datasets`; name the folder as"):
        _ = NamedDataset(str(tmp_path)).splits
