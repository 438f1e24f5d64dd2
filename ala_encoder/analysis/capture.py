"""What attention does inside a model: weights, gates and slopes, one layer after the other.

For: any model of `models`, as it is. Each layer's map is handed on as soon as it is there and then
let go, so no more than one layer of one batch is ever held. Not for: what is made of it (`locality`
and whoever else is interested).

Fused paths never hold the weights, so every layer is computed by `dense` here: exact, with maps of
size T x T.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ala_encoder.attention import Attention
from ala_encoder.batches import Inputs, model_inputs
from ala_encoder.biases import DistBias, GatedDistBias
from ala_encoder.errors import UserError
from ala_encoder.kernels import Visibility
from ala_encoder.models import CausalLM, Classifier, MaskedLM, Seq2Seq


@dataclass(frozen=True, eq=False)
class Captured:
    """The attention of one layer on one batch; Q queries see K keys."""

    section: str
    """encoder, decoder or cross."""
    layer: int
    batch: int
    """Number of the batch, from 0."""
    weights: Tensor
    """[B, H, Q, K], after softmax and `keep`; a query with nothing to see has 0."""
    x: Tensor
    """What the layer was given, [B, Q, dim]: queries, gates and (of one text) keys come from it."""
    gates: tuple[Tensor, ...]
    """Of each gated distance bias of the layer, each scale one: [B, H, Q]."""
    alphas: tuple[Tensor, ...]
    """Slopes of each learned distance bias, each scale one: [H]."""
    visibility: Visibility
    ratio: float
    """1; across two texts offsets are j − ratio·i."""
    again: Callable[[Tensor], Tensor]
    """Gives the layer's output [B, Q, dim] for another x, the rest as it was."""

    @property
    def real(self) -> Tensor:
        """Queries that are no padding: bool [B, Q]."""
        real = self.visibility.real
        return torch.ones_like(self.weights[:, 0, :, 0]).bool() if real is None else real

    @property
    def places(self) -> Tensor:
        """Where each query stands in its own document, from 0: int [B, Q]."""
        return self.visibility.places(*self._sizes)[0].expand(len(self.weights), -1)

    @property
    def distance(self) -> Tensor:
        """|j − ratio·i| within a document, [B or 1, 1, Q, K]; across documents it means nothing."""
        queries, keys = self.visibility.places(*self._sizes)
        return (keys[:, None, :] - self.ratio * queries[:, :, None]).abs()[:, None]

    @property
    def visible(self) -> Tensor:
        """Who sees whom by padding, documents and causality alone: bool [B or 1, 1, Q, K]."""
        pairs = self.visibility.pairs(*self._sizes)
        return torch.ones_like(self.weights[:1, :1]).bool() if pairs is None else pairs

    @property
    def _sizes(self) -> tuple[int, int, torch.device]:
        queries, keys = self.weights.shape[2:]
        return queries, keys, self.weights.device


def capture(model: nn.Module, batches: Iterable[Inputs], see: Callable[[Captured], None]) -> int:
    """Show `see` the attention of every layer on every batch, and return how many maps that were.

    batches: what `Examples.collate` gives; labels and targets are not looked at. Dropout is off,
    nothing needs a gradient, and the model is left as it was, also after an error. Raises UserError
    when there is no batch, or a layer hands out no weights.
    """
    layers = {name: part for name, part in model.named_modules() if isinstance(part, Attention)}
    device = next(model.parameters()).device
    total = 0
    with torch.no_grad(), evaluating(model):
        for number, inputs in enumerate(batches):
            found: set[str] = set()
            with ExitStack() as hooks:
                for name, layer in layers.items():
                    hooks.enter_context(_watched(layer, partial(_seen, number, see), name, found))
                run_layers(model, model_inputs(inputs, device))
            missing = [name for name in layers if name not in found]
            if missing or not layers:
                raise UserError(f"{missing[0] if missing else 'model'}: hands out no attention")
            total += len(found)
    if not total:
        raise UserError("capture: there is no batch to look at")
    return total


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Turn dropout off for a while, and leave every module in the mode it was in."""
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def run_layers(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return a model's last hidden states [B, T, dim]; no logits are computed."""
    if isinstance(model, Seq2Seq):
        src = inputs.get("src_segments")
        memory = model.encode(inputs["src_ids"], src)
        return model.decode(inputs["trg_ids"], memory, inputs.get("trg_segments"), src)
    ids, segments = inputs["input_ids"], inputs.get("segments")
    if isinstance(model, CausalLM):
        return model.hidden(ids, segments)
    encoder = model.encoder if isinstance(model, (MaskedLM, Classifier)) else model
    hidden: Tensor = encoder(ids, segments, inputs.get("token_types"))
    return hidden


@contextmanager
def _watched(
    layer: Attention, seen: Callable[..., None], name: str, found: set[str]
) -> Iterator[None]:
    """Ask a layer for its weights, and hand them on instead of out."""

    def ask(_: Any, given: Any, options: dict[str, Any]) -> Any:
        return given, {**options, "need_weights": True}

    def take(layer: Any, given: Any, options: dict[str, Any], out: Any) -> Any:
        mixed, weights = out
        if weights is not None:
            found.add(name)
            seen(layer, given, options, weights)
        return mixed, None

    handles = [
        layer.register_forward_pre_hook(ask, with_kwargs=True),
        layer.register_forward_hook(take, with_kwargs=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _seen(
    number: int,
    see: Callable[[Captured], None],
    layer: Attention,
    given: tuple[Any, ...],
    options: dict[str, Any],
    weights: Tensor,
) -> None:
    x, bank, visibility = given
    parts = list(layer.biases.modules())

    def again(other: Tensor) -> Tensor:
        mixed: Tensor = layer.forward(other, bank, visibility, **options)[0]
        return mixed

    see(
        Captured(
            section="cross" if layer.case.cross else "decoder" if layer.case.causal else "encoder",
            layer=layer.layer,
            batch=number,
            weights=weights,
            x=x,
            gates=tuple(part.gate(x) for part in parts if isinstance(part, GatedDistBias)),
            alphas=tuple(part.alpha() for part in parts if isinstance(part, DistBias)),
            visibility=visibility,
            ratio=float(layer.ratio),
            again=again,
        )
    )
