"""`translate` as a user starts it: pipes and files, n best, limits, and one line for a mistake."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ala_encoder import bleu, command, decoding, export
from ala_encoder.errors import UserError
from ala_encoder.models import Seq2Seq
from ala_encoder.settings.loader import check
from ala_encoder.settings.search import SearchSettings
from ala_encoder.settings.translate import TranslateRun
from ala_encoder.settings.translation import TranslationRun
from ala_encoder.tokenizer import InLanguage, train
from pipelines import finetune_nmt, translate
from tests.launched import nmt
from tests.pairs import PAIRS, refusal, write
from tests.strings import ROOT
from tests.test_models import shaken

LANGS = ("en", "de")
KINDS: dict[str, dict[str, Any]] = {
    "sentencepiece": {"vocab_size": 120, "model": "unigram"},
    "fairseq_bpe": {"num_merges": 90},
}
TEXT = [
    "The museum is open.", "", PAIRS[1][0], "dogs", "   ", "A dog's old \u2603 & the <unk> ab@@ c",
    PAIRS[10][0], "\tsnow", "We know.",
]  # fmt: skip


def made(folder: Path, kind: str = "sentencepiece", **model: Any) -> Path:
    """Write the export of a small model with drawn weights."""
    tokenizer = {"kind": kind, **KINDS[kind], "path": str(folder / f"tokenizer-{kind}")}
    plain = nmt.plain_settings(folder, model={"output_bias": True, **model})
    run = check({**plain, "tokenizer": tokenizer}, TranslationRun)
    read = train(
        run.tokenizer, [InLanguage(*x) for pair in PAIRS for x in zip(LANGS, pair, strict=True)]
    )
    network = shaken(Seq2Seq(run.model, run.sections, read.vocab_size))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        network.output_bias[read.eos_id] += 3.0
    card = finetune_nmt._card(run, read, "pairs", bleu.signatures("de"))
    place = folder / f"{kind}{'-'.join(map(str, model.values()))}"
    export.write(place / "export", card, read, network.state_dict())
    return place


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translate")
    for kind in KINDS:
        made(folder, kind)
    return folder


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def start(*words: object) -> int:
    argv = [str(word) for word in words]
    about = translate.__doc__ or ""
    return command.run(translate.main, TranslateRun, about, positional="export", argv=argv)


def expected(folder: Path, line: str, **search: Any) -> list[tuple[str, float]]:
    """Search for the translations of a line alone."""
    read = export.read_translation(folder)
    src, trg = map(read.tokenizer.of_language, LANGS)
    if not line.strip():
        return [("", 0.0)]
    ids = torch.tensor([[*src.encode(line), src.eos_id]])
    settings = read.card.search.model_copy(update=search)
    (found,) = decoding.search(
        read.build(), ids, torch.ones_like(ids), settings, decoding.Marks.of(trg)
    )
    return [(" ".join(trg.decode(one.ids).splitlines()), one.score) for one in found]


# ---- what it writes


@pytest.mark.parametrize("kind", KINDS)
def test_b06_each_line_is_translated_as_it_is_alone_and_empty_lines_stay(
    kind: str, home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "text.en", TEXT)
    assert start(home / kind, f"input={source}") == 0
    said = capfd.readouterr()
    lines = said.out.split("\n")
    assert lines.pop() == ""
    assert lines == [expected(home / kind, line)[0][0] for line in TEXT]
    assert lines[1] == lines[4] == ""
    assert len(set(lines)) > 4
    assert "1 lines hold something that the vocabulary cannot spell" in said.err


def test_n_best_are_rows_of_number_score_and_text_and_the_first_is_the_best(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sources = [write(tmp_path / "a.en", TEXT[:4]), write(tmp_path / "b.en", TEXT[4:])]
    words = (home / "fairseq_bpe", f"input={json.dumps(sources)}", "search.beam_size=3")
    assert start(*words, "search.n_best=3") == 0
    rows = [row.split("\t", 2) for row in capfd.readouterr().out.split("\n")[:-1]]
    wanted = [
        (number, score, text)
        for number, line in enumerate(TEXT, 1)
        for text, score in expected(home / "fairseq_bpe", line, beam_size=3, n_best=3)
    ]
    assert [(int(row[0]), row[2]) for row in rows] == [(n, text) for n, _, text in wanted]
    scores = [score for _, score, _ in wanted]
    assert [float(row[1]) for row in rows] == pytest.approx(scores, abs=2e-5)
    assert start(*words) == 0
    best = capfd.readouterr().out.split("\n")[:-1]
    first = {int(row[0]): row[2] for row in reversed(rows)}
    assert best == [first[number] for number in range(1, len(TEXT) + 1)]


def test_files_are_read_and_written_compressed_whole_or_not_at_all(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, made = write(tmp_path / "text.en.gz", TEXT), tmp_path / "new" / "text.de.gz"
    assert start(home / "sentencepiece", f"input={source}", f"output={made}") == 0
    assert start(home / "sentencepiece", f"input={source}") == 0
    said = capfd.readouterr().out
    assert gzip.decompress(made.read_bytes()).decode() == said
    assert [path.name for path in made.parent.iterdir()] == ["text.de.gz"]
    # an error in the middle leaves the old file, and nothing beside it
    bad = write(tmp_path / "bad.en", b"good\n\xff\n")
    assert start(home / "sentencepiece", f"input={bad}", f"output={made}") == 2
    error = capfd.readouterr().err
    assert f"{bad}:2: not UTF-8 (bytes ff at byte 0 of the line)" in error
    assert gzip.decompress(made.read_bytes()).decode() == said
    assert [path.name for path in made.parent.iterdir()] == ["text.de.gz"]


def test_no_line_is_no_line(home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert start(home / "sentencepiece", f"input={write(tmp_path / 'none', [])}") == 0
    assert capfd.readouterr().out == ""


# ---- limits


def test_c13_a_line_longer_than_the_positions_is_told_and_counted_or_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    positions = {"max_length": 60, "positions": "learned"}
    folder = made(tmp_path, **positions)
    lines = ["dogs", "snow " * 80, "old", "tree " * 90]
    source = write(tmp_path / "text.en", lines)
    assert start(folder, f"input={source}", "search.max_extra_tokens=3") == 0
    said = capfd.readouterr()
    assert said.out.count("\n") == 4
    told = said.err.splitlines()
    assert told[0].startswith(f"{source}:2: ")
    assert told[0].endswith(" tokens, the model has 60 positions: its end is not translated")
    assert "2 lines are longer than the model's positions: their ends were left out" in told[1]
    assert start(folder, f"input={source}", "too_long=error") == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"error: {source}:2: ")
    assert "60 positions; shorten the line, or set too_long=cut" in said.err


def test_what_is_given_of_the_search_stands_and_the_rest_is_the_export_s() -> None:
    own = SearchSettings(beam_size=7, length_penalty=1.3, penalty="average", n_best=2)
    mixed = SearchSettings(beam_size=5, max_extra_tokens=50).over(own)
    assert mixed == own.model_copy(update={"beam_size": 5, "max_extra_tokens": 50})
    told = refusal(SearchSettings(beam_size=1).over, own)
    assert told == "n_best = 2: more than beam_size = 1"
    with pytest.raises(UserError, match="does nothing where length_penalty is 0"):
        SearchSettings(length_penalty=0.0).over(own)


# ---- mistakes


def test_a_mistake_is_one_line_and_exit_code_2(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, source = home / "sentencepiece", write(tmp_path / "text.en", TEXT)
    for kind in ("classifier", "masked_lm"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "export.json").write_text(json.dumps({"kind": kind}))
    cases: list[tuple[list[object], str]] = [
        ([tmp_path / "none"], "none: no export there"),
        ([tmp_path / "classifier"], "is a classifier, needed is seq2seq"),
        ([tmp_path / "masked_lm"], "is a masked_lm, needed is seq2seq"),
        ([folder, f"input={tmp_path / 'text.en.gz'}"], "no such file (did you mean 'text.en'?)"),
        ([folder, f"input={tmp_path}"], "no such file"),
        ([folder, f"input={source}", f"output={tmp_path}"], "not a file"),
        ([folder, f"input={source}", "output=/dev/null"], "not a file"),
        ([folder, f"input={source}", f"output={source}/deep/out"], "cannot be written"),
        ([folder, "input=/proc/self/mem"], "cannot be read"),
        ([folder, f"input={write(tmp_path / 'x', bytes(5000))}"], "looks like UTF-16"),
        ([folder, f"input={write(tmp_path / 'y.gz', b'')}x"], "no such file"),
        ([folder, "search.beam_size=0"], "search.beam_size"),
        ([folder, "search.beam=3"], "did you mean"),
        ([folder, "search.n_best=9"], "n_best = 9: more than beam_size = 4"),
        ([folder, "too_long=drop"], "too_long"),
    ]
    for words, told in cases:
        assert start(*words) == 2, told
        said = capfd.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1, said.err
        assert said.err.startswith("error: ")
        assert told in said.err
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert start(folder, f"input={source}") == 2
    assert "is one process, start it without a launcher" in capfd.readouterr().err


def to(descriptor: int, monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Start it with a standard output."""
    with os.fdopen(descriptor, "w", encoding="utf-8") as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        try:
            return start(*words)
        finally:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())  # what is left goes there


