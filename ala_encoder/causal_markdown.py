"""The report's words on causal language models: runs, tests over seeds, locality, lengths.

For: `causal_report`. Not for: the aggregate table and all other models (`markdown`).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from ala_encoder.analysis.findings import FieldAtLength, Fields, Localities
from ala_encoder.analysis.lengths import AtLength, ByLength, LengthTable
from ala_encoder.analysis.seeds import (
    LANGUAGE_MODELS,
    Learned,
    SeedTest,
    targets_of,
    trained_at,
)
from ala_encoder.analysis.statistics import Aggregate, PairedTest
from ala_encoder.markdown import digits_of, grid, table_lines
from ala_encoder.records import RunSummary
from ala_encoder.reporting import Table


def labels(item: Table) -> dict[Path | None, str]:
    """Return by run folder its variant, with its seed where there are several of the variant."""
    return {
        run.folder: item.unique(row) + (f" ({run.seed})" if len(row.runs) > 1 else "")
        for row in item.rows
        for run in row.runs
    }


def runs(item: Table) -> list[str]:
    """Return the section of single runs: each score, and the counts they were taken over."""
    digits = {name: digits_of(item, name) for name in item.metrics}
    units = {"eval_bits_per_byte": "bytes", "eval_word_perplexity": "words"}
    units = {name: unit for name, unit in units.items() if name in item.metrics}
    body = []
    for row in item.rows:
        for run in row.runs:
            scores = [_number(run.scores.get(name), digits[name]) for name in item.metrics]
            counts = [run.counts.get("eval"), *(run.units.get(name) for name in units)]
            total = run.parameters.get("total")
            sizes = [_count(one) for one in (total, *counts)]
            body.append([run.run, item.unique(row), str(run.seed), sizes[0], *scores, *sizes[1:]])
    head = ["run", "variant", "seed", "total", *item.metrics, "targets", *units.values()]
    return ["### Runs", "", *table_lines(head, body, 2), ""]


def tests(baseline: str, found: Sequence[SeedTest]) -> list[str]:
    """Return the section of paired tests over seeds; what cannot be tested is told."""
    text = [
        "The variant's score less that of the baseline, of runs of the same seed; sd is the sample",
        "standard deviation (ddof 1) of the differences over n seeds, p that of the two-sided",
        "paired t-test, not corrected for the number of tests.",
    ]
    body, untested = [], dict[tuple[str, str], list[str]]()
    for one in found:
        test = one.test
        cells = [_signed(test.difference), _short(test.sd), *_t(test)]
        body.append([one.variant, one.metric, str(test.n), *cells])
        if test.p is None:
            why = test.reason if one.seeds else "no seed is in both"
            untested.setdefault((one.variant, why or ""), []).append(one.metric)
    head = ["variant", "score", "n", "difference", "sd", "t", "df", "p"]
    lines = [f"### Paired tests over seeds against {baseline}", "", *text, ""]
    lines += [*table_lines(head, body, 2), ""]
    notes = [
        f"- {variant}: no test of {', '.join(names)}: {why}"
        for (variant, why), names in untested.items()
    ]
    return [*lines, *notes, *([""] if notes else [])]


def localities(found: Sequence[Localities]) -> list[str]:
    """Return the section on how local attention is, a table for each text."""
    lines = []
    for one in found:
        uniform = [f"{name} {value:.4g}" for name, value in one.uniform.items()]
        text = (
            f"On {one.about}; mean ± sample standard deviation (ddof 1) over n runs, each averaged "
            f"over layers, heads and queries ({one.queries:,} of each head). expected_distance in "
            "tokens, mass@w the weight at |i − j| ≤ w, entropy in nats. Equal weights on all "
            f"visible keys give {', '.join(uniform)}."
        )
        lines += ["### Locality", "", text, "", *grid(one.table, sizes=False), ""]
    return lines


def other_lengths(item: Table) -> list[str]:
    """Return a warning where runs were trained at different lengths: scores do not compare."""
    found = {item.unique(row): trained_at(row) for row in item.rows}
    if len(set[str]().union(*found.values())) < 2:
        return []
    named = [
        f"{name} {' and '.join(sorted(told, key=int))}" for name, told in found.items() if told
    ]
    return [
        f"Trained at different lengths (data.length): {', '.join(named)}. Each eval_* score is of "
        "blocks of the run's own length, so between these it does not compare, nor is it tested; "
        "use protocol=last_token of `evaluate`.",
        "",
    ]


def other_targets(item: Table) -> list[str]:
    """Return a warning where language models were scored over different numbers of targets."""
    found = {item.unique(row): targets_of(row) for row in item.rows}
    if item.task not in LANGUAGE_MODELS or len(set[int]().union(*found.values())) < 2:
        return []
    named = [f"{name} {' and '.join(map(_count, sorted(n)))}" for name, n in found.items() if n]
    return [
        f"Scored over different numbers of target tokens: {', '.join(named)}. With other pieces or "
        "masks a score by token does not compare, nor is it tested; by byte or word it does.",
        "",
    ]


def tested_text(found: Sequence[Localities], own: Localities | None) -> list[str]:
    """Return which of several texts the locality in tests and plots is of."""
    if own is None or len(found) < 2:
        return []
    return [f"Locality is tested and drawn on {own.about}, {own.queries:,} queries.", ""]


def missing(what: str, folders: Sequence[Path], output: Path, as_there: Sequence[str]) -> list[str]:
    """Return what makes what is not there yet, comparable with what is; as_there: words for it."""
    if not folders:
        return []
    command = ["python", "-m", "pipelines.analyze", *map(str, folders), *as_there]
    if len(folders) > 1:
        command.append(f"output={output}")
    names = ", ".join(folder.name for folder in folders)
    return [f"No {what} of {names}; this makes it: `{shlex.join(command)}`.", ""]


def learned(variant: str, kind: str, seen: Learned | str) -> list[str]:
    """Return the section on gates or slopes: at step 0 and at last, by layer and head."""
    if isinstance(seen, str):
        return [f"No {kind} of {variant}: {seen}.", ""]
    ends = dict.fromkeys(f"{step:,}" for step in seen.last_step)
    t, _, p = _t(seen.moved)
    change = f"change {_signed(seen.moved.difference)}"
    if seen.moved.p is not None:
        change += f", t({seen.moved.df}) = {t}, p = {p}, paired by run"
    elif seen.moved.reason is not None:
        change += f" (no test: {seen.moved.reason})"
    digits = 4 if max(pair[1] for row in seen.heads for pair in row) >= 0.1 else 6
    spread = ", ± sample standard deviation (ddof 1)" if seen.n > 1 else ""
    text = (
        f"Mean over layers and heads{spread}, n = {seen.n} runs: {_spread(seen.first, digits)} at "
        f"step 0, {_spread(seen.last, digits)} at step {' or '.join(ends)}; {change}. A single "
        f"head moved by {_spread(seen.by_head, digits)} up or down. By layer and head, means over "
        "the runs:"
    )
    heads = max(map(len, seen.heads))
    body = [
        [str(layer), *(f"{first:.{digits}f} → {last:.{digits}f}" for first, last in row)]
        for layer, row in enumerate(seen.heads)
    ]
    head = ["layer", *(f"head {number}" for number in range(heads))]
    return [f"### {kind.capitalize()} of {variant}", "", text, "", *table_lines(head, body, 1), ""]


_WHO_HOLDS = (
    "Loss less that at the training length, of the same token each, ± its standard error. A",
    "model holds (ours) where that is at most 2 standard errors, or perplexity at most 5 %",
    "above.",
)
_WHO_DIFFERS = (
    "Loss less that at the training length, of the same token each, ± its standard error. Who",
    "holds is for `last_token` to tell: here longer windows leave fewer tokens with little",
    "before them.",
)


def lengths(table: LengthTable, item: Table) -> list[str]:
    """Return the section on one protocol: perplexity by length, then differences and who holds."""
    names, spans = labels(item), table.lengths
    judged = table.protocol.startswith("last_token")
    about = f"over {table.targets:,} target tokens, the same for all models and lengths"
    scores = [
        [names[model.run.folder], _count(model.trained), *(_perplexity(model.at(n)) for n in spans)]
        for model in table.runs
    ]
    apart = [
        [names[model.run.folder], *(_apart(model, n, judged) for n in spans)]
        + ([_count(model.holds_to)] if judged else [])
        for model in table.runs
    ]
    alone = [
        f"- {names[model.run.folder]}: not scored at its training length, {_count(model.trained)}"
        for model in table.runs
        if model.trained is None or model.at(model.trained) is None
    ]
    return [
        f"### Perplexity by length: {table.protocol}, {table.about}",
        "",
        f"Perplexity, in brackets the standard error of the loss in nats, {about}.",
        "",
        *table_lines(["model", "trained at", *map(_count, spans)], scores, 1),
        "",
        *(_WHO_HOLDS if judged else _WHO_DIFFERS),
        "",
        *table_lines(["model", *map(_count, spans), *(["holds to"] if judged else [])], apart, 1),
        "",
        *alone,
        *([""] if alone else []),
    ]


def _perplexity(score: AtLength | None) -> str:
    if score is None:
        return "-"
    if score.perplexity is None:
        return "not finite"
    digits = 2 if score.perplexity < 1000 else 0
    return f"{score.perplexity:,.{digits}f} ({_number(score.loss.se, 4)})"


def _apart(model: ByLength, length: int, judged: bool) -> str:
    score = model.at(length)
    if score is None or score.difference is None:
        return "-"
    text = f"{_number(score.difference.mean, 4, '+')} ± {_number(score.difference.se, 4)}"
    if judged and model.trained is not None and length > model.trained:
        text += " holds" if score.holds else " fails"
    return text


def left_out(where: str, notes: Sequence[str]) -> list[str]:
    """Return what was found, but is in no table."""
    return [f"Not {where}:", "", *(f"- {note}" for note in notes), ""] if notes else []


def fields(group: Fields, item: Table) -> list[str]:
    """Return the section on receptive fields: ERF by length beside window x layers."""
    names = labels(item)
    body = []
    for run, limit, measured in group.runs:
        cells = [
            next((_erf(one) for one in measured if one.length == length), "-")
            for length in group.lengths
        ]
        share = _within(run, measured[-1])
        body.append(
            [names[run.folder], "no limit" if limit is None else _count(limit), *cells, share]
        )
    text = (
        f"On {group.about}. ERF: the smallest m so that tokens at a distance below m make more "
        f"than {group.threshold:g} of the mean cumulative normalised gradient; in brackets the "
        "mean of the segments' own ± its standard error. Last: the part of the gradient within "
        "the training length, at the longest length."
    )
    head = [
        "model",
        "window x layers",
        *(f"ERF at {n:,}" for n in group.lengths),
        "within training",
    ]
    return ["### Receptive fields", "", text, "", *table_lines(head, body, 1), ""]


def _erf(one: FieldAtLength) -> str:
    mean = one.record["mean_erf"]
    own = f"{_number(mean['mean'], 1)} ± {_number(mean['se'], 1)}"
    return f"{one.record['erf_of_mean_curve']:,} ({own})"


def _within(run: RunSummary, one: FieldAtLength) -> str:
    told = run.settings.get("data.length", "")
    curve = one.record["curve"]
    is_known = told.isdecimal() and 0 < int(told) <= len(curve)
    return f"{curve[int(told) - 1]:.4f}" if is_known else "-"


# ---- numbers


def _number(value: float | None, digits: int, sign: str = "") -> str:
    # adding 0 takes the sign of what is rounded to -0
    return "-" if value is None else f"{round(value, digits) + 0.0:{sign}.{digits}f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4g}"


def _spread(found: Aggregate, digits: int) -> str:
    mean = _number(found.mean, digits)
    return mean if found.sd is None else f"{mean} ± {found.sd:.{digits}f}"


def _t(test: PairedTest) -> tuple[str, str, str]:
    p = "-" if test.p is None else f"{test.p:.4f}" if test.p >= 1e-4 else f"{test.p:.1e}"
    return _number(test.t, 2, "+"), str(test.df), p
