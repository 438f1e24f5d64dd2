"""The keys that users of Adaptive Locality Attention (Agnihotri 2025) know, understood as ours.

For: `attn_variant`, `alpha_init`, `alpha_learnable` and `gate_enabled` in a section of attention,
in place of `biases`, out of a file or an override. Not for: what a bias is (`biases`).

    decoder:
      attn_variant: gated_distbias   # or distbias, or baseline: no bias
      alpha_init: 0.01
"""

from __future__ import annotations

from typing import Any

from ala_encoder.errors import UserError, nearest, shown

_SECTIONS = ("encoder", "decoder", "cross")
_HAS_GATE = {"baseline": None, "distbias": False, "gated_distbias": True}
"""attn_variant → whether its bias has a gate; None: there is no bias."""
_OPTIONS = ("alpha_init", "alpha_learnable")
_KEYS = {"attn_variant", *_OPTIONS, "gate_enabled"}
_IN_BIASES = {**{key: f"{key}=…" for key in _OPTIONS}, "gate_enabled": "kind=gated_distbias"}
"""How the first of `biases` is told what these say."""


def understood(data: dict[str, Any]) -> dict[str, Any]:
    """Return the plain data of a settings file with these keys written as `biases`.

    Raises UserError for keys that contradict each other, or that do nothing.
    """
    changed = {}
    for name in _SECTIONS:
        section = data.get(name)
        if isinstance(section, dict) and not _KEYS.isdisjoint(section):
            try:
                own = {key: value for key, value in section.items() if key not in _KEYS}
                changed[name] = {**own, "biases": _biases(name, section)}
            except UserError as error:
                raise UserError(f"{name}: {error}") from None
    return {**data, **changed}


def _biases(name: str, section: dict[str, Any]) -> list[dict[str, Any]]:
    if section.get("biases"):
        if "attn_variant" in section:
            raise UserError("biases and attn_variant: both say which biases there are, keep one")
        given = {key: place for key, place in _IN_BIASES.items() if key in section}
        raise UserError(
            f"{' and '.join(given)}: beside attn_variant alone, and here are `biases`; write "
            + " ".join(f"{name}.biases.0.{place}" for place in given.values())
        )
    variant, gate = section.get("attn_variant"), section.get("gate_enabled")
    if not isinstance(variant, str) or variant not in _HAS_GATE:
        told = "missing" if variant is None else f"{shown(variant)} is none"
        allowed, near = ", ".join(_HAS_GATE), nearest(str(variant), _HAS_GATE)
        raise UserError(f"attn_variant: {told}, allowed are {allowed}{near}")
    if gate is not None and gate is not bool(_HAS_GATE[variant]):
        raise UserError(f"gate_enabled = {shown(gate)}: contradicts attn_variant = {variant!r}")
    options = {key: section[key] for key in _OPTIONS if key in section}
    if variant == "baseline":
        if options:
            raise UserError(f"{next(iter(options))}: does nothing with attn_variant = 'baseline'")
        return []
    return [{"kind": variant, **options}]
