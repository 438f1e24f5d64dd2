"""Count the parameters of a config exactly, by formula; nothing is built or trained."""

from __future__ import annotations

import json
import sys

from ala_encoder.command import run
from ala_encoder.parameters import count, heads_without_qk
from ala_encoder.settings.experiment import Architecture


def main(settings: Architecture, as_json: bool) -> None:
    """Print the counts of every part, and which heads have no Q and K."""
    counts = count(settings.model, settings.attention, settings.vocab_size)
    tables = settings.tables
    without = heads_without_qk(tables)
    if as_json:
        print(json.dumps({**counts, "heads_without_qk": without}))
        return
    for section, table in tables.items():
        print(f"{section}: {table}")
    for name, value in counts.items():
        print(f"{name:<24} {value:>15,}")
    for section, names in without.items():
        if names:
            heads = tables[section].num_layers * tables[section].num_heads
            print(f"{section}: {len(names)} of {heads} heads have no Q and K (counted from 0):")
            print(*(f"  {name}" for name in names), sep="\n")


if __name__ == "__main__":
    sys.exit(run(main, Architecture, __doc__ or "", json_flag=True))
