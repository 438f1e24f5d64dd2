"""The settings of `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from ala_encoder.settings.base import Section


class DemoRun(Section):
    """The demonstration: nothing needed, everything small."""

    output: Path = Path("runs/demo")
    """Folder of the runs and the report."""
    ranks: Annotated[int, Field(ge=1, le=64)] = 2
    """Processes the launcher starts for each training."""
    pretrain_steps: Annotated[int, Field(ge=200)] | None = None
    """Steps of every pretraining; none: what configs/demo says."""
    translation_steps: Annotated[int, Field(ge=200)] | None = None
    """Steps of both translation models; none: what configs/demo says."""
