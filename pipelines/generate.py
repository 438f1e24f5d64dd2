"""Go on with text, line by line: from standard input or files, to standard output or a file.

python -m pipelines.generate RUN_OR_EXPORT [temperature=0.8 top_p=0.9] < TEXT > LONGER_TEXT
python -m pipelines.generate RUN_OR_EXPORT temperature=0 window=2048 max_new_tokens=10000 < TEXT
Each line begins a text, an empty one begins it with nothing, and is written with what follows it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ala_encoder import ranks
from ala_encoder.command import leave, run
from ala_encoder.errors import UserError
from ala_encoder.settings.exports import find_export
from ala_encoder.settings.generate import GenerateRun

if TYPE_CHECKING:
    from ala_encoder.pipes import Put


def main(settings: GenerateRun) -> None:
    """Go on with all lines in order; what is to be said is said on standard error."""
    find_export(settings.export)
    if ranks.world_size() > 1:
        raise UserError("generate: is one process, start it without a launcher")

    from tqdm import tqdm

    from ala_encoder import engine, export
    from ala_encoder.generation import Continuation
    from ala_encoder.lines import Reading
    from ala_encoder.memory import keep_freed_memory
    from ala_encoder.pipes import incoming, outgoing

    keep_freed_memory()
    exported = export.read_causal(settings.export)
    model = exported.build().to(engine.device())
    continuation = Continuation(model, exported.tokenizer, settings, settings.batch_size)
    reading = Reading()

    def generate(put: Put) -> None:
        is_typed = not settings.input and os.isatty(0)
        with tqdm(unit=" lines", unit_scale=True, disable=is_typed or None) as bar:
            for name, lines in incoming(settings.input, reading):
                texts = continuation.texts(lines, name)
                put("".join(f"{text}\n" for text in texts).encode("utf-8"))
                bar.update(len(lines))

    outgoing(settings.output, generate)
    for note in reading.notes():
        ranks.say(note)


if __name__ == "__main__":
    leave(run(main, GenerateRun, __doc__ or "", positional="export"))
