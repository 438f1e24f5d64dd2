"""The report on causal language models: a suite from text to its tables, against plain numpy."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy import stats

from ala_encoder import command, export, runs
from ala_encoder.settings.analyze import AnalyzeRun
from ala_encoder.settings.compare import CompareRun
from ala_encoder.settings.evaluate import EvaluateRun
from ala_encoder.settings.experiment import Preparation, PretrainRun
from ala_encoder.settings.loader import load
from ala_encoder.settings.suite import SuiteRun
from pipelines import analyze, compare, evaluate, pretrain, suite, train_tokenizer
from tests.launched import causal, small

PNG = b"\x89PNG\r\n"
LENGTHS = (16, 40)


def start(pipeline: Any, cls: Any, *words: object, **options: Any) -> None:
    argv = [str(word) for word in words]
    assert command.run(pipeline.main, cls, "", argv=argv, **options) == 0


def score(*words: object) -> None:
    start(evaluate, EvaluateRun, *words, positional="export", json_flag=True)


def toy(home: Path) -> Path:
    """Write text, two configs and a suite of two seeds each; return the suite's file."""
    text = small.text()
    for name, lines in (("train", text[:60]), ("valid", text[60:80])):
        (home / f"{name}.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    source = {split: [str(home / f"{split}.txt")] for split in ("train", "valid")}
    content = {
        **causal.SETTINGS,
        "variant": "plain",
        "model": {**causal.SETTINGS["model"], "positions": "none", "max_length": None},
        "decoder": {},
        "tokenizer": {"kind": "byte_bpe", "path": str(home / "tokenizer"), "vocab_size": 320},
        "data": {"path": str(home / "tokens"), "source": {"kind": "files", **source}, "length": 16},
        "tracking": {"enabled": False},
    }
    content["train"] = {**content["train"], "steps": 8, "eval_every": 4, "log_every": 2}
    content["optim"] = {"learning_rate": 1e-2, "warmup_steps": 2}
    (home / "plain.yaml").write_text(json.dumps(content))
    gated = {"base": "plain.yaml", "variant": "gated", "decoder": causal.SETTINGS["decoder"]}
    (home / "gated.yaml").write_text(json.dumps(gated))
    given = {
        "name": "both", "pipeline": "pretrain", "vary": {"seed": [1, 2]},
        "configs": [str(home / f"{name}.yaml") for name in ("plain", "gated")],
        "output": str(home / "runs"), "tracking": {"enabled": False}, "baseline": "plain",
    }  # fmt: skip
    (home / "suite.yaml").write_text(json.dumps(given))
    return home / "suite.yaml"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, _distributed: None) -> Iterator[Path]:
    """Return a folder with four trained, evaluated and analysed runs and their report."""
    home = tmp_path_factory.mktemp("suite")
    path = toy(home)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs.engines, "stop", lambda: None)
        patch.setenv("LOCAL_RANK", "0")
        start(train_tokenizer, Preparation, home / "plain.yaml", json_flag=True)
        cells = load(path, [], SuiteRun).cells
        for cell in cells:
            start(pretrain, PretrainRun, cell.config, *cell.overrides)
            words = ["protocol=last_token", f"lengths={list(LENGTHS)}", "tokens=60"]
            score(home / "runs" / cell.name, *words)
        score(home / "runs" / "plain-1", "lengths=[8,16]")
        folders = [home / "runs" / cell.name for cell in cells]
        start(analyze, AnalyzeRun, *folders[:3], "lengths=[16,32]", "segments=6", "blocks=4",
              f"output={home / 'plots'}", positional="export")  # fmt: skip
        start(suite, SuiteRun, path, json_flag=True)
    yield home
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def report(home: Path) -> str:
    return (home / "runs" / "both" / "report.md").read_text(encoding="utf-8")


def grids(report: str, title: str) -> list[list[dict[str, str]]]:
    """Read the tables of a section of any level back."""
    sections = re.split("^##+ ", report, flags=re.MULTILINE)[1:]
    (text,) = (section for section in sections if section.startswith(title))
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        cells = [[c.strip() for c in line.strip("|").split("|")] for line in block.splitlines()]
        found.append([dict(zip(cells[0], row, strict=True)) for row in cells[2:]])
    return found


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def last(folder: Path) -> dict[str, float]:
    (found,) = (event["values"] for event in events(folder) if event["event"] == "summary")
    return dict(found)


