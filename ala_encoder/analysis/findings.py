"""What `analyze` has written into run folders, put side by side for many runs.

For: `compare`. Not for: finding it (`locality`, `receptive_field`).

Numbers on other text, or of other queries or segments, do not compare: each text is a group of its
own, told apart by a digest of its tokens, since its name is hardly more than that of a folder. Of
the texts that a run was looked into on, all folders analysis*/ are read; its own is in analysis/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ala_encoder.files import read_json
from ala_encoder.records import Record, RunSummary
from ala_encoder.reporting import Row, Table


@dataclass(frozen=True)
class Localities:
    """Locality of some rows on one text, as a table whose scores are means over all queries."""

    about: str
    """The text, and the length of its blocks."""
    is_own: bool
    """Whether it is the text that runs were scored on."""
    queries: int
    """Of each layer and head, over which it was averaged."""
    blocks: int
    """How many were asked for."""
    table: Table
    uniform: dict[str, float]
    """What equal weights on all visible keys would give."""


@dataclass(frozen=True)
class FieldAtLength:
    """A run's receptive field at one length."""

    length: int
    record: dict[str, Any]
    """Of `ReceptiveField.record`."""


OfRun = tuple[RunSummary, int | None, tuple[FieldAtLength, ...]]
"""Run, window x layers (None: no limit), fields by length."""


@dataclass(frozen=True)
class Fields:
    """Receptive fields of some runs on one text."""

    about: str
    is_own: bool
    """Whether it is the text that runs were scored on."""
    threshold: float
    runs: tuple[OfRun, ...]

    @property
    def lengths(self) -> list[int]:
        """Return all lengths, the shortest first."""
        return sorted({field.length for _, _, fields in self.runs for field in fields})


def localities(item: Table) -> list[Localities]:
    """Return what there is on the locality of a table's runs, by text; of the one stack there is.

    Raises UserError for a file that cannot be read.
    """
    groups: dict[tuple[str, int], dict[Path, dict[str, Any]]] = {}
    own = set()
    for run, found, is_own in _written(item, "locality.json"):
        key = f"{_about(found)} in blocks of {found['trained_length']:,} tokens", _queries(found)
        groups.setdefault(key, {}).setdefault(_folder(run), found)
        own |= {key} if is_own else set()
    return [_localities(item, key[0], key in own, found) for key, found in groups.items()]


def _section(found: Mapping[str, Any]) -> dict[str, Any]:
    section: dict[str, Any] = next(iter(found["sections"].values()))
    return section


def _queries(found: Mapping[str, Any]) -> int:
    return int(_section(found)["queries"])


def _localities(
    item: Table, about: str, is_own: bool, found: Mapping[Path, Mapping[str, Any]]
) -> Localities:
    rows = []
    for row in item.rows:
        runs = [
            replace(run, scores=_numbers(_section(found[run.folder])["mean"]))
            for run in row.runs
            if run.folder is not None and run.folder in found
        ]
        if runs:
            rows.append(replace(row, runs=tuple(runs)))
    scores = [run.scores for run in _runs(rows)]
    names = dict.fromkeys(name for some in scores for name in some)
    if all(some.get("weight", 1.0) == 1.0 for some in scores):  # no mask after the softmax
        names.pop("weight", None)
    first = next(iter(found.values()))
    table = replace(item, metrics=tuple(names), rows=tuple(rows))
    uniform = _numbers(_section(first)["uniform"])
    return Localities(about, is_own, _queries(first), first["blocks"], table, uniform)


def _numbers(means: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in means.items() if value is not None}


def fields(item: Table) -> list[Fields]:
    """Return what there is on the receptive fields of a table's runs, by text and segments.

    Raises UserError for a file that cannot be read.
    """
    groups: dict[tuple[str, float], dict[Path, OfRun]] = {}
    own = set()
    for run, found, is_own in _written(item, "receptive_field.json"):
        measured = tuple(sorted((FieldAtLength(one["length"], one) for one in found["fields"]),
                                key=lambda field: field.length))  # fmt: skip
        # the predicted tokens are the same for all lengths up to the longest
        about = (
            f"{_about(found)}, {measured[0].record['segments']:,} predicted tokens with "
            f"{measured[-1].length:,} before them"
        )
        theory = found["theory"]
        limit = None if theory is None else theory["window_times_layers"]
        key = (about, found["threshold"])
        groups.setdefault(key, {}).setdefault(_folder(run), (run, limit, measured))
        own |= {key} if is_own else set()
    return [
        Fields(key[0], key in own, key[1], tuple(runs.values())) for key, runs in groups.items()
    ]


Group = TypeVar("Group", Localities, Fields)


def own_text(groups: Sequence[Group]) -> Group | None:
    """Return what was found on the text that the runs were scored on; the most runs, of several."""

    def size(group: Group) -> int:
        return len(group.runs if isinstance(group, Fields) else _runs(group.table.rows))

    return max((group for group in groups if group.is_own), key=size, default=None)


def as_there(locality: Localities | None, found: Fields | None) -> list[str]:
    """Return words for `analyze` with which numbers of another run come to stand beside these."""
    words = []
    if found is not None:
        measured = found.runs[0][2]
        lengths = ",".join(str(field.length) for field in measured)
        words += [f"lengths=[{lengths}]", f"segments={measured[0].record['segments']}"]
    return words + ([] if locality is None else [f"blocks={locality.blocks}"])


def without(item: Table, name: str) -> list[Path]:
    """Return the folders of a table's runs that have no file of that name in analysis/, or only one
    that does not tell which text it is of."""
    return [
        run.folder
        for run in _runs(item.rows)
        if run.folder is not None and not _is_told(run.folder / "analysis" / name)
    ]


def untold(item: Table) -> list[str]:
    """Return a line for each file on another text that does not tell which, and is not shown."""
    return [
        f"{run.run}: {path.parent.name}/{path.name}: tells no digest of its text; analyze it again"
        for run in _runs(item.rows)
        if run.folder is not None
        for path in sorted(run.folder.glob("analysis-*/*.json"))
        if path.name in ("locality.json", "receptive_field.json") and not _is_told(path)
    ]


def _is_told(path: Path) -> bool:
    return path.is_file() and "text" in read_json(path)


def records_of(locality: Sequence[Localities], found: Sequence[Fields]) -> Iterator[Record]:
    """Yield all as records: locality/METRIC over queries, erf/LENGTH over segments; of a text
    after the first with what it is, as in locality(TEXT)/METRIC."""
    for number, one in enumerate(locality):
        name = _named("locality", f"{one.about}, {one.queries:,} queries", number)
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


def _folder(run: RunSummary) -> Path:
    assert run.folder is not None
    return run.folder


def _about(found: Mapping[str, Any]) -> str:
    return f"{found['data']} (text {found['text'][:8]})"


def _written(item: Table, name: str) -> Iterator[tuple[RunSummary, dict[str, Any], bool]]:
    """Yield what is in the files that tell their text, and whether that is the run's own."""
    for run in _runs(item.rows):
        if run.folder is not None:
            for path in sorted(run.folder.glob(f"analysis*/{name}")):
                found = read_json(path)
                if "text" in found:
                    yield run, found, path.parent.name == "analysis"
