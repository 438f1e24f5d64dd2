"""Compare runs: a summary, tables of variants over seeds, all records as CSV, and a plot.

python -m pipelines.compare [CONFIG.yaml] RUN [RUN …] [metric=eval_loss] [output=FOLDER]
With `baseline=RUN` or `baseline=VARIANT` the BLEU of translation runs is tested against it too.
Without `runs`, the runs are those of the MLflow experiment `tracking.experiment`.
"""

from __future__ import annotations

import sys

from ala_encoder.command import run
from ala_encoder.settings.compare import CompareRun


def main(settings: CompareRun) -> None:
    """Write report.md, report.csv and scores.png into `output`; print the report."""
    from ala_encoder import records, reporting, significance
    from ala_encoder.errors import UserError
    from ala_encoder.files import write_text
    from ala_encoder.markdown import render_comparisons, render_markdown
    from ala_encoder.plots import draw_scores

    folders = records.find_folders(settings.runs)
    if settings.runs:
        read = [records.read_folder(path) for path in folders]
    else:
        read = records.read_mlflow(settings.tracking.uri, settings.tracking.experiment)
    if not read:
        raise UserError(f"tracking.experiment = {settings.tracking.experiment!r}: has no runs")
    tables = reporting.tables([summary for summary, _ in read])
    plot, panels = settings.output / "scores.png", reporting.panels(tables, settings.metric)
    report = render_markdown(
        tables, plot.name if panels else None, settings.floors, settings.floors_source
    )
    if settings.baseline is not None:
        systems = [
            significance.read_system(folder, run, settings.translations)
            for folder, (run, _) in zip(folders, read, strict=True)
        ]
        found = significance.compare(systems, settings.baseline, settings.samples)
        report += f"\n{render_comparisons(found)}"
    # whatever can be wrong with the settings is told by now
    if panels:
        draw_scores(plot, panels)
    else:
        plot.unlink(missing_ok=True)
    write_text(settings.output / "report.md", report)
    points = [record for _, some in read for record in some]
    write_text(settings.output / "report.csv", records.tidy(points))
    print(report)
    print(f"written to {settings.output}: report.md, report.csv{', scores.png' if panels else ''}")


if __name__ == "__main__":
    sys.exit(run(main, CompareRun, __doc__ or "", positional="runs"))