def near(shown: str, value: float) -> None:
    """Assert that a cell is a number, rounded to the digits it has."""
    digits = len(shown.partition(".")[2])
    assert float(shown.replace(",", "")) == pytest.approx(value, abs=0.51 * 10**-digits), shown


def spread(shown: str, values: list[float]) -> None:
    mean, _, sd = shown.partition(" ± ")
    near(mean, statistics.fmean(values))
    near(sd, statistics.stdev(values))


SCORES = ("eval_loss", "eval_perplexity", "eval_bits_per_token", "eval_bits_per_byte",
          "eval_word_perplexity", "eval_top1", "eval_top5", "eval_unigram_loss")  # fmt: skip


def test_means_and_single_runs_are_those_of_the_logs(home: Path, report: str) -> None:
    (means,), (single,) = grids(report, "clm on "), grids(report, "Runs")
    assert [row["variant"] for row in means] == ["gated", "plain"]
    for row in means:
        folders = [home / "runs" / f"{row['variant']}-{seed}" for seed in (1, 2)]
        assert (row["n"], row["seeds"]) == ("2", "1, 2")
        for name in SCORES:
            spread(row[name], [last(folder)[name] for folder in folders])
        assert int(row["total"].replace(",", "")) == sum(
            p.numel() for p in export.read_causal(folders[0]).build().parameters()
        )
        speeds = [
            statistics.median(
                event["values"]["train_tokens_per_second"] for event in events(folder)
                if event["event"] == "metrics" and "train_tokens_per_second" in event["values"]
            )
            for folder in folders
        ]  # fmt: skip
        spread(row["train_tokens_per_second"], speeds)
    assert [row["run"] for row in single] == ["gated-1", "gated-2", "plain-1", "plain-2"]
    for row in single:
        found = last(home / "runs" / row["run"])
        for name in SCORES:
            near(row[name], found[name])
        for unit in ("targets", "bytes", "words"):
            assert int(row[unit].replace(",", "")) == found[f"eval_{unit}"]
    bits = found["eval_bits_per_byte"] * found["eval_bytes"]
    assert bits == pytest.approx(found["eval_loss"] * found["eval_targets"] / math.log(2))
    assert f"{found['eval_bytes']:,.0f} bytes (eval_bits_per_byte)" in report
    assert f"{found['eval_words']:,.0f} words (eval_word_perplexity)" in report
    assert "4 logged values (train_tokens_per_second)" in report
    assert "ddof 1" in report


def test_counts_are_no_scores_and_each_score_has_its_own(home: Path) -> None:
    found = last(home / "runs" / "gated-1")
    text = (home / "runs" / "both" / "report.csv").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(text.splitlines()) if row["run"] == "gated-1"]
    final = {row["metric"]: row for row in rows if row["final"] == "true"}
    for name, count in (("loss", "targets"), ("top5", "targets"), ("bits_per_byte", "bytes"),
                        ("word_perplexity", "words")):  # fmt: skip
        assert int(final[f"eval_{name}"]["n"]) == found[f"eval_{count}"]
        assert float(final[f"eval_{name}"]["value"]) == found[f"eval_{name}"]
    assert not {"eval_bytes", "eval_words", "eval_targets"} & {row["metric"] for row in rows}
    assert final["train_tokens_per_second"]["n"] == "4"
    assert {row["n"] for row in rows if row["metric"] == "gate/0/0"} == {""}
    scores = json.loads(next((home / "runs" / "gated-1").glob("eval-*/valid.json")).read_text())
    for length in LENGTHS:
        row = final[f"last_token_loss/{length}"]
        assert float(row["value"]) == pytest.approx(scores["scores"][f"eval_loss/{length}"])
        assert row["n"] == "60"
    assert float(final["locality/expected_distance"]["value"]) > 0
    assert final["erf/32"]["n"] == "6"


