"""Claims on GLUE reading; ids A.., B.., D.. are the public bug reports they answer.

The referee is a reader of a few lines below, which shares no code with the package.
"""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from ala_encoder import metrics
from ala_encoder.errors import UserError
from ala_encoder.glue import TASKS, Columns, Examples, Task, read_split, task, write_predictions

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "glue"
SST2, MRPC = TASKS["sst2"], TASKS["mrpc"]
MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"

# tasks of another shape, to show that a row is all it takes
QQP = Task(
    name="qqp",
    columns=Columns(
        first="question1", second="question2", label="is_duplicate", index="id",
        other=("qid1", "qid2"),
    ),
    labels=("not_duplicate", "duplicate"),
    label_cells=("0", "1"),
    metrics=("accuracy", "f1"),
    best_metric="f1",
    server_file="QQP.tsv",
)  # fmt: skip
MNLI = Task(
    name="mnli",
    columns=Columns(
        first="sentence1", second="sentence2", label="gold_label", other=("pairID", "genre")
    ),
    labels=("entailment", "neutral", "contradiction"),
    label_cells=("entailment", "neutral", "contradiction"),
    metrics=("accuracy",),
    best_metric="accuracy",
    server_file="MNLI-m.tsv",
    files={"train": "train.tsv", "dev_matched": "dev_matched.tsv"},
)


def put(folder: Path, text: str | bytes, name: str = "train.tsv") -> Path:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def mrpc_rows(*pairs: tuple[str, str]) -> str:
    return MRPC_HEADER + "".join(f"1\t{n}\t{n}\t{a}\t{b}\n" for n, (a, b) in enumerate(pairs))


def plain_reader(path: Path) -> list[list[str]]:
    text = path.read_bytes().decode("utf-8-sig")
    return [line.split("\t") for line in text.removesuffix("\n").split("\n")]


# ---- the layouts ---------------------------------------------------------------------------------


def test_sst2_with_a_header_is_read_as_it_stands(tmp_path: Path) -> None:
    put(tmp_path, "sentence\tlabel\na fine film . \t1\n\t0\n")
    expected = Examples(
        ["a fine film . ", ""], None, [1, 0], [0, 1], str(tmp_path / "train.tsv"), 0
    )
    assert read_split(SST2, tmp_path, "train") == expected


def test_sst2_without_a_header_keeps_its_first_line(tmp_path: Path) -> None:
    examples = read_split(SST2, put(tmp_path, "good\t1\nbad\t0\n", "test.tsv"), "test")
    assert (examples.first, examples.labels, examples.ids) == (["good", "bad"], [1, 0], [0, 1])


def test_sst2_test_split_has_ids_and_no_labels(tmp_path: Path) -> None:
    examples = read_split(SST2, put(tmp_path, "index\tsentence\n7\ta\n3\tb\n", "test.tsv"), "test")
    assert (examples.labels, examples.ids, len(examples)) == (None, [7, 3], 2)
    assert "unlabelled" in examples.notes[0]


def test_mrpc_columns_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    text = "#2 String\t#1 ID\tQuality\t#2 ID\t#1 String\nsecond\t10\t1\t20\tfirst\n"
    examples = read_split(MRPC, put(tmp_path, text), "train")
    assert (examples.first, examples.second, examples.labels) == (["first"], ["second"], [1])


def test_mrpc_test_split_has_the_index_for_the_label(tmp_path: Path) -> None:
    put(tmp_path, "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n5\t1\t2\ta\tb\n", "test.tsv")
    examples = read_split(MRPC, tmp_path, "test")
    assert (examples.labels, examples.ids, examples.second) == (None, [5], ["b"])


def test_gzip_reads_like_the_plain_file_and_the_plain_one_goes_first(tmp_path: Path) -> None:
    put(tmp_path, gzip.compress(b"zipped\t1\n"), "dev.tsv.gz")
    assert read_split(SST2, tmp_path, "dev").first == ["zipped"]
    put(tmp_path, "plain\t1\n", "dev.tsv")
    assert read_split(SST2, tmp_path, "dev").first == ["plain"]


