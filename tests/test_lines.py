"""Lines of text: one rule for every reader, each oddity handled and counted."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ala_encoder import lines
from ala_encoder.errors import UserError
from ala_encoder.lines import Reading, read_lines


def read(path: Path, content: bytes, **policy: str) -> tuple[list[tuple[int, str]], Reading]:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    reading = Reading(**policy)  # type: ignore[arg-type]
    return list(read_lines(path, reading)), reading


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"a\n\nb\n", ["a", "", "b"]),
        ("one\u2028two\x85\x0c\x1c\nthree".encode(), ["one\u2028two\x85\x0c\x1c", "three"]),
        (b"a\rb\n", ["a\rb"]),
    ],
)
def test_b01_only_lf_ends_a_line(
    tmp_path: Path, name: str, content: bytes, expected: list[str]
) -> None:
    found, _ = read(tmp_path / name, content)
    assert found == list(enumerate(expected, 1))


def test_b04_one_cr_before_the_end_is_stripped_and_counted(tmp_path: Path) -> None:
    found, reading = read(tmp_path / "a", b"a\r\nb\r\r\nc\r")
    assert [text for _, text in found] == ["a", "b\r", "c"]
    assert reading.carriage_returns == 3
    assert reading.notes() == ["3 lines ended in CR LF; the CR was stripped"]


def test_b05_a_mark_at_the_start_of_a_line_is_no_text_and_elsewhere_it_is(tmp_path: Path) -> None:
    found, reading = read(tmp_path / "a", "\ufeffa\n\ufeffb\nc\ufeff\n".encode())
    assert [text for _, text in found] == ["a", "b", "c\ufeff"]
    assert reading.byte_order_marks == 2


def test_nul_is_dropped_and_counted(tmp_path: Path) -> None:
    found, reading = read(tmp_path / "a", b"one two\0 three\n\0\n")
    assert [text for _, text in found] == ["one two three", ""]
    assert reading.nulls == 2


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_a_utf_16_file_is_refused_not_stripped_of_its_nuls(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(UserError, match="looks like UTF-16"):
        read(tmp_path / "a", "some words\nmore\n".encode(encoding), on_bad_row="skip")


def test_a_lone_surrogate_is_dropped_and_counted() -> None:
    reading = Reading()
    assert reading.clean("a\ud800b\udfff") == "ab"
    assert reading.surrogates == 2


def test_b21_a_line_that_is_not_utf8_is_told_with_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a:2: not UTF-8 \(bytes ff at byte 1"):
        read(tmp_path / "a", b"a\nb\xff\nc\n")


def test_a_bad_line_is_skipped_and_counted_by_policy_and_numbers_stay(tmp_path: Path) -> None:
    found, reading = read(tmp_path / "a", b"a\n\xff\nc\n\xfe\n", on_bad_row="skip")
    assert found == [(1, "a"), (3, "c")]
    assert reading.skipped == 2
    (note,) = reading.notes()
    assert note.startswith("2 bad rows were skipped, the first: ") and "a:2: not UTF-8" in note


def test_b20_a_line_of_3_megabytes_is_a_line(tmp_path: Path) -> None:
    found, _ = read(tmp_path / "a", b"x" * 3_000_000 + b"\nlast")
    assert [len(text) for _, text in found] == [3_000_000, 4]


def test_a_line_over_the_limit_is_a_bad_row_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE", 8)
    found, reading = read(tmp_path / "a", b"12345678\n" + b"x" * 30 + b"\nb\n", on_bad_row="skip")
    assert found == [(1, "12345678"), (3, "b")]
    assert reading.skipped == 1


def test_what_cannot_be_read_is_one_line_that_names_it(tmp_path: Path) -> None:
    broken = tmp_path / "a.gz"
    whole = gzip.compress(b"".join(b"%d some line\n" % n for n in range(20000)), mtime=0)
    for content in (whole[:-20], whole[: len(whole) // 2], b"no gzip"):
        broken.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.gz: cannot be read") as caught:
            list(read_lines(broken, Reading(on_bad_row="skip")))
        assert "\n" not in str(caught.value)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            list(read_lines(missing, Reading()))
