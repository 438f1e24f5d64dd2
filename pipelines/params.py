"""Count the parameters of a config exactly, by formula; nothing is built or trained."""

from __future__ import annotations

import json
import sys

from ala_encoder.command import run
from ala_encoder.parameters import count
from ala_encoder.settings.experiment import Architecture


def main(settings: Architecture, as_json: bool) -> None:
    """Print the counts of every part."""
    counts = count(settings.model, settings.attention, settings.vocab_size)
    if as_json:
        print(json.dumps(counts))
        return
    for section, table in settings.tables.items():
        print(f"{section}: {table}")
    for name, value in counts.items():
        print(f"{name:<24} {value:>15,}")


if __name__ == "__main__":
    sys.exit(run(main, Architecture, __doc__ or "", json_flag=True))