def test_a_new_task_is_one_declarative_row(tmp_path: Path) -> None:
    text = "index\tpairID\tgenre\tsentence1\tsentence2\tgold_label\n4\tc\tfiction\ta\tb\tneutral\n"
    examples = read_split(MNLI, put(tmp_path, text, "dev_matched.tsv"), "dev_matched")
    assert (examples.first, examples.second) == (["a"], ["b"])
    assert (examples.labels, examples.ids) == ([1], [4])
    write_predictions(tmp_path / "out.tsv", MNLI, [4], [2])
    assert (tmp_path / "out.tsv").read_bytes() == b"index\tprediction\n4\tcontradiction\n"


def test_every_task_names_only_metrics_that_exist() -> None:
    for name, row in TASKS.items():
        assert name == row.name
        assert set(row.metrics) <= set(metrics.METRICS)


def test_an_unknown_task_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"'SST-2': allowed are sst2, mrpc \(did you mean 'sst2'"):
        task("SST-2")
    assert task("mrpc") is MRPC


# ---- quotes, line ends, bytes --------------------------------------------------------------------


def test_a01_quotes_are_plain_characters(tmp_path: Path) -> None:
    put(tmp_path, mrpc_rows(('" he said', "b"), ("c", 'd "'), ("e", "f")))
    examples = read_split(MRPC, tmp_path, "train")
    assert examples.first == ['" he said', "c", "e"]
    assert examples.second == ["b", 'd "', "f"]


@pytest.mark.parametrize("text", ["a\u2028b", "a\u0085b", "a\x0cb", "a\x1cb", "a\rb", "a\u2029"])
def test_b01_only_lf_ends_a_line(tmp_path: Path, text: str) -> None:
    examples = read_split(SST2, put(tmp_path, f"sentence\tlabel\n{text}\t1\nlast\t0"), "train")
    assert examples.first == [text, "last"]


def test_b04_one_cr_is_stripped_and_noted(tmp_path: Path) -> None:
    examples = read_split(SST2, put(tmp_path, "sentence\tlabel\r\na\t1\r\nb\t0\n"), "train")
    assert (examples.first, examples.labels) == (["a", "b"], [1, 0])
    assert len(examples.notes) == 1 and "2 of 3 lines" in examples.notes[0]
    with pytest.raises(UserError, match=r"train\.tsv:1: label '1\\r', allowed are 0, 1"):
        read_split(SST2, put(tmp_path, "a\t1\r\r\n"), "train")


def test_b05_only_the_first_byte_order_mark_is_stripped(tmp_path: Path) -> None:
    bom = "\ufeff"
    put(tmp_path, bom + mrpc_rows((bom + "a", "b"), ("c", "d" + bom)))
    examples = read_split(MRPC, tmp_path, "train")
    assert (examples.first, examples.second) == ([bom + "a", "c"], ["b", "d" + bom])
    assert read_split(SST2, put(tmp_path, f"{bom}{bom}a\t1\n"), "train").first == [bom + "a"]


def test_b21_bytes_that_are_not_utf8_are_refused_with_the_line(tmp_path: Path) -> None:
    put(tmp_path, b"sentence\tlabel\nfine\t1\ncaf\xe9 \t0\n")
    for policy in ("error", "skip"):
        with pytest.raises(UserError, match=r"train\.tsv:3: not UTF-8 \(bytes e9\)"):
            read_split(SST2, tmp_path, "train", on_bad_row=policy)


# ---- bad rows ------------------------------------------------------------------------------------


def qqp_file(folder: Path) -> Path:
    rows = [f"{n}\t1\t2\ta{n}\tb{n}\t{n % 2}" for n in range(10)]
    rows[5] = "5\t1\t2\ta5"  # line 7
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    return put(folder, "\n".join([header, *rows]) + "\n")


