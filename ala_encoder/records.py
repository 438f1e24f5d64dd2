"""Runs read back as summaries and records, the same from run folders and from MLflow's columns.

For: `reporting`. Not for: tables and plots, or writing a run's log (`tracking`).

The scores of a run are the last values of its metrics named eval_* and test_*. The count a score
was taken over is that of its split, eval_targets or eval_examples, test_examples; of
eval_bits_per_byte it is eval_bytes, of eval_word_perplexity eval_words.
"""

from __future__ import annotations

import csv
import glob
import io
import re
import statistics
import sys
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path

from ala_encoder.errors import UserError, nearest
from ala_encoder.files import read_json
from ala_encoder.relabelling import changes_no_weight
from ala_encoder.tracking import EVENTS, search
from ala_encoder.tracking.events import Points, events_from

_SCORE = re.compile(r"(eval|test)_\w+")
_COUNT = re.compile(r"((?:eval|test)\w*)_(targets|examples|bytes|words)")
_OWN_COUNTS = {"bytes": "bits_per_byte", "words": "word_perplexity"}
"""Unit → the one score that is taken over it."""
SPEED = "train_tokens_per_second"
"""Of a causal language model: the median of what was logged while it was trained."""
_FLAG = "_nonfinite"
_SIGNATURE = "_signature"
_SETTING = re.compile(
    r"(model|encoder|decoder|cross|tokenizer|data|optim|train|search)\.(?!path$).+"
)
_ROUNDING = re.compile(
    r"train\.(micro_batch_(size|tokens)|gradient_accumulation_steps|eval_batch_(size|tokens))"
)
"""They change weights and scores by rounding alone."""
_WORDS = {"None": "", "True": "true", "False": "false"}


@dataclass(frozen=True)
class Record:
    """One number of a run: a point of its curves, or with `final` one of its scores."""

    run: str
    variant: str
    task: str
    seed: int
    metric: str
    step: int | None
    """None where the source does not tell it: MLflow's columns."""
    value: float
    n: int | None
    """The targets, examples, bytes, words or logged points that a score was taken over; None for
    what is no score."""
    final: bool


@dataclass(frozen=True)
class RunSummary:
    """What a table needs of a run."""

    run: str
    variant: str
    task: str
    seed: int
    status: str
    """FINISHED, FAILED, KILLED; RUNNING: without a last word; UNSCORED: ended before its scores."""
    data_name: str
    parameters: Mapping[str, int]
    """encoder_attention, qk_groups, total, …"""
    scores: Mapping[str, float]
    counts: Mapping[str, int]
    """Split (eval, test) → targets or examples its scores were taken over."""
    nonfinite: tuple[str, ...] = ()
    """Scores that were NaN or infinite at some point; they are not in `scores`."""
    pretrained_run: str | None = None
    """Name of the run the weights came from; None: from scratch."""
    pretrained_kind: str | None = None
    """What that run made: masked_lm, denoise, …; None where the source does not tell it."""
    held_out_text: str | None = None
    """Digest of the text that was scored; None where the source does not tell it."""
    run_id: str | None = None
    """MLflow's id of the run."""
    started: int = 0
    """Time of the first event in ms; 0 where the source does not tell it."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings that decide a score, but for the seed; one that MLflow cut is not among them."""
    signatures: Mapping[str, str] = field(default_factory=dict)
    """sacreBLEU's signature of each kind of score of translations, such as bleu."""
    units: Mapping[str, int] = field(default_factory=dict)
    """Score → what it was taken over, where that is not the count of its split."""
    folder: Path | None = None
    """None: it was read from MLflow."""


# ---- reading


