"""The benchmarks run, at toy lengths, and say what they promise."""

from __future__ import annotations

import json

import pytest

from ala_encoder.kernels import shifted
from benchmarks import attention, decoding, harness


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


def test_an_unknown_case_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        attention.main(["--cases", "fool"])
    assert "'fool'; allowed are full, full_causal" in capsys.readouterr().err


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