def test_tests_over_seeds_are_those_of_scipy(home: Path, report: str) -> None:
    (rows,) = grids(report, "Paired tests over seeds against plain")
    found = {row["score"]: row for row in rows}
    assert {row["variant"] for row in rows} == {"gated"}
    for name in SCORES[:-1]:
        sides = [[last(home / "runs" / f"{variant}-{seed}")[name] for seed in (1, 2)]
                 for variant in ("gated", "plain")]  # fmt: skip
        wanted = stats.ttest_rel(*sides)
        row, apart = found[name], np.subtract(*sides)
        assert (row["n"], row["df"]) == ("2", "1")
        assert float(row["difference"]) == pytest.approx(apart.mean(), rel=1e-3)
        assert float(row["sd"]) == pytest.approx(apart.std(ddof=1), rel=1e-3)
        near(row["t"], wanted.statistic)
        near(row["p"], wanted.pvalue)
    assert "eval_unigram_loss" not in found
    # only one run of this variant was analysed
    assert (found["expected_distance"]["n"], found["expected_distance"]["p"]) == ("1", "-")
    assert "expected_distance, mass@32, mass@64, entropy: one value does not tell" in report


def test_locality_is_that_of_the_files_and_what_is_missing_is_told(home: Path, report: str) -> None:
    (rows,) = grids(report, "Locality")
    found = {row["variant"]: row for row in rows}
    for variant, seeds in (("gated", (1,)), ("plain", (1, 2))):
        paths = [
            home / "runs" / f"{variant}-{seed}" / "analysis" / "locality.json" for seed in seeds
        ]
        means = [json.loads(path.read_text())["sections"]["decoder"]["mean"] for path in paths]
        for name in ("expected_distance", "mass@32", "mass@64", "entropy"):
            values = [mean[name] for mean in means]
            if len(seeds) == 1:
                near(found[variant][name], values[0])
            else:
                spread(found[variant][name], values)
        assert found[variant]["n"] == str(len(seeds))
    assert found["plain"]["gate"] == "-" != found["gated"]["gate"]
    folder = home / "runs" / "gated-2"
    words = "'lengths=[16,32]' segments=6 blocks=4"
    made = f"this makes it: `python -m pipelines.analyze {folder} {words}`."
    assert f"No locality of gated-2; {made}" in report
    assert f"No receptive field of gated-2; {made}" in report


def test_gates_stand_beside_their_step_0(home: Path, report: str) -> None:
    for kind in ("gate", "alpha"):
        (rows,) = grids(report, f"{kind.capitalize()} of gated")
        points: dict[int, list[dict[str, float]]] = {0: [], 8: []}
        for seed in (1, 2):
            for event in events(home / "runs" / f"gated-{seed}"):
                if event["event"] == "metrics" and "gate/0/0" in event["values"]:
                    points.get(event["step"], []).append(event["values"])
        assert [len(some) for some in points.values()] == [2, 2]
        for layer, row in enumerate(rows):
            for head in range(4):
                for step, cell in zip((0, 8), row[f"head {head}"].split(" → "), strict=True):
                    values = [values[f"{kind}/{layer}/{head}"] for values in points[step]]
                    near(cell, statistics.fmean(values))
    first, end = ([statistics.fmean(values[f"gate/{layer}/{head}"] for layer in (0, 1)
                                    for head in range(4)) for values in points[step]]
                  for step in (0, 8))  # fmt: skip
    text = report.partition("### Gate of gated")[2]
    wanted = stats.ttest_rel(end, first)
    told = re.search(r"step 0, (\S+) ± .* change (\S+), t\(1\) = (\S+), p = (\S+),", text)
    assert told is not None
    near(told[1], statistics.fmean(end))
    assert float(told[2]) == pytest.approx(np.subtract(end, first).mean(), rel=1e-3)
    near(told[3], wanted.statistic)
    near(told[4], wanted.pvalue)
    apart = [statistics.fmean(abs(b[f"gate/{layer}/{head}"] - a[f"gate/{layer}/{head}"])
                              for layer in (0, 1) for head in range(4))
             for a, b in zip(points[0], points[8], strict=True)]  # fmt: skip
    moved = re.search(r"head moved by (.*?) up or down", text)
    assert moved is not None
    spread(moved[1], apart)