def test_a02_a_short_row_is_refused_with_file_line_and_columns(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.tsv:7: 4 columns, allowed are 6: id, qid1"):
        read_split(QQP, qqp_file(tmp_path), "train")


def test_a02_a_short_row_is_skipped_counted_and_noted_by_policy(tmp_path: Path) -> None:
    examples = read_split(QQP, qqp_file(tmp_path), "train", on_bad_row="skip")
    assert examples.skipped == 1
    assert examples.ids == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert examples.labels == [0, 1, 0, 1, 0, 0, 1, 0, 1]
    assert examples.second == [f"b{n}" for n in examples.ids]
    assert "1 bad rows skipped" in examples.notes[0] and "train.tsv:7" in examples.notes[0]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a\tb\t1", "3 columns, allowed are 2: sentence, label"),
        ("", "1 columns"),
        ("a\t2", "label '2', allowed are 0, 1"),
        ("a\t", "label ''"),
        ("a\t 1", "label ' 1'"),
        ("a\t1.0", r"label '1\.0'"),
        ("a\tpositive", "label 'positive'"),
        ("sentence\tlabel", "label 'label'"),
        ("a\t" + "x" * 5000, r"label 'x{57}\.\.\.'"),
    ],
)
def test_a_bad_row_names_its_line_what_was_found_and_what_is_allowed(
    tmp_path: Path, row: str, reason: str
) -> None:
    put(tmp_path, f"sentence\tlabel\ngood\t1\n{row}\nlast\t0\n")
    with pytest.raises(UserError, match=rf"train\.tsv:3: {reason}") as caught:
        read_split(SST2, tmp_path, "train")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    examples = read_split(SST2, tmp_path, "train", on_bad_row="skip")
    # ids count the skipped row, so that they still point into the file
    assert (examples.skipped, examples.ids) == (1, [0, 2])


@pytest.mark.parametrize("index", ["", "x", "-1", "1.0", "1_0", " 1", "\u0661", "9" * 30, "0"])
def test_an_index_that_is_no_number_or_came_before_is_a_bad_row(tmp_path: Path, index: str) -> None:
    put(tmp_path, f"index\tsentence\n0\ta\n{index}\tb\n", "test.tsv")
    with pytest.raises(UserError, match=r"test\.tsv:3: index "):
        read_split(SST2, tmp_path, "test")
    assert read_split(SST2, tmp_path, "test", on_bad_row="skip").ids == [0]


