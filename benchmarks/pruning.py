"""Pruning of far keys (ours): what it saves on a whole trained model, and what it changes.

    python -m benchmarks.pruning [--text FILE] [--lengths 1024,4096] [--variants alibi] [--json]

Causal language models of 1.2 million parameters on bytes, 6 layers, 8 heads of 16, without other
positions, are trained on 512 bytes at a time and then read the last part of the text, which they
were not trained on. Without a file the text is generated from a small grammar, far easier than any
real one. Weights are kept in --folder, so that a second run trains nothing.

ratio: time from bytes to loss to that of the same model without pruning, below 1 is faster.
computed: part of the query-key pairs. weight, error_bound: what a row's attention weights lost and
a head's output changed at most, of all layers and heads; error: what its output did change against
`dense` on the same inputs, layer by layer. logits, loss: changes of the whole model's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from ala_encoder.attention import Attention
from ala_encoder.generated import generated_text
from ala_encoder.kernels import Pruning, watch_pruning
from ala_encoder.models import CausalLM
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import CausalModel
from benchmarks import harness

VARIANTS: dict[str, dict[str, Any]] = {
    "gated_distbias": {"kind": "gated_distbias", "alpha_init": 0.1},
    "alibi": {"kind": "alibi"},
}
PRUNE = (1e-2, 1e-3, 1e-4, 1e-6)
MODEL = CausalModel(
    family="causal", dim=128, num_layers=6, num_heads=8, ffn_dim=512, positions="none", dropout=0.0
)
_BYTES = 256
_LENGTH, _BATCH, _RATE = 512, 8, 3e-3
_HELD_OUT = 0.05
"""Part of the text that no model is trained on."""


def read_text(path: Path | None) -> Tensor:
    """Return the bytes of a file, or of generated text: int [N]."""
    if path is not None:
        text = path.read_bytes()
    else:
        documents = generated_text(seed=1337, num_documents=3000)
        text = "\n\n".join("\n".join(paragraphs) for paragraphs in documents).encode("utf-8")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def build(variant: str, prune: float | None = None) -> CausalLM:
    """Return an untrained model."""
    settings = {"biases": [VARIANTS[variant]], "prune": prune}
    return CausalLM(MODEL, AttentionSettings.model_validate(settings), _BYTES)


def trained(variant: str, text: Tensor, steps: int, folder: Path) -> dict[str, Tensor]:
    """Return the weights of a trained model, out of `folder` if it was trained before."""
    about = json.dumps([VARIANTS[variant], MODEL.model_dump(), steps, _LENGTH, _BATCH, _RATE])
    digest = hashlib.sha256(about.encode("utf-8") + text.to(torch.uint8).numpy().tobytes())
    path = folder / f"{variant}-{digest.hexdigest()[:12]}.safetensors"
    if not path.exists():
        torch.manual_seed(1337)
        model = build(variant)
        _train(model, text, steps, variant)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(model.state_dict(), path)
    return load_file(path)


def _train(model: CausalLM, text: Tensor, steps: int, name: str) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(1, steps + 1):
        decay = 0.55 + 0.45 * math.cos(math.pi * step / steps)  # to a tenth
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1.0, step / 50) * decay
        starts = torch.randint(0, len(text) - _LENGTH, (_BATCH, 1))
        rows = text[starts + torch.arange(_LENGTH + 1)]
        loss = _loss(model(rows[:, :-1]), rows)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == steps:
            print(f"{name}: step {step} of {steps}, loss {loss.item():.3f}", file=sys.stderr)


def _loss(logits: Tensor, rows: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def evaluate(model: CausalLM, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and loss of rows [B, T + 1]."""
    with torch.no_grad():
        logits = model(rows[:, :-1])
        return logits, _loss(logits, rows)


def changes(model: CausalLM, rows: Tensor) -> list[float]:
    """Return by how much each layer's outputs of a head differ from `dense` at most, as a norm.

    Both are computed on the inputs that the layer has in the pruned model.
    """
    found = []

    def compare(layer: Attention, given: Any, options: dict[str, Any], _: Any) -> None:
        if options.get("need_weights"):
            return
        near, exact = (_heads(layer, given, {**options, "need_weights": w}) for w in (False, True))
        found.append(float((near - exact).norm(dim=-1).max()))

    layers = [part for part in model.modules() if isinstance(part, Attention)]
    handles = [layer.register_forward_hook(compare, with_kwargs=True) for layer in layers]
    evaluate(model, rows)
    for handle in handles:
        handle.remove()
    return found


