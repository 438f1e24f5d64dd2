"""Encoders whose attention is local by design: masks, shared Q/K heads, distance bias."""

__version__ = "0.1.0"
