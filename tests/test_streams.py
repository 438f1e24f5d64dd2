"""Lines as they arrive: whatever the writes, without waiting, and in chunks that end in time."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ala_encoder.lines import MAX_LINE, Reading, read_lines
from ala_encoder.streams import MAX_LENGTH, MAX_LINES, Arriving, chunks

TEXT = "one\n\ntwo\r\nthree\u2028still three\n\n" + "x" * 70_000 + "\nlast, without an end"


@pytest.fixture
def pipe() -> Iterator[tuple[Arriving, int]]:
    """Return a stream and the descriptor that feeds it; the test closes the latter."""
    reader, writer = os.pipe()
    yield Arriving(reader), writer
    os.close(reader)


def test_lines_are_the_same_however_they_are_written(pipe: tuple[Arriving, int]) -> None:
    stream, writer = pipe
    data = TEXT.encode() * 20

    def feed() -> None:
        draw, start = random.Random(0), 0
        while start < len(data):
            size = draw.choice((1, 3, 5000, 100_000))
            start += os.write(writer, data[start : start + size])
        os.close(writer)

    thread = threading.Thread(target=feed)
    thread.start()
    lines = [text for _, text in read_lines(Path("stdin"), Reading(), stream)]
    thread.join()
    assert lines == [line.removesuffix("\r") for line in data.decode().split("\n")]
    assert stream.readline(10) == b""


def test_a_line_is_ready_once_its_end_is_there(pipe: tuple[Arriving, int]) -> None:
    stream, writer = pipe
    assert not stream.is_ready()
    os.write(writer, b"one\ntw")
    assert stream.is_ready()
    assert stream.readline(100) == b"one\n"
    assert not stream.is_ready()
    os.write(writer, b"o")
    assert not stream.is_ready()
    os.close(writer)
    assert stream.is_ready()
    assert stream.readline(100) == b"two"
    assert stream.is_ready()
    assert stream.readline(100) == b""


def test_a_line_is_cut_at_the_size_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"abcdef\ngh\n")
    with (tmp_path / "text").open("rb", buffering=0) as file:
        stream = Arriving(file.fileno())
        found = [stream.readline(4) for _ in range(5)]
    assert found == [b"abcd", b"ef\n", b"gh\n", b"", b""]


def test_b20_a_file_without_line_ends_is_not_read_whole(tmp_path: Path) -> None:
    size = 2 * MAX_LINE
    with (tmp_path / "text").open("wb") as made:
        made.truncate(size)
    with (tmp_path / "text").open("rb", buffering=0) as file:
        stream = Arriving(file.fileno())
        assert stream.is_ready()
        assert file.tell() <= MAX_LINE + (1 << 17)
        assert len(stream.readline(100)) == 100


def test_a_chunk_ends_where_a_line_would_have_to_be_waited_for() -> None:
    lines = [(n, "x") for n in range(1, 8)]
    ready = iter([True, False, True, True, False, False, True])
    found = [[n for n, _ in chunk] for chunk in chunks(lines, lambda: next(ready))]
    assert found == [[1, 2], [3, 4, 5], [6], [7]]


def test_chunks_of_a_file_are_full_and_bounded() -> None:
    lines = [(n, "x") for n in range(1, 2 * MAX_LINES + 2)]
    assert [len(chunk) for chunk in chunks(lines)] == [MAX_LINES, MAX_LINES, 1]
    long = [(n, "x" * (MAX_LENGTH // 2)) for n in range(1, 4)]
    assert [len(chunk) for chunk in chunks(long)] == [2, 1]
    assert list(chunks([])) == []
