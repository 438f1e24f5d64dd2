"""The command line that every pipeline shares.

For: `CONFIG.yaml [section.key=value …]`, --help, --json, the launcher's own arguments, and exit
code 2 with one line for whatever the user can fix. Not for: any work.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel

from ala_encoder import signals
from ala_encoder.errors import RunSaved, RunStopped, UserError, nearest
from ala_encoder.settings.loader import check, load
from ala_encoder.settings.outline import outline

Settings = TypeVar("Settings", bound=BaseModel)
SAVED = 85
"""Exit code of a run that a signal has ended; the job scripts requeue it."""
_PIPE_BROKEN = 128 + signal.SIGPIPE


class _Parser(argparse.ArgumentParser):
    """argparse with errors of one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see --help")


def run(
    main: Callable[..., Any],
    cls: type[Settings],
    description: str,
    *,
    json_flag: bool = False,
    positional: str | None = None,
    argv: Sequence[str] | None = None,
) -> int:
    """Parse the command line, fill `cls`, call `main` and return the exit code.

    With `json_flag` the pipeline takes --json and `main` is called as main(settings, as_json).
    `positional` names the setting that plain words fill: `evaluate runs/x` is `export=runs/x`.
    """
    try:
        settings, as_json = _parse(cls, description, json_flag, positional, argv)
        trains = "train" in cls.model_fields
        with signals.listening() if trains else contextlib.nullcontext():
            main(settings, *([as_json] if json_flag else []))
    except UserError as error:
        _tell("error", error)
        return 2
    except RunStopped as error:
        _tell("stopped", error)
        return 1
    except RunSaved as error:
        _tell("saved", error)
        return SAVED
    except BrokenPipeError:
        if not _is_unread():
            raise
        return _PIPE_BROKEN
    except OSError as error:
        if error.filename is None:
            raise
        _tell("error", UserError(f"{error.filename}: {error.strerror}"))
        return 2
    except KeyboardInterrupt:
        again = "started again it goes on from its newest checkpoint"
        print(
            f"interrupted: {again}" if "train" in cls.model_fields else "interrupted",
            file=sys.stderr,
        )
        return 130
    return 0


def _is_unread() -> bool:
    """Tell whether whoever reads standard output has stopped, as `head` does; then mute it.

    What it still holds would be told of again at the end.
    """
    if sys.stdout is None:  # it came closed
        return False
    stdout = select.poll()
    stdout.register(sys.stdout, select.POLLOUT)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in stdout.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def leave(code: int) -> NoReturn:
    """End the process with an exit code, for pipelines whose ranks have talked to each other.

    A thread of gloo may still hold the tensors of the last collective. If it gives them back while
    Python tears itself down, the process ends with SIGABRT (pytorch/pytorch#179291), a failed job
    whose results are all written. So exit hooks run and streams are flushed, and that is all.
    """
    if "torch" in sys.modules:
        atexit._run_exitfuncs()
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it came closed
            try:
                stream.flush()
            except OSError:
                code = code or 120  # as Python does
        os._exit(code)
    sys.exit(code)


def _tell(what: str, error: Exception) -> None:
    """Print one line, on one rank of each machine: most mistakes are noticed by all alike."""
    rank = os.environ.get("RANK", "0")
    local_rank = os.environ.get("LOCAL_RANK", rank)
    if rank == "0" or local_rank == "0":
        where = "" if rank == "0" else f"rank {rank}: "
        print(f"{where}{what}: {' '.join(str(error).split())}", file=sys.stderr)


def _parse(
    cls: type[Settings],
    description: str,
    json_flag: bool,
    positional: str | None,
    argv: Sequence[str] | None,
) -> tuple[Settings, bool]:
    parser = _Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=outline(cls),
        allow_abbrev=False,
    )
    words = "CONFIG.yaml, section.key=value" + (f", or a value of {positional}" * bool(positional))
    parser.add_argument("words", nargs="*", metavar="WORD", help=words)
    if json_flag:
        parser.add_argument("--json", action="store_true", help="print JSON for programs")
    if "deepspeed" in cls.model_fields:
        parser.add_argument("--deepspeed_config", metavar="FILE", help="as deepspeed=FILE")
        parser.add_argument("--deepspeed", action="store_true", help=argparse.SUPPRESS)
    # The launcher passes the local rank under either spelling; LOCAL_RANK decides.
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_intermixed_args(argv)
    config, overrides = _sort_words(arguments.words, cls, positional)
    if getattr(arguments, "deepspeed_config", None):
        overrides.append(f"deepspeed={json.dumps(arguments.deepspeed_config)}")
    if arguments.local_rank is not None and arguments.local_rank >= 0:
        os.environ.setdefault("LOCAL_RANK", str(arguments.local_rank))
    as_json = bool(getattr(arguments, "json", False))
    if config is None:
        return _from_overrides(overrides, cls), as_json
    return load(_existing(Path(config)), overrides, cls), as_json


def _sort_words(
    words: Sequence[str], cls: type[BaseModel], positional: str | None
) -> tuple[str | None, list[str]]:
    """Tell the settings file, the overrides and the values of the positional setting apart."""
    files = [word for word in words if word.endswith((".yaml", ".yml")) and "=" not in word]
    overrides = [word for word in words if "=" in word]
    values = [word for word in words if word not in files and "=" not in word]
    if len(files) > 1:
        raise UserError(f"{files[1]}: one settings file is allowed, {files[0]} is given too")
    if values and positional is None:
        raise UserError(f"{values[0]!r}: allowed are CONFIG.yaml and section.key=value")
    if values and positional is not None:
        takes_many = "tuple" in str(cls.model_fields[positional].annotation)
        if len(values) > 1 and not takes_many:
            raise UserError(f"{values[1]!r}: one {positional} is allowed, {values[0]} is given too")
        overrides.insert(0, f"{positional}={json.dumps(values if takes_many else values[0])}")
    return files[0] if files else None, overrides


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
