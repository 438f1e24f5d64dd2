"""The command line that every pipeline shares.

For: `CONFIG.yaml [section.key=value …]`, --help, --json, the launcher's own arguments, and exit
code 2 with one line for whatever the user can fix. Not for: any work.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel

from ala_encoder.errors import RunStopped, UserError, nearest
from ala_encoder.settings.loader import check, load

Settings = TypeVar("Settings", bound=BaseModel)


class _Parser(argparse.ArgumentParser):
    """argparse with errors of one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see --help")


def run(
    main: Callable[[Settings], Any],
    cls: type[Settings],
    description: str,
    *,
    json_flag: bool = False,
    argv: Sequence[str] | None = None,
) -> int:
    """Parse the command line, fill `cls`, call `main` and return the exit code.

    With `json_flag` the pipeline takes --json and `main` is called as main(settings, as_json).
    """
    try:
        settings, as_json = _parse(cls, description, json_flag, argv)
        if json_flag:
            main(settings, as_json)  # type: ignore[call-arg]
        else:
            main(settings)
    except UserError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except RunStopped as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"stopped: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def _parse(
    cls: type[Settings], description: str, json_flag: bool, argv: Sequence[str] | None
) -> tuple[Settings, bool]:
    parser = _Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_outline(cls),
        allow_abbrev=False,
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG.yaml", help="the settings")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="changes to it")
    if json_flag:
        parser.add_argument("--json", action="store_true", help="print JSON for programs")
    if "deepspeed" in cls.model_fields:
        parser.add_argument("--deepspeed_config", metavar="FILE", help="as deepspeed=FILE")
        parser.add_argument("--deepspeed", action="store_true", help=argparse.SUPPRESS)
    # The launcher passes the local rank under either spelling; LOCAL_RANK decides.
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    overrides = list(arguments.overrides)
    config = arguments.config
    if config is not None and "=" in config and not Path(config).exists():
        overrides.insert(0, config)
        config = None
    if getattr(arguments, "deepspeed_config", None):
        overrides.append(f"deepspeed={arguments.deepspeed_config}")
    if arguments.local_rank is not None and arguments.local_rank >= 0:
        os.environ.setdefault("LOCAL_RANK", str(arguments.local_rank))
    as_json = bool(getattr(arguments, "json", False))
    if config is None:
        return _from_overrides(overrides, cls), as_json
    return load(_existing(Path(config)), overrides, cls), as_json


def _from_overrides(overrides: Sequence[str], cls: type[Settings]) -> Settings:
    from ala_encoder.settings.loader import apply_overrides

    needed = [name for name, field in cls.model_fields.items() if field.is_required()]
    if needed and not overrides:
        raise UserError(f"no CONFIG.yaml is given, and {needed[0]} has no default; see --help")
    return check(apply_overrides({}, overrides), cls)


def _existing(path: Path) -> Path:
    if not path.is_file():
        folder = path.parent
        names = [p.name for p in folder.glob("*.yaml")] if folder.is_dir() else []
        raise UserError(f"{path}: no such settings file{nearest(path.name, names)}")
    return path


def _outline(cls: type[BaseModel]) -> str:
    """List a settings class for --help: every key with its default and meaning."""
    lines = ["settings:"]
    for name, field in cls.model_fields.items():
        default = "required" if field.is_required() else f"default {_short(field.default)}"
        text = (field.description or "").splitlines()
        inner = _section(field.annotation)
        lines.append(f"  {name:<12} {text[0] if text else (inner.__doc__ or '').splitlines()[0]}"
                     if inner else f"  {name:<12} {text[0] if text else ''} ({default})")
        if inner is not None:
            for key, value in inner.model_fields.items():
                about = (value.description or "").splitlines()
                shown = "required" if value.is_required() else _short(value.default)
                lines.append(f"    {name}.{key:<28} {shown:<12} {about[0] if about else ''}")
    return "\n".join(lines)


def _short(value: Any) -> str:
    return "none" if value is None else str(value)


def _section(annotation: Any) -> type[BaseModel] | None:
    from ala_encoder.settings.loader import models_in

    found = list(models_in(annotation))
    return found[0] if len(found) == 1 else None
