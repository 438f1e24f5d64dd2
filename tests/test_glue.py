"""Claims on the tasks' rows and their predictions; ids A.. are the public bug reports they answer.

The referee for the official files is a reader of a few lines, which shares no code with ours.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ala_encoder import metrics
from ala_encoder.errors import UserError
from ala_encoder.glue import (
    TASKS,
    Task,
    kind_of,
    prediction_file,
    prefix_of,
    task_of,
    write_predictions,
)
from ala_encoder.labelled import read_split
from ala_encoder.settings.task import (
    CLASS_METRICS,
    GLUE,
    SCORE_METRICS,
    TaskColumns,
    TaskSettings,
)
from ala_encoder.splits import locate

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "glue"
SST2, MRPC, STSB = TASKS["sst2"], TASKS["mrpc"], TASKS["stsb"]

OFFICIAL = {
    "cola": (2, "matthews_correlation", "CoLA.tsv"),
    "sst2": (2, "accuracy", "SST-2.tsv"),
    "mrpc": (2, "accuracy f1", "MRPC.tsv"),
    "qqp": (2, "accuracy f1", "QQP.tsv"),
    "stsb": (1, "pearson spearmanr", "STS-B.tsv"),
    "mnli": (3, "accuracy", "MNLI-m.tsv MNLI-mm.tsv"),
    "qnli": (2, "accuracy", "QNLI.tsv"),
    "rte": (2, "accuracy", "RTE.tsv"),
    "wnli": (2, "accuracy", "WNLI.tsv"),
    "ax": (3, "matthews_correlation", "AX.tsv"),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_a07_outputs_metrics_and_files_are_the_official_ones(name: str) -> None:
    row = TASKS[name]
    outputs, official, files = OFFICIAL[name]
    assert row.num_outputs == outputs == (len(row.labels) or 1)
    assert row.metrics == tuple(official.split())
    assert set(row.metrics) <= set(metrics.METRICS)
    assert [prediction_file(row, split) for split in row.splits_of("test")] == files.split()
    assert row.is_regression == (name == "stsb")


def test_the_settings_know_the_same_tasks_and_metrics() -> None:
    assert tuple(TASKS) == GLUE == tuple(OFFICIAL)
    assert {*CLASS_METRICS, *SCORE_METRICS} == set(metrics.METRICS)


def test_a05_each_split_has_its_own_score_keys_and_prediction_file() -> None:
    mnli = TASKS["mnli"]
    prefixes = [prefix_of(split) for split in mnli.splits]
    assert prefixes == [
        "train", "eval_matched", "eval_mismatched", "test_matched", "test_mismatched"
    ]  # fmt: skip
    names = [prediction_file(mnli, split) for split in mnli.splits_of("dev", "test")]
    assert names == ["MNLI-m-dev.tsv", "MNLI-mm-dev.tsv", "MNLI-m.tsv", "MNLI-mm.tsv"]
    assert [prefix_of(split) for split in SST2.splits] == ["train", "eval", "test"]
    assert prediction_file(SST2, "dev") == "SST-2-dev.tsv"
    assert TASKS["ax"].splits == ("test",)
    assert [kind_of(split) for split in mnli.splits_of("dev")] == ["dev", "dev"]


def test_a_table_of_ones_own_is_a_task() -> None:
    columns = TaskColumns(first="text", label="stars", labels=("neg", "pos"))
    made = task_of(TaskSettings(task="reviews", path=Path("x"), columns=columns))
    assert made.labels == ("neg", "pos")
    assert (made.metrics, made.best_metric) == (("accuracy",), "accuracy")
    assert prediction_file(made, "test") == "reviews.tsv"
    made = task_of(
        TaskSettings(task="alike", path=Path("x"), columns=TaskColumns(first="a", label="b"))
    )
    assert made.is_regression and made.num_outputs == 1
    assert made.metrics == ("pearson", "spearmanr")


# ---- predictions ---------------------------------------------------------------------------------


def written(tmp_path: Path, row: Task, predictions: list[float]) -> list[str]:
    path = tmp_path / "out.tsv"
    write_predictions(path, row, range(len(predictions)), predictions)
    header, *lines = path.read_bytes().decode().removesuffix("\n").split("\n")
    assert header == "index\tprediction"
    assert [line.split("\t")[0] for line in lines] == [str(n) for n in range(len(predictions))]
    return [line.split("\t")[1] for line in lines]


@pytest.mark.parametrize("name", [name for name in GLUE if name != "stsb"])
def test_classes_are_spelled_as_the_server_wants(name: str, tmp_path: Path) -> None:
    spelled = {
        "mnli": ["entailment", "neutral", "contradiction"],
        "ax": ["entailment", "neutral", "contradiction"],
        "qnli": ["entailment", "not_entailment"],
        "rte": ["entailment", "not_entailment"],
    }.get(name, ["0", "1"])
    assert written(tmp_path, TASKS[name], list(range(len(spelled)))) == spelled


def test_scores_have_three_decimals_and_stay_in_their_range(tmp_path: Path) -> None:
    found = written(tmp_path, STSB, [2.0, 3.14159, -0.7, 5.2, math.inf, math.nan])
    assert found == ["2.000", "3.142", "0.000", "5.000", "5.000", "nan"]


def test_a_row_without_finite_logits_is_spelled_nan(tmp_path: Path) -> None:
    assert written(tmp_path, SST2, [1, -1]) == ["1", "nan"]


def test_a_class_that_the_task_has_not_is_never_written(tmp_path: Path) -> None:
    for wrong in (2, -2):
        with pytest.raises(AssertionError):
            write_predictions(tmp_path / "out.tsv", SST2, [0], [wrong])
    assert list(tmp_path.iterdir()) == []


def test_predictions_replace_an_old_file_and_leave_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "MRPC.tsv"
    for prediction in (0, 1):
        write_predictions(path, MRPC, [3, 1], [prediction, 1])
    assert path.read_bytes() == b"index\tprediction\n3\t1\n1\t1\n"
    assert [entry.name for entry in path.parent.iterdir()] == ["MRPC.tsv"]


def test_predictions_that_cannot_be_written_leave_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    (path / "inside").mkdir(parents=True)
    with pytest.raises(UserError, match=f"{path}: cannot be written: Is a directory"):
        write_predictions(path, MRPC, [0], [1])
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


# ---- the official files, where they are at hand --------------------------------------------------

EMBEDDED = (None, "sst2", "dev", {}, 3, (1, 2))
REAL = [
    ("CoLA", "cola", "train", {}, 8551, (2528, 6023)),
    ("CoLA", "cola", "dev", {}, 1043, (322, 721)),
    ("CoLA", "cola", "test", {}, 1063, None),
    ("SST-2", "sst2", "train", {}, 67349, (29780, 37569)),
    ("SST-2", "sst2", "dev", {}, 872, (428, 444)),
    ("SST-2", "sst2", "test", {}, 1821, None),
    ("SST-2-sentences", "sst2", "train", {}, 6920, ()),
    ("SST-2-sentences", "sst2", "dev", {}, 872, (428, 444)),
    ("SST-2-sentences", "sst2", "test", {}, 1821, ()),
    ("MRPC", "mrpc", "train", {}, 3668, (1194, 2474)),
    ("MRPC", "mrpc", "dev", {}, 408, (129, 279)),
    ("MRPC", "mrpc", "test", {}, 1725, None),
    ("MRPC", "mrpc", "test", {"test": "msr_paraphrase_test.txt"}, 1725, (578, 1147)),
    ("QQP-sample", "qqp", "train", {}, 20000, (12577, 7423)),
    ("QQP-sample", "qqp", "dev", {}, 3496, (2172, 1324)),
    ("STS-B", "stsb", "train", {}, 5749, ()),
    ("STS-B", "stsb", "dev", {}, 1500, ()),
    ("STS-B", "stsb", "test", {}, 1379, None),
    ("STS-B", "stsb", "test", {"test": "original/sts-test.tsv"}, 1379, ()),
    ("MNLI-sample", "mnli", "train", {}, 2344, ()),
    ("MNLI-sample", "mnli", "dev_matched", {}, 3815, ()),
    ("MNLI-sample", "mnli", "dev_mismatched", {}, 3912, ()),
    ("QNLI", "qnli", "dev", {}, 5463, (2702, 2761)),
    ("QNLI", "qnli", "test", {}, 5463, None),
    ("RTE", "rte", "train", {}, 2490, (1249, 1241)),
    ("RTE", "rte", "dev", {}, 277, (146, 131)),
    ("RTE", "rte", "test", {}, 3000, None),
    ("WNLI", "wnli", "train", {}, 635, ()),
    ("WNLI", "wnli", "dev", {}, 71, (40, 31)),
    ("WNLI", "wnli", "test", {}, 146, None),
    ("diagnostic", "ax", "test", {}, 1104, None),
]


@pytest.mark.parametrize(
    ("folder", "name", "split", "files", "count", "per_class"),
    [EMBEDDED, *(REAL if SHARED.exists() else [])],
)
def test_the_files_have_the_official_counts_and_texts(
    tmp_path: Path,
    folder: str | None,
    name: str,
    split: str,
    files: dict[str, str],
    count: int,
    per_class: tuple[int, ...] | None,
) -> None:
    (tmp_path / "dev.tsv").write_text("a\t1\nb\t0\nc\t1\n")
    row, place = TASKS[name], SHARED / folder if folder else tmp_path
    source = locate(row, TaskSettings(task=name, path=place, files=files)).source(split)
    examples = read_split(row, source, split)
    assert (len(examples), examples.skipped) == (count, 0)
    assert (examples.labels is None) == (per_class is None)
    if per_class and examples.labels:
        assert tuple(examples.labels.count(label) for label in range(2)) == per_class
    # a sentence column is the one of that name, or as GLUE's readme has it in a file without names
    text = Path(source.name).read_bytes().decode("utf-8-sig").removesuffix("\n")
    table = [line.split("\t") for line in text.split("\n")]
    headerless = {"CoLA": 3, "SST-2-sentences": 0, None: 0}
    place_of = {**headerless, "STS-B": 5}.get(folder, 0)
    columns = (examples.first, examples.second)
    for number, names in enumerate(row.columns.texts):
        header = next((n for n in names if n in table[0]), None)
        at = table[0].index(header) if header else place_of + number
        assert columns[number] == [cells[at] for cells in table[1 if header else 0 :]]
    assert (examples.second is None) == (len(row.columns.texts) == 1)


def test_every_official_file_at_hand_is_read_above() -> None:
    """A task's file that is there and not in the list would go untested."""
    assert len(REAL) > 30 and {row[1] for row in REAL} == set(TASKS)
    listed = {(folder, split) for folder, _, split, *_ in REAL}
    for folder in SHARED.glob("*") if SHARED.exists() else ():
        for path in folder.glob("*.tsv"):
            split = "test" if path.stem == "diagnostic" else path.stem
            assert (folder.name, split) in listed, path
