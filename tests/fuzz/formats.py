"""What can be done to tables, JSON and YAML in particular, and which changes each kind takes."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from typing import Any

from tests.fuzz.changes import (
    LINES,
    NASTY,
    Change,
    byte_order_mark,
    crlf,
    duplicate_line,
    empty,
    flip,
    folder,
    gzip_bytes,
    half,
    many_members,
    missing,
    no_last_line_end,
    not_compressed,
    on_bytes,
    on_lines,
    plain,
    small_for_much,
    wrong_sum,
)

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**70, 1e308, float("nan"), 2.5, "", "x\n\x1b[2J\0", "日", "x" * 5000, [],
    {}, [[[]]], {"a": {"b": 1}}, [1, 2], "\ud800", "0", 10**400,
)  # fmt: skip

# ---- tables


def drop_cell(rng: random.Random, lines: list[bytes]) -> None:
    at, cells = _cells(rng, lines)
    del cells[rng.randrange(len(cells))]
    lines[at] = b"\t".join(cells)


def add_cell(rng: random.Random, lines: list[bytes]) -> None:
    at, cells = _cells(rng, lines)
    cells.insert(rng.randint(0, len(cells)), rng.choice((b"", b"0", b"more")))
    lines[at] = b"\t".join(cells)


def swap_cells(rng: random.Random, lines: list[bytes]) -> None:
    at, cells = _cells(rng, lines)
    rng.shuffle(cells)
    lines[at] = b"\t".join(cells)


def change_cell(rng: random.Random, lines: list[bytes]) -> None:
    at, cells = _cells(rng, lines)
    cells[rng.randrange(len(cells))] = rng.choice((*NASTY, b""))
    lines[at] = b"\t".join(cells)


def _cells(rng: random.Random, lines: list[bytes]) -> tuple[int, list[bytes]]:
    at = rng.randrange(1, len(lines) - 1)
    return at, lines[at].split(b"\t")


def drop_csv_cell(rng: random.Random, lines: list[bytes]) -> None:
    at = plain(rng, lines)
    lines[at] = lines[at][: lines[at].rindex(b",")]


def add_csv_cell(rng: random.Random, lines: list[bytes]) -> None:
    lines[plain(rng, lines)] += b",more"


def quote_csv_cells(_: random.Random, content: bytes) -> bytes:
    out = io.StringIO()
    rows = list(csv.reader(io.StringIO(content.decode(), newline=""))) if _is_utf8(content) else []
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return out.getvalue().encode() if rows else content


def _is_utf8(content: bytes) -> bool:
    return content == content.decode("utf-8", "ignore").encode()


def tab(rng: random.Random, lines: list[bytes]) -> None:
    at = rng.randrange(len(lines) - 1)
    lines[at] += b"\tand a second cell"


def blank_line(rng: random.Random, lines: list[bytes]) -> None:
    lines.insert(rng.randrange(len(lines)), rng.choice((b"", b" ", b"\r")))


def lone_surrogate(rng: random.Random, lines: list[bytes]) -> None:
    at = plain(rng, lines)
    lines[at] = lines[at].replace(b'"text": "', b'"text": "\\ud834', 1)


def json_twice(rng: random.Random, lines: list[bytes]) -> None:
    at = plain(rng, lines)
    lines[at] = re.sub(rb'{("\w+": )', rb'{\1"7", \1', lines[at], count=1)


def json_constant(rng: random.Random, lines: list[bytes]) -> None:
    at = plain(rng, lines)
    constant = rng.choice((b"NaN", b"Infinity", b"-Infinity", b"1e999", b"[" * 99_999, b"nul"))
    lines[at] = lines[at].replace(b"{", b'{"more": ' + constant + b", ", 1)


def json_other(rng: random.Random, lines: list[bytes]) -> None:
    lines[plain(rng, lines)] = rng.choice((b"[]", b"7", b"null", b'"text"', b"{}}", b"{", b"[{}]"))


def json_cell(rng: random.Random, lines: list[bytes]) -> None:
    """Give one cell a value of another type, or take it away."""
    at = plain(rng, lines)
    row = json.loads(lines[at])
    if isinstance(row, dict):
        key = rng.choice(list(row))
        row.pop(key) if rng.random() < 0.2 else row.update({key: rng.choice(VALUES)})
        lines[at] = json.dumps(row).encode()


# ---- JSON as a whole, vocabularies


def json_node(rng: random.Random, content: bytes) -> bytes:
    """Give one place in the JSON a value of another kind, or take it away."""
    try:
        node = data = json.loads(content)
    except (ValueError, RecursionError):
        return content
    while isinstance(node, (dict, list)) and node:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key: Any = rng.choice(keys)
        if not isinstance(node[key], (dict, list)) or not node[key] or rng.random() < 0.3:
            break
        node = node[key]
    else:
        return content
    if rng.random() < 0.2:
        del node[key]
    else:
        node[key] = rng.choice(VALUES)
    return json.dumps(data).encode()


def json_key_twice(rng: random.Random, content: bytes) -> bytes:
    found = list(re.finditer(rb'"[^"\\]*":\s*(\d+|"[^"\\]*"|null|true|false)', content))
    if not found:
        return content
    match = rng.choice(found)
    return content[: match.end()] + b", " + match[0] + content[match.end() :]


def json_deep(rng: random.Random, content: bytes) -> bytes:
    return rng.choice((b"[", b'{"model":')) * 99_999 + content[:10]


def whitespace(_: random.Random, content: bytes) -> bytes:
    return b" \n" + content + b"\n\n"


WHOLE = [Change("empty", empty, "refused"), Change("folder", folder, "refused"),
         Change("missing", missing, "refused")]  # fmt: skip
JSON = [on_bytes(json_node), on_bytes(json_node), on_bytes(json_key_twice)]

# ---- YAML


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
REFUSED_YAML = (
    "seed: 8\n", "variant: &x !!python/name:os.system\n", BOMB,
    "model: !!python/object:pathlib.Path {}\n", "nonsense: 1\n", "loop: &l [*l]\n", "\tseed: 1\n",
    "tracking: [\n", "tracking: .nan\n",
    "tracking: 2001-12-14\n", "tracking: !!binary aGVsbG8=\n", "tracking: !!set {a, b}\n", "- a\n",
    "%YAML 1.1\n", "tracking: *nowhere\n", "? [a, b]\n: c\n", "1: 2\n", "null: 2\n",
    "deepspeed: 7\n", "tracking: " + "[" * 3000 + "\n", "tracking: 1e999\n", "tracking: !x 1\n",
    "base: settings.yaml\n", "base: nowhere.yaml\n", "base: [a]\n", "base: .\n",
    "x" * 70_000 + "\n", "tracking: \x07\n",
    "data: {<<: *row}\n", "tracking: !!timestamp 2001-13-45\n", "tracking: !!int x\n",
    "tracking: '\\ud800\n",
)  # fmt: skip


def yaml_line(rng: random.Random, content: bytes) -> bytes:
    line = rng.choice(REFUSED_YAML).encode("utf-8", "surrogatepass")
    return content + line if rng.random() < 0.7 else line + content


def yaml_comment(rng: random.Random, lines: list[bytes]) -> None:
    lines.insert(rng.randrange(len(lines)), rng.choice((b"# more", b"", b"   # more")))


YAML_VALUES = (
    b"~", b"!!float 7", b"0o17", b"off", b"'", b"|", b">-", b"*row", b"&row 1", b"<<: 1", b"%",
    b"{a: 1, a: 2}", b"2001-12-14", b"1e-4x", b"-.inf", b"1:30", b"@", b"`", b'"\\x0"',
)  # fmt: skip


def yaml_value(rng: random.Random, content: bytes) -> bytes:
    found = list(re.finditer(rb"(?<=: )[^\n{}\[\],]+", content))
    if not found:
        return content
    start, end = rng.choice(found).span()
    return content[:start] + rng.choice(YAML_VALUES) + content[end:]


def override(rng: random.Random) -> str:
    key = rng.choice((
        "seed", "optim.learning_rate", "optim.betas.0", "optim.betas.9", "model.dim", "data.source",
        "data.source.train.0", "encoder.biases.0.kind", "encoder.heads", "nonsense", "optim",
        "a.b.c", "train.steps.x", "", ".", "seed.", "base", "deepspeed", ".".join("a" * 99),
        "x" * 9999,
        "deepspeed.zero_optimization.stage", "tracking.experiment", "\x1b[2J", "é", "optim.٣",
    ))  # fmt: skip
    value = rng.choice((
        "1", "-1", "", "1e-4", "0.5", "x", "[1, 2]", "{}", "null", "true", "off", "'7'", "9" * 400,
        "1e999", ".nan", "!!python/name:os.system", "!!binary x", "&a [*a]", "*a", "[" * 5000,
        "{a: 1", "\t", "\0", "\ud800", "a: b: c", "2001-12-14", "a\nb", "- a", "%YAML 1.1", "'",
        "\u2028",
        "x" * 70_000, "[band2, full]", "nowhere.json", "\x1b[2J", BOMB,
    ))  # fmt: skip
    return f"{key}={value}" if rng.random() < 0.95 else key + value


MORE: dict[str, list[Change]] = {
    "tsv": [
        *LINES, Change("empty", empty, "refused"), on_lines(drop_cell, "row"),
        on_lines(add_cell, "row"), on_lines(swap_cells), on_lines(change_cell),
    ],
    "jsonl": [
        *LINES, on_lines(blank_line, "same"), on_lines(lone_surrogate, "same"),
        on_lines(json_twice, "row"), on_lines(json_constant, "row"), on_lines(json_other, "row"),
        on_lines(json_cell), on_lines(json_cell),
    ],
    "csv": [
        *LINES, Change("empty", empty, "refused"), on_lines(drop_csv_cell, "row"),
        on_lines(add_csv_cell, "row"), on_bytes(quote_csv_cells, "same"), on_lines(change_cell),
    ],
    "text": [*LINES, Change("empty", empty)],
    "vocab": [*WHOLE, on_bytes(crlf, "same"), on_bytes(no_last_line_end, "same")],
    "json": [*WHOLE, *JSON, on_bytes(json_deep, "refused"), on_bytes(whitespace, "same")],
    "bpe": [*WHOLE[1:], Change("empty", empty), *JSON],
    "spm": WHOLE,
    "fairseq": [
        *(Change(change.name, change.apply) for change in WHOLE), *JSON, on_bytes(crlf, "same"),
        on_bytes(no_last_line_end, "same"),
    ],
    "pairs": [
        *LINES, Change("empty", empty, "refused"), on_lines(tab, "row"),
        on_lines(duplicate_line, "refused"),
    ],
    "parquet": WHOLE,
    "deepspeed": [*JSON, on_bytes(yaml_value), Change("folder", folder, "refused")],
    "state": [*JSON, Change("folder", folder, "refused"), Change("missing", missing, "refused")],
    "export": [*JSON, *JSON],
    "yaml": [
        *WHOLE, on_bytes(crlf, "same"), on_bytes(byte_order_mark, "same"),
        on_lines(yaml_comment, "same"), on_bytes(yaml_line, "refused"), on_bytes(yaml_value),
        on_bytes(yaml_value),
    ],
}  # fmt: skip
MORE["text"] += [
    gzip_bytes(half, "refused"), gzip_bytes(wrong_sum, "refused"), gzip_bytes(flip, "unknown"),
    gzip_bytes(not_compressed, "refused"), gzip_bytes(many_members, "same"),
    gzip_bytes(small_for_much, "row"),
]  # fmt: skip
MORE["pairs"] += [
    gzip_bytes(half, "refused"), gzip_bytes(wrong_sum, "refused"), gzip_bytes(flip, "unknown"),
    gzip_bytes(not_compressed, "refused"), gzip_bytes(many_members, "same"),
    gzip_bytes(small_for_much, "refused"),
]  # fmt: skip
MORE["rows"] = MORE["jsonl"]
