"""Compare runs: a summary, tables of variants over seeds, all records as CSV, and a plot.

python -m pipelines.compare [CONFIG.yaml] RUN [RUN …] [metric=eval_loss] [output=FOLDER]
Without `runs`, the runs are those of the MLflow experiment `tracking.experiment`.
"""

from __future__ import annotations

import sys

from ala_encoder.command import run
from ala_encoder.settings.experiment import CompareRun


def main(settings: CompareRun) -> None:
    """Write report.md, report.csv and scores.png into `output`; print the report."""
    from ala_encoder import reporting
    from ala_encoder.errors import UserError
    from ala_encoder.files import write_text

    if settings.runs:
        read = [reporting.read_folder(path) for path in reporting.find_folders(settings.runs)]
    else:
        read = reporting.read_mlflow(settings.tracking.uri, settings.tracking.experiment)
    if not read:
        raise UserError(f"tracking.experiment = {settings.tracking.experiment!r}: has no runs")
    tables = reporting.tables([summary for summary, _ in read])
    plot = settings.output / "scores.png"
    drawn = reporting.plot_scores(plot, tables, settings.metric)
    if not drawn:
        plot.unlink(missing_ok=True)
    report = reporting.render_markdown(
        tables, plot.name if drawn else None, settings.floors, settings.floors_source
    )
    write_text(settings.output / "report.md", report)
    records = [record for _, found in read for record in found]
    write_text(settings.output / "report.csv", reporting.tidy(records))
    print(report)
    print(f"written to {settings.output}: report.md, report.csv{', scores.png' if drawn else ''}")


if __name__ == "__main__":
    sys.exit(run(main, CompareRun, __doc__ or "", positional="runs"))
