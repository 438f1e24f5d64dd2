"""Whether the signal before the end of a job's time comes early enough for a step and a save.

For: `training`, which says how long both take. A job script names the signal in ALA_SIGNAL, as
sbatch does (USR1@300); where none is named, nothing is checked. Not for: the signal (`signals`).
"""

from __future__ import annotations

import math
import os
import re

from ala_encoder import ranks, slurm
from ala_encoder.errors import UserError

_STEPS = 3
"""The first of a start compiles and fills caches, so it is the ones after it that are measured."""


class Lead:
    """What a start has measured: its longest step but the first, its longest save."""

    def __init__(self) -> None:
        """Raises UserError for an ALA_SIGNAL that is no signal with its seconds."""
        text = os.environ.get("ALA_SIGNAL", "")
        match = re.fullmatch(r"(USR1|USR2|TERM)@(\d+)", text)
        if text and match is None:
            raise UserError(
                f"environment variable ALA_SIGNAL = {text!r}: allowed are USR1, USR2 and TERM with "
                "the seconds before the end of the time, as in USR1@300"
            )
        self.signal = match[1] if match else ""
        self.seconds = int(match[2]) if match else None
        self.step = self.save = 0.0
        self._steps, self._is_checked = 0, False
        self._told = 0

    def is_due(self) -> bool:
        """Tell, once in a start and on all ranks alike, whether to save and `check` now."""
        return self.seconds is not None and self._steps == _STEPS and not self._is_checked

    def stepped(self, seconds: float) -> None:
        """Take in how long a step took."""
        self._steps += 1
        if self._steps > 1:
            self.step = max(self.step, seconds)

    def saved(self, seconds: float) -> None:
        """Take in how long a checkpoint took."""
        self.save = max(self.save, seconds)

    def check(self) -> None:
        """Compare the lead with 2 (step + save), each the longest of any rank; on all ranks.

        A signal waits for the end of a step, then for the save; both may take twice as long on a
        bad day. Raises UserError when the first comparison of a job's first start fails: that is
        early, and the signal would come too late every time. Later ones only tell, once for what is
        needed, and so does a job that was requeued: it has been saved in time, and a slow hour must
        not end it.
        """
        if self.seconds is None or self._steps < _STEPS:
            return
        step, save = map(max, zip(*ranks.gather((self.step, self.save)), strict=True))
        is_first, self._is_checked = not self._is_checked, True
        needed = math.ceil(2 * (step + save))
        if needed <= self.seconds:
            return
        text = (
            f"{self.signal} is to come {self.seconds} s before the time of the job ends, but a "
            f"step took {step:.1f} s and a save {save:.1f} s, and twice both is {needed} s: "
            f"submit with SBATCH_SIGNAL={self.signal}@{needed} or more in sbatch's environment"
        )
        if is_first and not slurm.requeues():
            raise UserError(f"{text}; all is saved")
        if needed > self._told:
            ranks.say(f"note: {text}")
        self._told = max(self._told, needed)