def read_folder(folder: Path) -> tuple[RunSummary, list[Record]]:
    """Return the summary of a run folder and its records: every point, then every score.

    Raises UserError for a folder that is not a run, or whose log does not say what ran.
    """
    folder = Path(folder)
    if not (folder / EVENTS).is_file():
        raise UserError(f"{folder}: not a run folder, it has no {EVENTS}{_near(folder)}")
    points, curves = Points(), []
    params: dict[str, str] = {}
    tags: dict[str, str] = {}
    names: list[str] = []
    status, started, scored = "RUNNING", 0, False
    for _, event in events_from(folder / EVENTS):
        kind = event["event"]
        if kind in ("metrics", "summary"):
            new = points.add(event)
            curves += new if kind == "metrics" else []
            scored = scored or kind == "summary"
        elif kind in ("start", "params"):
            given = event["params" if kind == "start" else "values"]
            params = {**given, **params}  # as in MLflow, the first value stands
        if kind in ("start", "tags"):
            tags.update(event["tags" if kind == "start" else "values"])
        if kind == "start":
            status, started = "RUNNING", started or event["time"]
        elif kind == "dataset":
            names.append(event["name"])
        elif kind == "end":
            status = event["status"]
    if status == "FINISHED" and not scored:
        status = "UNSCORED"
    path = folder / "export" / "export.json"
    card = read_json(path) if path.is_file() else {}
    last = {name: value for name, (_, value) in points.last.items()}
    params.setdefault("data_name", card.get("data_name") or (names or ["unknown data"])[0])
    summary = _summary(
        folder.resolve().name,
        status,
        params,
        tags,
        last,
        run_id=card.get("mlflow_run_id"),
        started=started,
    )
    summary = _with_speed(replace(summary, folder=folder), curves)
    steps = {name: step for name, (step, _) in points.last.items()}
    curve = [
        _record(summary, name, step, value, final=False)
        for name, step, value in curves
        if not _COUNT.fullmatch(name)
    ]
    return summary, curve + final_records(summary, steps)


def _with_speed(run: RunSummary, curves: Iterable[tuple[str, int, float]]) -> RunSummary:
    found = [value for name, _, value in curves if name == SPEED]
    if run.task != "clm" or not found:
        return run
    scores = {**run.scores, SPEED: statistics.median(found)}
    return replace(run, scores=scores, units={**run.units, SPEED: len(found)})


def read_mlflow(uri: str | None, experiment: str) -> list[tuple[RunSummary, list[Record]]]:
    """Return each run of an MLflow experiment with its scores, newest first, from `search` alone.

    A run that logged no variant, seed or task is none of ours; it is left out, and named on
    standard error. Raises UserError when the store or the experiment is not there.
    """
    found = []
    for row in search(uri, experiment):
        params = {"data_name": "unknown data", **row["params"]}
        try:
            summary = _summary(
                row["run_name"],
                row["status"],
                params,
                row["tags"],
                row["metrics"],
                run_id=row["run_id"],
            )
        except UserError as error:
            print(f"left out: MLflow run {row['run_id']}, {error}", file=sys.stderr)
            continue
        found.append((summary, final_records(summary, {})))
    return found


def final_records(summary: RunSummary, steps: Mapping[str, int]) -> list[Record]:
    """Return the scores of a finished run as records, at `steps` where they are known.

    A run that has not finished has points, but no scores.
    """
    if summary.status != "FINISHED":
        return []
    return [
        _record(summary, name, steps.get(name), value, final=True)
        for name, value in sorted(summary.scores.items())
    ]