@pytest.mark.parametrize("change", [("Quality", "quality"), ("#1 ID", "#2 ID"), ("#2 S", "S")])
def test_an_unknown_header_is_refused_under_either_policy(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    put(tmp_path, mrpc_rows(("a", "b")).replace(*change))
    for policy in ("error", "skip"):
        with pytest.raises(UserError, match=r"train\.tsv:1: '.* no header of mrpc"):
            read_split(MRPC, tmp_path, "train", on_bad_row=policy)


def test_a_first_line_that_is_neither_header_nor_row_says_both(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r":1: label 'Label'.* \(nor is line 1 a header of: index"):
        read_split(SST2, put(tmp_path, "Sentence\tLabel\na\t1\n"), "train")


def test_a07_the_label_count_comes_from_the_task(tmp_path: Path) -> None:
    assert [row.num_labels for row in (SST2, MRPC, MNLI)] == [2, 2, 3]
    for row in (SST2, MRPC, MNLI, QQP):
        assert row.num_labels == len(row.labels) == len(row.label_cells)
    with pytest.raises(AssertionError):
        write_predictions(tmp_path / "out.tsv", SST2, [0], [2])
    assert list(tmp_path.iterdir()) == []


# ---- unlabelled splits ---------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["sentence\tlabel\n", ""])
def test_a04_a_test_split_of_minus_ones_is_predicted_and_not_scored(
    tmp_path: Path, header: str
) -> None:
    examples = read_split(SST2, put(tmp_path, f"{header}a\t-1\nb\t-1\n", "test.tsv"), "test")
    assert (examples.first, examples.labels, examples.skipped) == (["a", "b"], None, 0)
    values, reasons = metrics.scores(SST2.metrics, [1, 0], examples.labels)
    assert values == {"accuracy": None}
    assert "no labels" in reasons["accuracy"]
    write_predictions(tmp_path / SST2.server_file, SST2, examples.ids, [1, 0])
    assert (tmp_path / "SST-2.tsv").read_text() == "index\tprediction\n0\t1\n1\t0\n"


def test_a04_minus_one_among_labels_is_a_bad_row(tmp_path: Path) -> None:
    put(tmp_path, "a\t1\nb\t-1\nc\t0\n", "test.tsv")
    with pytest.raises(UserError, match=r"test\.tsv:2: label '-1' among labelled rows"):
        read_split(SST2, tmp_path, "test")
    examples = read_split(SST2, tmp_path, "test", on_bad_row="skip")
    assert (examples.first, examples.labels, examples.skipped) == (["a", "c"], [1, 0], 1)


@pytest.mark.parametrize("split", ["train", "dev"])
@pytest.mark.parametrize("label", ["-1", "-100"])
def test_d05_a_label_of_minus_one_never_enters_train_or_dev(
    tmp_path: Path, split: str, label: str
) -> None:
    put(tmp_path, f"sentence\tlabel\na\t1\nb\t{label}\n", f"{split}.tsv")
    with pytest.raises(UserError, match=rf"{split}\.tsv:3: label '{label}', allowed are 0, 1"):
        read_split(SST2, tmp_path, split)


@pytest.mark.parametrize("split", ["train", "dev"])
def test_train_and_dev_without_a_label_column_are_refused(tmp_path: Path, split: str) -> None:
    put(tmp_path, "index\tsentence\n0\ta\n", f"{split}.tsv")
    with pytest.raises(UserError, match=rf"split '{split}' of sst2 has no label column 'label'"):
        read_split(SST2, tmp_path, split)


# ---- files that are not there, or hold nothing ---------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the file is empty"),
        (b"\xef\xbb\xbf", "the file is empty"),
        (b"sentence\tlabel\n", "only a header"),
        (b"\n", "1 columns"),
        (b"   \n", "1 columns"),
        (b"\x00\x00", "1 columns"),
        (b"\xff\xfes\x00", r":1: not UTF-8 \(bytes ff\)"),
    ],
)
def test_b20_a_split_without_rows_says_why(tmp_path: Path, content: bytes, why: str) -> None:
    for policy in ("error", "skip"):
        with pytest.raises(UserError, match=why):
            read_split(SST2, put(tmp_path, content), "train", on_bad_row=policy)


def test_b20_one_long_line_and_a_last_line_without_lf_are_kept(tmp_path: Path) -> None:
    text = "x" * 3_000_000
    assert read_split(SST2, put(tmp_path, f"{text}\t1"), "train").first == [text]


def test_a_missing_file_lists_what_the_folder_has(tmp_path: Path) -> None:
    put(tmp_path, "a\t1\n", "training.tsv")
    with pytest.raises(UserError, match=r"neither dev\.tsv nor dev\.tsv\.gz; it has training\.tsv"):
        read_split(SST2, tmp_path, "dev")
    for n in range(30):
        put(tmp_path, "", f"f{n:02}")
    with pytest.raises(UserError, match=r"f19 and 11 more$"):
        read_split(SST2, tmp_path, "dev")


def test_a_folder_or_split_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder to read sst2 from"):
        read_split(SST2, tmp_path / "none", "dev")
    with pytest.raises(UserError, match="no folder to read sst2 from"):
        read_split(SST2, put(tmp_path, "", "file") / "file", "dev")
    with pytest.raises(UserError, match=r"split 'tset' of sst2: .*did you mean 'test'"):
        read_split(SST2, tmp_path, "tset")


@pytest.mark.parametrize("cut", [0, 5, 20, -4])
def test_a_damaged_gzip_is_refused(tmp_path: Path, cut: int) -> None:
    put(tmp_path, gzip.compress(b"a\t1\nb\t0\n")[:cut], "dev.tsv.gz")
    with pytest.raises(UserError, match=r"dev\.tsv\.gz"):
        read_split(SST2, tmp_path, "dev")


