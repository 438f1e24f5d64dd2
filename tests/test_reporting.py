"""Comparison of runs: run folders and MLflow read back, tables, Markdown, CSV and plots."""

from __future__ import annotations

import csv
import io
import math
import random
import re
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ala_encoder import reporting
from ala_encoder.errors import UserError
from ala_encoder.files import write_json
from ala_encoder.markdown import render_markdown
from ala_encoder.plots import Panel, Point, draw_scores
from ala_encoder.records import (
    Record,
    RunSummary,
    find_folders,
    read_folder,
    read_mlflow,
    tidy,
)
from ala_encoder.reporting import panels, plot_run, table, tables
from ala_encoder.settings.compare import CompareRun
from ala_encoder.settings.loader import load
from ala_encoder.settings.tracking import TrackingSettings
from ala_encoder.tracking import EVENTS, RunInfo, RunLog, history, replay
from pipelines.compare import main

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENT = "tests of reporting"
SCORES = {"eval_loss": 3.25, "eval_unigram_loss": 6.5, "eval_targets": 1200.0}


def logged(
    folder: Path,
    variant: str = "baseline",
    seed: int = 1,
    *,
    task: str = "mlm",
    size: int = 1000,
    scores: dict[str, float] | None = None,
    points: dict[int, dict[str, float]] | None = None,
    status: str = "FINISHED",
    data: str = "wikipedia-102",
    tags: dict[str, str] | None = None,
    **params: Any,
) -> Path:
    """Write a run with the real log and return its folder."""
    named = {"variant": variant, "seed": seed, "task": task, "data_name": data}
    sizes = {"params/encoder_attention": size, "params/qk_groups": 4, "params/total": size + 5000}
    info = RunInfo(folder.name, EXPERIMENT, {**named, **sizes, **params}, tags or {})
    log = RunLog(folder, info, uri=None, enabled=False)
    for step, values in (points or {1: {"loss": 8.0}, 100: {"loss": 4.0}}).items():
        log.metrics(values, step)
    log.summary(SCORES if scores is None else scores)
    log.close(status)
    return folder


def seeds(root: Path, variant: str, values: list[float], **more: Any) -> None:
    for seed, value in enumerate(values, 1):
        scores = {**SCORES, "eval_loss": value}
        logged(root / f"{variant}-mlm-{seed}", variant, seed, scores=scores, **more)


def summaries(root: Path) -> list[RunSummary]:
    return [read_folder(path)[0] for path in find_folders([f"{root}/*"])]


def grid(markdown: str, title: str | None = None) -> list[dict[str, str]]:
    """Read a section's Markdown table back; without a title that of the first after the summary."""
    sections = re.split("^## ", markdown, flags=re.MULTILINE)[1:]
    text = next(s for s in sections if (s.startswith(title) if title else s[:7] != "Summary"))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(re.fullmatch(r":?-+:?", cell) for cell in cells[1])
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


# ---- what is averaged with what


def test_one_name_of_several_held_out_texts_is_told_apart(tmp_path: Path) -> None:
    for seed, text in ((1, "a" * 16), (2, "a" * 16), (3, "b" * 16)):
        logged(tmp_path / f"x{seed}", "x", seed, data="pairs en-de", held_out_text=text)
    logged(tmp_path / "y1", "y", 1, data="other", held_out_text="a" * 16)
    # a table of another task has one text
    logged(tmp_path / "z1", "z", 1, task="clm", data="pairs en-de", held_out_text="c" * 16)
    found = {one.data_name: len(one.rows[0].runs) for one in tables(summaries(tmp_path))}
    told = {"pairs en-de [aaaaaaaa]": 2, "pairs en-de [bbbbbbbb]": 1}
    assert found == {**told, "other": 1, "pairs en-de": 1}


def test_starts_from_other_kinds_of_pretraining_are_rows_of_their_own(tmp_path: Path) -> None:
    for seed, kind in ((1, "masked_lm"), (2, "denoise"), (3, "masked_lm")):
        tags = {"pretrained_run": f"x-{kind}-{seed}", "pretrained_kind": kind}
        logged(tmp_path / f"x{seed}", "x", seed, tags=tags)
    logged(tmp_path / "x4", "x", 4)
    (item,) = tables(summaries(tmp_path))
    found = [(row.start, [run.seed for run in row.runs]) for row in item.rows]
    assert found == [("scratch", [4]), ("denoise", [2]), ("masked_lm", [1, 3])]


