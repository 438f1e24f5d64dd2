"""The one exception that means "the user can fix this".

For: everything a user can cause (a setting, a file, a folder). The command line prints its text as
one line and exits with code 2. Not for: broken invariants of our own, which are `assert`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake the user can fix; its text is one line: where, what was given, what is allowed."""


class RunStopped(RuntimeError):
    """A run that must not go on, such as one with a gradient that is not finite; exit code 1."""


def closest(word: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed word that is most like `word`, or None when none is close."""
    close = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return close[0] if close else None


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return ' (did you mean X?)' for the closest allowed word, or '' when none is close."""
    close = closest(word, allowed)
    return f" (did you mean {close!r}?)" if close else ""
