"""Whether the stages of submit.sh fit: PRETRAIN.yaml SUITE.yaml WORD… → the number of cells."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ala_encoder.errors import UserError
from ala_encoder.settings.experiment import PretrainRun
from ala_encoder.settings.loader import load
from ala_encoder.settings.suite import SuiteRun


def main(pretrain: Path, suite: Path, words: Sequence[str]) -> int:
    """Return how many cells there are; raises UserError for one that starts from another run."""
    first, cells = load(pretrain, words, PretrainRun), load(suite, [], SuiteRun)
    if cells.pipeline == "pretrain":
        raise UserError(
            "pipeline = 'pretrain': what follows a pretraining is of finetune_glue or "
            "finetune_nmt; a suite of pretrainings is an array (docs/cluster.md)"
        )
    made = first.output / first.run_name
    for cell in cells.cells:
        init = cells.loaded(cell).init
        if init is None or made.resolve() not in (init.resolve(), init.resolve().parent):
            raise UserError(f"cell {cell.name}: init = {init}, but the pretraining makes {made}")
    return len(cells.cells)


if __name__ == "__main__":
    try:
        print(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