def test_the_rhythm_of_saves_counts_where_saves_are_averaged(tmp_path: Path) -> None:
    for seed, every in ((1, 2), (2, 6)):
        rhythm = {"train.save_every": every}
        logged(tmp_path / f"x{seed}", "x", seed, **rhythm, **{"train.average_checkpoints": 3})
        logged(tmp_path / f"y{seed}", "y", seed, **rhythm, **{"train.average_checkpoints": None})
    (item,) = tables(summaries(tmp_path))
    found = {row.variant: row.differing() for row in item.rows}
    assert found == {"x": {"train.save_every": ["2", "6"]}, "y": {}}


# ---- reading


def test_a_folder_gives_its_points_and_its_scores_with_their_counts(tmp_path: Path) -> None:
    points = {0: {"eval_loss": 7.0}, 10: {"loss": 5.0, "grad_norm": 0.5}, 20: {"eval_loss": 4.0}}
    folder = logged(tmp_path / "a-mlm-3", "a", 3, points=points)
    summary, records = read_folder(folder)
    assert (summary.run, summary.variant, summary.task, summary.seed) == ("a-mlm-3", "a", "mlm", 3)
    assert summary.status == "FINISHED"
    assert summary.data_name == "wikipedia-102"
    assert summary.parameters == {"encoder_attention": 1000, "qk_groups": 4, "total": 6000}
    assert summary.scores == {"eval_loss": 3.25, "eval_unigram_loss": 6.5}
    found = {(r.metric, r.step, r.value, r.n, r.final) for r in records}
    assert found == {
        ("eval_loss", 0, 7.0, 1200, False),
        ("loss", 10, 5.0, None, False),
        ("grad_norm", 10, 0.5, None, False),
        ("eval_loss", 20, 4.0, 1200, False),
        ("eval_loss", 20, 3.25, 1200, True),
        ("eval_unigram_loss", 20, 6.5, 1200, True),
    }


def test_a_score_has_the_count_of_its_own_split(tmp_path: Path) -> None:
    scores = {
        "eval_accuracy": 0.75,
        "eval_examples": 872.0,
        "test_accuracy": 0.5,
        "test_examples": 1821.0,
        "test_mismatched_accuracy": 0.25,
        "test_mismatched_examples": 99.0,
    }
    _, records = read_folder(logged(tmp_path / "a", task="sst2", scores=scores))
    assert {r.metric: r.n for r in records if r.final} == {
        "eval_accuracy": 872,
        "test_accuracy": 1821,
        "test_mismatched_accuracy": 99,
    }


def test_the_curve_of_a_resumed_run_has_each_step_once_as_history_has_it(tmp_path: Path) -> None:
    folder = logged(
        tmp_path / "a",
        scores={},
        status="KILLED",
        points={s: {"loss": float(s)} for s in (1, 2, 3, 4)},
    )
    logged(folder, points={s: {"loss": s + 0.5} for s in (3, 4, 5)}, variant="renamed")
    summary, records = read_folder(folder)
    curve = [(r.step, r.value) for r in records if r.metric == "loss"]
    assert curve == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.5)]
    assert curve == [(step, value) for name, step, value in history(folder) if name == "loss"]
    assert summary.status == "FINISHED"
    assert summary.variant == "baseline", "the first parameter stands, as in MLflow"


def test_a_run_without_a_last_word_and_one_without_scores_have_no_scores(tmp_path: Path) -> None:
    folder = logged(tmp_path / "a", points={5: {"eval_loss": 2.0}})
    lines = (folder / EVENTS).read_bytes().splitlines(keepends=True)
    (folder / EVENTS).write_bytes(b"".join(lines[:-1]) + lines[-1][:9])  # a line torn by a crash
    assert read_folder(folder)[0].status == "RUNNING"
    early = logged(tmp_path / "b", points={5: {"eval_loss": 2.0}}, scores={})
    assert read_folder(early)[0].status == "UNSCORED"
    for path in (folder, early):
        assert not any(record.final for record in read_folder(path)[1])