def _heads(layer: Attention, given: Any, options: dict[str, Any]) -> Tensor:
    """Return the mixed values of a layer's heads: [B, T, H, d]."""
    seen: list[Tensor] = []
    handle = layer.out_proj.register_forward_pre_hook(lambda _, mixed: seen.append(mixed[0]))
    layer.forward(*given, **options)
    handle.remove()
    return seen[0].unflatten(-1, (-1, layer.head_dim))  # type: ignore[no-untyped-call,no-any-return]


def records(
    variants: Sequence[str],
    lengths: Sequence[int],
    prune: Sequence[float],
    text: Tensor,
    weights: Callable[[str], dict[str, Tensor]],
    rounds: int,
) -> Iterator[dict[str, Any]]:
    """Measure every variant, length and `prune`; the first of each length is not pruned."""
    held_out = text[-int(_HELD_OUT * len(text)) :]
    for variant in variants:
        models: dict[float | None, CausalLM] = {}
        for one in (None, *prune):
            models[one] = build(variant, one).eval()
            models[one].load_state_dict(weights(variant))
        for length in lengths:
            rows = held_out[None, : length + 1]
            runs = {one: partial(evaluate, model, rows) for one, model in models.items()}
            times = harness.interleaved(runs, rounds=rounds)
            logits, loss = runs[None]()
            for one, model in models.items():
                with watch_pruning() as attentions:
                    own_logits, own_loss = runs[one]()
                total = Pruning.together(attentions)
                ratio, least, largest = times[one].ratio_to(times[None])
                yield {
                    "variant": variant,
                    "length": length,
                    "prune": one,
                    "seconds": times[one].seconds,
                    "ratio": ratio,
                    "ratio_least": least,
                    "ratio_largest": largest,
                    "computed": total.fraction,
                    "weight": total.weight,
                    "error_bound": total.error,
                    "error": max(changes(model, rows)),
                    "logits": float((own_logits - logits).abs().max()),
                    "loss": float(own_loss),
                    "loss_change": float(own_loss - loss),
                }


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or with --json a list of records; a mistake is one line and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    parser = harness.Parser(__doc__)
    names, sizes = (harness.several(x) for x in (harness.one_of(VARIANTS), harness.whole(2**20)))
    parser.add_argument("--text", type=Path, help="a text to train on and to read; else generated")
    parser.add_argument("--lengths", type=sizes, default="1024,2048,4096", help="bytes")
    parser.add_argument("--variants", type=names, default=",".join(VARIANTS), help="names")
    parser.add_argument("--prune", type=harness.several(_part), default=",".join(map(str, PRUNE)))
    parser.add_argument("--steps", type=harness.whole(2**20), default=400)
    parser.add_argument("--folder", type=Path, default=Path("runs/pruning"), help="of the weights")
    parser.add_argument("--rounds", type=harness.whole(1000), default=harness.ROUNDS)
    parser.add_argument("--json", action="store_true", help="print records for programs")
    parser.add_argument("--into", type=harness.report, help="file whose results are replaced")
    given = parser.read(argv)
    try:
        text = read_text(given.text)
    except OSError as error:
        parser.error(f"--text: {given.text}: {error.strerror}")
    held_out = int(_HELD_OUT * len(text))
    if max(given.lengths) >= held_out:
        parser.error(f"--lengths: {max(given.lengths)}: the held-out text has {held_out} bytes")
    weights = {
        name: trained(name, text[:-held_out], given.steps, given.folder) for name in given.variants
    }
    found = list(
        records(given.variants, given.lengths, given.prune, text, weights.__getitem__, given.rounds)
    )
    heading = harness.heading("benchmarks.pruning", argv)
    table = harness.table(list(_COLUMNS), [[show(r) for show in _COLUMNS.values()] for r in found])
    harness.tell(f"{heading}\n\n{table}", heading, found, given)
    return 0


def _part(text: str) -> float:
    try:
        part = float(text)
    except ValueError:
        part = math.nan
    if not 0.0 < part < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed are numbers between 0 and 1")
    return part


_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "variant": lambda r: str(r["variant"]),
    "length": lambda r: str(r["length"]),
    "prune": lambda r: "-" if r["prune"] is None else f"{r['prune']:g}",
    "ms": lambda r: f"{1e3 * r['seconds']:.0f}",
    "ratio": lambda r: f"{r['ratio']:.2f}",
    "(least, largest)": lambda r: f"({r['ratio_least']:.2f}, {r['ratio_largest']:.2f})",
    "computed": lambda r: f"{r['computed']:.3f}",
    "weight": lambda r: f"{r['weight']:.1e}",
    "error bound": lambda r: f"{r['error_bound']:.1e}",
    "error": lambda r: f"{r['error']:.1e}",
    "logits": lambda r: f"{r['logits']:.1e}",
    "loss": lambda r: f"{r['loss']:.4f}",
    "loss change": lambda r: f"{r['loss_change']:.1e}",
}


if __name__ == "__main__":
    sys.exit(main())
