"""Names and texts that every MLflow store takes.

For: parameters, metrics and tags. Not for: metrics.jsonl, which keeps the names as they are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

MAX_KEY, MAX_PARAM, MAX_TAG = 250, 6000, 5000

# A slash or dot that would make the key, read as a path, mean another path is unsafe too.
_UNSAFE = re.compile(r"[^0-9A-Za-z_\-. :/]|_(?=x)|\A/|(?<=/)/|/\Z|(?<![^/])\.")
_SAFE = re.compile(r"_x([0-9a-f]+)_")
_CUT = re.compile(r"_xh([0-9a-f]{16})\Z")


def clean_key(raw: str) -> str:
    """Return a key MLflow takes, another one for each `raw`; `raw_key` undoes it.

    An unsafe character becomes `_xHEX_`. A key longer than 250 characters is cut and gets a hash;
    the mirror then keeps the whole key in the tag `key/<hash>`.
    """
    key = _UNSAFE.sub(lambda match: f"_x{ord(match[0]):x}_", raw) or "_x_"
    if len(key) <= MAX_KEY:
        return key
    digest = hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{key[:200]}_xh{digest}"


def cut_tag(key: str, raw: str) -> str | None:
    """Return the tag that keeps `raw` when its clean `key` was cut, else None."""
    cut = _CUT.search(key)
    return f"key/{cut[1]}" if cut and raw_key(key) != raw else None


def raw_key(key: str, tags: Mapping[str, str] | None = None) -> str:
    """Undo `clean_key`; `tags` are those of the run, for keys that were cut."""
    cut = _CUT.search(key)
    if cut and tags and f"key/{cut[1]}" in tags:
        return tags[f"key/{cut[1]}"]
    return "" if key == "_x_" else _SAFE.sub(lambda match: chr(int(match[1], 16)), key)


def clean_text(value: str, most: int) -> str:
    """Return `value` without what a database refuses (NUL, half characters), cut to `most`."""
    plain = value.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
    return plain if len(plain) <= most else plain[: most - 6] + " (cut)"
