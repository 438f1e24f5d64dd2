"""Make the tokenizer that a config names: trained on its corpus, or copied from a published one."""

from __future__ import annotations

import sys

from ala_encoder.command import run
from ala_encoder.settings.experiment import PretrainRun


def main(settings: PretrainRun, as_json: bool) -> None:
    """Write the tokenizer folder, and how it fits the valid text; an existing one is left as is."""
    import functools
    import json

    from ala_encoder import files, sources, tokenizer
    from ala_encoder.lines import Reading

    say = functools.partial(print, flush=True, file=sys.stderr if as_json else sys.stdout)
    wanted = settings.tokenizer
    source = sources.find_source(settings.data, say)
    reading = Reading(settings.data.on_bad_row)
    with files.locked(wanted.path, say):
        made = not wanted.path.exists()
        if made:
            say(f"making a {wanted.kind} tokenizer in {wanted.path} …")
            tokenizer.make(wanted, sources.texts(source, "train", reading), say)
        ready = tokenizer.open_folder(wanted, say)
        say(f"{wanted.path}: {ready.vocab_size:,} pieces{'' if made else ', left as it is'}")
        fit = tokenizer.fit_report(ready, sources.texts(source, "valid", reading))
        if made:
            files.write_json(wanted.path / "report.json", fit)
    for note in reading.notes():
        say(f"note: {note}")
    if as_json:
        print(json.dumps(fit))
        return
    for name, value in fit.items():
        shown = f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
        print(f"  {name.replace('_', ' ')}: {shown}")


if __name__ == "__main__":
    sys.exit(run(main, PretrainRun, __doc__ or "", json_flag=True))
