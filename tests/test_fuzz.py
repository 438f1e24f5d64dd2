"""R20: whatever is in a file, its reader ends in a result or in one line, soon and within bounds.

Where it is certain what must come out, that is asserted: an unchanged file is read as it is, some
changes never matter, a bad row is told with its line or skipped alone, and some files never pass.
A failure names the input: `tests.fuzz.case(KIND, SEED).write(FOLDER)` makes it again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ala_encoder import (
    checkpoint,
    export,
    glue,
    labelled,
    parallel,
    sources,
    splits,
    tables,
    tokenizer,
)
from ala_encoder.errors import UserError
from ala_encoder.files import read_json
from ala_encoder.lines import Reading, read_lines
from ala_encoder.settings.experiment import PretrainRun
from ala_encoder.settings.loader import check, load
from ala_encoder.settings.parallel import TranslationData
from ala_encoder.settings.task import TaskSettings
from tests import fuzz, memory
from tests.fuzz import Case, is_one_line, seeds

Reader = Callable[[Path, Case], Any]
SECONDS = 5.0
MOST_MEMORY = 1 << 30


class Hang(BaseException):
    """Raised by the alarm; no `except Exception` holds it up."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang

    old = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    began = time.perf_counter()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    if time.perf_counter() - began > seconds:  # a library in C lets no signal through
        raise Hang


# ---- the readers


def read_labelled(folder: Path, case: Case) -> list[tuple[Any, ...]]:
    task = glue.TASKS[case.kind.split()[1]]
    data = TaskSettings(task=task.name, path=folder, on_bad_row=case.on_bad_row)
    split = task.splits[0]
    source = splits.locate(task, data).source(split)
    found = labelled.read_split(task, source, split, on_bad_row=case.on_bad_row)
    columns = (found.first, found.second, found.labels, found.ids)
    return list(zip(*(c if c is not None else [None] * len(found) for c in columns), strict=True))


def read_table(folder: Path, case: Case) -> list[dict[str, object]]:
    (path,) = map(folder.joinpath, seeds.names(case.kind))
    rows = [record.cells for record in tables.records(path, Reading(case.on_bad_row))]
    source = sources.TextSource("fuzz", "", {"train": [path]}, column="text")
    texts = list(sources.texts(source, "train", Reading("skip")))
    assert len(texts) >= len(rows) or case.certain == "unknown"
    return rows


def read_text(folder: Path, case: Case) -> list[str]:
    (path,) = map(folder.joinpath, seeds.names(case.kind))
    lines = [line for _, line in read_lines(path, Reading(case.on_bad_row))]
    source = sources.TextSource("fuzz", "", {"train": [path]})
    texts = sources.texts(source, "train", Reading(case.on_bad_row))
    assert list(texts) == [line for line in lines if line.strip()]
    return lines


def read_tokenizer(folder: Path, case: Case) -> list[Any]:
    made = tokenizer.load(folder)
    if isinstance(made, tokenizer.FairseqBPE):
        made = made.of_language(made.languages[0])
    ids = made.encode_batch([*seeds.text_lines()[:3], "naïve 日本 [MASK] <s>", "", " a  b "])
    assert all(0 <= index < made.vocab_size for row in ids for index in row)
    return [made.vocab_size, ids, [made.decode(row) for row in ids]]


def read_pairs(folder: Path, case: Case) -> list[tuple[int, str, str]]:
    src, trg = map(str, map(folder.joinpath, seeds.names(case.kind)))
    train = {"kind": "files", "src": [src], "trg": [trg]}
    valid = {"kind": "files", "src": [__file__], "trg": [fuzz.__file__]}
    languages = {"src_lang": "en", "trg_lang": "de", "on_bad_row": case.on_bad_row}
    given = {"path": "x", "train": train, "valid": valid, **languages}
    source = parallel.find_sources(check(given, TranslationData))["train"]
    return [tuple(pair) for pair in parallel.pairs(source, source.reading())]


def read_settings(folder: Path, case: Case) -> PretrainRun:
    return load(folder / "settings.yaml", case.overrides, PretrainRun)


def read_with_deepspeed(folder: Path, case: Case) -> PretrainRun:
    word = f"deepspeed={json.dumps(str(folder / 'deepspeed.json'))}"
    return load(folder / "settings.yaml", [word], PretrainRun)


def read_state(folder: Path, case: Case) -> Any:
    path = checkpoint.newest(folder)
    if path is None:
        raise UserError("no checkpoint")
    state = read_json(path / "state.json")
    checkpoint.check_resumable(state, {"tokenizer": "abc", "seed": 7}, path)
    return state


