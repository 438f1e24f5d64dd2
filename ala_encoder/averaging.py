"""The mean of a run's weights at its last steps of saving (Vaswani et al. 2017, section 6.1).

For: `weights/step_0000100.safetensors` in a run folder, beside the checkpoints: where a run was
interrupted there are more of those, and the mean must not depend on it. Not for: resuming
(`checkpoint`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from ala_encoder.files import write_aside

_NAME = re.compile(r"step_(\d+)\.safetensors")


def keep(folder: Path, step: int, state: Mapping[str, Tensor], most: int) -> None:
    """Write the weights of a step, and delete those of all but the `most` newest steps up to it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"step_{step:07d}.safetensors"
    write_aside(path, lambda aside: save_file(dict(state), aside))
    for old in list(_steps(folder, step).values())[:-most]:
        old.unlink()


def mean(folder: Path, step: int, most: int) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the mean of the weights of the `most` newest steps up to `step`, and their names.

    Summed in float64, returned in float32. Fewer where there are not as many.
    """
    found = list(_steps(folder, step).values())[-most:]
    total: dict[str, Tensor] = {}
    for path in found:
        for name, tensor in load_file(path).items():
            total[name] = total.get(name, 0.0) + tensor.double()
    state = {name: (tensor / len(found)).float() for name, tensor in total.items()}
    return state, tuple(path.stem for path in found)


def _steps(folder: Path, last: int) -> dict[int, Path]:
    """Return the files up to a step, in numeric order."""
    names = {path: _NAME.fullmatch(path.name) for path in folder.glob("step_*")}
    found = {int(match[1]): path for path, match in names.items() if match}
    return {step: found[step] for step in sorted(found) if step <= last}