def test_the_data_name_is_logged_or_the_export_s_or_the_first_data_set_s(tmp_path: Path) -> None:
    def name_of(folder: Path, card: bool, dataset: bool) -> str:
        info = RunInfo(folder.name, EXPERIMENT, {"variant": "a", "seed": 1, "task": "mlm"})
        with RunLog(folder, info, uri=None, enabled=False) as log:
            if dataset:
                log.dataset("files", "here", "abc", {}, "training")
        if card:
            write_json(folder / "export" / "export.json", {"data_name": "wikipedia-102"})
        return read_folder(folder)[0].data_name

    assert name_of(tmp_path / "a", card=True, dataset=True) == "wikipedia-102"
    assert name_of(tmp_path / "b", card=False, dataset=True) == "files"
    assert name_of(tmp_path / "c", card=False, dataset=False) == "unknown data"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("basline-mlm-1", "there is no such folder (did you mean 'baseline-mlm-1'?)"),
        ("notes", "not a run folder"),
        ("no*", "matches 1 paths, none a run"),
        ("x*", "matches nothing"),
    ],
)
def test_a_pattern_that_names_no_run_is_the_users_mistake(
    tmp_path: Path, pattern: str, message: str
) -> None:
    logged(tmp_path / "baseline-mlm-1")
    (tmp_path / "notes").mkdir()
    with pytest.raises(UserError, match=re.escape(message)):
        find_folders([str(tmp_path / "base*"), str(tmp_path / pattern)])


def test_a_glob_passes_over_other_folders_and_names_each_run_once(tmp_path: Path) -> None:
    logged(tmp_path / "a-[1]")
    logged(tmp_path / "b")
    (tmp_path / "compare").mkdir()
    patterns = [f"{tmp_path}/*", f"{tmp_path}/b/", f"{tmp_path}/a-[1]"]
    assert [path.name for path in find_folders(patterns)] == ["a-[1]", "b"]


def test_a_log_that_names_no_variant_is_refused(tmp_path: Path) -> None:
    with RunLog(tmp_path / "a", RunInfo("a", EXPERIMENT, {"seed": 1}), uri=None, enabled=False):
        pass
    with pytest.raises(UserError, match="names no variant"):
        read_folder(tmp_path / "a")


# ---- tables


def test_cells_are_mean_and_sample_deviation_over_seeds_and_a_lone_seed_has_none(
    tmp_path: Path,
) -> None:
    seeds(tmp_path, "baseline", [36.63, 35.60, 36.37])
    seeds(tmp_path, "tied", [35.0], size=600)
    report = render_markdown(tables(summaries(tmp_path)), None)
    first, second = grid(report)
    # by hand: 36.2; deviations .43, -.60, .17; sqrt(.5738 / 2) = .5356
    assert first["eval_loss"] == "36.20 ± 0.54"
    assert first["n"] == "3"
    assert first["seeds"] == "1, 2, 3"
    assert second["eval_loss"] == "35.00"
    assert second["n"] == "1"
    assert "ddof 1" in report
    assert "eval 1,200 targets" in report


def test_of_translations_bleu_is_the_score_and_its_signature_is_told(tmp_path: Path) -> None:
    scores = {"test_targets": 900.0, "test_chrf": 55.0, "test_loss": 2.0, "eval_loss": 2.1}
    for variant, value, version in (("a", 33.72, "2.5"), ("l", 33.5, "2.6")):
        found = {**scores, "test_bleu": value, "eval_bleu": value - 1}
        logged(tmp_path / variant, variant, task="en-de", scores=found, bleu_signature=version)
    found_tables = tables(summaries(tmp_path))
    report = render_markdown(found_tables, None)
    assert [row["metric"] for row in grid(report, "Summary")] == ["test_bleu"] * 2 + [
        "eval_bleu"
    ] * 2
    assert [panel.metric for panel in panels(found_tables)] == ["test_bleu"]
    assert "test 900 targets" in report
    assert "BLEU: `2.5`. BLEU: `2.6`." in report


def test_rows_are_sorted_by_attention_parameters_then_name(tmp_path: Path) -> None:
    for variant, size in (("b", 500), ("z", 900), ("a", 500), ("c", 12_000)):
        logged(tmp_path / variant, variant, size=size)
    rows = grid(render_markdown(tables(summaries(tmp_path)), None))
    assert [row["variant"] for row in rows] == ["c", "z", "a", "b"]
    assert rows[0]["encoder attention"] == "12,000"
    assert rows[0]["total"] == "17,000"
    assert rows[0]["Q/K groups"] == "4"


