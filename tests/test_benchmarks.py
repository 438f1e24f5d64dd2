"""The benchmarks run, at toy lengths, and say what they promise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ala_encoder import engine
from ala_encoder.kernels import shifted
from benchmarks import (
    attention,
    batch_invariance,
    chunked_loss,
    clm_training,
    decoding,
    harness,
    logfit,
    nmt_training,
    parity,
    pruning,
)
from tests.strings import ROOT


def test_every_case_and_path_is_one_record_a_pass(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a backend that takes no time to compile."""
    monkeypatch.setattr(attention, "compiled", lambda: shifted.compiled("aot_eager"))
    assert attention.main(["--lengths", "16", "--tokens", "16", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    told = {(record["case"], record["path"], record["pass"]) for record in found}
    assert told == {
        (name, path, direction)
        for name, case in attention.CASES.items()
        for path in (*case.paths, "auto")
        if path != "flex"  # on a CPU
        for direction in ("forward", "forward_backward")
    }
    keys = {"path", "case", "pass", "length", "seconds", "ratio_to_sdpa", "ratio_to_dense"}
    assert all(keys | {"peak_mib"} <= record.keys() for record in found)
    assert all(record["seconds"] > 0 and record["length"] == 16 for record in found)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--cases fool", "--cases: 'fool': allowed are full, full_causal, band2_pre"),
        ("--paths full,slop", "--paths: 'full': allowed are sdpa"),
        ("--paths slop", "(did you mean 'slope'?)"),
        ("--paths flex --lengths 16", "full on flex: on a CPU FlexAttention is a check"),
        ("--paths dense --lengths 5000", "full on dense: not timed above 4,096 tokens"),
        ("--paths slope --cases full", "no path of full is slope"),
        ("--lengths 0", "--lengths: '0': allowed are whole numbers from 1 to 1,048,576"),
        ("--lengths -1", "--lengths: '-1'"),
        ("--lengths 16,abc", "--lengths: 'abc'"),
        ("--lengths 16,", "--lengths: ''"),
        ("--lengths 99999999", "--lengths: '99999999'"),
        ("--tokens 0", "--tokens: '0'"),
        ("--head-dim 2.5", "--head-dim: '2.5'"),
        ("--rounds 0", "--rounds: '0'"),
        ("--dtype bfloat", "(did you mean 'bfloat16'?)"),
        ("--lenghts 16", "--lenghts: no such option (did you mean '--lengths'?)"),
        ("--lenghts=16", "(did you mean '--lengths'?)"),
        ("--json=x", "--json: "),
        ("--lengths", "--lengths: expected one argument"),
        ("--into nowhere/x.md", "--into: nowhere/x.md: cannot be changed: No such file"),
        ("--into README.md", "--into: README.md: needs a line '<!-- measured on "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    words: str, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert line in refused(attention.main, words, capsys)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--size bse", "--size: 'bse': allowed are base, small (did you mean 'base'?)"),
        ("--batch-tokens 0", "--batch-tokens: '0'"),
        ("--sentences none", "--sentences: 'none'"),
        ("--rounds -2", "--rounds: '-2'"),
        ("--into x.md", "--into: x.md"),
        ("--sentence 4", "(did you mean '--sentences'?)"),
    ],
)
def test_so_it_is_of_the_search(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert line in refused(decoding.main, words, capsys)


def refused(main: Any, words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ") and told.err.count("\n") == 1
    return told.err


HALF = "half precision cannot hold its columns"


@pytest.mark.parametrize(
    ("name", "path", "setting", "why"),
    [
        ("full", "sdpa", {}, None),
        ("full", "flex", {}, None),
        ("full", "auto", {}, None),
        ("band2_pre", "banded", {}, None),
        ("band2_pre", "banded_compiled", {}, None),
        ("band2_post", "auto", {}, None),
        ("gated_distbias_causal", "flex", {}, None),
        ("gated_distbias_causal", "slope", {}, HALF),
        ("gated_distbias_causal", "slope", {"is_half": False}, None),
        ("gated_distbias_bidirectional", "slope", {"is_half": False}, "does not run on cuda"),
        ("band2_post", "banded", {}, HALF),
        ("band2_post_shared8", "banded", {"is_half": False}, "do not run on cuda"),
        ("full", "flex", {"device": "cpu"}, "no backward pass"),
    ],
)
def test_what_a_device_cannot_do_is_left_out_with_the_reason_of_the_settings(
    name: str, path: str, setting: dict[str, Any], why: str | None
) -> None:
    case = attention.CASES[name]
    given = replace(case.setting("cuda", "bfloat16"), **setting)
    found = attention.refusal(case, path, given, 512)
    assert found == why if why is None else why in str(found)


def test_a_path_that_cannot_or_fails_costs_no_other_its_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no kernel image\nis available")

    monkeypatch.setattr(attention, "compiled", lambda: broken)
    words = "--lengths 16 --tokens 16 --rounds 1 --dtype bfloat16 --cases band2_pre,band2_post"
    assert attention.main(words.split()) == 0
    told = capsys.readouterr().out
    assert "left out: band2_pre on banded_compiled: failed: no kernel image is available" in told
    assert f"left out: band2_post on banded: {HALF}" in told
    assert told.count("left out: ") == 3  # and flex
    assert "- band2_pre: dense,banded@106\n- band2_post: dense\n" in told
    rows = [row.split("|")[1:6] for row in told.splitlines() if row.startswith("| band2")]
    measured = {(row[0].strip(), row[4].strip()) for row in rows}
    assert measured == {
        ("band2_pre", "banded"), ("band2_pre", "sdpa"), ("band2_pre", "dense"),
        ("band2_pre", "auto"), ("band2_post", "dense"), ("band2_post", "auto"),
    }  # fmt: skip


def test_results_go_between_the_marks_of_a_file_with_their_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.md"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start, end = f"<!-- measured on {device} -->", f"<!-- end of measured on {device} -->"
    path.write_text(f"# Title\n\n{start}\nold\n{end}\n\nprose\n")
    words = ["--lengths", "8", "--tokens", "8", "--rounds", "1", "--cases", "full"]
    for _ in range(2):
        assert attention.main([*words, "--into", str(path)]) == 0
        told = capsys.readouterr().out.rstrip("\n")
        assert told.startswith(f"`python -m benchmarks.attention {' '.join(words)}`\n\ndate ")
        assert path.read_text() == f"# Title\n\n{start}\n\n{told}\n\n{end}\n\nprose\n"


@pytest.mark.parametrize(
    "name",
    ["attention", "chunked_loss", "clm_training", "decoding", "nmt_training", "parity", "pruning"],
)
def test_the_shipped_results_can_be_made_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.torch.cuda, "is_available", lambda: False)
    assert harness.report(str(ROOT / "benchmarks" / f"{name}.md")).name == f"{name}.md"


def test_the_search_finds_what_generate_finds_and_says_how_long_both_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["--size", "small", "--sentences", "6", "--batch-tokens", "60,300", "--rounds", "1"]
    assert decoding.main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [record["batch_tokens"] for record in found] == [60, 300]
    for record in found:
        assert record["same"] == record["sentences"] == 6
        assert record["mean_length"] == pytest.approx(record["mean_source"], abs=1)
        ratio = record["sentences_a_second"] / record["theirs_a_second"]
        assert record["ratio"] == pytest.approx(ratio)
        assert record["ratio_unsorted"] > 0


def test_both_trainings_see_the_same_tokens_and_lose_the_same(
    started: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, which is all that a small rate leaves, and over their own batches."""
    monkeypatch.setattr(engine, "stop", lambda: None)  # other tests make engines too
    words = "--sizes tiny --sentences 200 --batch-tokens 300,900 --parts 3 --json"
    assert nmt_training.main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["batch_tokens"] for entry in found] == [300, 900]
    tokens = int(nmt_training.drawn(200, 64).lengths()[:, 1].sum())
    for entry in found:
        assert entry["target_tokens"] == tokens
        assert entry["ratio_least"] <= entry["ratio"] <= entry["ratio_largest"]
        for side in ("ours", "theirs"):
            assert entry[side]["tokens_a_second"] > 0
            assert all(0 < share < 0.6 for share in entry[side]["padding"])
        for loss, other in zip(entry["ours"]["losses"], entry["theirs"]["losses"], strict=True):
            assert loss == pytest.approx(other, rel=0.01)


def test_a_step_of_both_trainings_is_the_same_without_dropout(started: None) -> None:
    """On one batch: the same losses before and after updates."""
    model = nmt_training.MODELS["tiny"].model_copy(update={"dropout": 0.0})
    pairs = nmt_training.drawn(30, 64)
    ours = nmt_training.Ours(model, 64, pairs, 2**12)
    built: Any = ours.engine.module
    theirs = nmt_training.Theirs(model, built, pairs, 1)
    sides: list[Any] = [ours, theirs]
    batches = [side.batches() for side in sides]
    losses = []
    for _ in range(3):
        seen = [nmt_training.Seen(), nmt_training.Seen()]
        for side, some, found in zip(sides, batches, seen, strict=True):
            side.step(next(some), found)
        assert seen[0].targets == seen[1].targets > 0
        assert seen[0].loss == pytest.approx(seen[1].loss, rel=2e-6)
        losses.append(seen[0].loss)
    assert losses == sorted(losses, reverse=True)


def test_causal_models_train_in_turns_and_other_models_are_refused(
    started: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "stop", lambda: None)
    monkeypatch.chdir(ROOT)
    assert clm_training.main(["--steps", "1", "--rounds", "2", "--json"]) == 0
    first, *others = json.loads(capsys.readouterr().out)
    assert first["path"] == "sdpa" and first["ratio"] == 1
    for entry in others:
        assert "slope" in entry["path"] and entry["parameters"] > first["parameters"]
        assert 0.1 < entry["ratio_least"] <= entry["ratio"] <= entry["ratio_largest"]
    line = "configs/demo/full.yaml: not a causal language model"
    assert line in refused(clm_training.main, "--configs configs/demo/full.yaml", capsys)
    assert "no.yaml" in refused(clm_training.main, "--configs no.yaml", capsys)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--sizes smal", "(did you mean 'small'?)"),
        ("--batch-tokens 0", "--batch-tokens: '0'"),
        ("--parts x", "--parts: 'x'"),
    ],
)
def test_so_it_is_of_training(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert line in refused(nmt_training.main, words, capsys)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--lengths x", "--lengths: 'x': allowed are whole numbers"),
        ("--lengths 9999999", "--lengths: '9999999': allowed are"),
        ("--lengths 1000000", "--lengths: 1000000: the held-out text has "),
        ("--prune 2", "--prune: '2': allowed are numbers between 0 and 1"),
        ("--variants alibbi", "(did you mean 'alibi'?)"),
        ("--text nowhere.txt", "--text: nowhere.txt: No such file or directory"),
    ],
)
def test_so_it_is_of_pruning(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert line in refused(pruning.main, words, capsys)


def test_the_chunked_loss_is_counted_and_measured_where_there_is_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "--texts 1,2 --length 16 --vocab 40 --dim 4 --rounds 1 --json"
    assert chunked_loss.main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert [record["texts"] for record in found] == [1, 2]
    for record in found:
        rows = 16 * record["texts"]
        assert record["plain_tensors_mib"] >= 3 * rows * 40 * 4 / 2**20
        assert all(0 <= record[name] < 1e-6 for name in ("loss", "dx", "dw"))
        assert record["seconds"] > 0
    monkeypatch.setattr(chunked_loss, "has_room", lambda *_: False)
    assert chunked_loss.main(words.replace("--json", "").split()) == 0
    rows = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith(("| 1", "| 2"))
    ]
    assert len(rows) == 2
    assert all([cell.strip() for cell in row.split("|")[7:-1]] == ["-"] * 10 for row in rows)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--biases alibbi", "(did you mean 'alibi'?)"),
        ("--trained 0", "--trained: '0'"),
        ("--lengths 8,x", "--lengths: 'x'"),
    ],
)
def test_so_it_is_of_parity(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert line in refused(parity.main, words, capsys)


def test_parity_of_two_bits_is_learned_and_of_more_is_guessed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    threads = torch.get_num_threads()
    words = "--biases learned,rotary --trained 2 --lengths 2,9 --steps 60 --texts 200 --json"
    assert parity.main(words.split()) == 0
    torch.set_num_threads(threads)
    found = json.loads(capsys.readouterr().out)
    assert [(r["bias"], r["length"]) for r in found] == [
        ("learned", 2), ("rotary", 2), ("rotary", 9)
    ]  # fmt: skip
    for record in found:
        assert record["first"] > 0.75 and record["loss"] < 0.6
    assert found[0]["beyond"] is None
    assert 0.4 < found[2]["beyond"] < 0.6


def test_the_log_fit_stands_beside_what_is_stated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logfit.main(["--plot", str(tmp_path / "x.png")]) == 0
    row = capsys.readouterr().out.splitlines()[2]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0] == "(Sandwich − 64) / 8" and cells[2:4] == ["-0.832", "-0.794"]
    assert cells[-1] == "-0.832 and -0.794"
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    t5 = logfit.fits()["T5"]
    assert t5.slope == pytest.approx(-0.832, abs=0.05) and t5.rmse < 0.1


def test_parity_is_counted_from_the_first_bit() -> None:
    bits, odd = parity.drawn(3, 7, torch.Generator().manual_seed(0))
    for row, told in zip(bits.tolist(), odd.tolist(), strict=True):
        assert told == [sum(row[: n + 1]) % 2 for n in range(7)]


def test_functions_take_turns_and_the_warm_up_does_not_count() -> None:
    calls: list[str] = []
    times = harness.interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, warm_up=1
    )
    assert calls == ["a", "b"] * 4
    assert len(times["a"].rounds) == 3


def test_a_ratio_is_taken_within_a_round() -> None:
    slow, fast = harness.Times((2.0, 40.0, 6.0)), harness.Times((1.0, 10.0, 3.0))
    assert slow.ratio_to(fast) == (2.0, 2.0, 4.0)
    assert slow.seconds == 6.0


def test_translations_of_a_text_are_compared_over_batches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ala_encoder import export
    from ala_encoder.cards import TranslationCard
    from ala_encoder.models import Seq2Seq
    from tests.launched import nmt

    run = nmt.settings(tmp_path)
    tokenizer = nmt.tokenizer_of(run)
    built = Seq2Seq(run.model, run.sections, tokenizer.vocab_size)
    card = TranslationCard(
        variant="v", seed=1, run_name="x", vocab_size=tokenizer.vocab_size, model=run.model,
        **run.sections, data=run.data, data_name="x", search=run.search,
        parameters={"total": 1, "encoder_attention": 1, "qk_groups": 1},
    )  # fmt: skip
    export.write(tmp_path / "export", card, tokenizer, built.state_dict())
    words = [str(tmp_path / "export"), str(tmp_path / "train.en"), "--batches", "1,3", "--json"]
    assert batch_invariance.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["way"] for one in found] == [
        "batches of 1", "batches of 1, reversed", "batches of 3", "batches of 3, reversed",
        "translate, reversed", "translate, 3 best",
    ]  # fmt: skip
    assert all(one["sentences"] == 8 and one["gap"] < 1e-5 for one in found)
    with pytest.raises(SystemExit):
        batch_invariance.main([str(tmp_path / "none"), words[1]])
    assert "no export there" in capsys.readouterr().err
