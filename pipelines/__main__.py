"""`ala NAME …`: the pipelines from anywhere; the same as `python -m pipelines.NAME …`."""

from __future__ import annotations

import importlib
import pkgutil
import runpy
import sys

import pipelines
from ala_encoder.errors import nearest


def names() -> list[str]:
    """Return the names of all pipelines."""
    found = (module.name for module in pkgutil.iter_modules(pipelines.__path__))
    return sorted(name for name in found if not name.startswith("_") and name != "configs")


def main() -> None:
    """Run one pipeline, or list them all."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print("usage: ala NAME [CONFIG.yaml] [section.key=value …]\n")
        for pipeline in names():
            module = importlib.import_module(f"pipelines.{pipeline}")
            print(f"  {pipeline:<16} {(module.__doc__ or '').splitlines()[0]}")
        sys.exit(0)
    if name not in names():
        print(
            f"error: no pipeline {name!r}: allowed are {', '.join(names())}"
            f"{nearest(name, names())}",
            file=sys.stderr,
        )
        sys.exit(2)
    sys.argv = [f"ala {name}", *sys.argv[2:]]
    runpy.run_module(f"pipelines.{name}", run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main()
