"""Claims on where a task's rows are taken from, and on the settings that say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ala_encoder.errors import UserError
from ala_encoder.glue import TASKS, task_of
from ala_encoder.labelled import LabelledRows, read_split
from ala_encoder.settings.evaluate import EvaluateRun
from ala_encoder.settings.experiment import FinetuneRun
from ala_encoder.settings.loader import check
from ala_encoder.settings.task import GLUE, Rows, TaskSettings, task_splits
from ala_encoder.splits import Splits, check_apart, locate

PAIRS = "sentence1\tsentence2\tlabel\na\tb\tentailment\nc\td\tnot_entailment\n"


def settings(**given: Any) -> TaskSettings:
    return check({"task": "rte", **given}, TaskSettings)


def found(folder: Path, **given: Any) -> Splits:
    data = settings(path=str(folder), **given)
    return locate(task_of(data), data)


def read(splits: Splits, split: str) -> LabelledRows:
    return read_split(splits.task, splits.source(split), split)


def put(folder: Path, *names: str, text: str = PAIRS) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


# ---- settings ------------------------------------------------------------------------------------

COLUMNS = {"first": "text", "label": "y", "labels": ["no", "yes"]}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"task": "SST-2"}, r"task = 'SST-2': allowed are cola, .*did you mean 'sst2'.* `columns`"),
    ({"task": "rte", "columns": COLUMNS}, "columns: rte has its own"),
    ({"task": "a/b", "columns": COLUMNS}, "task = 'a/b': allowed are letters"),
    ({"path": "x", "dataset": "glue"}, "path and dataset: both"),
    ({"path": "x", "config": "rte"}, "config: does nothing without `dataset`"),
    ({"revision": "main"}, "revision: does nothing without `dataset`"),
    ({"task": "sst2", "files": {"dev": "x.tsv"}}, "files: does nothing without `path` or"),
    ({"path": "x", "cache": "elsewhere"}, "cache: keeps the embedded set only"),
    ({"path": "x", "files": {"valid": "x.tsv"}}, r"files.valid: the splits of rte are train, dev"),
    ({"path": "x", "files": {"dev_match": "x"}}, r"files.dev_match: .*did you mean|files.dev_m"),
    ({"path": "x", "files": {"dev": "x.tsv[3:3]"}}, r"files.dev = 'x.tsv\[3:3\]': holds no row"),
    ({"path": "x", "files": {"dev": "x.tsv[-3:]"}}, r"files.dev = .*allowed is NAME or NAME\[ST"),
    ({"path": "x", "files": {"dev": "x.tsv[:10%]"}}, r"files.dev = .*such as dev.tsv\[:4000\]"),
    ({"path": "x", "files": {"dev": ""}}, r"files.dev = '': allowed is NAME"),
    ({"path": "x", "lenght": 5}, "did you mean 'length'"),
    ({"task": "x", "columns": {**COLUMNS, "second": "text"}}, "text, text, y: a name twice"),
    ({"task": "x", "columns": {**COLUMNS, "labels": ["a"]}}, "two or more, all different"),
    ({"task": "x", "columns": {**COLUMNS, "labels": ["a", "a"]}}, "two or more, all different"),
    (
        {"task": "x", "columns": {**COLUMNS, "metrics": ["pearson"]}},
        "'pearson' of classes: allowed",
    ),
    ({"task": "x", "columns": {**COLUMNS, "metrics": ["acuracy"]}}, "did you mean 'accuracy'"),
    (
        {"task": "x", "columns": {**COLUMNS, "labels": ["a", "b", "c"], "metrics": ["f1"]}},
        "'f1' is of the second of two classes, labels has 3",
    ),
    (
        {"task": "x", "columns": {"first": "t", "label": "y", "metrics": ["accuracy"]}},
        "'accuracy' without `labels`, scores: allowed are pearson, spearmanr",
    ),
]


@pytest.mark.parametrize(("given", "told"), WRONG)
def test_a_contradiction_or_a_setting_without_effect_is_one_line(
    given: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserError, match=told) as caught:
        settings(**given)
    assert "\n" not in str(caught.value)


def test_training_wants_a_source_and_a_training_set() -> None:
    run = {"init": "x", "train": {"steps": 1, "batch_size": 1}}
    with pytest.raises(UserError, match=r"'ax': has no training set; fine-tune mnli, then eval"):
        check({**run, "data": {"task": "ax", "path": "x"}}, FinetuneRun)
    for name in GLUE[2:-1]:
        with pytest.raises(UserError, match=rf"data: path: missing, .*for sst2, not {name}"):
            check({**run, "data": {"task": name}}, FinetuneRun)
    check({**run, "data": {"task": "sst2"}}, FinetuneRun)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("dev.tsv", ("dev.tsv", 0, None)),
        ("dev.tsv[:4000]", ("dev.tsv", 0, 4000)),
        ("a b/c.tsv[7:]", ("a b/c.tsv", 7, None)),
        ("train[7:9]", ("train", 7, 9)),
        ("train[:]", ("train", 0, None)),
    ],
)
def test_rows_are_spelled_as_slices(text: str, rows: tuple[str, int, int | None]) -> None:
    assert Rows.parse(text) == Rows(*rows)


def test_rows_overlap_as_their_sets_do() -> None:
    some = [Rows("x", a, b) for a in range(5) for b in (*range(a + 1, 6), None)]
    for one in some:
        for other in some:
            sets = [set(range(r.start, r.stop or 9)) for r in (one, other)]
            assert one.overlaps(other) == bool(sets[0] & sets[1])


# ---- folders -------------------------------------------------------------------------------------


def test_a_plain_file_goes_before_gzip_and_tsv_before_others(tmp_path: Path) -> None:
    put(tmp_path, "train.tsv", "train.tsv.gz", "train.jsonl", "dev.csv", "dev.parquet", "test.x")
    splits = found(tmp_path)
    assert [source.name for source in splits.sources.values()] == [
        str(tmp_path / "train.tsv"), str(tmp_path / "dev.csv")
    ]  # fmt: skip
    assert splits.present("dev", "test") == ("dev",)
    assert splits.name == tmp_path.name


def test_matched_and_mismatched_are_splits_of_their_own(tmp_path: Path) -> None:
    text = "sentence1\tsentence2\tgold_label\na\tb\tneutral\n"
    put(tmp_path, "train.tsv", "dev_matched.tsv", "test_mismatched.tsv", text=text)
    splits = found(tmp_path, task="mnli")
    assert splits.present("dev", "test") == ("dev_matched", "test_mismatched")
    assert read(splits, "dev_matched").labels == [1]
    with pytest.raises(UserError, match="split = 'dev': mnli has train, dev_matched"):
        splits.source("dev")


def test_the_diagnostic_set_has_its_own_file_name(tmp_path: Path) -> None:
    put(tmp_path, "diagnostic.tsv", text="index\tsentence1\tsentence2\n0\ta\tb\n")
    splits = found(tmp_path, task="ax")
    assert read(splits, "test").labels is None
    full = "Logic\tPremise\tHypothesis\tLabel\nx\ta\tb\tcontradiction\n"
    put(tmp_path, "diagnostic-full.tsv", text=full)
    files = {"test": "diagnostic-full.tsv"}
    assert read(found(tmp_path, task="ax", files=files), "test").labels == [2]


def test_other_file_names_and_slices_are_part_of_the_datas_name(tmp_path: Path) -> None:
    put(tmp_path, "dev.tsv", "sub/x.tsv")
    splits = found(
        tmp_path, files={"train": "dev.tsv[:1]", "dev": "dev.tsv[1:]", "test": "sub/x.tsv"}
    )
    assert splits.name == f"{tmp_path.name} (train dev.tsv[:1], dev dev.tsv[1:], test sub/x.tsv)"
    check_apart(splits, ("train", "dev", "test"))
    assert read(splits, "train").first == ["a"]
    assert read(splits, "dev").first == ["c"]
    assert read(splits, "dev").ids == [1]
    assert read(splits, "test").first == ["a", "c"]


@pytest.mark.parametrize(
    "files",
    [
        {"train": "dev.tsv"},
        {"dev": "train.tsv"},
        {"train": "dev.tsv[:2]", "dev": "dev.tsv[1:]"},
        {"train": "sub/../dev.tsv[:2]", "dev": "dev.tsv[1:]"},
        {"train": "dev.tsv[:1]", "dev": "dev.tsv[1:]", "test": "dev.tsv"},
        {"train": "linked.tsv"},
    ],
)
def test_rows_that_are_trained_on_are_never_scored_as_well(
    files: dict[str, str], tmp_path: Path
) -> None:
    put(tmp_path, "train.tsv", "dev.tsv", "sub/x")
    (tmp_path / "linked.tsv").symlink_to("dev.tsv")
    splits = found(tmp_path, files=files)
    with pytest.raises(UserError, match=r"files: train and \w+ share rows of .*\[:4000\]"):
        check_apart(splits, ("train", *splits.present("dev", "test")))
    check_apart(splits, splits.present("dev", "test"))


def test_a_file_that_is_named_and_not_there_or_no_table_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "train.tsv", "notes.pdf")
    with pytest.raises(
        UserError, match=r"files.dev: .* has no de.tsv; it has notes.pdf, train.tsv"
    ):
        found(tmp_path, files={"dev": "de.tsv"})
    with pytest.raises(UserError, match=r"notes.pdf: not a table; allowed endings are .tsv, .txt"):
        found(tmp_path, files={"dev": "notes.pdf"})


# ---- named data sets -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set as `datasets` keeps GLUE's: class numbers with names, -1 where there is none."""
    import datasets

    names = datasets.ClassLabel(names=["entailment", "not_entailment"])
    features = datasets.Features(
        {
            "sentence1": datasets.Value("string"),
            "sentence2": datasets.Value("string"),
            "label": names,
            "idx": datasets.Value("int32"),
        }
    )

    def split(labels: list[int]) -> datasets.Dataset:
        rows = {
            "sentence1": [f"a{n}" for n in range(len(labels))],
            "sentence2": [f"b{n}" for n in range(len(labels))],
            "label": labels,
            "idx": [10 + n for n in range(len(labels))],
        }
        return datasets.Dataset.from_dict(rows, features=features)

    whole = datasets.DatasetDict(
        {"train": split([0, 1, 0]), "validation": split([1, 0]), "test": split([-1, -1])}
    )
    folder = tmp_path_factory.mktemp("saved") / "rte"
    whole.save_to_disk(folder)
    return folder