def read_export(folder: Path, case: Case) -> Any:
    read = export.read(folder)
    sums = {name: float(tensor.sum()) for name, tensor in read.build().state_dict().items()}
    return [read.card, sums]


READERS: dict[str, Reader] = {
    "tsv": read_labelled, "rows": read_labelled, "jsonl": read_table, "csv": read_table,
    "parquet": read_table, "text": read_text, "deepspeed": read_with_deepspeed,
    "state": read_state, "export": read_export,
    "fairseq": read_tokenizer, "pairs": read_pairs,
    "vocab": read_tokenizer, "json": read_tokenizer, "bpe": read_tokenizer, "spm": read_tokenizer,
    "yaml": read_settings, "overrides": read_settings,
}  # fmt: skip


def independent(kind: str) -> Any:
    """Return what a valid file holds, where that is known without reading it; else None."""
    family, _, task = kind.partition(" ")
    if family == "text":
        return seeds.text_lines()
    if family == "pairs":
        return seeds.pairs()
    if family in ("jsonl", "csv", "parquet"):
        return seeds.table(kind)
    if family not in ("tsv", "rows"):
        return None
    columns = glue.TASKS[task].columns
    classes = glue.TASKS[task].spellings

    def row(number: int, cells: dict[str, str]) -> tuple[Any, ...]:
        label = next((cells[name] for name in columns.label if name in cells), None)
        index = next((cells[name] for name in columns.index if name in cells), number)
        texts = [next(cells[n] for n in names if n in cells) for names in columns.texts]
        value = None if label is None else classes.index(label) if classes else float(label)
        return (*(*texts, None)[:2], value, int(index))

    return [row(number, cells) for number, cells in enumerate(seeds.table(kind))]


# ---- the checker


def outcome(read: Reader, case: Case, folder: Path, expected: Any, seconds: float = SECONDS) -> str:
    """Return "result" or "refused"; raises AssertionError, naming the input, for anything else."""
    folder.mkdir()
    case.write(folder)
    try:
        with alarm(seconds):
            found = read(folder, case)
    except UserError as error:
        said = str(error)
        assert is_one_line(said), f"{case}: no line for a terminal: {said!r}"
        assert case.certain != "same", f"{case}: refused, and nothing is wrong: {said}"
        if case.certain == "row":
            assert case.on_bad_row == "error" or len(expected) < 2, f"{case}: not skipped: {said}"
            assert re.search(r":\d+( \(.*\))?: ", said), f"{case}: no line is named: {said}"
        return "refused"
    except Hang:
        raise AssertionError(f"{case}: more than {seconds} seconds") from None
    except Exception as error:
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(folder)
    assert case.certain != "refused", f"{case}: read as {str(found)[:200]}"
    if case.certain == "same":
        assert found == expected, f"{case}: read as {str(found)[:200]}"
    elif case.certain == "row":
        assert case.on_bad_row == "skip", f"{case}: read as {str(found)[:200]}"
        assert is_part(found, expected), f"{case}: other rows changed: {str(found)[:200]}"
    return "result"


def is_part(found: list[Any], expected: list[Any]) -> bool:
    """Tell whether some, not all, of the expected rows were found, in their order."""
    rest = iter(expected)
    return len(found) < len(expected) and all(row in rest for row in found)


def check_many(
    count: int, folder: Path, *, offset: int, kinds: Sequence[str] = tuple(seeds.KINDS)
) -> None:
    """Hand `count` inputs of these kinds in turn to their readers; print what became of them.

    `current.txt` in the folder names the input at which a library in C ended the process.
    """
    expected = {}
    for kind in kinds:
        valid = Case(kind, -1, dict(seeds.valid(kind)))
        known = independent(kind)
        (folder / "valid").mkdir()
        valid.write(folder / "valid")
        found = READERS[kind.split()[0]](folder / "valid", valid)
        shutil.rmtree(folder / "valid")
        assert known is None or found == known, kind
        expected[kind] = found
    became: Counter[tuple[str, str]] = Counter()
    failures = []
    with memory.at_most(MOST_MEMORY):
        for number in range(count):
            kind = kinds[number % len(kinds)]
            case = fuzz.case(kind, offset + number)
            (folder / "current.txt").write_text(str(case)[:1000], "utf-8", "backslashreplace")
            try:
                became[
                    kind, outcome(READERS[kind.split()[0]], case, folder / "case", expected[kind])
                ] += 1
            except AssertionError as error:
                failures.append(str(error))
                became[kind, "FAILED"] += 1
    for kind in dict.fromkeys(kinds):
        counts = {what: became[kind, what] for what in ("result", "refused", "FAILED")}
        print(f"{kind:>16}: " + ", ".join(f"{n:>4} {what}" for what, n in counts.items()))
    assert not failures, "\n".join([f"{len(failures)} of {count} failed:", *failures[:100]])
    assert sum(n for (_, what), n in became.items() if what == "result") > count / 5
    assert sum(n for (_, what), n in became.items() if what == "refused") > count / 5


