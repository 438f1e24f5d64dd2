"""Tables by length, and variants over seeds: what may stand side by side, and what is told."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ala_encoder import causal_markdown, causal_report, command
from ala_encoder.analysis.findings import fields, localities, records_of
from ala_encoder.analysis.lengths import length_tables, targets_digest
from ala_encoder.analysis.seeds import Learned, check_baseline, learned, points_of, seed_tests
from ala_encoder.errors import UserError
from ala_encoder.files import write_json
from ala_encoder.records import SPEED, RunSummary, find_folders, read_folder
from ala_encoder.reporting import Table, tables
from ala_encoder.settings.compare import CompareRun
from pipelines import compare
from tests.test_reporting import logged

SCORES = {"eval_loss": 3.0, "eval_perplexity": 20.1, "eval_targets": 900.0, "eval_bytes": 3600.0}


def causal(root: Path, variant: str, seed: int = 1, **more: Any) -> Path:
    params = {"data.length": 16, **more}
    return logged(root / f"{variant}-{seed}", variant, seed, task="clm", scores=SCORES, **params)


def summary(folder: Path) -> RunSummary:
    return read_folder(folder)[0]


def scored(
    folder: Path, nll: dict[int, Any], where: str = "eval-x", more: Any = None, **how: Any
) -> None:
    """Write what `evaluate` writes."""
    protocol = {"name": "last_token", "lengths": list(nll), "stride": None, "tokens": 4, **how}
    record = {
        "data": "books", "split": "valid", "scores": {}, "protocol": protocol, "targets": "abc",
        **(more or {}),
    }  # fmt: skip
    write_json(folder / where / "valid.json", record)
    alone = len(nll) == 1
    arrays = {f"nll{'' if alone else f'/{n}'}": np.array(v, np.float32) for n, v in nll.items()}
    save_file(arrays, folder / where / "valid.safetensors")


BASE = [1.0, 2.0, 3.0, 4.0]


def test_numbers_of_other_targets_or_protocols_are_never_in_one_table(tmp_path: Path) -> None:
    a, b = causal(tmp_path, "a"), causal(tmp_path, "b")
    two = {16: BASE, 64: BASE}
    for folder in (a, b):
        scored(folder, two)
        scored(folder, two, "eval-blocks", name="blocks", tokens=None)
        scored(folder, two, "eval-sliding", name="sliding", tokens=None, stride=8)
    scored(b, two, "eval-stride", name="sliding", tokens=None, stride=4)
    scored(b, two, "eval-other", more={"targets": "def"})
    scored(b, two, "eval-data", more={"data": "news"})
    scored(b, two, "eval-split", more={"split": "train"})
    scored(b, {16: BASE}, "eval-single", tokens=3)
    scored(
        b, {16: BASE}, "eval", name="blocks", tokens=None, more={"targets": "own"}
    )  # as in training
    found, left_out = length_tables([summary(a), summary(b)])
    assert left_out == []
    names = [(one.name, one.protocol, one.about, len(one.runs)) for one in found]
    assert {(protocol, about, n) for _, protocol, about, n in names} == {
        ("last_token, 4 tokens", "valid of books, targets abc", 2),
        ("last_token, 4 tokens", "valid of books, targets def", 1),
        ("last_token, 4 tokens", "valid of news, targets abc", 1),
        ("last_token, 4 tokens", "train of books, targets abc", 1),
        ("last_token, 3 tokens", "valid of books, targets abc", 1),
        ("blocks", "valid of books, targets abc", 2),
        ("sliding, stride 8", "valid of books, targets abc", 2),
        ("sliding, stride 4", "valid of books, targets abc", 1),
    }
    assert len({name for name, *_ in names}) == len(names) == 8
    metrics = [record.metric for one in found for record in one.records() if record.run == "b-1"]
    assert len(metrics) == len(set(metrics))


def test_lengths_that_were_scored_one_by_one_stand_together(tmp_path: Path) -> None:
    folder = causal(tmp_path, "a")
    for length in (64, 16, 8):
        scored(folder, {length: BASE}, f"eval-{length}", name="blocks", tokens=None)
    ((found,), _) = length_tables([summary(folder)])
    assert found.lengths == [8, 16, 64] and found.targets == 4
    (item,) = tables([summary(folder)])
    text = "\n".join(causal_markdown.lengths(found, item))
    assert "+0.0000" in text and "holds to" not in text and "holds |" not in text


@pytest.mark.parametrize(
    ("more", "holds"),
    [
        ([0.0, 0.0, 0.0, 0.0], True),
        ([-0.5, -0.4, -0.5, -0.4], True),  # better
        ([0.04, 0.05, 0.04, 0.05], True),  # sure, but below 5 %: ln 1.05 = .0488
        ([0.05, 0.05, 0.05, 0.05], False),
        ([2.0, -1.0, 1.0, -1.0], True),  # not sure: mean .25, se .75
        ([0.9, 1.0, 1.1, 1.0], False),
        ([math.nan, 0.0, 0.0, 0.0], False),
    ],
)
def test_a_model_holds_within_two_standard_errors_or_five_percent(
    more: list[float], holds: bool, tmp_path: Path
) -> None:
    folder = causal(tmp_path, "a")
    scored(folder, {8: [9.0] * 4, 16: BASE, 64: np.add(BASE, more), 128: [99.0] * 4})
    ((table,), _) = length_tables([summary(folder)])
    (model,) = table.runs
    at = {score.length: score for score in model.scores}
    assert at[16].difference is None and at[16].holds is None
    assert at[64].holds is holds and at[128].holds is False
    assert model.holds_to == (64 if holds else None)
    if not np.isnan(more).any():
        apart = at[64].difference
        assert apart is not None and apart.mean == pytest.approx(np.mean(more), abs=1e-6)
        assert apart.se == pytest.approx(np.std(more, ddof=1) / 2, abs=1e-6)
        assert at[64].perplexity == pytest.approx(math.exp(np.mean(np.add(BASE, more))), rel=1e-6)
    (item,) = tables([model.run])
    text = "\n".join(causal_markdown.lengths(table, item))
    assert ("holds |" in text) == holds and "fails |" in text
    assert ("not finite" in text) == bool(np.isnan(more).any())


def test_what_cannot_be_compared_is_told(tmp_path: Path) -> None:
    a, b = causal(tmp_path, "a"), causal(tmp_path, "b", **{"data.length": 32})
    two = {16: BASE, 64: BASE}
    scored(a, two)
    scored(a, two, "eval-prune", more={"scores": {"prune_computed/16": 0.5}, "prune": 1e-4})
    scored(a, two, "eval-unsure", more={"scores": {"prune_computed/16": 0.5}})
    scored(b, two, more={"scores": {"prune_computed/16": 0.5}, "prune": None})  # its own setting
    scored(b, two, "eval-old")
    (b / "eval-old" / "valid.safetensors").unlink()
    write_json(b / "eval-glue" / "dev.json", {"task": "sst2", "scores": {}})
    found, left_out = length_tables([summary(a), summary(b)])
    assert [re.sub(r" .*", "", text) for text in left_out] == ["a-1:", "a-1:", "b-1:"]
    assert "was scored with `prune`" in left_out[0]
    assert all("evaluate it again" in text for text in left_out[1:])
    assert [len(one.runs) for one in found] == [2]
    item = tables([summary(a), summary(b)])[0]
    text = "\n".join(causal_markdown.lengths(found[0], item))
    assert "- b: not scored at its training length, 32" in text
    assert "a: not scored" not in text


def test_the_digest_is_of_places_and_tokens() -> None:
    tokens = np.arange(50, dtype=np.uint16)
    places = {"positions": np.array([5, 9])}
    assert targets_digest(tokens, places) == targets_digest(tokens.astype(np.uint32), places)
    assert targets_digest(tokens, {}) == targets_digest(tokens, {"positions": np.arange(1, 50)})
    others = [
        targets_digest(tokens, {}),
        targets_digest(tokens, places),
        targets_digest(tokens, {"positions": np.array([5, 10])}),
        targets_digest(tokens + 1, places),
    ]
    assert len(set(others)) == 4


# Variants over seeds


def runs(root: Path, variants: dict[str, list[float]], task: str = "mlm", **more: Any) -> Table:
    for variant, losses in variants.items():
        for seed, loss in enumerate(losses, 1):
            scores = {"eval_loss": loss, "eval_unigram_loss": 6.0, "eval_targets": 5.0}
            logged(root / f"{variant}-{seed}", variant, seed, task=task, scores=scores, **more)
    (item,) = tables([summary(path) for path in find_folders([f"{root}/*"])])
    return item


def test_the_published_numbers_give_the_published_test(tmp_path: Path) -> None:
    """Adaptive Locality Attention: baseline less distbias +0.667, t(2) = 4.45, p = .047."""
    published = {"baseline": [36.63, 35.60, 36.37], "distbias": [35.68, 35.16, 35.76]}
    item = runs(tmp_path, published)
    (found,) = seed_tests(item, next(row for row in item.rows if row.variant == "baseline"))
    assert (found.variant, found.metric, found.seeds) == ("distbias", "eval_loss", (1, 2, 3))
    assert found.test.difference == pytest.approx(-0.667, abs=1e-3)
    assert (found.test.t, found.test.p) == pytest.approx((-4.45, 0.047), abs=0.005)
    (row,) = [line for line in causal_markdown.tests("baseline", [found]) if "eval_loss" in line]
    # by hand: deviations .2833, -.2267, -.0567; sqrt(.13487 / 2) = .2597
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["distbias", "eval_loss", "3", "-0.6667", "0.2597", "-4.45", "2", "0.0470"]


def test_seeds_that_are_too_few_or_not_shared_are_told(tmp_path: Path) -> None:
    runs(tmp_path, {"a": [1.0, 2.0], "b": [3.0]})
    logged(tmp_path / "c-7", "c", 7, task="mlm", scores={"eval_loss": 1.0})
    (item,) = tables([summary(path) for path in find_folders([f"{tmp_path}/*"])])
    found = seed_tests(item, next(row for row in item.rows if row.variant == "a"))
    lines = causal_markdown.tests("a", found)
    assert [line for line in lines if line.startswith("- ")] == [
        "- b: no test of eval_loss: one value does not tell how values spread",
        "- c: no test of eval_loss: no seed is in both",
    ]
    assert all(one.test.p is None for one in found)


def test_scores_by_token_over_other_targets_are_not_tested_but_those_by_text_are(
    tmp_path: Path,
) -> None:
    scores = {"eval_loss": 5.0, "eval_bits_per_byte": 2.0, "eval_word_perplexity": 90.0}
    for variant, targets in (("a", 500.0), ("b", 400.0), ("c", 500.0)):
        for seed in (1, 2):
            more = {name: value + len(variant) * seed for name, value in scores.items()}
            given = {**more, "eval_targets": targets, "train_tokens": 9.0 + seed}
            logged(tmp_path / f"{variant}-{seed}", variant, seed, task="clm", scores=given)
    (item,) = tables([summary(path) for path in find_folders([f"{tmp_path}/*"])])
    found = seed_tests(item, next(row for row in item.rows if row.variant == "a"))
    tested = {name: {one.metric for one in found if one.variant == name} for name in "bc"}
    assert scores.keys() <= tested["c"]
    assert tested["b"] == tested["c"] - {"eval_loss"}
    told = causal_markdown.other_targets(item)[0]
    assert "a 500, b 400, c 500. With other pieces or masks" in told


def test_a_report_of_other_models_has_tests_over_seeds_where_it_is_asked_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs(tmp_path / "runs", {"full": [3.0, 3.5], "tied": [4.0, 4.4]})
    for task in ("sst2", "mnli"):
        logged(tmp_path / "runs" / task, "other", task=task, data=task, scores={"eval_loss": 1.0})

    def report(*words: str) -> str:
        argv = [f"{tmp_path}/runs/*", f"output={tmp_path / 'out'}", *words]
        assert command.run(compare.main, CompareRun, "", positional="runs", argv=argv) == 0
        return (tmp_path / "out" / "report.md").read_text(encoding="utf-8")

    plain, tested = report(), report("baseline=full")
    start = tested.index("### Paired tests over seeds against full")
    end = tested.index("## mnli") if tested.index("## mnli") > start else tested.index("## sst2")
    assert tested[:start] + tested[end:] == plain
    assert "| tied    | eval_loss |   2 |      +0.95 | 0.07071 | +19.00 |   1 | 0.0335 |" in tested
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "report.md", "report.csv", "scores.png"
    }  # fmt: skip


@pytest.mark.parametrize("word", ["samples=200", "translations=eval/x"])
def test_a_setting_of_the_bootstrap_without_translations_is_one_line(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs(tmp_path / "runs", {"full": [3.0], "tied": [4.0]})
    argv = [f"{tmp_path}/runs/*", f"output={tmp_path / 'out'}", "baseline=full", word]
    assert command.run(compare.main, CompareRun, "", positional="runs", argv=argv) == 2
    name = word.partition("=")[0]
    assert f"error: {name}: is for translation runs, there is none" in capsys.readouterr().err


def test_a_baseline_that_is_none_is_one_line(tmp_path: Path) -> None:
    item = runs(tmp_path, {"full": [3.0], "tied": [4.0]})
    for name in ("full", "tied-1"):
        check_baseline([item], name)
    with pytest.raises(UserError, match=r"neither a finished run nor its variant .*'full'"):
        check_baseline([item], "ful")
    alone = replace(item, rows=item.rows[:1])
    with pytest.raises(UserError, match="baseline = full: there is no other variant"):
        check_baseline([alone], "full")
    logged(tmp_path / "more", "full", 3, task="mlm", size=77, scores={"eval_loss": 1.0})
    (item,) = tables([summary(path) for path in find_folders([f"{tmp_path}/*"])])
    with pytest.raises(UserError, match="baseline = full: 2 rows of mlm on wikipedia-102 are it"):
        check_baseline([item], "full")
    check_baseline([item], "more")
    assert [item.unique(row) for row in item.rows] == [
        "full, 6,000 parameters", "tied", "full, 5,077 parameters"
    ]  # fmt: skip


def test_gates_without_a_step_0_are_not_called_learned(tmp_path: Path) -> None:
    for seed, steps in ((1, (0, 5)), (2, (5, 10))):
        points = {step: {"gate/0/0": 0.5 + step / 10, "gate/0/1": 0.5} for step in steps}
        logged(tmp_path / str(seed), "g", seed, task="clm", scores=SCORES, points=points)
    read = [read_folder(path) for path in find_folders([f"{tmp_path}/*"])]
    (item,) = tables([run for run, _ in read])
    points = points_of({run.folder: some for run, some in read if run.folder})
    found = learned(item.rows[0], points, "gate")
    assert isinstance(found, Learned) and (found.n, found.last_step) == (1, (5,))
    assert found.heads == (((0.5, 1.0), (0.5, 0.5)),)
    assert (found.first.mean, found.last.mean, found.by_head.mean) == (0.5, 0.75, 0.25)
    assert found.moved.p is None and found.moved.reason is not None
    assert learned(item.rows[0], points, "alpha") is None


def test_gates_that_cannot_be_shown_say_why(tmp_path: Path) -> None:
    for variant, step, head in (("late", 5, 0), ("odd", 0, 0), ("odd", 0, 1)):
        points = {step: {f"gate/0/{head}": 0.5}}
        logged(
            tmp_path / f"{variant}-{head}", variant, head, task="clm", scores=SCORES, points=points
        )
    read = [read_folder(path) for path in find_folders([f"{tmp_path}/*"])]
    (item,) = tables([run for run, _ in read])
    lines, _ = causal_report.parts([item], read, None, tmp_path)
    told = [line for line in lines["clm", "wikipedia-102"] if line.startswith("No gate")]
    assert told == [
        "No gate of late: no run logged it at step 0, and beside another step it says nothing.",
        "No gate of odd: the runs have different layers or heads.",
    ]


# What analyze has written


def analysed(
    folder: Path,
    queries: int = 8,
    data: str = "valid of books",
    text: str | None = "abc",
    where: str | None = None,
    **mean: float,
) -> None:
    """Write what `analyze` writes; a text of None: as an earlier version did."""
    section = {"mean": {"expected_distance": 3.0, "weight": 1.0, **mean}, "queries": queries,
               "uniform": {"expected_distance": 7.5}}  # fmt: skip
    about = {"data": data, "trained_length": 16, **({} if text is None else {"text": text})}
    name = where or ("analysis" if data == "valid of books" else f"analysis-{data}")
    sections = {"blocks": 4, "sections": {"decoder": section}}
    write_json(folder / name / "locality.json", {**about, **sections})
    record = {"length": 16, "segments": 2, "curve": [0.5, 1.0], "erf_of_mean_curve": 2,
              "mean_erf": {"mean": 2.0, "se": 0.0}, "erfs": [2, 2]}  # fmt: skip
    told = {**about, "threshold": 0.99, "theory": {"window_times_layers": 10, "exact": 9}}
    write_json(folder / name / "receptive_field.json", {**told, "fields": [record]})


def test_other_text_or_other_queries_are_never_averaged_together(tmp_path: Path) -> None:
    folders = [causal(tmp_path, "a", seed) for seed in (1, 2, 3)]
    analysed(folders[0], expected_distance=2.0)
    analysed(folders[1], expected_distance=4.0)
    analysed(folders[2], queries=9)
    analysed(folders[0], data="news")
    (item,) = tables([summary(folder) for folder in folders])
    found = localities(item)
    told = [(one.about, one.queries, one.is_own, len(one.table.rows[0].runs)) for one in found]
    assert told == [
        ("valid of books (text abc) in blocks of 16 tokens", 8, True, 2),
        ("news (text abc) in blocks of 16 tokens", 8, False, 1),
        ("valid of books (text abc) in blocks of 16 tokens", 9, True, 1),
    ]
    assert found[0].table.rows[0].values("expected_distance") == (2.0, 4.0)
    assert found[0].table.metrics == ("expected_distance",)  # no mask after the softmax
    text = "\n".join(causal_markdown.localities(found))
    assert text.count("### Locality") == 3 and "3.0000 ± 1.4142" in text
    assert "give expected_distance 7.5" in text
    assert [len(group.runs) for group in fields(item)] == [3, 1]
    shown = "\n".join(causal_markdown.fields(fields(item)[0], item))
    assert re.search(r"a \(1\) +\| +10 \| 2 \(2\.0 ± 0\.0\)", shown)


def test_texts_of_one_name_are_told_apart_by_their_tokens(tmp_path: Path) -> None:
    """A name is hardly more than that of a folder, and those of two texts may be the same."""
    folders = [causal(tmp_path, "a", seed) for seed in (1, 2, 3)]
    for folder, text in zip(folders, ("0123456789", "abcdefghij", "0123456789"), strict=True):
        analysed(folder, text=text)
    (item,) = tables([summary(folder) for folder in folders])
    found, measured = localities(item), fields(item)
    for groups in ([len(one.table.rows[0].runs) for one in found], [len(g.runs) for g in measured]):
        assert groups == [2, 1]
    assert ["01234567" in one.about for one in found] == [True, False]
    metrics = [(one.run, one.metric) for one in records_of(found, measured)]
    assert len(metrics) == len(set(metrics))


def test_a_file_that_does_not_tell_its_text_is_analysed_again(tmp_path: Path) -> None:
    folders = [causal(tmp_path, "a", seed) for seed in (1, 2)]
    analysed(folders[0])
    analysed(folders[1], text=None)
    analysed(folders[1], text=None, where="analysis-news")
    (item,) = tables([summary(folder) for folder in folders])
    assert [len(one.table.rows[0].runs) for one in localities(item)] == [1]
    assert [len(group.runs) for group in fields(item)] == [1]
    lines, _ = causal_report.parts([item], [(run, []) for run in item.rows[0].runs], None, tmp_path)
    text = "\n".join(lines["clm", "wikipedia-102"])
    # what it takes to stand beside the other run
    words = f"{folders[1]} 'lengths=[16]' segments=2 blocks=4"
    for what in ("locality", "receptive field"):
        made = f"this makes it: `python -m pipelines.analyze {words}`."
        assert f"No {what} of a-2; {made}" in text
    again = "- a-2: analysis-news/locality.json: tells no digest of its text; analyze it again"
    assert again in text


def test_only_the_text_of_the_runs_is_tested_and_drawn(tmp_path: Path) -> None:
    for variant in "ab":
        for seed in (1, 2):
            folder = causal(tmp_path, variant, seed)
            analysed(
                folder, expected_distance=seed + ord(variant), where="analysis-early", text="x"
            )
            analysed(folder, expected_distance=seed * ord(variant))
            analysed(folder, expected_distance=9.0, data="news")
    read = [read_folder(path) for path in find_folders([f"{tmp_path}/*"])]
    (item,) = tables([run for run, _ in read])
    lines, part = causal_report.parts([item], read, "a", tmp_path)
    text = "\n".join(lines["clm", "wikipedia-102"])
    assert text.count("### Locality") == 3
    tests = text.partition("### Paired tests")[2].partition("###")[0]
    assert tests.count("| expected_distance |") == 1
    assert re.search(r"\| b +\| expected_distance \| +2 \| +\+1.5 \|", text)
    assert "tested and drawn on valid of books (text abc) in blocks of 16 tokens, 8 quer" in text
    (panel,) = [
        one for one in part.drawings["bars.png"].keywords["panels"]  # type: ignore[attr-defined]
        if one.title == "expected distance"
    ]  # fmt: skip
    assert [mean for _, mean, _ in panel.bars] == [97 * 1.5, 98 * 1.5]


def test_runs_of_one_name_in_two_places_have_their_own_labels(tmp_path: Path) -> None:
    folders = [causal(tmp_path / place, place).rename(tmp_path / place / "run") for place in "ab"]
    runs = [replace(summary(folder), run="run") for folder in folders]
    for folder, loss in zip(folders, (1.0, 2.0), strict=True):
        scored(folder, {16: [loss] * 4, 64: [loss] * 4})
        analysed(folder)
    (item,) = tables(runs)
    ((table,), _) = length_tables(runs)
    text = "\n".join(causal_markdown.lengths(table, item))
    assert re.findall(r"^\| (\w+) .* (2.72|7.39) ", text, re.MULTILINE) == [
        ("a", "2.72"), ("b", "7.39")
    ]  # fmt: skip
    shown = "\n".join(causal_markdown.fields(fields(item)[0], item))
    assert re.findall(r"^\| (\w+) .* 2 \(", shown, re.MULTILINE) == ["a", "b"]


def test_losses_at_other_training_lengths_are_told_and_not_tested(tmp_path: Path) -> None:
    for variant, length in (("a", 16), ("b", 32), ("c", 16)):
        for seed in (1, 2):
            scores = {**SCORES, "eval_loss": 3.0 + seed * length / 7}
            logged(tmp_path / f"{variant}-{seed}", variant, seed, task="clm", scores=scores,
                   points={1: {SPEED: seed * 9.0 + length}}, **{"data.length": length})  # fmt: skip
    read = [read_folder(path) for path in find_folders([f"{tmp_path}/*"])]
    (item,) = tables([run for run, _ in read])
    lines, _ = causal_report.parts([item], read, "a", tmp_path)
    text = "\n".join(lines["clm", "wikipedia-102"])
    told = "Trained at different lengths (data.length): a 16, b 32, c 16. Each eval_* score is"
    assert told in text and "does not compare, nor is it tested; use protocol=last_token" in text
    tests = text.partition("### Paired tests")[2].partition("###")[0]
    assert re.findall(r"^\| ([bc]) +\| (\w+)", tests, re.MULTILINE) == [
        ("b", SPEED), ("c", "eval_loss"), ("c", "eval_perplexity"), ("c", SPEED)
    ]  # fmt: skip
    (same,) = tables([run for run, _ in read if run.variant != "b"])
    assert causal_markdown.other_lengths(same) == []


def test_a_mask_after_the_softmax_is_told_by_what_is_left(tmp_path: Path) -> None:
    folder = causal(tmp_path, "a")
    analysed(folder, weight=0.25)
    (item,) = tables([summary(folder)])
    assert localities(item)[0].table.metrics == ("expected_distance", "weight")


def test_runs_of_mlflow_have_scores_and_say_what_folders_are_for(tmp_path: Path) -> None:
    folders = [causal(tmp_path, name) for name in "ab"]
    read = [(replace(run, folder=None), some) for run, some in map(read_folder, folders)]
    items = tables([run for run, _ in read])
    lines, part = causal_report.parts(items, read, "a", tmp_path)
    text = "\n".join(lines["clm", "wikipedia-102"])
    assert "given as `runs`" in text and "No locality" not in text
    assert list(part.drawings) == ["bars.png"] and part.records == []
    assert "- b: no test of eval_loss, eval_perplexity: one value does not tell" in text


def test_plots_of_an_earlier_report_are_removed_and_no_others(tmp_path: Path) -> None:
    folder = causal(tmp_path / "runs", "a")
    scored(folder, {16: BASE, 64: BASE})
    analysed(folder)
    analysed(folder, data="news")
    settings = CompareRun(runs=(str(folder),), output=tmp_path / "out")
    (tmp_path / "out").mkdir()
    for name in ("mine.png", "bars-mine.png"):
        (tmp_path / "out" / name).write_bytes(b"mine")
    compare.main(settings)
    first = {path.name for path in settings.output.iterdir()}
    assert {"lengths.png", "receptive_fields.png", "receptive_fields-2.png"} < first
    (folder / "eval-x" / "valid.json").unlink()
    (folder / "analysis-news" / "receptive_field.json").unlink()
    compare.main(settings)
    left = {path.name for path in settings.output.iterdir()}
    assert first - left == {"lengths.png", "receptive_fields-2.png"}
    assert {"mine.png", "bars-mine.png"} <= left
    report = json.dumps((settings.output / "report.md").read_text(encoding="utf-8"))
    assert "receptive_fields.png" in report and "lengths.png" not in report
