"""Write docs/results.md, and the table of README.md, from the folders of docs/results/.

Each folder holds report.md (and its plots) as `python -m pipelines.compare … output=FOLDER` wrote
them, and intro.md: what was run, when and on what. Nothing in the tables is typed by hand.

    python docs/build_results.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
HEAD = "# Results\n\nMade by `python docs/build_results.py` from the folders of docs/results/."
START, END = "<!-- demo: made by docs/build_results.py -->", "<!-- end of demo -->"


def tables(folder: Path) -> str:
    """Return a folder's report without its title, headings one level down."""
    report = (folder / "report.md").read_text(encoding="utf-8")
    return report.removeprefix("# Comparison").strip().replace("## ", "### ")


def section(folder: Path) -> str:
    """Return a folder's intro and tables, with links that fit docs/results.md."""
    intro = (folder / "intro.md").read_text(encoding="utf-8").strip()
    text = f"{intro}\n\n{tables(folder)}"
    return re.sub(r"\]\(([^/()]+\.png)\)", rf"](results/{folder.name}/\1)", text)


def main() -> int:
    """Join all sections in order of their folders' names; put the demo's tables into README.md."""
    folders = sorted(path.parent for path in HERE.glob("results/*/intro.md"))
    text = "\n\n".join([HEAD, *(section(folder) for folder in folders)]) + "\n"
    (HERE / "results.md").write_text(text, encoding="utf-8")
    readme = HERE.parent / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split(START)
    after = rest.split(END)[1]
    shown = tables(folders[0]).split("\n\n![")[0]
    readme.write_text(f"{before}{START}\n\n{shown}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
