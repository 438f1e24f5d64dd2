"""Claims on reading labelled rows; ids A.., B.., D.. are the public bug reports they answer."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ala_encoder import metrics
from ala_encoder.errors import UserError
from ala_encoder.glue import TASKS, Task, prediction_file, task_of, write_predictions
from ala_encoder.labelled import LabelledRows, read_split
from ala_encoder.settings.task import TaskColumns, TaskSettings
from ala_encoder.splits import locate

SST2, MRPC, QQP, MNLI, STSB = (TASKS[name] for name in ("sst2", "mrpc", "qqp", "mnli", "stsb"))
MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


def put(folder: Path, text: str | bytes, name: str = "train.tsv") -> Path:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def read(
    task: Task, folder: Path, split: str, on_bad_row: Any = "error", **more: Any
) -> LabelledRows:
    data = TaskSettings(task=task.name, path=folder, **more)
    return read_split(task, locate(task, data).source(split), split, on_bad_row=on_bad_row)


def mrpc_rows(*pairs: tuple[str, str]) -> str:
    return MRPC_HEADER + "".join(f"1\t{n}\t{n}\t{a}\t{b}\n" for n, (a, b) in enumerate(pairs))


# ---- the layouts ---------------------------------------------------------------------------------


def test_sst2_with_a_header_is_read_as_it_stands(tmp_path: Path) -> None:
    put(tmp_path, "sentence\tlabel\na fine film . \t1\n\t0\n")
    expected = LabelledRows(
        ["a fine film . ", ""], None, [1, 0], [0, 1], str(tmp_path / "train.tsv"), 0
    )
    assert read(SST2, tmp_path, "train") == expected


def test_sst2_without_a_header_keeps_its_first_line(tmp_path: Path) -> None:
    examples = read(SST2, put(tmp_path, "good\t1\nbad\t0\n", "test.tsv"), "test")
    assert (examples.first, examples.labels, examples.ids) == (["good", "bad"], [1, 0], [0, 1])


def test_sst2_test_split_has_ids_and_no_labels(tmp_path: Path) -> None:
    examples = read(SST2, put(tmp_path, "index\tsentence\n7\ta\n3\tb\n", "test.tsv"), "test")
    assert (examples.labels, examples.ids, len(examples)) == (None, [7, 3], 2)
    assert "unlabelled" in examples.notes[0]


def test_mrpc_columns_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    text = "#2 String\t#1 ID\tQuality\t#2 ID\t#1 String\nsecond\t10\t1\t20\tfirst\n"
    examples = read(MRPC, put(tmp_path, text), "train")
    assert (examples.first, examples.second, examples.labels) == (["first"], ["second"], [1])


def test_mrpc_test_split_has_the_index_for_the_label(tmp_path: Path) -> None:
    put(tmp_path, "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n5\t1\t2\ta\tb\n", "test.tsv")
    examples = read(MRPC, tmp_path, "test")
    assert (examples.labels, examples.ids, examples.second) == (None, [5], ["b"])


def test_gzip_reads_like_the_plain_file_and_the_plain_one_goes_first(tmp_path: Path) -> None:
    put(tmp_path, gzip.compress(b"zipped\t1\n"), "dev.tsv.gz")
    assert read(SST2, tmp_path, "dev").first == ["zipped"]
    put(tmp_path, "plain\t1\n", "dev.tsv")
    assert read(SST2, tmp_path, "dev").first == ["plain"]


# ---- quotes, line ends, bytes --------------------------------------------------------------------


def test_a01_quotes_are_plain_characters(tmp_path: Path) -> None:
    put(tmp_path, mrpc_rows(('" he said', "b"), ("c", 'd "'), ("e", "f")))
    examples = read(MRPC, tmp_path, "train")
    assert examples.first == ['" he said', "c", "e"]
    assert examples.second == ["b", 'd "', "f"]


def test_what_was_stripped_from_lines_is_noted_with_the_file(tmp_path: Path) -> None:
    bom = "\ufeff"
    put(tmp_path, f"{bom}sentence\tlabel\r\na\t1\r\n{bom}b\t0\n")
    examples = read(SST2, tmp_path, "train")
    assert (examples.first, examples.labels) == (["a", "b"], [1, 0])
    crs, marks = examples.notes
    assert "train.tsv: 2 lines ended in CR LF" in crs and "train.tsv: 2 byte-order" in marks


def test_a_line_that_is_not_utf8_is_a_bad_row(tmp_path: Path) -> None:
    put(tmp_path, b"sentence\tlabel\nfine\t1\ncaf\xe9 \t0\nlast\t0\n")
    with pytest.raises(UserError, match=r"train\.tsv:3: not UTF-8 \(bytes e9 at byte 3"):
        read(SST2, tmp_path, "train")
    examples = read(SST2, tmp_path, "train", on_bad_row="skip")
    assert (examples.first, examples.ids, examples.skipped) == (["fine", "last"], [0, 2], 1)


# ---- bad rows ------------------------------------------------------------------------------------


def qqp_file(folder: Path) -> Path:
    rows = [f"{n}\t1\t2\ta{n}\tb{n}\t{n % 2}" for n in range(10)]
    rows[5] = "5\t1\t2\ta5"  # line 7
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    return put(folder, "\n".join([header, *rows]) + "\n")


def test_a02_a_short_row_is_refused_with_file_line_and_columns(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.tsv:7: 4 columns, allowed are 6 \(id, qid1"):
        read(QQP, qqp_file(tmp_path), "train")


def test_a02_a_short_row_is_skipped_counted_and_noted_by_policy(tmp_path: Path) -> None:
    examples = read(QQP, qqp_file(tmp_path), "train", on_bad_row="skip")
    assert examples.skipped == 1
    assert examples.ids == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert examples.labels == [0, 1, 0, 1, 0, 0, 1, 0, 1]
    assert examples.second == [f"b{n}" for n in examples.ids]
    assert "1 bad rows were skipped" in examples.notes[0] and "train.tsv:7" in examples.notes[0]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a\tb\t1", r"3 columns, allowed are 2 \(sentence, label\)"),
        ("", "1 columns"),
        ("a\t2", "label '2', allowed are 0, 1"),
        ("a\t", "label ''"),
        ("a\t 1", "label ' 1'"),
        ("a\t1.0", r"label '1\.0'"),
        ("a\tPositive", "label 'Positive'"),
        ("sentence\tlabel", "label 'label'"),
        ("a\t" + "x" * 5000, "label 'x{20,30} … x{20,30}'"),
    ],
)
def test_a_bad_row_names_its_line_what_was_found_and_what_is_allowed(
    tmp_path: Path, row: str, reason: str
) -> None:
    put(tmp_path, f"sentence\tlabel\ngood\t1\n{row}\nlast\t0\n")
    with pytest.raises(UserError, match=rf"train\.tsv:3: {reason}") as caught:
        read(SST2, tmp_path, "train")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    examples = read(SST2, tmp_path, "train", on_bad_row="skip")
    # ids count the skipped row, so that they still point into the file
    assert (examples.skipped, examples.ids) == (1, [0, 2])


@pytest.mark.parametrize("index", ["", "x", "-1", "1.0", "1_0", " 1", "\u0661", "9" * 30, "0"])
def test_an_index_that_is_no_number_or_came_before_is_a_bad_row(tmp_path: Path, index: str) -> None:
    put(tmp_path, f"index\tsentence\n0\ta\n{index}\tb\n", "test.tsv")
    with pytest.raises(UserError, match=r"test\.tsv:3: index "):
        read(SST2, tmp_path, "test")
    assert read(SST2, tmp_path, "test", on_bad_row="skip").ids == [0]


@pytest.mark.parametrize("change", [("#1 ID", "#2 ID"), ("#2 S", "S")])
def test_an_unknown_header_is_refused_under_either_policy(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    put(tmp_path, mrpc_rows(("a", "b")).replace(*change))
    for policy in ("error", "skip"):
        with pytest.raises(UserError, match=r"train\.tsv:1: '.* no header of mrpc"):
            read(MRPC, tmp_path, "train", on_bad_row=policy)


def test_a_first_line_that_is_neither_header_nor_row_says_both(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r":1 \(read as a row, it is no header with 'sentence'\): label 'L"
    ):
        read(SST2, put(tmp_path, "Sentence\tLabel\na\t1\n"), "train")


# ---- unlabelled splits ---------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["sentence\tlabel\n", ""])
def test_a04_a_test_split_of_minus_ones_is_predicted_and_not_scored(
    tmp_path: Path, header: str
) -> None:
    examples = read(SST2, put(tmp_path, f"{header}a\t-1\nb\t-1\n", "test.tsv"), "test")
    assert (examples.first, examples.labels, examples.skipped) == (["a", "b"], None, 0)
    score = metrics.scores(SST2.metrics, [1, 0], examples.labels)["accuracy"]
    assert score.value is None and "no labels" in (score.reason or "")
    write_predictions(tmp_path / prediction_file(SST2, "test"), SST2, examples.ids, [1, 0])
    assert (tmp_path / "SST-2.tsv").read_text() == "index\tprediction\n0\t1\n1\t0\n"


def test_a04_minus_one_among_labels_is_a_bad_row(tmp_path: Path) -> None:
    put(tmp_path, "a\t1\nb\t-1\nc\t0\n", "test.tsv")
    with pytest.raises(UserError, match=r"test\.tsv:2: no label among labelled rows"):
        read(SST2, tmp_path, "test")
    examples = read(SST2, tmp_path, "test", on_bad_row="skip")
    assert (examples.first, examples.labels, examples.skipped) == (["a", "c"], [1, 0], 1)


@pytest.mark.parametrize("split", ["train", "dev"])
@pytest.mark.parametrize("label", ["-1", "-100"])
def test_d05_a_label_of_minus_one_never_enters_train_or_dev(
    tmp_path: Path, split: str, label: str
) -> None:
    put(tmp_path, f"sentence\tlabel\na\t1\nb\t{label}\n", f"{split}.tsv")
    with pytest.raises(UserError, match=rf"{split}\.tsv:3: label '{label}', allowed are 0, 1"):
        read(SST2, tmp_path, split)


@pytest.mark.parametrize("split", ["train", "dev"])
def test_train_and_dev_without_a_label_column_are_refused(tmp_path: Path, split: str) -> None:
    put(tmp_path, "index\tsentence\n0\ta\n", f"{split}.tsv")
    with pytest.raises(UserError, match=rf"{split}\.tsv:2: has no column 'label'; it has index, s"):
        read(SST2, tmp_path, split)
    with pytest.raises(UserError, match=rf"'{split}' of sst2 is empty: all 1 rows are bad, the f"):
        read(SST2, tmp_path, split, on_bad_row="skip")


# ---- files that are not there, or hold nothing ---------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the file is empty"),
        (b"\xef\xbb\xbf", "1 columns"),
        (b"sentence\tlabel\n", "only a header"),
        (b"\n", "1 columns"),
        (b"   \n", "1 columns"),
        (b"\x00\x00", "looks like UTF-16"),
        (b"\xff\xfesent", r":1: not UTF-8 \(bytes ff"),
    ],
)
def test_b20_a_split_without_rows_says_why(tmp_path: Path, content: bytes, why: str) -> None:
    for policy in ("error", "skip"):
        with pytest.raises(UserError, match=why):
            read(SST2, put(tmp_path, content), "train", on_bad_row=policy)


def test_a_missing_file_lists_what_the_folder_has(tmp_path: Path) -> None:
    put(tmp_path, "a\t1\n", "training.tsv")
    with pytest.raises(
        UserError, match=r"'dev' of sst2: not found in .*, which has training\.tsv;"
    ):
        read(SST2, tmp_path, "dev")
    for n in range(30):
        put(tmp_path, "", f"f{n:02}")
    with pytest.raises(UserError, match=r"f19 and 11 more; `files`"):
        read(SST2, tmp_path, "dev")


def test_a_folder_or_split_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder to read sst2 from"):
        read(SST2, tmp_path / "none", "dev")
    with pytest.raises(UserError, match="no folder to read sst2 from"):
        read(SST2, put(tmp_path, "", "file") / "file", "dev")
    with pytest.raises(UserError, match=r"split = 'tset': sst2 has .*did you mean 'test'"):
        read(SST2, tmp_path, "tset")


@pytest.mark.parametrize("cut", [0, 5, 20, -4])
def test_a_damaged_gzip_is_refused(tmp_path: Path, cut: int) -> None:
    put(tmp_path, gzip.compress(b"a\t1\nb\t0\n")[:cut], "dev.tsv.gz")
    with pytest.raises(UserError, match=r"dev\.tsv\.gz"):
        read(SST2, tmp_path, "dev")


# ---- other layouts -------------------------------------------------------------------------------

MNLI_HEADER = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse "
    "sentence2_parse sentence1 sentence2"
)


@pytest.mark.parametrize(
    ("split", "labels"),
    [("train", "label1"), ("dev_matched", "label1 label2 label3 label4 label5")],
)
def test_mnli_is_read_from_the_official_files(tmp_path: Path, split: str, labels: str) -> None:
    names = [*MNLI_HEADER.split(), *labels.split(), "gold_label"]
    values = {"index": "4", "sentence1": "a", "sentence2": "b", "gold_label": "neutral"}
    row = "\t".join(values.get(name, "entailment") for name in names)
    examples = read(MNLI, put(tmp_path, "\t".join(names) + f"\n{row}\n", f"{split}.tsv"), split)
    assert (examples.first, examples.second) == (["a"], ["b"])
    assert (examples.labels, examples.ids) == ([1], [4])


def test_mnli_rows_without_a_consensus_are_bad_rows(tmp_path: Path) -> None:
    text = "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\t-\n1\tc\td\tcontradiction\n"
    put(tmp_path, text)
    allowed = "allowed are entailment, neutral, contradiction"
    with pytest.raises(UserError, match=rf"train\.tsv:2: label '-', {allowed}"):
        read(MNLI, tmp_path, "train")
    examples = read(MNLI, tmp_path, "train", on_bad_row="skip")
    assert (examples.labels, examples.ids, examples.skipped) == ([2], [1], 1)


def test_cola_has_a_header_in_its_test_file_alone(tmp_path: Path) -> None:
    examples = read(TASKS["cola"], put(tmp_path, "gj04\t1\t\tA.\ngj04\t0\t*\tB.\n"), "train")
    assert (examples.first, examples.labels, examples.ids) == (["A.", "B."], [1, 0], [0, 1])
    put(tmp_path, "index\tsentence\n7\tA.\n", "test.tsv")
    examples = read(TASKS["cola"], tmp_path, "test")
    assert (examples.first, examples.labels, examples.ids) == (["A."], None, [7])


def test_stsb_scores_are_numbers_in_both_layouts(tmp_path: Path) -> None:
    header = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
    row = "3\tg\tf\ty\to\ts\ts\ta\tb"
    examples = read(STSB, put(tmp_path, f"{header}\tscore\n{row}\t3.800\n"), "train")
    assert (examples.first, examples.second) == (["a"], ["b"])
    assert (examples.labels, examples.ids) == ([3.8], [3])
    put(tmp_path, f"{header}\n{row}\n", "test.tsv")
    assert read(STSB, tmp_path, "test").labels is None
    put(tmp_path, "g\tf\ty\to\t2.5\ta\tb\ng\tf\ty\to\t5\tc\td\ts\ts\n", "sts-test.tsv")
    examples = read(STSB, tmp_path, "test", files={"test": "sts-test.tsv"})
    assert (examples.first, examples.labels) == (["a", "c"], [2.5, 5.0])


@pytest.mark.parametrize(
    "score", ["", "x", "nan", "inf", "-0.1", "5.001", "1_0", " 1", "-1", "0x1"]
)
def test_a_score_out_of_range_or_no_number_is_a_bad_row(tmp_path: Path, score: str) -> None:
    put(tmp_path, f"sentence1\tsentence2\tscore\na\tb\t{score}\nc\td\t5\n")
    with pytest.raises(
        UserError, match=r"train\.tsv:2: label '.*', allowed are numbers from 0 to 5"
    ):
        read(STSB, tmp_path, "train")
    assert read(STSB, tmp_path, "train", on_bad_row="skip").labels == [5.0]


def test_b09_a_tab_inside_a_sentence_is_a_bad_row(tmp_path: Path) -> None:
    put(tmp_path, "sentence\tlabel\ngood\t1\nno\tgood\t0\n")
    with pytest.raises(UserError, match=r"train\.tsv:3: 3 columns, allowed are 2"):
        read(SST2, tmp_path, "train")


# ---- records of other formats --------------------------------------------------------------------


def put_rows(folder: Path, suffix: str, rows: list[dict[str, Any]], split: str = "train") -> Path:
    path = folder / f"{split}{suffix}"
    if suffix.startswith(".jsonl"):
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    elif suffix == ".csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    return folder


SUFFIXES = [".jsonl", ".jsonl.gz", ".csv", ".parquet"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_other_formats_have_the_names_of_the_datasets_library(suffix: str, tmp_path: Path) -> None:
    rows = [
        {"premise": "a", "hypothesis": "b", "label": "neutral", "idx": 5},
        {"premise": "c", "hypothesis": "d", "label": "entailment", "idx": 3},
    ]
    examples = read(MNLI, put_rows(tmp_path, suffix, rows), "train")
    assert (examples.first, examples.second) == (["a", "c"], ["b", "d"])
    assert (examples.labels, examples.ids) == ([1, 0], [5, 3])


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_number_is_a_class_only_where_the_tasks_files_write_it(
    suffix: str, tmp_path: Path
) -> None:
    rows = [{"sentence": "a", "label": 1}, {"sentence": "b", "label": 0}]
    assert read(SST2, put_rows(tmp_path, suffix, rows), "train").labels == [1, 0]
    rows = [{"premise": "a", "hypothesis": "b", "label": 1}]
    with pytest.raises(UserError, match="label 1, allowed are entailment, neutral, contradiction"):
        read(MNLI, put_rows(tmp_path, suffix, rows), "train")


@pytest.mark.parametrize("label", [True, 1.0, None, [1], {"a": 1}, 2, -1])
def test_what_is_no_class_is_a_bad_row_in_any_format(label: Any, tmp_path: Path) -> None:
    put_rows(tmp_path, ".jsonl", [{"sentence": "a", "label": label}])
    with pytest.raises(UserError, match=r"train\.jsonl:1: label .*, allowed are 0, 1, negative"):
        read(SST2, tmp_path, "train")


@pytest.mark.parametrize("text", [None, 5, ["a"]])
def test_what_is_no_text_is_a_bad_row(text: Any, tmp_path: Path) -> None:
    put_rows(tmp_path, ".jsonl", [{"sentence": text, "label": 1}])
    with pytest.raises(UserError, match=r"train\.jsonl:1: sentence is .*, allowed is a text"):
        read(SST2, tmp_path, "train")


@pytest.mark.parametrize(("task", "label"), [(SST2, -1), (SST2, None), (STSB, -1.0)])
def test_a04_a_test_split_without_labels_in_any_format(
    task: Task, label: float | None, tmp_path: Path
) -> None:
    row = {"sentence": "a", "sentence1": "a", "sentence2": "b", "label": label}
    put_rows(tmp_path, ".jsonl", [row, row], "test")
    assert read(task, tmp_path, "test").labels is None


def test_rows_that_the_reader_skips_keep_their_numbers(tmp_path: Path) -> None:
    good = '{"sentence": "a", "label": 1}'
    put(tmp_path, "\n".join([good, "{", good, '{"label": 1}', good]), "train.jsonl")
    examples = read(SST2, tmp_path, "train", on_bad_row="skip")
    assert (examples.ids, examples.skipped) == ([0, 2, 4], 2)


# ---- slices --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "ids"), [("", range(6)), ("[:2]", range(2)), ("[2:5]", range(2, 5)), ("[4:]", [4, 5])]
)
@pytest.mark.parametrize("suffix", [".tsv", *SUFFIXES])
def test_a_slice_takes_rows_after_the_header_and_keeps_their_numbers(
    suffix: str, rows: str, ids: list[int], tmp_path: Path
) -> None:
    if suffix == ".tsv":
        put(tmp_path, "sentence\tlabel\n" + "".join(f"s{n}\t{n % 2}\n" for n in range(6)))
    else:
        put_rows(tmp_path, suffix, [{"sentence": f"s{n}", "label": str(n % 2)} for n in range(6)])
    examples = read(SST2, tmp_path, "train", files={"train": f"train{suffix}{rows}"})
    assert examples.ids == list(ids)
    assert examples.first == [f"s{n}" for n in ids]
    assert examples.labels == [n % 2 for n in ids]


BAD = {".tsv": "short", ".jsonl": "{", ".csv": '"a'}


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("suffix", BAD)
def test_a_slice_is_judged_by_its_own_rows_alone(suffix: str, header: bool, tmp_path: Path) -> None:
    """Rows 1, 4 and 6 are bad, by the reader or by their label."""
    if suffix == ".jsonl":
        lines = [f'{{"sentence": "s{n}", "label": {n % 2}}}' for n in range(8)]
    else:
        lines = [
            f"s{n}\t{n % 2}".replace("\t", "," if suffix == ".csv" else "\t") for n in range(8)
        ]
    lines[1] = lines[6] = BAD[suffix]
    lines[4] = lines[4].replace("0", "7")
    if suffix == ".csv" or (suffix == ".tsv" and header):
        lines.insert(0, "sentence,label".replace(",", "," if suffix == ".csv" else "\t"))
    put(tmp_path, "\n".join(lines), f"train{suffix}")

    def taken(rows: str, policy: str) -> LabelledRows:
        return read(SST2, tmp_path, "train", policy, files={"train": f"train{suffix}{rows}"})

    for rows, ids, skipped in (
        ("[2:4]", [2, 3], 0), ("[:1]", [0], 0), ("[5:6]", [5], 0), ("[7:]", [7], 0),
        ("[:2]", [0], 1), ("[1:3]", [2], 1), ("[3:6]", [3, 5], 1), ("[5:7]", [5], 1),
        ("[:]", [0, 2, 3, 5, 7], 3),
    ):  # fmt: skip
        found = taken(rows, "skip")
        assert (found.ids, found.skipped) == (ids, skipped), rows
        assert any("bad rows" in note for note in found.notes) == bool(skipped)
        if skipped:
            with pytest.raises(UserError, match=rf"train{suffix}:\d+: "):
                taken(rows, "error")
        else:
            assert taken(rows, "error") == found
    for rows in ("[1:2]", "[4:5]", "[6:7]"):
        with pytest.raises(UserError, match="is empty: all 1 rows are bad, the first"):
            taken(rows, "skip")


def test_a_slice_behind_the_end_says_how_many_rows_there_are(tmp_path: Path) -> None:
    put(tmp_path, "a\t1\nb\t0\n")
    with pytest.raises(UserError, match=r"is empty: none of its rows, 2, is in \[5:\]"):
        read(SST2, tmp_path, "train", files={"train": "train.tsv[5:]"})


@pytest.mark.parametrize("name", ["dev.TSV", "dev.Tsv.gz", "dev.CSV", "dev.JSONL"])
def test_an_ending_in_capitals_is_the_same_ending(name: str, tmp_path: Path) -> None:
    text = '{"sentence": "a", "label": 1}' if "JSON" in name else "sentence,label\na,1\n"
    data = (
        text.replace(",", "\t").encode()
        if "sv" in name.lower() and "C" not in name
        else text.encode()
    )
    put(tmp_path, gzip.compress(data) if name.endswith("gz") else data, name)
    assert read(SST2, tmp_path, "dev", files={"dev": name}).first == ["a"]


# ---- tables of one's own -------------------------------------------------------------------------


def own(folder: Path, text: str, **columns: Any) -> LabelledRows:
    data = TaskSettings(
        task="reviews",
        path=put(folder, text),
        columns=TaskColumns(**{"first": "text", "label": "stars", **columns}),
    )
    task = task_of(data)
    return read_split(task, locate(task, data).source("train"), "train")


TABLE = "id\ttext\ttitle\tstars\n9\tgreat\tA\tpos\n4\tbad\tB\tneg\n"


def test_an_own_table_is_read_by_its_columns(tmp_path: Path) -> None:
    examples = own(tmp_path, TABLE, labels=("neg", "pos"), second="title", index="id")
    assert (examples.first, examples.second) == (["great", "bad"], ["A", "B"])
    assert (examples.labels, examples.ids) == ([1, 0], [9, 4])
    examples = own(tmp_path, TABLE, labels=("pos", "neg"))
    assert (examples.second, examples.labels, examples.ids) == (None, [0, 1], [0, 1])


def test_an_unknown_label_of_an_own_table_points_to_labels(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"label 'pos', allowed are neg, good \(data\.columns\.labe"
    ):
        own(tmp_path, TABLE, labels=("neg", "good"))
    with pytest.raises(UserError, match=r"label 'pos', allowed are finite numbers"):
        own(tmp_path, TABLE)
    with pytest.raises(UserError, match=r"is no header of reviews: needed are 'body', each once"):
        own(tmp_path, TABLE, first="body")
    with pytest.raises(UserError, match=r":2: has no column 'rating'; it has id, text"):
        own(tmp_path, TABLE, label="rating")


def test_scores_of_an_own_table_are_any_finite_numbers(tmp_path: Path) -> None:
    assert own(tmp_path, "text\tstars\na\t-1\nb\t1e3\n").labels == [-1.0, 1000.0]


def test_a_one_column_file_of_sentences_has_a_header(tmp_path: Path) -> None:
    assert read(SST2, put(tmp_path, "sentence\na\n", "test.tsv"), "test").first == ["a"]


def test_qqp_names_its_rows_in_the_id_column(tmp_path: Path) -> None:
    put(tmp_path, "id\tquestion1\tquestion2\n7\ta\tb\n5\tc\td\n", "test.tsv")
    examples = read(QQP, tmp_path, "test")
    assert (examples.second, examples.labels, examples.ids) == (["b", "d"], None, [7, 5])
