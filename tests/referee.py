"""An independent training loop, written out by hand: whole batches, autograd, AdamW's equations.

For: what the engine must equal, however it splits a batch. Not for: speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ala_encoder.batches import Examples, Ids, Inputs, Plan, Position, pad
from ala_encoder.examples import training_blocks
from ala_encoder.settings.experiment import PretrainRun
from tests.launched import small


@dataclass(frozen=True)
class Ragged:
    """Examples with a chosen number of targets each; example i has counts[i] + 4 tokens."""

    targets: Sequence[int]
    vocab_size: int

    def __len__(self) -> int:
        return len(self.targets)

    def counts(self, ids: Ids, epoch: int) -> NDArray[np.int64]:
        return np.array([self.targets[i] for i in ids], dtype=np.int64)

    def lengths(self) -> None:
        """The order does not go by length."""

    def num_tokens(self, ids: Ids) -> int:
        return sum(self.targets[i] + 4 for i in ids)

    def collate(self, ids: Ids, epoch: int) -> Inputs:
        """Targets are the first tokens of each row; an empty `ids` is a row without any."""
        chosen = [(int(i), self.targets[i]) for i in ids] or [(0, 0)]
        rows = [np.random.default_rng(i).integers(5, self.vocab_size, n + 4) for i, n in chosen]
        inputs = pad([row.tolist() for row in rows], 0)
        width = inputs.shape[1]
        places = [row * width + k for row, (_, n) in enumerate(chosen) for k in range(n)]
        labels = [
            int(token) for tokens, (_, n) in zip(rows, chosen, strict=True) for token in tokens[:n]
        ]
        return {
            "input_ids": inputs,
            "segments": (torch.arange(width) < torch.tensor([[len(row)] for row in rows])).long(),
            "targets": torch.tensor(places, dtype=torch.int64),
            "labels": torch.tensor(labels, dtype=torch.int64),
        }


def mean_loss(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return the mean loss in nats over all targets of a whole batch."""
    given = {name: tensor for name, tensor in inputs.items() if name != "labels"}
    return F.cross_entropy(model(**given), inputs["labels"], ignore_index=-100)


def gradient(model: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    """Return the gradient of the mean loss of one big batch."""
    model.zero_grad()
    mean_loss(model, inputs).backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return |found − expected| / |expected| over all tensors together."""
    assert found.keys() == expected.keys()
    apart = sum(float((found[n].double() - expected[n].double()).square().sum()) for n in expected)
    return math.sqrt(apart / sum(float(expected[n].double().square().sum()) for n in expected))


def train(
    run: PretrainRun, home: Path, rates: Sequence[float], examples: Examples | None = None
) -> tuple[list[float], dict[str, Tensor]]:
    """Return the loss of each step and the final weights; `rates` are the learning rates."""
    tokenizer, tokens = small.data(home)
    model = small.model(run, tokenizer.vocab_size)
    if examples is None:
        examples = training_blocks(tokens[small.VALIDATION :], run.data, tokenizer, run.seed)
    size, lengths = len(examples), examples.lengths()
    walk = Plan(run.seed, size, run.train.batch_size, lengths).walk(Position())
    moments: dict[str, Any] = {}
    losses = []
    for step, (rate, (position, ids)) in enumerate(zip(rates, walk, strict=False), 1):
        model.zero_grad()
        loss = mean_loss(model, examples.collate(ids, position.epoch))
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        adamw(model, run, step, rate, moments)
    return losses, {name: p.detach().clone() for name, p in model.named_parameters()}


def adamw(
    model: nn.Module, run: PretrainRun, step: int, rate: float, moments: dict[str, Any]
) -> None:
    """Clip by the global norm and take one step of AdamW (Loshchilov and Hutter 2019, alg. 2)."""
    optim = run.optim
    beta1, beta2 = optim.betas
    parameters = dict(model.named_parameters())
    grads = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    norm = math.sqrt(math.fsum(float(g.double().square().sum()) for g in grads.values()))
    scale = min(1.0, optim.clip_grad_norm / (norm + 1e-6)) if optim.clip_grad_norm else 1.0
    with torch.no_grad():
        for name, grad in grads.items():
            p, g = parameters[name], grad * scale
            m, v = moments.get(name, (torch.zeros_like(p), torch.zeros_like(p)))
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
            moments[name] = m, v
            if p.ndim >= 2:
                p.sub_(rate * optim.weight_decay * p)
            p.sub_(rate * (m / (1 - beta1**step)) / ((v / (1 - beta2**step)).sqrt() + optim.eps))
