"""Compare runs: a summary, tables of variants over seeds, all records as CSV, and plots.

python -m pipelines.compare [CONFIG.yaml] RUN [RUN …] [metric=eval_loss] [output=FOLDER]
With `baseline=VARIANT` or `baseline=RUN` variants are tested against it over their seeds, and the
BLEU of translation runs by paired bootstrap. Of causal language models there are also curves, and
what `evaluate` (by length) and `analyze` have written into the run folders.
Without `runs`, the runs are those of the MLflow experiment `tracking.experiment`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ala_encoder.command import run
from ala_encoder.settings.compare import CompareRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ala_encoder.records import RunSummary
    from ala_encoder.reporting import Table


def main(settings: CompareRun) -> None:
    """Write report.md, report.csv and plots into `output`; print the report."""
    from ala_encoder import causal_report, records, reporting
    from ala_encoder.errors import UserError
    from ala_encoder.files import write_text
    from ala_encoder.markdown import render_markdown
    from ala_encoder.plots import draw_scores

    folders = records.find_folders(settings.runs)
    if settings.runs:
        read = [records.read_folder(path) for path in folders]
    else:
        read = records.read_mlflow(settings.tracking.uri, settings.tracking.experiment)
    if not read:
        raise UserError(f"tracking.experiment = {settings.tracking.experiment!r}: has no runs")
    summaries = [summary for summary, _ in read]
    tables = reporting.tables(summaries)
    plot, panels = settings.output / "scores.png", reporting.panels(tables, settings.metric)
    bootstrap = _tested(settings, tables, summaries)
    more, part = causal_report.parts(tables, read, settings.baseline, settings.output)
    report = render_markdown(
        tables, plot.name if panels else None, settings.floors, settings.floors_source, more
    )
    # whatever can be wrong with the settings is told by now
    if panels:
        draw_scores(plot, panels)
    else:
        plot.unlink(missing_ok=True)
    causal_report.draw(part, settings.output)
    report += bootstrap
    write_text(settings.output / "report.md", report)
    points = [record for _, some in read for record in some]
    write_text(settings.output / "report.csv", records.tidy([*points, *part.records]))
    print(report)
    names = ["report.md", "report.csv", *(["scores.png"] if panels else []), *part.drawings]
    print(f"written to {settings.output}: {', '.join(names)}")


def _tested(settings: CompareRun, tables: Sequence[Table], summaries: Sequence[RunSummary]) -> str:
    """Return the section on BLEU beside the baseline, empty where there is no such run.

    Raises UserError for a baseline that no run has, and for settings of the test without such runs.
    """
    from ala_encoder import significance
    from ala_encoder.analysis.seeds import check_baseline, is_tested_over_seeds
    from ala_encoder.errors import UserError
    from ala_encoder.markdown import render_comparisons

    if settings.baseline is None:
        return ""
    translations = [one for one in summaries if not is_tested_over_seeds(one.task)]
    if not translations:
        for name in ("samples", "translations"):
            if getattr(settings, name) != type(settings).model_fields[name].default:
                raise UserError(f"{name}: is for translation runs, there is none here")
        check_baseline(tables, settings.baseline)
        return ""
    systems = [
        significance.read_system(one.folder, one, settings.translations)
        for one in translations
        if one.folder is not None
    ]
    found = significance.compare(systems, settings.baseline, settings.samples)
    return f"\n{render_comparisons(found)}"


if __name__ == "__main__":
    sys.exit(run(main, CompareRun, __doc__ or "", positional="runs"))
