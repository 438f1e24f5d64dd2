"""Files: JSON read strictly, folders whole or not at all, one builder at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ala_encoder.errors import UserError
from ala_encoder.files import (
    folder_aside,
    locked,
    parse_json,
    read_json,
    remove_leftovers,
    write_json,
)

_HOLD = """
import sys, time
from pathlib import Path
from ala_encoder.files import (
    folder_aside,
    locked,
    parse_json,
    read_json,
    remove_leftovers,
    write_json,
)
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


# JSON


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[1]", "holds a list, not an object"),
        ("null", "holds a NoneType, not an object"),
        ("", "not JSON"),
        ('{"a": 1} {}', "not JSON"),
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "the key 'b' is given twice"),
        ('{"a": NaN}', "NaN is not a finite number"),
        ('{"a": [-Infinity]}', "-Infinity is not a finite number"),
        ('{"a": 1e999}', "1e999 is beyond a float"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON"),
        ('{"a": ' + "[" * 200_000, "nested too deeply"),
        ("\ufeff{}", "not JSON"),
    ],
)
def test_what_is_no_json_object_is_told_with_its_place(text: str, told: str) -> None:
    with pytest.raises(UserError, match=r"^here\.json: ") as caught:
        parse_json(text, "here.json")
    assert told in str(caught.value)


def test_a_json_object_is_read_as_it_was_written(tmp_path: Path) -> None:
    data = {"a": [1, 2.5, None, True], "é\u2028": {"": {}}}
    write_json(tmp_path / "a.json", data)
    assert read_json(tmp_path / "a.json") == data
    size = (tmp_path / "a.json").stat().st_size
    assert read_json(tmp_path / "a.json", max_bytes=size) == data
    with pytest.raises(UserError, match=f"a.json: larger than {size - 1} bytes"):
        read_json(tmp_path / "a.json", max_bytes=size - 1)


def test_a_json_file_that_is_not_there_or_not_utf_8_is_told_by_path(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{\n"a": "\xe9"}')
    for name, told in (
        ("a.json", "a.json:2: not UTF-8 text"),
        ("none.json", "none.json: cannot be read: No such file"),
        ("", "cannot be read: Is a directory"),
    ):
        with pytest.raises(UserError, match=told):
            read_json(tmp_path / name)


# Folders


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "made"
    with pytest.raises(KeyError), folder_aside(folder) as aside:
        (aside / "file").write_text("x")
        assert not folder.exists()
        raise KeyError
    assert list(folder.parent.iterdir()) == []
    folder.mkdir()  # an empty one is taken
    with folder_aside(folder) as aside:
        (aside / "file").write_text("x")
    assert [path.name for path in folder.parent.iterdir()] == ["made"]
    assert (folder / "file").read_text() == "x"


def test_a_folder_that_cannot_be_written_is_one_line_and_what_is_there_stays(
    tmp_path: Path,
) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "precious").write_text("x")
    with (
        pytest.raises(UserError, match="made: cannot be written: Directory not empty"),
        folder_aside(tmp_path / "made"),
    ):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "precious"]


def test_only_the_leftovers_of_the_same_folder_are_removed(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from ala_encoder.files import folder_aside\n"
        "with folder_aside(Path(sys.argv[1])): os._exit(9)"
    )
    for name in ("c", "c.d", "cc"):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=False)
    assert len(list(tmp_path.iterdir())) == 3
    remove_leftovers(tmp_path / "c")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert [name.rsplit(".", 2)[0] for name in left] == [".c.d", ".cc"]
