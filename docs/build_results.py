"""Write docs/results.md from the folders of docs/results/, which `compare` made.

Each folder holds report.md (and scores.png) as `python -m pipelines.compare … output=FOLDER` wrote
them, and intro.md: what was run, when and on what. Nothing in the tables is typed by hand.

    python docs/build_results.py
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent


def section(folder: Path) -> str:
    """Return one folder's intro and report, headings one level down, links made to fit."""
    intro = (folder / "intro.md").read_text(encoding="utf-8").strip()
    report = (folder / "report.md").read_text(encoding="utf-8").strip()
    body = report.removeprefix("# Comparison").strip().replace("\n## ", "\n### ")
    body = f"### {body[3:]}" if body.startswith("## ") else body
    return f"{intro}\n\n{body}".replace("](scores.png)", f"](results/{folder.name}/scores.png)")


def main() -> int:
    """Join all sections in order of their folders' names."""
    folders = sorted(path.parent for path in HERE.glob("results/*/intro.md"))
    head = "# Results\n\nMade by `python docs/build_results.py` from the folders of docs/results/."
    text = "\n\n".join([head, *(section(folder) for folder in folders)]) + "\n"
    (HERE / "results.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
