"""What distance biases have learned: alpha and the mean gate of every layer and head.

For: curves of both over a training, from step 0 on. A gate starts at about 0.5, so its mean says
something only beside that of step 0. Not watched: `multiscale_distbias`, whose heads have a slope
and a gate for each range, and slopes in a layer with several distance biases, since a name is of
one. Not for: the biases themselves (`biases`), attention maps (`analysis`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ala_encoder import ranks
from ala_encoder.attention import Attention
from ala_encoder.biases import DistBias, GatedDistBias


class Watch:
    """Alpha and gates of `distbias` and `gated_distbias` in the forward passes of one stack."""

    def __init__(self) -> None:
        self.real: Tensor | None = None
        """The next batch's tokens that count, bool [B, T]; None: all."""
        self._alpha: dict[int, Tensor] = {}
        self._gates: dict[int, list[Tensor]] = {}
        """Layer → [count, sum of each head], float64, of each batch."""

    def values(self) -> dict[str, float]:
        """Return alpha/LAYER/HEAD, gate/LAYER/HEAD (means over tokens and ranks) and eval_gate.

        Layers and heads are counted from 0. eval_gate is the mean over layers, heads and tokens;
        there is none where there is no gate, or no token. Every rank calls it.
        """
        found = {
            f"alpha/{layer}/{head}": alpha
            for layer, values in sorted(self._alpha.items())
            for head, alpha in enumerate(values.tolist())
        }
        means = []
        for layer, batches in sorted(self._gates.items()):
            count, *sums = ranks.all_sum(torch.stack(batches).sum(0).tolist())
            if count:
                means += [total / count for total in sums]
                found |= {f"gate/{layer}/{head}": s / count for head, s in enumerate(sums)}
        return found | ({"eval_gate": sum(means) / len(means)} if means else {})

    def hooks(self, model: nn.Module) -> Iterator[Any]:
        """Register what fills it: by what modules give, since ZeRO-3 may have parted weights."""
        for part in model.modules():
            if not isinstance(part, Attention):
                continue
            slopes = [bias for bias in part.biases if isinstance(bias, DistBias)]
            gated = [bias for bias in part.biases if isinstance(bias, GatedDistBias)]
            slopes += [bias.distance for bias in gated]
            if len(slopes) == 1:
                yield slopes[0].register_forward_hook(self._slope_of(part.layer))
            for bias in gated:
                yield bias.gate_proj.register_forward_hook(self._gate_of(part.layer))

    def _slope_of(self, layer: int) -> Any:
        def keep(module: nn.Module, given: tuple[Tensor, Tensor], bias: Tensor) -> None:
            if given[0].shape == (1, 1):  # the offset is 1: `biases.slopes`
                self._alpha[layer] = -bias.detach()[:, 0, 0]

        return keep

    def _gate_of(self, layer: int) -> Any:
        def keep(module: nn.Module, given: tuple[Tensor], logits: Tensor) -> None:
            gates = logits.detach().double().sigmoid()
            real = gates.new_ones(gates.shape[:2]) if self.real is None else self.real.to(gates)
            sums = (gates * real[..., None]).sum((0, 1))
            self._gates.setdefault(layer, []).append(torch.cat([real.sum()[None], sums]))

        return keep


@contextmanager
def watch_gates(model: nn.Module) -> Iterator[Watch]:
    """Listen to the distance biases of a model's one stack inside the block."""
    watch = Watch()
    handles = list(watch.hooks(model))
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()