def test_lengths_are_compared_token_by_token(home: Path, report: str) -> None:
    titles = re.findall("^### Perplexity by length: (.*)$", report, re.MULTILINE)
    about = ", valid of tokens, targets [0-9a-f]{8}"
    for title, protocol in zip(titles, ["last_token, 60 tokens", "blocks"], strict=True):
        assert re.fullmatch(protocol + about, title)
    scores, apart = grids(report, f"Perplexity by length: {titles[0]}")
    assert [row["model"] for row in scores] == ["gated (1)", "gated (2)", "plain (1)", "plain (2)"]
    for row, difference in zip(scores, apart, strict=True):
        variant, seed = re.fullmatch(r"(\w+) \((\d)\)", row["model"]).groups()  # type: ignore
        (folder,) = (home / "runs" / f"{variant}-{seed}").glob("eval-*last_token*")
        arrays = load_file(folder / "valid.safetensors")
        nll = {length: arrays[f"nll/{length}"].astype(float) for length in LENGTHS}
        assert row["trained at"] == "16"
        for length in LENGTHS:
            value, error = re.fullmatch(r"(\S+) \((\S+)\)", row[str(length)]).groups()  # type: ignore
            near(value, math.exp(nll[length].mean()))
            near(error, nll[length].std(ddof=1) / math.sqrt(60))
        more = nll[40] - nll[16]
        mean, error = more.mean(), more.std(ddof=1) / math.sqrt(60)
        shown = re.fullmatch(r"(\S+) ± (\S+) (\w+)", difference["40"])
        assert shown is not None and difference["16"] == "-"
        near(shown[1], mean)
        near(shown[2], error)
        holds = mean <= 2 * error or math.exp(mean) <= 1.05
        assert shown[3] == ("holds" if holds else "fails")
        assert difference["holds to"] == ("40" if holds else "-")
    (row,), (told,) = grids(report, f"Perplexity by length: {titles[1]}")
    assert told.keys() == {"model", "8", "16"}  # who holds is not for blocks to tell
    assert row["model"] == "plain (1)" and row.keys() == {"model", "trained at", "8", "16"}


def test_receptive_fields_stand_beside_it(home: Path, report: str) -> None:
    (rows,) = grids(report, "Receptive fields")
    assert [row["model"] for row in rows] == ["gated (1)", "plain (1)", "plain (2)"]
    for row in rows:
        variant, seed = row["model"].replace("(", "").rstrip(")").split()
        path = home / "runs" / f"{variant}-{seed}" / "analysis" / "receptive_field.json"
        for field in json.loads(path.read_text())["fields"]:
            curve, erfs = np.array(field["curve"]), np.array(field["erfs"])
            erf, mean, error = re.fullmatch(  # type: ignore[union-attr]
                r"(\d+) \((\S+) ± (\S+)\)", row[f"ERF at {field['length']}"]
            ).groups()
            assert int(erf) == int((curve > 0.99).argmax()) + 1
            near(mean, erfs.mean())
            near(error, erfs.std(ddof=1) / math.sqrt(6))
        near(row["within training"], curve[15])
        assert row["window x layers"] == "no limit"


def test_every_plot_of_the_report_is_there_and_the_same_again(home: Path, report: str) -> None:
    folder = home / "runs" / "both"
    names = set(re.findall(r"!\[.*?\]\((.*?)\)", report))
    kept = {event["path"] for event in events(folder) if event["event"] == "artifact"}
    assert kept == {"report.md", "report.csv", *names}  # MLflow has them
    assert names == {"scores.png", "curves.png", "bars.png", "lengths.png", "receptive_fields.png"}
    first = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".jsonl"}
    assert names == {name for name, content in first.items() if content.startswith(PNG)}
    cells = [
        home / "runs" / f"{variant}-{seed}" for variant in ("plain", "gated") for seed in (1, 2)
    ]
    words = [f"output={folder}", "baseline=plain-2"]
    start(compare, CompareRun, *cells, *words, positional="runs")
    again = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".jsonl"}
    changed = {name for name, content in again.items() if content != first[name]}
    assert not changed and first.keys() == again.keys()  # plain-2 is of the variant plain
    assert again["report.md"].decode() == report
