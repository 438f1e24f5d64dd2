"""The report of a comparison as Markdown: a summary, then a section for each table.

For: `compare`. Not for: what is averaged (`reporting`), or the plot (`plots`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ala_encoder.errors import UserError, nearest
from ala_encoder.glue import TASKS
from ala_encoder.records import SPEED, RunSummary
from ala_encoder.reporting import OFFICIAL, Row, Table, start_matters
from ala_encoder.significance import Comparison

Floors = Mapping[str, Mapping[str, float]]
"""Data name → score → the value that a simple baseline reaches."""


def render_markdown(
    found: Sequence[Table],
    plot: str | None,
    floors: Floors | None = None,
    floors_source: str | None = None,
    more: Mapping[tuple[str, str], Sequence[str]] | None = None,
) -> str:
    """Return the report: the summary, a section a table, then the plot when there is one.

    more: by task and data the lines of what else there is about a table, behind its section.

    Raises UserError for a floor of data or a score that the summary does not have.
    """
    lines = ["# Comparison", "", *_summary(found, floors or {}, floors_source)]
    for item in found:
        lines += [*_section(item), *(more or {}).get((item.task, item.data_name), ())]
    if plot is not None:
        whose = " and ".join(dict.fromkeys(item.attention for item in found if item.rows))
        lines += [f"![scores against {whose} parameters]({plot})", ""]
    return "\n".join(lines).rstrip() + "\n"


def _summary(found: Sequence[Table], floors: Floors, source: str | None) -> list[str]:
    """Return one table of all runs: a row for each row of `found` and each of its main scores."""
    shown = [(item, name) for item in found for name in _main(item)]
    _check_floors(floors, shown)
    if not shown:
        return []
    starts = start_matters(row for item in found for row in item.rows)
    words = ["task", "data", "variant", *(["start"] if starts else []), "metric"]
    numbers = ["n", "median", "mean", "sd", *(["floor"] if floors else [])]
    body = []
    for item, name in shown:
        digits = digits_of(item, name)
        floor = floors.get(item.data_name, {}).get(name)
        for row in item.rows:
            values = row.values(name)
            if not values:
                continue
            start = [row.start] if starts else []
            n = str(len(values)) + f" of {len(row.runs)}" * (len(values) < len(row.runs))
            spread = statistics.stdev(values) if len(values) > 1 else None
            figures = [statistics.median(values), statistics.fmean(values), spread]
            figures += [floor] if floors else []
            cells = ["-" if value is None else f"{value:.{digits}f}" for value in figures]
            body.append([item.task, item.data_name, row.variant, *start, name, n, *cells])
    text = "Over n seeds; sd is the sample standard deviation (ddof 1)."
    if floors:
        text += f" Floor: {source or 'given by the settings'}."
    return ["## Summary", "", text, "", *table_lines([*words, *numbers], body, len(words)), ""]


def render_comparisons(found: Sequence[Comparison]) -> str:
    """Return the section on runs beside their baseline."""
    signatures = list(dict.fromkeys(one.difference.signature for one in found))
    body = []
    for one in found:
        part = one.difference
        interval = f"{part.low:+.2f} … {part.high:+.2f}"
        scores = [f"{part.system:.2f}", f"{part.baseline:.2f}", f"{part.delta:+.2f}"]
        body.append([one.run, one.baseline, *scores, interval, f"{part.p_value:.4f}"])
    head = ["run", "baseline", "BLEU", "of baseline", "delta", "95 % of resamples", "p"]
    text = [
        "Of two trained models each, on one text: BLEU, its difference, the middle 95 % of the",
        "differences of the resamples (bs), and the p-value of sacreBLEU's paired bootstrap.",
    ]
    signed = [f"Signature: `{signature}`." for signature in signatures]
    lines = ["## Paired bootstrap", "", *text, *signed, "", *table_lines(head, body, 2)]
    return "\n".join(lines) + "\n"


def _main(item: Table) -> list[str]:
    """Return the official scores of a table; of a language model its loss, of a causal one also
    its perplexity."""
    official = [name for name in item.metrics if name in OFFICIAL]
    own = ("eval_loss", "eval_perplexity") if item.task == "clm" else ("eval_loss",)
    return official or [name for name in item.metrics if name in own]


def _check_floors(floors: Floors, shown: Sequence[tuple[Table, str]]) -> None:
    known: dict[str, list[str]] = {}
    for item, name in shown:
        known.setdefault(item.data_name, []).append(name)
    for data, values in floors.items():
        if data not in known:
            raise UserError(
                f"floors.{data}: no finished run has this data; there are "
                f"{', '.join(known) or 'none'}{nearest(data, known)}"
            )
        for name in values:
            if name not in known[data]:
                raise UserError(
                    f"floors.{data}.{name}: no such score in the summary; there are "
                    f"{', '.join(known[data])}{nearest(name, known[data])}"
                )


def _section(item: Table) -> list[str]:
    lines = [f"## {item.task} on {item.data_name}", "", _caption(item), ""]
    if item.rows:
        lines += [*grid(item), ""]
    if mixed := _mixed(item):
        lines += [*mixed, ""]
    if item.left_out:
        lines += ["Not averaged:", "", *(f"- {text}" for text in item.left_out), ""]
    return lines


def _mixed(item: Table) -> list[str]:
    """Return a line for each row whose runs differ in more than their seeds."""
    return [
        f"- {item.named(row)}: averaged although "
        + "; ".join(f"{name} differs: {', '.join(values)}" for name, values in found.items())
        for row in item.rows
        if (found := row.differing())
    ]


def _caption(item: Table) -> str:
    data = f"Data: {item.data_name}"
    if "generated" in item.data_name.lower():
        data += ", a generated data set: its scores do not compare with published ones"
    text = f"{data}. Mean ± sample standard deviation (ddof 1) over n seeds; {_units(item)}."
    runs = [run for row in item.rows for run in row.runs]
    taken = []
    for split in sorted({split for run in runs for split in run.counts}):
        size = _range({run.counts[split] for run in runs if split in run.counts})
        unit = "examples" if item.task in TASKS else "targets"
        taken.append(f"{split} {size} {unit}")
    if taken:
        text += f" Scores taken over: {', '.join(taken + _own_counts(runs))}."
    signatures = dict.fromkeys(run.signatures.get("bleu") for run in runs)
    return " ".join([text, *(f"BLEU: `{found}`." for found in signatures if found)])


def _own_counts(runs: Sequence[RunSummary]) -> list[str]:
    """Return what single scores are taken over, such as `337,140 bytes (eval_bits_per_byte)`."""
    units = {"bits_per_byte": "bytes", "word_perplexity": "words", SPEED: "logged values"}
    found: dict[str, set[int]] = {}
    for name, count in (pair for run in runs for pair in run.units.items()):
        found.setdefault(name, set()).add(count)
    return [
        f"{_range(counts)} {unit} ({name})"
        for name, counts in sorted(found.items())
        for end, unit in units.items()
        if name.endswith(end)
    ]


def _range(numbers: set[int]) -> str:
    return " to ".join(f"{number:,}" for number in dict.fromkeys((min(numbers), max(numbers))))


def _units(item: Table) -> str:
    names = {name.partition("_")[2] for name in item.metrics}
    if names & {"pearson", "spearmanr"}:
        return "losses are mean squared errors"
    return "losses in nats" + ", perplexity per target piece" * ("perplexity" in names)


def grid(item: Table, sizes: bool = True) -> list[str]:
    """Return the lines of a table's means over seeds; sizes: with parameter counts."""
    starts = start_matters(item.rows)
    head = [
        "variant",
        *(["start"] if starts else []),
        "n",
        "seeds",
        *([item.attention, "Q/K groups", "total"] if sizes else []),
        *item.metrics,
    ]
    counted = [item.attention.replace(" ", "_"), "qk_groups", "total"] if sizes else []
    digits = {name: digits_of(item, name) for name in item.metrics}
    body = []
    for row in item.rows:
        start = [row.start] if starts else []
        counts = [
            f"{row.parameters[name]:,}" if name in row.parameters else "-" for name in counted
        ]
        seeds = ", ".join(str(run.seed) for run in row.runs)
        cells = [_cell(row, name, digits[name]) for name in item.metrics]
        body.append([row.variant, *start, str(len(row.runs)), seeds, *counts, *cells])
    return table_lines(head, body, 2 if starts else 1)


def table_lines(head: Sequence[str], body: Sequence[Sequence[str]], texts: int) -> list[str]:
    """Return the lines of a Markdown table, padded so that it reads as plain text too.

    The first `texts` columns are words and stand left, those of numbers right.
    """
    widths = [max(3, *map(len, column)) for column in zip(head, *body, strict=True)]
    rule = [":" + "-" * (w - 1) if i < texts else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return [
        "| "
        + " | ".join(
            cell.ljust(width) if number < texts else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        + " |"
        for cells in (head, rule, *body)
    ]


def digits_of(item: Table, metric: str) -> int:
    largest = max(abs(value) for row in item.rows for value in row.values(metric))
    return 4 if largest < 10 else 2 if largest < 1000 else 1


def _cell(row: Row, metric: str, digits: int) -> str:
    values = row.values(metric)
    if not values:
        return "-"
    text = f"{statistics.fmean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.{digits}f}"
    return text if len(values) == len(row.runs) else f"{text} (n={len(values)})"