def test_the_unigram_loss_stands_beside_the_loss(tmp_path: Path) -> None:
    logged(tmp_path / "a", scores={**SCORES, "eval_perplexity": 25.8, "eval_accuracy": 0.5})
    assert table(summaries(tmp_path), "mlm", "wikipedia-102").metrics == (
        "eval_accuracy",
        "eval_loss",
        "eval_unigram_loss",
        "eval_perplexity",
    )


@pytest.mark.parametrize(
    ("status", "reason"), [("FAILED", "it failed"), ("KILLED", "it was stopped")]
)
def test_a_run_that_did_not_finish_is_listed_and_not_averaged(
    tmp_path: Path, status: str, reason: str
) -> None:
    seeds(tmp_path, "baseline", [3.0, 4.0])
    logged(tmp_path / "baseline-mlm-9", seed=9, scores={"eval_loss": 99.0}, status=status)
    (found,) = tables(summaries(tmp_path))
    assert found.left_out == (f"baseline-mlm-9: {reason}",)
    (row,) = grid(report := render_markdown([found], None))
    assert row["eval_loss"] == "3.5000 ± 0.7071"
    assert row["n"] == "2"
    assert f"- baseline-mlm-9: {reason}" in report


def test_a_score_that_was_not_finite_is_listed_and_the_others_are_averaged(tmp_path: Path) -> None:
    logged(tmp_path / "a-mlm-1", "a", 1)
    logged(tmp_path / "a-mlm-2", "a", 2, scores={**SCORES, "eval_loss": math.nan})
    (found,) = tables(summaries(tmp_path))
    assert found.left_out == ("a-mlm-2: its eval_loss was not finite",)
    (row,) = grid(render_markdown([found], None))
    assert row["eval_loss"] == "3.2500 (n=1)"
    assert row["eval_unigram_loss"] == "6.5000 ± 0.0000"
    assert row["n"] == "2"


def test_a_seed_run_again_counts_once_and_the_newest_counts(tmp_path: Path) -> None:
    for name, value in (("a.before-1", 9.0), ("a", 3.0)):
        logged(tmp_path / name, "a", 1, scores={"eval_loss": value})
    old, new = (read_folder(tmp_path / name)[0] for name in ("a.before-1", "a"))
    for order in ([old, new], [new, old]):
        (found,) = tables([replace(run, started=7 + (run is new)) for run in order])
        assert [run.run for run in found.rows[0].runs] == ["a"]
        assert found.left_out == ("a.before-1: variant a, seed 1 again; the newest counts",)


def test_a_row_over_other_settings_than_the_seed_says_so(tmp_path: Path) -> None:
    same = {"train.steps": 10, "optim.betas": [0.9, 0.98]}
    for seed, rate in enumerate((1e-4, 3e-3), 1):
        free = {"output": f"runs{seed}", "data.path": f"d{seed}", "engine.zero_stage": seed}
        free |= {"train.log_every": seed, "tracking.uri": f"u{seed}", "name": f"n{seed}"}
        logged(tmp_path / f"full{seed}", "full", seed, **same, **free, **{"optim.lr": rate})
        logged(tmp_path / f"even{seed}", "even", seed, **same, **free)
    logged(tmp_path / "even3", "even", 3, **{"train.steps": 10, "optim.lr": 5})
    logged(tmp_path / "cut1", "cut", 1, **{"data.columns": "a (cut)"})
    logged(tmp_path / "cut2", "cut", 2, **{"data.columns": "b"})
    text = render_markdown(tables(summaries(tmp_path)), None)
    lines = [line for line in text.splitlines() if "although" in line]
    assert lines == ["- full: averaged although optim.lr differs: 0.0001, 0.003"]


