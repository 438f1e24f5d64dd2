"""Files: one builder at a time for a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ala_encoder.errors import UserError
from ala_encoder.files import locked

_HOLD = """
import sys, time
from pathlib import Path
from ala_encoder.files import locked
with locked(Path(sys.argv[1]), say=lambda line: print(line, flush=True)):
    print("in", flush=True)
    if len(sys.argv) > 2:
        time.sleep(60)
"""


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _HOLD, str(folder), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_lock_is_held_by_one_process_and_the_next_says_once_that_it_waits(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "new" / "corpus"
    with locked(folder):
        waiting = start(folder)
        assert waiting.stdout is not None
        assert "another process is at it, waiting" in waiting.stdout.readline()
    assert waiting.communicate(timeout=30)[0] == "in\n"
    assert [path.name for path in folder.parent.iterdir()] in ([".corpus.lock"], [])


def test_the_lock_of_a_killed_process_is_free_at_once_and_nothing_is_said(tmp_path: Path) -> None:
    holder = start(tmp_path / "corpus", "stay")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "in\n"
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    said: list[str] = []
    with locked(tmp_path / "corpus", say=said.append):
        assert said == []


def test_an_error_inside_frees_the_lock(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path / "corpus"):
        raise KeyError
    said: list[str] = []
    with locked(tmp_path / "corpus", say=said.append):
        assert said == []


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(UserError, match=r"corpus: cannot write .*\.corpus\.lock"),
        locked(tmp_path / "file" / "corpus"),
    ):
        raise AssertionError("entered")