def test_a_data_set_is_read_by_name_with_its_own_splits(saved: Path) -> None:
    data = settings(dataset=str(saved))
    splits = locate(TASKS["rte"], data)
    assert splits.name == str(saved)
    assert splits.present("train", "dev", "test") == ("train", "dev", "test")
    dev, test = read(splits, "dev"), read(splits, "test")
    assert (dev.first, dev.second, dev.labels, dev.ids) == (
        ["a0", "a1"],
        ["b0", "b1"],
        [1, 0],
        [10, 11],
    )
    assert (test.labels, test.ids) == (None, [10, 11])


def test_splits_of_a_data_set_are_named_and_cut_as_files_are(saved: Path) -> None:
    files = {"train": "train[:2]", "dev": "train[2:]"}
    splits = locate(TASKS["rte"], settings(dataset=str(saved), files=files))
    check_apart(splits, ("train", "dev"))
    assert read(splits, "dev").ids == [12]
    assert splits.name == f"{saved} (train train[:2], dev train[2:])"
    splits = locate(TASKS["rte"], settings(dataset=str(saved), files={"dev": "train"}))
    with pytest.raises(UserError, match="train and dev share rows"):
        check_apart(splits, ("train", "dev"))
    splits = locate(TASKS["rte"], settings(dataset=str(saved), files={"dev": "train[5:]"}))
    with pytest.raises(UserError, match=r"is empty: none of its rows is in \[5:\]"):
        read(splits, "dev")
    with pytest.raises(UserError, match=r"files.dev: .* has no valid, but train, validation, test"):
        locate(TASKS["rte"], settings(dataset=str(saved), files={"dev": "valid"}))