def _summary(
    run: str,
    status: str,
    params: Mapping[str, str],
    tags: Mapping[str, str],
    last: Mapping[str, float],
    *,
    run_id: str | None,
    started: int = 0,
) -> RunSummary:
    """Build a summary from what both sources have: texts, and the last value of each metric."""
    missing = [name for name in ("variant", "seed", "task") if not params.get(name)]
    if missing or not params["seed"].isdecimal():
        raise UserError(f"{run}: its log names no {missing[0] if missing else 'whole seed'}")
    counts, units = {}, {}
    for name, value in last.items():
        if match := _COUNT.fullmatch(name):
            if match[2] in _OWN_COUNTS:
                units[f"{match[1]}_{_OWN_COUNTS[match[2]]}"] = int(value)
            else:
                counts[match[1]] = int(value)
    averages = params.get("train.average_checkpoints", "None") != "None"
    bad = {name[: -len(_FLAG)] for name in last if _SCORE.match(name) and name.endswith(_FLAG)}
    scores = {
        name: float(value)
        for name, value in last.items()
        if _SCORE.fullmatch(name)
        and not _COUNT.fullmatch(name)
        and not name.endswith(_FLAG)
        and name not in bad
    }
    return RunSummary(
        run=run,
        variant=params["variant"],
        task=params["task"],
        seed=int(params["seed"]),
        status=status,
        data_name=" ".join(params["data_name"].split()),
        parameters={
            name.removeprefix("params/"): int(value)
            for name, value in params.items()
            if name.startswith("params/")
        },
        scores=scores,
        counts=counts,
        nonfinite=tuple(sorted(bad)),
        pretrained_run=tags.get("pretrained_run"),
        pretrained_kind=tags.get("pretrained_kind"),
        held_out_text=params.get("held_out_text"),
        run_id=run_id,
        started=started,
        settings={
            name: value
            for name, value in params.items()
            if _SETTING.fullmatch(name)
            and not _ROUNDING.fullmatch(name)
            and not changes_no_weight(name, averages=averages)
            and not value.endswith(" (cut)")
        },
        signatures={
            name.removesuffix(_SIGNATURE): value
            for name, value in params.items()
            if name.endswith(_SIGNATURE)
        },
        units=units,
    )


def _record(run: RunSummary, metric: str, step: int | None, value: float, *, final: bool) -> Record:
    splits = [split for split in run.counts if metric.startswith(f"{split}_")]
    scored = splits and not metric.endswith(_FLAG)
    n = run.counts[max(splits, key=len)] if scored else None
    if final or metric != SPEED:
        n = run.units.get(metric, n)
    return Record(run.run, run.variant, run.task, run.seed, metric, step, float(value), n, final)


def _near(folder: Path) -> str:
    parent = folder.parent
    runs = [path.parent.name for path in parent.glob(f"*/{EVENTS}")] if parent.is_dir() else []
    return nearest(folder.name, sorted(runs))


def find_folders(patterns: Iterable[str]) -> list[Path]:
    """Return the run folders that the paths and globs name, each once, sorted by name.

    A glob passes over what is not a run. Raises UserError for a pattern that matches nothing or no
    run, and for a path that is not a run folder.
    """
    found: dict[Path, Path] = {}
    for pattern in patterns:
        matches = [Path(pattern)]
        if not matches[0].exists() and glob.has_magic(pattern):
            names = [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]
            matches = [path for path in names if (path / EVENTS).is_file()]
            if not matches:
                what = f"matches {len(names)} paths, none a run" if names else "matches nothing"
                raise UserError(f"runs: {pattern!r} {what}")
        elif not (matches[0] / EVENTS).is_file():
            what = "not a run folder" if matches[0].exists() else "there is no such folder"
            raise UserError(f"runs: {pattern!r}: {what}{_near(matches[0])}")
        found.update({path.resolve(): path for path in matches})
    return sorted(found.values(), key=lambda path: (path.name, str(path)))


def tidy(records: Iterable[Record]) -> str:
    """Return records as CSV, sorted: one line each, floats in full, nothing for None.

    Columns: run, variant, task, seed, metric, step, value, n, final (true or false).
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in fields(Record)])
    for row in sorted(map(_texts, records)):
        writer.writerow(row[1])
    return text.getvalue()


def _texts(record: Record) -> tuple[tuple[str, str, int, str, bool, str, int], list[str]]:
    r = record
    order = (r.task, r.variant, r.seed, r.run, r.final, r.metric, -1 if r.step is None else r.step)
    return order, [_WORDS.get(repr(value), str(value)) for value in astuple(r)]