def test_other_sizes_data_and_starts_are_never_averaged_together(tmp_path: Path) -> None:
    logged(tmp_path / "a1", "a", 1, size=1000)
    logged(tmp_path / "a2", "a", 2, size=2000)
    logged(tmp_path / "a3", "a", 3, size=2000, tags={"pretrained_run": "x-mlm-1"})
    logged(tmp_path / "a4", "a", 4, data="generated-text")
    logged(tmp_path / "a5", "a", 5, task="sst2")
    found = tables(summaries(tmp_path))
    assert [(t.task, t.data_name, len(t.rows)) for t in found] == [
        ("mlm", "generated-text", 1),
        ("mlm", "wikipedia-102", 3),
        ("sst2", "wikipedia-102", 1),
    ]
    assert [row["start"] for row in grid(render_markdown(found[1:2], None))] == [
        "scratch",
        "pretrained",
        "scratch",
    ]


def test_a_generated_data_set_is_named_as_such(tmp_path: Path) -> None:
    logged(tmp_path / "a", data="generated-text")
    logged(tmp_path / "b", data="wikipedia-102")
    generated, real = (render_markdown([t], None) for t in tables(summaries(tmp_path)))
    assert "generated-text, a generated data set" in generated
    assert "Data: wikipedia-102. " in real
    assert "generated" not in real


def test_a_table_equals_a_plain_loop_over_random_runs(tmp_path: Path) -> None:
    rng = random.Random(5)
    values: dict[str, list[float]] = {v: [rng.gauss(3, 1) for _ in range(4)] for v in "pqr"}
    for variant, losses in values.items():
        seeds(tmp_path, variant, losses, size=rng.randrange(10_000))
    (found,) = tables(summaries(tmp_path))
    for row in found.rows:
        losses = values[row.variant]
        assert row.values("eval_loss") == tuple(losses)
        mean = sum(losses) / 4
        deviation = math.sqrt(sum((x - mean) ** 2 for x in losses) / 3)
        shown = next(r for r in grid(render_markdown([found], None)) if r["variant"] == row.variant)
        assert shown["eval_loss"] == f"{mean:.4f} ± {deviation:.4f}"
        assert math.isclose(deviation, statistics.stdev(losses))


# ---- the summary


def sst2(root: Path, variant: str, tests: list[float], **more: Any) -> None:
    for seed, value in enumerate(tests, 1):
        scores = {"test_accuracy": value, "eval_accuracy": value - 0.01, "eval_loss": 0.5}
        more = {"task": "sst2", "data": "SST-2-sentences", **more}
        logged(root / f"{variant}-sst2-{seed}", variant, seed, scores=scores, **more)


def test_the_summary_has_median_mean_and_sample_deviation_of_each_main_score(
    tmp_path: Path,
) -> None:
    seeds(tmp_path, "full", [3.0, 4.0])
    sst2(tmp_path, "full", [0.80, 0.81, 0.85])
    report = render_markdown(tables(summaries(tmp_path)), None)
    assert report.index("## Summary") < report.index("## mlm on") < report.index("## sst2 on")
    assert "ddof 1" in report.split("## mlm on")[0]
    # by hand: mean .82; deviations -.02, -.01, .03; sqrt(.0014 / 2) = .02646
    accuracy = {"task": "sst2", "data": "SST-2-sentences", "variant": "full", "n": "3"}
    accuracy |= {"mean": "0.8200", "median": "0.8100", "sd": "0.0265", "metric": "test_accuracy"}
    loss = {"task": "mlm", "data": "wikipedia-102", "variant": "full", "metric": "eval_loss"}
    loss |= {"n": "2", "median": "3.5000", "mean": "3.5000", "sd": "0.7071"}
    dev = accuracy | {"metric": "eval_accuracy", "mean": "0.8100", "median": "0.8000"}
    assert grid(report, "Summary") == [loss, accuracy, dev]


def test_the_summary_names_the_start_where_it_differs_and_a_lone_seed_has_no_deviation(
    tmp_path: Path,
) -> None:
    sst2(tmp_path, "full", [0.8])
    sst2(tmp_path, "full-p", [0.9], tags={"pretrained_run": "full-mlm-1"})
    rows = grid(render_markdown(tables(summaries(tmp_path)), None), "Summary")
    assert [(row["variant"], row["start"]) for row in rows[:2]] == [
        ("full", "scratch"),
        ("full-p", "pretrained"),
    ]
    assert {row["sd"] for row in rows} == {"-"} and {row["n"] for row in rows} == {"1"}


