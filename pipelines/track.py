"""Send MLflow what it missed of a run: replay its metrics.jsonl, without duplicates."""

from __future__ import annotations

import sys

from ala_encoder.command import run
from ala_encoder.settings.compare import TrackRun


def main(settings: TrackRun) -> None:
    """Replay one run folder and say how much was sent."""
    from ala_encoder.tracking import replay

    sent = replay(settings.run, settings.uri)
    print(
        f"{settings.run}: {sent:,} events sent to MLflow"
        if sent
        else f"{settings.run}: MLflow has everything"
    )


if __name__ == "__main__":
    sys.exit(run(main, TrackRun, __doc__ or "", positional="run"))
