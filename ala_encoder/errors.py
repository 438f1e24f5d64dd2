"""The one exception that means "the user can fix this".

For: everything a user can cause (a setting, a file, a folder). The command line prints its text as
one line and exits with code 2. Not for: broken invariants of our own, which are `assert`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_TEXT = 400
"""Longest text of an error in characters; a longer one is cut in the middle."""


class UserError(ValueError):
    """A mistake the user can fix; its text is one line: where, what was given, what is allowed.

    What a file holds may be part of the text, so line breaks become blanks and other characters
    that do not print are escaped: none can break the line or command the terminal.
    """

    def __init__(self, text: str) -> None:
        line = cut(text, MAX_TEXT).replace("\n", " ")  # cut twice: escaping a long text takes long
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
        super().__init__(cut(line, MAX_TEXT))


class RunStopped(RuntimeError):
    """A run that must not go on, such as one with a gradient that is not finite; exit code 1."""


class RunSaved(Exception):
    """A run that a signal has ended, all of it saved; exit code 85: started again it goes on."""


def cut(text: str, most: int) -> str:
    """Return `text`, its middle left out where it has more than `most` characters."""
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[:half]} … {text[-half:]}"


def shown(value: object, most: int = 60) -> str:
    """Return the `repr` of a value for a message, cut to `most` characters."""
    return cut(repr(value), most)


def reason(error: BaseException) -> str:
    """Return why something failed, for a message: one line, the system's own words if it has any.

    An error without a text is told by its class.
    """
    text = getattr(error, "strerror", None) or str(error)
    return cut(" ".join(str(text).split()), 300) or type(error).__name__


def closest(word: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed word that is most like `word`, or None when none is close."""
    close = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return close[0] if close else None


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return ' (did you mean X?)' for the closest allowed word, or '' when none is close."""
    close = closest(word, allowed)
    return f" (did you mean {close!r}?)" if close else ""
