"""Paired bootstrap between runs: against a plain loop, by run, variant and seed, on one text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ala_encoder import bleu, command
from ala_encoder.bleu import paired_bootstrap
from ala_encoder.errors import UserError
from ala_encoder.files import write_json, write_text
from ala_encoder.settings.compare import CompareRun
from pipelines import compare
from tests.test_bleu import bleu_by_hand
from tests.test_reporting import logged

WORDS = ["the", "old", "man", "sees", "a", "red", "house", "and", "two", "dogs", "run", "deep"]


def sentences(number: int, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, int(draw.integers(8, 15)))) for _ in range(number)]


def worse(texts: list[str], share: float, seed: int = 1) -> list[str]:
    """Return texts with a share of their words replaced."""
    draw = np.random.default_rng(seed)
    return [
        " ".join("wrong" if draw.random() < share else word for word in text.split())
        for text in texts
    ]


REFERENCES = sentences(60)
GOOD, BAD = worse(REFERENCES, 0.1), worse(REFERENCES, 0.2, seed=2)


def test_the_test_is_a_plain_loop_over_resamples() -> None:
    found = paired_bootstrap(BAD, GOOD, REFERENCES, "en", num_samples=200)
    draws = np.random.default_rng(12345).choice(60, size=(200, 60))
    deltas = []
    for rows in draws.tolist():
        scores = [
            bleu_by_hand([side[i] for i in rows], [REFERENCES[i] for i in rows])
            for side in (GOOD, BAD)
        ]
        deltas.append(scores[0] - scores[1])
    assert found.system == pytest.approx(bleu_by_hand(GOOD, REFERENCES))
    assert found.baseline == pytest.approx(bleu_by_hand(BAD, REFERENCES))
    assert found.delta == pytest.approx(found.system - found.baseline)
    order = sorted(deltas)
    assert order[3] <= found.low <= order[6]
    assert order[-7] <= found.high <= order[-4]
    assert found.low < found.delta < found.high
    # sacreBLEU's p: the resampled |delta| around their mean, against the |delta| that was found
    sizes = np.abs(deltas)
    beyond = int((sizes - sizes.mean() > abs(found.delta)).sum())
    assert found.p_value == pytest.approx((beyond + 1) / 201)
    assert found.signature.startswith("nrefs:1|bs:200|seed:12345|case:mixed|eff:no|tok:13a|")


def test_swapped_systems_differ_by_the_sign_and_equal_ones_by_nothing() -> None:
    one, other = (
        paired_bootstrap(*sides, REFERENCES, "en", 200) for sides in ((BAD, GOOD), (GOOD, BAD))
    )
    assert (one.delta, one.low, one.high) == pytest.approx((-other.delta, -other.high, -other.low))
    assert one.p_value == other.p_value < 0.05
    same = paired_bootstrap(GOOD, GOOD, REFERENCES, "en", 200)
    assert (same.delta, same.low, same.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)
    # two systems that err alike, elsewhere
    close = paired_bootstrap(worse(REFERENCES, 0.1, 5), worse(REFERENCES, 0.1, 6), REFERENCES, "en")
    assert close.low < 0 < close.high
    assert close.p_value > 0.05


def test_b07_unequal_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="BLEU: 59 translations, 60 references"):
        paired_bootstrap(GOOD[1:], BAD, REFERENCES, "en")
    with pytest.raises(UserError, match="BLEU: 59 translations, 60 references"):
        paired_bootstrap(GOOD, BAD[1:], REFERENCES, "en")


# ---- runs


def translated(
    root: Path, variant: str, seed: int, hypotheses: list[str], references: list[str] = REFERENCES
) -> Path:
    """Write the folder of a translation run."""
    name = f"{variant}-en-de-{seed}"
    folder = logged(root / name, variant, seed, task="en-de", scores={"eval_loss": 1.0})
    write_json(folder / "eval" / "test.json", {"trg_lang": "de"})
    for file, lines in (("translations", hypotheses), ("references", references)):
        write_text(folder / "eval" / f"test.{file}.txt", "".join(f"{line}\n" for line in lines))
    return folder


def start(root: Path, *words: str) -> int:
    argv = [f"{root}/*-en-*", f"output={root / 'out'}", *words]
    about: Any = compare.__doc__
    return command.run(compare.main, CompareRun, about, positional="runs", argv=argv)


def rows(report: str) -> dict[str, list[str]]:
    table = report.partition("## Paired bootstrap")[2].splitlines()
    cells = [
        [cell.strip() for cell in row.strip("|").split("|")] for row in table if row[:1] == "|"
    ]
    return {row[0]: row[1:] for row in cells[2:]}


def test_runs_are_tested_against_a_run_or_a_variant_s_run_of_the_same_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2):
        translated(tmp_path, "a", seed, worse(REFERENCES, 0.1, seed))
        translated(tmp_path, "l", seed, worse(REFERENCES, 0.3, seed + 5))
    assert start(tmp_path, "baseline=a", "samples=100") == 0
    assert "|bs:100|seed:12345|" in capsys.readouterr().out
    found = rows((tmp_path / "out" / "report.md").read_text(encoding="utf-8"))
    assert {name: row[0] for name, row in found.items()} == {
        "l-en-de-1": "a-en-de-1", "l-en-de-2": "a-en-de-2"
    }  # fmt: skip
    for _, system, other, delta, interval, p_value in found.values():
        assert float(system) - float(other) == pytest.approx(float(delta), abs=0.011)
        low, high = map(float, interval.split(" … "))
        assert low < float(delta) < high < 0
        assert float(p_value) < 0.05
    assert start(tmp_path, "baseline=a-en-de-2") == 0
    found = rows((tmp_path / "out" / "report.md").read_text(encoding="utf-8"))
    assert set(found) == {"a-en-de-1", "l-en-de-1", "l-en-de-2"}
    assert {row[0] for row in found.values()} == {"a-en-de-2"}
    # without a baseline nothing is tested
    assert start(tmp_path) == 0
    assert "bootstrap" not in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


def test_what_cannot_be_tested_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str) -> str:
        capsys.readouterr()
        assert start(tmp_path, *words) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        return said.err

    translated(tmp_path, "base", 1, GOOD)
    assert "there is no other run" in told("baseline=base")
    translated(tmp_path, "low", 2, BAD)
    assert "neither a run nor a variant of `runs` (did you mean 'base'?)" in told("baseline=bas")
    assert "0 runs of this variant have seed 2, that of low-en-de-2" in told("baseline=base")
    other = translated(tmp_path, "low", 1, BAD, [*REFERENCES[:-1], "another"])
    line = told("baseline=base-en-de-1")
    assert "low-en-de-1: scored against other references (" in line
    assert "compare runs on one text" in line
    (other / "eval" / "test.references.txt").unlink()
    assert "test.references.txt: cannot be read: No such file" in told("baseline=base-en-de-1")
    (other / "eval" / "test.json").write_text("{}")
    assert "test.json: tells no trg_lang" in told("baseline=base-en-de-1")
    assert "translations: does nothing without `baseline`" in told("translations=eval/valid")
    assert "samples" in told("baseline=base", "samples=3")
    assert not (tmp_path / "out").exists()
    assert command.run(compare.main, CompareRun, "", argv=["baseline=a"]) == 2
    assert "baseline: needs `runs`" in capsys.readouterr().err


def test_where_no_resample_differs_nothing_is_significant() -> None:
    found = bleu.paired_bootstrap(["x"] * 5, ["y"] * 5, ["a b c d e"] * 5, "de", 100)
    assert (found.delta, found.low, found.high, found.p_value) == (0.0, 0.0, 0.0, 1.0)
