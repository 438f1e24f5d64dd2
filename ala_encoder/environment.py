"""What a result depends on besides its settings: versions, machine, command.

For: `environment.json` of a run folder. Not for: settings, or random state.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ala_encoder import engine as engines
from ala_encoder import ranks

_PACKAGES = (
    "torch",
    "deepspeed",
    "transformers",
    "tokenizers",
    "sentencepiece",
    "datasets",
    "mlflow",
    "numpy",
    "ala-encoder",
)


def environment() -> dict[str, Any]:
    """Return what a result depends on besides the settings: versions, machine, command."""
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "device": torch.cuda.get_device_name() if engines.has_cuda() else "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "world_size": ranks.world_size(),
        "threads": torch.get_num_threads(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of the code, with + when it has changes; None outside a checkout."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=40"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
