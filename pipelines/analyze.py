"""Look into language models: how local their attention is, and how far back predictions depend.

python -m pipelines.analyze RUN_OR_EXPORT [lengths=[128,512,2048]] [files=TEXT]
python -m pipelines.analyze RUN RUN … output=FOLDER
Writes analysis/{locality,receptive_field}.json and plots beside each export; the same bytes again.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ala_encoder import ranks
from ala_encoder.command import leave, run
from ala_encoder.errors import UserError
from ala_encoder.settings.analyze import AnalyzeRun
from ala_encoder.settings.exports import find_export
from ala_encoder.settings.model import check_reach

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from ala_encoder.analysis.figures import FieldCurve
    from ala_encoder.analysis.texts import Text
    from ala_encoder.export import CausalExport, Export


def main(settings: AnalyzeRun) -> None:
    """Analyse each export, then draw the receptive fields of several together."""
    for path in settings.export:
        find_export(path)
    if ranks.world_size() > 1:
        raise UserError("analyze: is one process, start it without a launcher")

    from ala_encoder.analysis.figures import draw_receptive_fields
    from ala_encoder.analysis.receptive_field import THRESHOLD
    from ala_encoder.memory import keep_freed_memory

    keep_freed_memory()
    exports = [_read(path) for path in settings.export]
    for exported in exports:
        model = exported.card.model
        learned = model.max_length if model.positions == "learned" else None
        check_reach(f"{exported.folder.parent}: lengths", settings.lengths, learned)
    texts = [_opened(exported, settings) for exported in exports]
    fields = [
        field
        for exported, text in zip(exports, texts, strict=True)
        for field in _analyzed(exported, text, settings)
    ]
    if settings.output is not None:
        lengths = {exported.card.data.length for exported in exports}
        trained = min(lengths) if len(lengths) == 1 else None
        path = settings.output / "receptive_field.png"
        draw_receptive_fields(path, "receptive fields", fields, trained, THRESHOLD)
        ranks.say(f"{len(exports)} exports: drawn in {path}")


def _read(path: Path) -> Export | CausalExport:
    from ala_encoder import export

    exported = export.read_any(path)
    if isinstance(exported, export.TranslationExport) or exported.card.kind == "classifier":
        raise UserError(f"{path}: is a {exported.card.kind}; analyze is for language models")
    return exported


def _opened(exported: Export | CausalExport, settings: AnalyzeRun) -> Text:
    """Open the text of an export; raises UserError where it is too short for what is asked."""
    from ala_encoder.analysis.texts import open_text
    from ala_encoder.lines import Reading

    reading = Reading()
    text = open_text(exported, settings, reading)
    for note in reading.notes():
        ranks.say(note)
    longest = max(settings.lengths or (text.data.length,))
    text.check(exported.card.kind, longest, settings.segments)
    return text


def _analyzed(
    exported: Export | CausalExport, text: Text, settings: AnalyzeRun
) -> list[FieldCurve]:
    """Write what is found in one export; return its receptive fields, with its name."""
    from ala_encoder import engine
    from ala_encoder.analysis.locality import locality
    from ala_encoder.files import write_json

    folder, name = exported.folder.parent / text.folder, exported.card.run_name
    model = exported.build().to(engine.device())
    about = {
        "run": name,
        "data": text.name,
        "text": text.digest,
        "trained_length": text.data.length,
    }

    from ala_encoder.analysis.figures import FieldCurve, draw_locality, draw_receptive_fields
    from ala_encoder.analysis.receptive_field import THRESHOLD, theoretical_field

    ranks.say(f"{name}: locality on {text.name} …")
    batches = text.batches(model, settings.blocks, settings.batch_size)
    sections = {key: one.record() for key, one in locality(model, batches, settings.widths).items()}
    write_json(folder / "locality.json", {**about, "blocks": settings.blocks, "sections": sections})
    draw_locality(folder / "locality.png", name, sections)

    theory = theoretical_field(model)
    lengths = settings.lengths or (text.data.length,)
    fields = []
    for length in lengths:
        ranks.say(f"{name}: receptive field at {length:,} tokens …")
        found = text.field(model, length, max(lengths), settings.segments, settings.batch_size)
        limit = None if theory is None else theory.window_times_layers
        fields.append(FieldCurve(f"{length:,} tokens", found.record(), limit))
    told = {"threshold": THRESHOLD, "theory": None if theory is None else asdict(theory)}
    records = [field.record for field in fields]
    write_json(folder / "receptive_field.json", {**about, **told, "fields": records})
    plot = folder / "receptive_field.png"
    draw_receptive_fields(plot, name, fields, text.data.length, THRESHOLD)
    if exported.card.kind == "masked_lm":
        _draw_losses(folder / "loss_by_length.png", name, text.data.length, records)
    _log_fits(model, folder, about)
    ranks.say(f"{name}: written to {folder}")
    return [field._replace(label=f"{name}, {field.label}") for field in fields]


def _draw_losses(path: Path, name: str, trained: int, fields: list[Mapping[str, Any]]) -> None:
    """Draw a masked model's loss of the same tokens over the length, ± its standard error."""
    from ala_encoder.charts import Line, Lines, draw_lines

    path.unlink(missing_ok=True)  # of an earlier analysis of several lengths
    if len(fields) < 2:
        return
    points = sorted(
        (field["length"], field["loss"]["mean"], field["loss"]["se"]) for field in fields
    )
    lengths, means, errors = zip(*points, strict=True)
    line = Line(f"{name} ± standard error", lengths, means, errors)
    title = f"masked tokens, {fields[0]['segments']:,} the same at each length"
    ylabel = "loss (nats per token)"
    panel = Lines(title, "tokens of a text", ylabel, (line,), log_x=True, marks=(trained,))
    draw_lines(path, [panel])


def _log_fits(model: nn.Module, folder: Path, about: dict[str, Any]) -> None:
    """Write how near the model's biases are to logarithms, where it has such ones."""
    from ala_encoder.analysis.figures import draw_log_fits
    from ala_encoder.analysis.logfit import fit_sandwich, fits_of
    from ala_encoder.files import write_json

    found = fits_of(model)
    if not found:
        return
    sandwich = {"(Sandwich − 64) / 8": [fit_sandwich()]}
    told = {kind: [fit.record() for fit in heads] for kind, heads in found.items()}
    write_json(folder / "log_fit.json", {**about, "heads": told})
    draw_log_fits(folder / "log_fit.png", about["run"], {**sandwich, **found})


if __name__ == "__main__":
    leave(run(main, AnalyzeRun, __doc__ or "", positional="export"))
