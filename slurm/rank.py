"""One rank of a job: started once a rank by srun, or by deepspeed with --launcher slurm.

`rank.py PIPELINE CONFIG.yaml …` runs a pipeline with Slurm's ranks; `rank.py nodes LIST` answers
the job scripts.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

# The checkout's code, whatever is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ala_encoder import signals
from ala_encoder.errors import UserError

SAVES = ("pretrain", "finetune_glue", "finetune_nmt", "suite")
"""The pipelines that take a signal as the wish to save."""


def main(words: list[str]) -> None:
    """Answer, or run one pipeline as one rank."""
    if words[:1] and words[0] in SAVES:
        signals.hold()  # before what takes its time to be imported
    else:  # nothing to save: it goes on to its end, also where DeepSpeed's launcher calls srun
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
    from ala_encoder import slurm

    if words[:1] == ["nodes"] and len(words) == 2:
        print("\n".join(slurm.expand(words[1])))
        return
    from pipelines.__main__ import main as ala

    os.environ.update(slurm.rank_variables(os.environ))
    ala()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