def test_the_summary_says_of_how_many_runs_a_score_is(tmp_path: Path) -> None:
    """A run that diverged predicts one number for all: its correlation has no value."""
    for seed, scores in enumerate(({"eval_pearson": 0.5}, {"eval_loss": 9.0}), 1):
        logged(tmp_path / f"a-{seed}", "a", seed, task="stsb", scores=scores)
    (row,) = grid(report := render_markdown(tables(summaries(tmp_path)), None), "Summary")
    assert (row["metric"], row["n"]) == ("eval_pearson", "1 of 2")
    assert "losses are mean squared errors" in report and "nats" not in report


def test_no_finished_run_is_no_summary(tmp_path: Path) -> None:
    logged(tmp_path / "a", status="FAILED")
    assert "Summary" not in render_markdown(tables(summaries(tmp_path)), None)


def test_the_official_scores_of_every_task_are_ordered_and_summarised(tmp_path: Path) -> None:
    names = ["test_matthews_correlation", "test_pearson", "test_spearmanr", "eval_f1",
             "eval_matthews_correlation", "eval_pearson", "eval_spearmanr",
             "eval_matched_accuracy", "eval_mismatched_accuracy"]  # fmt: skip
    logged(tmp_path / "a", scores={"eval_loss": 1.0, **dict.fromkeys(reversed(names), 0.5)})
    (found,) = tables(summaries(tmp_path))
    assert found.metrics == (*names, "eval_loss")
    assert [row["metric"] for row in grid(render_markdown([found], None), "Summary")] == names


def test_a_floor_stands_beside_its_data_and_score_alone(tmp_path: Path) -> None:
    seeds(tmp_path, "full", [3.0])
    sst2(tmp_path, "full", [0.8])
    floors = {"SST-2-sentences": {"test_accuracy": 0.813}}
    found = tables(summaries(tmp_path))
    report = render_markdown(found, None, floors, "words alone")
    floor = {row["metric"]: row["floor"] for row in grid(report, "Summary")}
    assert floor == {"eval_loss": "-", "test_accuracy": "0.8130", "eval_accuracy": "-"}
    assert "Floor: words alone." in report
    assert "floor" not in render_markdown(found, None).lower()


@pytest.mark.parametrize(
    ("floors", "message"),
    [
        ({"SST-2": {"test_accuracy": 0.8}}, "floors.SST-2: no finished run has this data"),
        ({"SST-2-sentence": {"test_f1": 1}}, "(did you mean 'SST-2-sentences'?)"),
        (
            {"SST-2-sentences": {"test_acuracy": 0.8}},
            "floors.SST-2-sentences.test_acuracy: no such score in the summary; there are "
            "test_accuracy, eval_accuracy (did you mean 'test_accuracy'?)",
        ),
    ],
)
def test_a_floor_without_effect_is_the_users_mistake(
    tmp_path: Path, floors: dict[str, dict[str, float]], message: str
) -> None:
    sst2(tmp_path / "runs", "full", [0.8])
    with pytest.raises(UserError, match=re.escape(message)):
        main(CompareRun(runs=(f"{tmp_path}/runs/*",), output=tmp_path / "out", floors=floors))
    assert not (tmp_path / "out").exists()


def test_floors_in_settings_need_scores_and_their_source_needs_floors() -> None:
    with pytest.raises(ValueError, match="floors_source: does nothing without `floors`"):
        CompareRun(floors_source="words alone")
    with pytest.raises(ValueError, match=r"floors\.MRPC: names no score"):
        CompareRun(floors={"MRPC": {}})


def test_the_shipped_comparison_shows_its_floors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(ROOT / "configs" / "small" / "compare_glue.yaml", [], CompareRun)
    monkeypatch.chdir(tmp_path)
    sst2(tmp_path / "runs", "full", [0.8])
    for task, data in (("mrpc", "MRPC"), ("qqp", "QQP-sample")):
        scores = {"eval_accuracy": 0.7, "eval_f1": 0.8}
        logged(tmp_path / "runs" / f"full-{task}-1", "full", task=task, data=data, scores=scores)
    main(settings)
    rows = grid((settings.output / "report.md").read_text("utf-8"), "Summary")
    found = {(row["data"], row["metric"]): row["floor"] for row in rows}
    assert {key: value for key, value in found.items() if value != "-"} == {
        ("MRPC", "eval_accuracy"): "0.7550",
        ("QQP-sample", "eval_accuracy"): "0.7590",
        ("SST-2-sentences", "test_accuracy"): "0.8130",
    }