def test_r20_500_malformed_inputs(tmp_path: Path) -> None:
    check_many(500, tmp_path, offset=0)


def test_r20_2000_malformed_parallel_texts(tmp_path: Path) -> None:
    kinds = [kind for kind in seeds.KINDS if kind.split()[0] == "pairs"]
    check_many(2000, tmp_path, offset=100_000, kinds=kinds)


@pytest.mark.slow
def test_r20_10_000_malformed_inputs(tmp_path: Path) -> None:
    check_many(int(os.environ.get("FUZZ_INPUTS", "10000")), tmp_path, offset=1000)


@pytest.mark.parametrize(
    ("kind", "valid", "hostile"),
    [
        ("json unigram", b'"##3"', b'"%s"' % (b"a" * (3 << 20))),  # overflowed the library's stack
        ("rows stsb", b'"2.5"', b"9" * 400),  # beyond a float
    ],
)
def test_r20_what_once_failed_is_refused(
    kind: str, valid: bytes, hostile: bytes, tmp_path: Path
) -> None:
    case = Case(kind, -1, dict(seeds.valid(kind)), certain="refused")
    changed = {name: c and c.replace(valid, hostile, 1) for name, c in case.files.items()}
    assert changed != case.files
    case.files = changed
    assert outcome(READERS[kind.split()[0]], case, tmp_path / "case", None) == "refused"


def test_a_seed_is_the_same_input_every_time() -> None:
    for kind in seeds.KINDS:
        for seed in range(5):
            assert fuzz.case(kind, seed) == fuzz.case(kind, seed)
    cases = [fuzz.case("tsv rte", seed) for seed in range(200)]
    assert {case.certain for case in cases} == {"same", "row", "refused", "unknown"}
    assert len({str(case.files) for case in cases}) > 100


# ---- the checker rejects readers that are broken


def shifted(folder: Path, case: Case) -> Any:
    """Gives the second sentence as the first."""
    rows = read_labelled(folder, case)
    return [(second, first, *rest) for first, second, *rest in rows]


def raising(folder: Path, case: Case) -> Any:
    return int((folder / "train.tsv").read_text(encoding="utf-8"))


def endless(folder: Path, case: Case) -> Any:
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            continue


def lenient(folder: Path, case: Case) -> Any:
    """Takes bad rows as if they were good."""
    content = (folder / "train.tsv").read_bytes().decode("utf-8", "replace")
    return [tuple(line.split("\t")) for line in content.splitlines()]


def overcareful(folder: Path, case: Case) -> Any:
    if b"\r" in (folder / "train.tsv").read_bytes():
        raise UserError("train.tsv:1: a carriage return")
    return read_labelled(folder, case)


def greedy(folder: Path, case: Case) -> Any:
    """Skips the next row with a bad one."""
    rows = read_labelled(folder, case)
    return rows if len(rows) == 20 else [*rows[1:], rows[0]]


CHANGED = "read as|other rows changed|not skipped"
NO_FILE = "FileNotFoundError|IsADirectoryError"
BROKEN: list[tuple[Reader, str]] = [
    (shifted, CHANGED),
    (raising, f"ValueError|UnicodeDecodeError|{NO_FILE}"),
    (endless, "more than 0.05 seconds"),
    (lenient, f"{CHANGED}|{NO_FILE}"),
    (overcareful, f"refused, and nothing is wrong|not skipped|no line is named|{NO_FILE}"),
    (greedy, "other rows changed"),
]


@pytest.mark.parametrize(("broken", "told"), BROKEN)
def test_the_checker_rejects_a_broken_reader_for_what_is_wrong_and_never_the_right_one(
    broken: Reader, told: str, tmp_path: Path
) -> None:
    expected = independent("tsv rte")
    rejected = 0
    for seed in range(120):
        case = fuzz.case("tsv rte", seed)
        good = outcome(read_labelled, case, tmp_path / "case", expected)
        assert good in ("result", "refused")
        try:
            seconds = 0.05 if broken is endless else SECONDS
            outcome(broken, case, tmp_path / "case", expected, seconds)
        except AssertionError as error:
            said = str(error)
            named = re.escape(f"tests.fuzz.case('tsv rte', {seed})  # ")
            assert re.match(rf"{named}.*: ({told})\b", said), said
            rejected += 1
            if broken is endless:
                break
    assert rejected
