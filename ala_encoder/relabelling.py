"""Whether settings are those that a run was trained with.

For: a start in a finished run's folder, which would put another name on old weights (`runs`), a
suite, which would put old scores into its table, and means over runs (`records`). Not for:
checkpoints, whose own identity decides whether they are gone on with (`runs.identity`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ala_encoder.errors import UserError
from ala_encoder.settings.experiment import TrainingRun
from ala_encoder.settings.loader import check, flatten, read_plain

_HARMLESS = (
    "tracking",
    "output",
    "name",
    "train.stop_after",
    "train.from_scratch",
    "train.log_every",
    "train.save_every",
    "train.keep_checkpoints",
    "train.num_workers",
)
"""Settings that may differ from those of a finished run, since they change no weight."""


def changes_no_weight(key: str, *, averages: bool) -> bool:
    """Tell whether a setting decides nothing about a finished run's weights.

    averages: whether saves are averaged; then it matters which there were.
    """
    return key.startswith(_HARMLESS) and not (averages and key == "train.save_every")


def difference(folder: Path, settings: TrainingRun) -> str | None:
    """Return in one line the first setting that is another in a run's folder, and what to do.

    None: all that decides about weights is the same, or the folder keeps no settings. What its
    version did not know yet has its default. Raises UserError for a file that cannot be read.
    """
    path = folder / "settings.yaml"
    if not path.exists():
        return None
    old = flatten(_earlier(path, type(settings)))
    new = flatten(settings.model_dump(mode="json"))
    averages = getattr(settings.train, "average_checkpoints", None) is not None
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key) and not changes_no_weight(key, averages=averages):
            return (
                f"{folder} is finished with {key} = {old.get(key)!r}, now {new.get(key)!r}: choose "
                "another `name`, or set train.from_scratch=true (the old run is kept aside)"
            )
    return None


def _earlier(path: Path, cls: type[TrainingRun]) -> dict[str, Any]:
    plain = read_plain(path)
    try:
        return check(plain, cls).model_dump(mode="json")
    except UserError:  # of a version that knew other settings
        return plain