def test_d10_a_perplexity_is_per_target_piece_and_its_denominator_is_printed(
    tmp_path: Path,
) -> None:
    logged(tmp_path / "a", scores={**SCORES, "eval_targets": 1_234_567.0, "eval_perplexity": 25.8})
    report = render_markdown(tables(summaries(tmp_path)), None)
    assert "perplexity per target piece" in report
    assert "eval 1,234,567 targets" in report


# ---- CSV


def test_csv_keeps_every_digit_and_is_empty_for_none() -> None:
    value = 0.1 + 0.2
    text = tidy(
        [
            Record("b", "b", "mlm", 2, "loss", 10, 1e-7, None, False),
            Record("a, 1", "a", "mlm", 2, "eval_loss", None, value, 12, True),
        ]
    )
    assert text == (
        "run,variant,task,seed,metric,step,value,n,final\n"
        '"a, 1",a,mlm,2,eval_loss,,0.30000000000000004,12,true\n'
        "b,b,mlm,2,loss,10,1e-07,,false\n"
    )
    assert float(next(csv.DictReader(io.StringIO(text)))["value"]) == value


def test_csv_does_not_depend_on_the_order_of_the_records(tmp_path: Path) -> None:
    records = [r for i in (1, 2) for r in read_folder(logged(tmp_path / f"a{i}", seed=i))[1]]
    assert tidy(records) == tidy(reversed(records))


# ---- plots


def test_the_plot_of_a_run_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    folder = logged(
        tmp_path / "a",
        points={
            s: {"loss": 8 / (1 + s), **({"eval_loss": 7.5 / (1 + s)} if s % 5 == 0 else {})}
            for s in range(20)
        },
    )
    path = plot_run(folder)
    assert path == folder / "loss.png"
    first = path.read_bytes()
    assert first.startswith(b"\x89PNG")
    assert b"Software" not in first
    assert b"tIME" not in first
    path.unlink()
    plot_run(folder)
    assert path.read_bytes() == first
    assert [p.name for p in folder.glob(".*")] == []


def test_the_plot_of_a_run_draws_the_dev_loss_that_steers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(reporting, "draw_loss", lambda *given: drawn.append(given))
    points = {1: {"loss": 2.0}, 2: {"loss": 1.0, "eval_matched_loss": 1.5, "eval_matched_f1": 1.0}}
    plot_run(logged(tmp_path / "a", task="mnli", points=points, scores={"eval_matched_loss": 1.5}))
    assert drawn[0][2] == {"loss": [(1, 2.0), (2, 1.0)], "eval_matched_loss": [(2, 1.5)]}


def test_a_run_without_a_loss_has_no_plot(tmp_path: Path) -> None:
    folder = logged(tmp_path / "a", points={3: {"grad_norm": 1.0}}, scores={})
    assert plot_run(folder) is None
    assert not (folder / "loss.png").exists()


