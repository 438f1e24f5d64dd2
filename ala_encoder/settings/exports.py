"""Where an export is, or a published model: what pipelines that start from one are given."""

from __future__ import annotations

from pathlib import Path

from ala_encoder.errors import UserError, nearest


def find_export(path: Path, files: str = "export.json") -> Path:
    """Return the export folder at `path` or inside the run folder `path`; else UserError.

    files: that might have been there, for the message.
    """
    for folder in (path, path / "export"):
        if (folder / "export.json").is_file():
            return folder
    others = (other for other in path.parent.glob("*") if other.name != path.name)
    near = nearest(path.name, [other.name for other in others if other.is_dir()])
    raise UserError(
        f"{path}: no export there ({files}); pretrain, finetune_glue and finetune_nmt make "
        f"one{near}"
    )


def is_published(path: Path) -> bool:
    """Tell whether `path` is a Hugging Face folder, and none of our exports."""
    return (path / "config.json").is_file() and not (path / "export.json").is_file()


def check_start(path: Path) -> None:
    """Raise UserError unless `path` has an export or is a Hugging Face folder."""
    if not is_published(path):
        find_export(path, "export.json, or config.json of a Hugging Face folder")
