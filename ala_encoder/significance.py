"""Which of several translation runs is better, and how sure that is: paired bootstrap resampling.

For: `compare`, from what the runs' folders hold (Koehn 2004, "Statistical Significance Tests for
Machine Translation Evaluation"). Not for: the test itself (`bleu`), the report's text (`markdown`).

Two runs are compared on the same text only. A difference over seeds is another question: a test
here says of two trained models which translates this text better, not of two variants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ala_encoder import bleu
from ala_encoder.errors import UserError, nearest
from ala_encoder.files import read_json
from ala_encoder.lines import Reading, read_lines
from ala_encoder.records import RunSummary


@dataclass(frozen=True)
class System:
    """A run and its translations of a text."""

    run: RunSummary
    hypotheses: tuple[str, ...]
    references: tuple[str, ...]
    language: str
    """Of the text."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the references."""
        return hashlib.sha256("\n".join(self.references).encode("utf-8")).hexdigest()


@dataclass(frozen=True)
class Comparison:
    """A run beside its baseline."""

    run: str
    baseline: str
    difference: bleu.Difference


def read_system(folder: Path, run: RunSummary, translations: str = "eval/test") -> System:
    """Read the translations of a run, their references and their language.

    translations: the place of the files in the folder, without their endings. Raises UserError,
    naming the file, for one that is not there.
    """
    stem = f"{folder / translations}"
    language = read_json(Path(f"{stem}.json")).get("trg_lang")
    if not isinstance(language, str):
        raise UserError(f"{stem}.json: tells no trg_lang, so it is not of translations")
    found = [
        tuple(text for _, text in read_lines(Path(f"{stem}.{name}.txt"), Reading()))
        for name in ("translations", "references")
    ]
    return System(run, found[0], found[1], language)


def compare(systems: Sequence[System], baseline: str, num_samples: int) -> list[Comparison]:
    """Test every run against the baseline: the run of that name, or the same seed's of a variant.

    Raises UserError where there is no such run, for a variant with no run or several of a seed,
    for a run of other references, and when there is nothing to compare.
    """
    found = []
    for system in systems:
        other = _baseline_of(system, systems, baseline)
        if other is system:
            continue
        if (other.digest, other.language) != (system.digest, system.language):
            raise UserError(
                f"{system.run.run}: scored against other references ({system.digest[:8]}) than "
                f"{other.run.run} ({other.digest[:8]}); compare runs on one text"
            )
        difference = bleu.paired_bootstrap(
            other.hypotheses, system.hypotheses, system.references, system.language, num_samples
        )
        found.append(Comparison(system.run.run, other.run.run, difference))
    if not found:
        raise UserError(f"baseline = {baseline}: there is no other run to compare with it")
    return found


def _baseline_of(system: System, systems: Sequence[System], baseline: str) -> System:
    named = [one for one in systems if one.run.run == baseline]
    if len(named) == 1:
        return named[0]
    if system.run.variant == baseline:
        return system
    variants = [one for one in systems if one.run.variant == baseline]
    if not variants:
        names = sorted({name for one in systems for name in (one.run.run, one.run.variant)})
        near = nearest(baseline, names)
        raise UserError(f"baseline = {baseline}: neither a run nor a variant of `runs`{near}")
    key = (system.run.task, system.run.seed)
    same = [one for one in variants if (one.run.task, one.run.seed) == key]
    if len(same) != 1:
        raise UserError(
            f"baseline = {baseline}: {len(same)} runs of this variant have seed {system.run.seed}, "
            f"that of {system.run.run}; name one run"
        )
    return same[0]
