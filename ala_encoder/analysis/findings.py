"""What `analyze` has written into run folders, put side by side for many runs.

For: `compare`. Not for: finding it (`locality`, `receptive_field`).

Numbers on other text, or of other queries or segments, do not compare: each text is a group of its
own. Of the texts that a run was looked into on, all folders analysis*/ are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ala_encoder.files import read_json
from ala_encoder.records import Record, RunSummary
from ala_encoder.reporting import Row, Table


@dataclass(frozen=True)
class Localities:
    """Locality of some rows on one text, as a table whose scores are means over all queries."""

    about: str
    """The text, and the length of its blocks."""
    queries: int
    """Of each layer and head, over which it was averaged."""
    table: Table
    uniform: dict[str, float]
    """What equal weights on all visible keys would give."""


@dataclass(frozen=True)
class Field:
    """A run's receptive field at one length."""

    length: int
    record: dict[str, Any]
    """Of `ReceptiveField.record`."""


@dataclass(frozen=True)
class Fields:
    """Receptive fields of some runs on one text."""

    about: str
    threshold: float
    runs: tuple[tuple[RunSummary, int | None, tuple[Field, ...]], ...]
    """Run, window x layers (None: no limit), fields by length."""

    @property
    def lengths(self) -> list[int]:
        """Return all lengths, the shortest first."""
        return sorted({field.length for _, _, fields in self.runs for field in fields})


def localities(item: Table) -> list[Localities]:
    """Return what there is on the locality of a table's runs, by text; of the one stack there is.

    Raises UserError for a file that cannot be read.
    """
    groups: dict[tuple[str, int], dict[Path, dict[str, Any]]] = {}
    for run, found in _written(item, "locality.json"):
        section = next(iter(found["sections"].values()))
        about = f"{found['data']} in blocks of {found['trained_length']:,} tokens"
        assert run.folder is not None
        groups.setdefault((about, section["queries"]), {})[run.folder] = section
    return [_localities(item, *key, sections) for key, sections in groups.items()]


def _localities(
    item: Table, about: str, queries: int, sections: dict[Path, dict[str, Any]]
) -> Localities:
    rows = []
    for row in item.rows:
        runs = [
            replace(run, scores=_numbers(sections[run.folder]["mean"]))
            for run in row.runs
            if run.folder in sections
        ]
        if runs:
            rows.append(replace(row, runs=tuple(runs)))
    scores = [run.scores for run in _runs(rows)]
    names = dict.fromkeys(name for some in scores for name in some)
    if all(some.get("weight", 1.0) == 1.0 for some in scores):  # no mask after the softmax
        names.pop("weight", None)
    uniform = _numbers(next(iter(sections.values()))["uniform"])
    table = replace(item, metrics=tuple(names), rows=tuple(rows))
    return Localities(about, queries, table, uniform)


def _numbers(means: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in means.items() if value is not None}


def fields(item: Table) -> list[Fields]:
    """Return what there is on the receptive fields of a table's runs, by text and segments.

    Raises UserError for a file that cannot be read.
    """
    groups: dict[tuple[str, float], list[tuple[RunSummary, int | None, tuple[Field, ...]]]] = {}
    for run, found in _written(item, "receptive_field.json"):
        measured = tuple(sorted((Field(one["length"], one) for one in found["fields"]),
                                key=lambda field: field.length))  # fmt: skip
        # the predicted tokens are the same for all lengths up to the longest
        about = (
            f"{found['data']}, {measured[0].record['segments']:,} predicted tokens with "
            f"{measured[-1].length:,} before them"
        )
        theory = found["theory"]
        limit = None if theory is None else theory["window_times_layers"]
        groups.setdefault((about, found["threshold"]), []).append((run, limit, measured))
    return [Fields(about, limit, tuple(runs)) for (about, limit), runs in groups.items()]


def without(item: Table, name: str) -> list[Path]:
    """Return the folders of a table's runs that have no file of that name in analysis/."""
    return [
        run.folder
        for run in _runs(item.rows)
        if run.folder is not None and not (run.folder / "analysis" / name).is_file()
    ]


def records_of(locality: Sequence[Localities], found: Sequence[Fields]) -> Iterator[Record]:
    """Yield all as records: locality/METRIC over queries, erf/LENGTH over segments; of a text
    after the first with its name, as in locality(TEXT)/METRIC."""
    for number, one in enumerate(locality):
        name = _named("locality", one.about, number)
        for run in _runs(one.table.rows):
            for metric, value in run.scores.items():
                yield _record(run, f"{name}/{metric}", value, one.queries)
    for number, group in enumerate(found):
        name = _named("erf", group.about, number)
        for run, _, measured in group.runs:
            for field in measured:
                erf = float(field.record["erf_of_mean_curve"])
                yield _record(run, f"{name}/{field.length}", erf, field.record["segments"])


def _named(kind: str, about: str, number: int) -> str:
    return kind if number == 0 else f"{kind}({about})"


def _record(run: RunSummary, metric: str, value: float, n: int) -> Record:
    return Record(run.run, run.variant, run.task, run.seed, metric, None, value, n, True)


def _runs(rows: Sequence[Row]) -> list[RunSummary]:
    return [run for row in rows for run in row.runs]


def _written(item: Table, name: str) -> Iterator[tuple[RunSummary, dict[str, Any]]]:
    for run in _runs(item.rows):
        if run.folder is not None:
            for path in sorted(run.folder.glob(f"analysis*/{name}")):
                yield run, read_json(path)
