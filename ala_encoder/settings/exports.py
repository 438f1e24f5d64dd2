"""Where an export is: what pipelines that start from one are given."""

from __future__ import annotations

from pathlib import Path

from ala_encoder.errors import UserError, nearest


def find_export(path: Path) -> Path:
    """Return the export folder at `path` or inside the run folder `path`; else UserError."""
    for folder in (path, path / "export"):
        if (folder / "export.json").is_file():
            return folder
    near = nearest(path.name, [neighbour.name for neighbour in path.parent.glob("*")])
    raise UserError(
        f"{path}: no export there (export.json), run pretrain or finetune_glue first{near}"
    )
