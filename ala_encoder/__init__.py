"""Encoders whose attention is local by design: masks, shared Q/K heads, distance bias."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ala_encoder.functional import attend

__version__ = "0.1.0"
__all__ = ["__version__", "attend"]


def __getattr__(name: str) -> Any:
    """Import `attend` when it is asked for: it needs torch, and torch takes seconds."""
    if name == "attend":
        from ala_encoder.functional import attend

        return attend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
