"""How far back a prediction depends on the text: the receptive field, measured and in theory.

For: the cumulative normalised gradient and the effective receptive field (ERF) of Chi et al. 2023
("Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis",
arXiv:2212.10356), of causal models and (ours) of both sides of an encoder. Not for: attention
weights (`locality`), the choice of texts (`segments`).

With g_j the gradient of the log-probability of the predicted token with respect to the embedding of
token j, s_j = |g_j| / sum |g|, and c_m is the sum of s over the m nearest tokens: those at
|i − j| < m, where i is the position that predicts, itself among them. The ERF is the smallest m
with c_m > 0.99.

stated: gradient of the last position's prediction, L2 norms, 0.99, averaged over segments. ours: it
is the log-probability of the target, and both averages are given, the ERF of the mean curve and the
mean of the segments' own ERFs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ala_encoder.analysis.capture import evaluating
from ala_encoder.analysis.locality import rounded
from ala_encoder.analysis.statistics import Aggregate, aggregate
from ala_encoder.attention import Attention
from ala_encoder.errors import UserError
from ala_encoder.heads import Head
from ala_encoder.models import CausalLM, MaskedLM, Vocabulary
from ala_encoder.settings.paths import Case, offsets

THRESHOLD = 0.99


@dataclass(frozen=True, eq=False)
class ReceptiveField:
    """What N predictions in texts of T tokens depend on."""

    length: int
    """T, of a causal model the tokens before the predicted one."""
    curve: Tensor
    """c_m averaged over the segments, m = 1 … M: float64 [M]."""
    before: Tensor
    """The part of c_m that lies before position i, likewise; of a causal model all but m = 1."""
    after: Tensor
    """The part after it, 0 in a causal model."""
    erf: int
    """The smallest m at which the mean curve is above the threshold."""
    erfs: tuple[int, ...]
    """That of each segment alone."""
    losses: tuple[float, ...]
    """−log p of each predicted token, in nats."""

    @property
    def mean_erf(self) -> Aggregate:
        """The mean of the segments' own ERFs, with its standard error."""
        return aggregate(self.erfs)

    @property
    def loss(self) -> Aggregate:
        """The mean loss of the predicted tokens, with its standard error."""
        return aggregate(self.losses)

    def record(self) -> dict[str, Any]:
        """Return all as JSON can say it, numbers to six digits; sides where there are two."""
        sides = {"before": self.before.tolist(), "after": self.after.tolist()}
        record: dict[str, Any] = rounded({
            "length": self.length,
            "segments": len(self.erfs),
            "erf_of_mean_curve": self.erf,
            "mean_erf": asdict(self.mean_erf),
            "loss": asdict(self.loss),
            "curve": self.curve.tolist(),
            **(sides if self.after.any() else {}),
            "erfs": self.erfs,
            "losses": self.losses,
        })  # fmt: skip
        return record


@dataclass(frozen=True)
class Theory:
    """What R layers of local attention can see at most; see `theoretical_field`."""

    window_times_layers: int
    """w·R, as the source has it: the widest w of each layer, summed."""
    exact: int
    """The largest m at which a token can matter, R(w − 1) + 1."""


def receptive_field(
    model: CausalLM, ids: Tensor, *, batch_size: int = 1, threshold: float = THRESHOLD
) -> ReceptiveField:
    """Return the receptive field of the last position of some texts.

    ids: int [N, T + 1], N segments of T tokens and the token that is predicted. The gradient is
    exact, through autograd, on the paths that training takes. Memory is that of the activations of
    `batch_size` segments: linear in T where the path is, no gradient of a parameter is made. Raises
    UserError for texts longer than learned positions, and where a gradient is 0 or not finite.
    """

    def predict(rows: slice) -> Tensor:
        hidden = model.hidden(ids[rows, :-1].to(device))[:, -1]
        return _log_prob(model.logits(hidden), ids[rows, -1].to(device))

    device, length = next(model.parameters()).device, ids.shape[1] - 1
    places = torch.full((len(ids),), length - 1)
    return _field(model, model.vocabulary, predict, places, length, batch_size, threshold)