def test_the_scatter_is_the_same_byte_for_byte_whatever_the_users_style(tmp_path: Path) -> None:
    import matplotlib

    points = tuple(Point(f"v{i}", 1000 * (i // 2), (3.0 + i, 3.5 + i)) for i in range(12))
    both = [Panel("mlm on x", "eval_loss", points), Panel("one", "f1", points[:1])]
    draw_scores(tmp_path / "a.png", both)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        draw_scores(tmp_path / "b.png", both)
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_the_plot_takes_the_named_metric_or_the_first_that_all_runs_share(tmp_path: Path) -> None:
    logged(tmp_path / "a", "a", scores={"eval_loss": 1.0, "test_accuracy": 0.5})
    logged(tmp_path / "b", "b", scores={"eval_loss": 2.0})
    found = tables(summaries(tmp_path))
    for name, metric in (("default", None), ("loss", "eval_loss"), ("accuracy", "test_accuracy")):
        draw_scores(tmp_path / f"{name}.png", panels(found, metric))
    pictures = {n: (tmp_path / f"{n}.png").read_bytes() for n in ("default", "loss", "accuracy")}
    assert pictures["default"] == pictures["loss"] != pictures["accuracy"]
    with pytest.raises(UserError, match=r"metric = 'eval_los'.*did you mean 'eval_loss'"):
        panels(found, "eval_los")


def test_runs_that_share_no_metric_are_the_users_mistake(tmp_path: Path) -> None:
    logged(tmp_path / "a", "a", scores={"eval_loss": 1.0})
    logged(tmp_path / "b", "b", scores={"test_accuracy": 0.5})
    with pytest.raises(UserError, match="2 runs share no metric"):
        panels(tables(summaries(tmp_path)))


# ---- the pipeline


def test_compare_writes_the_same_files_again_and_prints_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds(tmp_path / "runs", "baseline", [3.0, 3.5])
    seeds(tmp_path / "runs", "tied", [4.0, 4.5], size=400)
    settings = CompareRun(runs=(f"{tmp_path}/runs/*",), output=tmp_path / "runs" / "compare")
    main(settings)
    printed = capsys.readouterr().out
    first = {path.name: path.read_bytes() for path in settings.output.iterdir()}
    assert set(first) == {"report.md", "report.csv", "scores.png"}
    assert first["report.md"].decode() in printed
    assert "![" in printed
    main(settings)
    assert {path.name: path.read_bytes() for path in settings.output.iterdir()} == first


def test_compare_removes_a_plot_that_the_report_no_longer_has(tmp_path: Path) -> None:
    settings = CompareRun(runs=(f"{tmp_path}/runs/*",), output=tmp_path / "out")
    logged(tmp_path / "runs" / "a")
    main(settings)
    assert (settings.output / "scores.png").exists()
    logged(tmp_path / "runs" / "a", status="FAILED")
    main(settings)
    assert not (settings.output / "scores.png").exists()
    assert "![" not in (settings.output / "report.md").read_text("utf-8")


def test_the_command_line_tells_a_mistake_in_one_line_and_imports_nothing_heavy(
    tmp_path: Path,
) -> None:
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "pipelines.compare",
        f"runs=[{tmp_path}/nothing*]",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    said = [line for line in lines if not line.startswith("import time:")]
    assert said == [f"error: runs: '{tmp_path}/nothing*' matches nothing"]
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert loaded.isdisjoint({"torch", "mlflow", "deepspeed", "transformers", "matplotlib"})


@pytest.mark.filterwarnings("ignore:The ``noload`` loader:DeprecationWarning")
def test_mlflow_gives_the_same_table_and_scores_as_the_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    runs = tmp_path / "runs"
    nan = {**SCORES, "eval_loss": math.nan}
    logged(runs / "a-mlm-1", "a", 1)
    logged(runs / "a-mlm-2", "a", 2, scores={**SCORES, "eval_loss": 1 / 3})
    logged(
        runs / "b-mlm-1", "b", 1, size=700, scores=nan, points={1: {"loss": 9.0, "eval_loss": 9.0}}
    )
    logged(runs / "b-mlm-2", "b", 2, size=700, status="FAILED", points={1: {"eval_loss": 2.0}})
    with RunLog(tmp_path / "other", RunInfo("other", EXPERIMENT, {}), uri=None, enabled=False):
        pass
    for folder in (*runs.iterdir(), tmp_path / "other"):
        replay(folder, uri)
    from_folders = [read_folder(path) for path in find_folders([f"{runs}/*"])]
    capsys.readouterr()
    from_mlflow = read_mlflow(uri, EXPERIMENT)
    assert "other: its log names no variant" in capsys.readouterr().err
    assert len(from_mlflow) == 4
    assert all(summary.run_id for summary, _ in from_mlflow)

    def report(read: list[tuple[RunSummary, list[Record]]]) -> str:
        return render_markdown(tables([summary for summary, _ in read]), None)

    def scores(read: list[tuple[RunSummary, list[Record]]]) -> str:
        return tidy(replace(r, step=None) for _, found in read for r in found if r.final)

    assert report(from_mlflow) == report(from_folders)
    assert "## Summary" in report(from_mlflow)
    assert scores(from_mlflow) == scores(from_folders)
    assert "0.3333333333333333,1200,true" in scores(from_mlflow)

    tracking = TrackingSettings(uri=uri, experiment=EXPERIMENT)
    main(CompareRun(output=tmp_path / "out", tracking=tracking))
    assert grid((tmp_path / "out" / "report.md").read_text("utf-8"))[0]["n"] == "2"