def test_r20_malformed_bytes_end_in_one_line_or_in_examples(tmp_path: Path) -> None:
    generator = random.Random(0)
    good = (MRPC_HEADER + '1\t2\t3\ta "\tb\n0\t4\t5\tc\td\r\n').encode("utf-8-sig")
    pieces = [b"\t", b"\n", b"\r", b'"', b"\xff", b"\x00", b"-1", b"\xe2\x80\xa8", b"index", b"7"]
    for _ in range(400):
        data = bytearray(good)
        for _ in range(generator.randrange(1, 4)):
            at = generator.randrange(len(data) + 1)
            data[at : at + generator.randrange(3)] = generator.choice(pieces)
        for row, split in ((MRPC, "train"), (MRPC, "test"), (SST2, "dev")):
            put(tmp_path, bytes(data), f"{split}.tsv")
            for policy in ("error", "skip"):
                try:
                    examples = read_split(row, tmp_path, split, on_bad_row=policy)
                except UserError as error:
                    assert "\n" not in str(error)
                else:
                    assert len(examples) > 0


# ---- predictions ---------------------------------------------------------------------------------


def test_predictions_replace_an_old_file_and_leave_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / MRPC.server_file
    for prediction in (0, 1):
        write_predictions(path, MRPC, [3, 1], [prediction, 1])
    assert path.read_bytes() == b"index\tprediction\n3\t1\n1\t1\n"
    assert [entry.name for entry in path.parent.iterdir()] == ["MRPC.tsv"]


def test_predictions_that_cannot_be_written_leave_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    (path / "inside").mkdir(parents=True)
    with pytest.raises(OSError):
        write_predictions(path, MRPC, [0], [1])
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


# ---- the official files, where they are at hand --------------------------------------------------

EMBEDDED = (None, SST2, "dev", 3, (1, 2), 0)
REAL = [
    ("SST-2", SST2, "train", 67349, (29780, 37569), 1),
    ("SST-2", SST2, "dev", 872, (428, 444), 1),
    ("SST-2", SST2, "test", 1821, None, 1),
    ("SST-2-sentences", SST2, "train", 6920, None, 0),
    ("SST-2-sentences", SST2, "dev", 872, (428, 444), 0),
    ("SST-2-sentences", SST2, "test", 1821, None, 0),
    ("MRPC", MRPC, "train", 3668, (1194, 2474), 1),
    ("MRPC", MRPC, "dev", 408, (129, 279), 1),
    ("MRPC", MRPC, "test", 1725, None, 1),
    ("QQP-sample", QQP, "train", 20000, (12577, 7423), 1),
    ("MNLI-sample", MNLI, "dev_matched", 3815, None, 1),
]


@pytest.mark.parametrize(
    ("folder", "row", "split", "count", "per_class", "header"),
    [EMBEDDED, *(REAL if SHARED.exists() else [])],
)
def test_the_files_have_the_official_counts_and_texts(
    tmp_path: Path,
    folder: str | None,
    row: Task,
    split: str,
    count: int,
    per_class: tuple[int, ...] | None,
    header: int,
) -> None:
    place = SHARED / folder if folder else put(tmp_path, "a\t1\nb\t0\nc\t1\n", "dev.tsv")
    examples = read_split(row, place, split)
    assert (len(examples), examples.skipped) == (count, 0)
    unlabelled = split == "test" and folder != "SST-2-sentences"
    assert (examples.labels is None) == unlabelled
    assert (examples.second is None) == (row.columns.second is None)
    if per_class and examples.labels:
        assert tuple(examples.labels.count(label) for label in range(2)) == per_class
    table = plain_reader(place / f"{split}.tsv")
    names = table[0] if header else list(row.headerless)
    column = names.index(row.columns.first)
    assert examples.first == [cells[column] for cells in table[header:]]