def masked_receptive_field(
    model: MaskedLM,
    ids: Tensor,
    places: Tensor,
    labels: Tensor,
    *,
    batch_size: int = 1,
    threshold: float = THRESHOLD,
) -> ReceptiveField:
    """Return the receptive field of masked tokens, to both sides (ours).

    ids: int [N, T], texts without padding; places: int [N], where the mask of each stands; labels:
    int [N], what was there. Otherwise as `receptive_field`.
    """

    def predict(rows: slice) -> Tensor:
        given, own = ids[rows].to(device), places[rows].to(device)
        targets = own + torch.arange(len(given), device=device) * length
        return _log_prob(model(given, targets), labels[rows].to(device))

    device, length = next(model.parameters()).device, ids.shape[1]
    words = model.encoder.vocabulary
    return _field(model, words, predict, places, length, batch_size, threshold)


def _log_prob(logits: Tensor, labels: Tensor) -> Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return -F.cross_entropy(wide, labels, reduction="none")


def _field(
    model: nn.Module,
    vocabulary: Vocabulary,
    predict: Callable[[slice], Tensor],
    places: Tensor,
    length: int,
    batch_size: int,
    threshold: float,
) -> ReceptiveField:
    losses: list[Tensor] = []
    shares: list[Tensor] = []
    with evaluating(model), _frozen(model), torch.enable_grad():
        for start in range(0, len(places), batch_size):
            with _leaves(vocabulary) as embedded:
                values = predict(slice(start, start + batch_size))
                (grads,) = torch.autograd.grad(values.sum(), embedded)
            norms = grads.double().norm(dim=-1).cpu()
            total = norms.sum(1, keepdim=True)
            bad = ~(torch.isfinite(total) & (total > 0))[:, 0]
            if bad.any():
                number = start + int(bad.int().argmax())
                raise UserError(f"segment {number}: its gradient is 0 or not finite")
            losses.append(-values.detach().double().cpu())
            shares.append(norms / total)
    assert shares, "there is no segment"
    before, itself, after = _by_distance(torch.cat(shares), places)
    curves = (before + itself + after).cumsum(1)
    mean = curves.mean(0)
    return ReceptiveField(
        length=length,
        curve=mean,
        before=before.cumsum(1).mean(0),
        after=after.cumsum(1).mean(0),
        erf=_first_above(mean, threshold),
        erfs=tuple(_first_above(curve, threshold) for curve in curves),
        losses=tuple(torch.cat(losses).tolist()),
    )


def _by_distance(shares: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the shares at each distance before, at and after the places: three of [N, M]."""
    offset = torch.arange(shares.shape[1]) - places[:, None]
    size = int(offset.abs().max()) + 1
    parts = []
    for which in (offset < 0, offset == 0, offset > 0):
        found = shares.new_zeros(len(shares), size)
        parts.append(found.scatter_add_(1, offset.abs(), shares * which))
    return parts[0], parts[1], parts[2]


def _first_above(curve: Tensor, threshold: float) -> int:
    """Return the smallest m, counted from 1, at which a curve is above a number."""
    return int((curve > threshold).int().argmax()) + 1


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Let no parameter need a gradient, so that nothing is kept for it."""
    needed = {p: p.requires_grad for p in model.parameters()}
    model.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, need in needed.items():
            parameter.requires_grad_(need)


@contextmanager
def _leaves(vocabulary: Vocabulary) -> Iterator[list[Tensor]]:
    """Give the embeddings that are looked up meanwhile, as tensors that need a gradient."""
    found: list[Tensor] = []

    def cut(_: object, given: tuple[Any, ...], out: Tensor) -> Tensor | None:
        if given[0].is_floating_point():  # it gives logits
            return None
        found.append(out.detach().requires_grad_())
        return found[-1]

    handle = vocabulary.register_forward_hook(cut)
    try:
        yield found
    finally:
        handle.remove()


# ---------------------------------------------------------------------------------------------
# In theory
# ---------------------------------------------------------------------------------------------


def theoretical_field(model: nn.Module) -> Theory | None:
    """Return what all layers together can see at most; None: there is no limit.

    w is 1 more than the farthest offset that a head of a layer sees through windows and masks
    before the softmax. A mask after the softmax is no limit: the sum it divides by is over all.
    """
    layers = [part for part in model.modules() if isinstance(part, Attention)]
    widths = []
    for layer in layers:
        reaches = [_reach(head, layer.case) for head in layer.heads]
        known = [reach for reach in reaches if reach is not None]
        if len(known) < len(reaches):
            return None
        widths.append(max(known) + 1)
    return Theory(sum(widths), sum(widths) - len(widths) + 1)


def _reach(head: Head, case: Case) -> int | None:
    seen = offsets(head if case.is_pre_softmax else Head("full"), case)
    return None if seen is None else max(abs(seen.start), abs(seen.stop - 1))