def test_a_reader_that_leaves_is_no_error_and_a_full_disk_is(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (home / "sentencepiece", f"input={write(tmp_path / 'text.en', TEXT)}")
    reader, writer = os.pipe()
    os.close(reader)
    assert to(writer, monkeypatch, *words) == 0
    assert "Traceback" not in capfd.readouterr().err
    assert to(os.open("/dev/full", os.O_WRONLY), monkeypatch, *words) == 2
    said = capfd.readouterr().err
    assert said == "error: standard output: cannot be written: No space left on device\n"


# ---- a pipe


def test_a_line_that_is_typed_is_answered_before_the_next(home: Path) -> None:
    folder = home / "sentencepiece"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "LC_ALL": "C"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pipelines.translate", str(folder)],
        cwd=folder, env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin and process.stdout and process.stderr
    for line in ("The museum is open.", "", "Der Schnee\u2028fällt"):
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()
        answer = process.stdout.readline().decode()  # it waits for ever where nothing comes
        assert answer == f"{expected(folder, line)[0][0]}\n"
    process.stdin.write(b"old ")
    process.stdin.flush()
    time.sleep(0.1)
    rest, error = process.communicate(b"tree\r\nlast", timeout=60)
    assert rest.decode().split("\n") == [
        *(expected(folder, line)[0][0] for line in ("old tree", "last")), ""
    ]  # fmt: skip
    assert process.returncode == 0
    assert error.decode() == "1 lines ended in CR LF; the CR was stripped\n"