def test_labels_that_yaml_reads_as_whole_numbers_are_their_texts() -> None:
    columns = {**COLUMNS, "labels": [0, 1, "two"]}
    read = check({"task": "x", "path": "p", "columns": columns}, TaskSettings)
    assert read.columns is not None and read.columns.labels == ("0", "1", "two")
    for label in (True, 1.0, None):
        with pytest.raises(UserError, match="labels"):
            columns = {**COLUMNS, "labels": [label, "a"]}
            check({"task": "x", "path": "p", "columns": columns}, TaskSettings)


# ---- evaluation of other data --------------------------------------------------------------------


def evaluated(own: dict[str, Any], **given: Any) -> TaskSettings:
    run = check({"export": "x", **given}, EvaluateRun)
    return run.task_data(settings(**own))


def test_evaluate_takes_the_exports_own_data_unless_told_otherwise() -> None:
    own = {"path": "here", "files": {"dev": "d.tsv"}, "length": 64, "max_train_examples": 5}
    assert evaluated(own) == evaluated(own, task="rte") == settings(**own)
    assert evaluated(own, path="there") == settings(path="there", length=64)
    assert evaluated(own, files={"dev": "e.tsv"}) == settings(**{**own, "files": {"dev": "e.tsv"}})
    assert evaluated(own, dataset="glue") == settings(dataset="glue", length=64)
    assert evaluated({"task": "sst2", "cache": "c"}, path="p") == settings(task="sst2", path="p")


def test_another_task_leaves_the_exports_files_behind() -> None:
    own = {"task": "mnli", "dataset": "glue", "config": "mnli", "files": {"train": "train[:9]"}}
    assert evaluated(own, task="ax") == settings(task="ax", dataset="glue")
    mine = {"task": "x", "path": "p", "columns": COLUMNS}
    assert evaluated(mine, path="q") == settings(**{**mine, "path": "q"})
    assert evaluated(mine, task="rte") == settings(task="rte", path="p")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"path": "p", "dataset": "glue"}, "path and dataset"),
        ({"config": "rte"}, "config: does nothing without `dataset`"),
        ({"path": "p", "files": {"valid": "x"}}, "files.valid: the splits of rte are"),
        ({"path": "p", "task": "axx"}, "task = 'axx': allowed are"),
    ],
)
def test_evaluate_refuses_what_does_not_fit_together(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        evaluated({"path": "here"}, **given)


def test_every_task_has_train_dev_and_test_but_the_diagnostic_set() -> None:
    for name in GLUE[:-1]:
        assert {split.partition("_")[0] for split in task_splits(name)} == {"train", "dev", "test"}
