"""What parity tests of all Hugging Face families share: shaken twins, strict loads, refusals."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ala_encoder import hub
from ala_encoder.errors import UserError

VOCAB = 19
REAL = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]])
RIGHT, LEFT = REAL, REAL.flip(1)
"""Segments of two rows, the second with two of padding."""


def shaken(module: Any, seed: int = 0) -> Any:
    """Give every parameter that is learned another value than its start; norms stay around 1."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        if parameter.requires_grad:
            noise = torch.randn(parameter.shape, generator=generator) * 0.3
            parameter.data = noise + (parameter.data == 1)
    return module.eval()


def some_ids(segments: Tensor, seed: int = 2) -> Tensor:
    """Return token ids, 0 at padding and nowhere else."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCAB, segments.shape, generator=generator) * (segments > 0)


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def assert_same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def assert_close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def assert_gradients(ours: Mapping[str, Tensor], theirs: Any) -> None:
    """Compare gradients, ours under their names already, with those of their model.

    They differ by 1e-5 of the largest at most. That of a key's bias is 0: no softmax sees it.
    """
    found = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    assert ours.keys() <= found.keys()
    for name, gradient in ours.items():
        largest = found[name].abs().max()
        assert (gradient - found[name]).abs().max() <= 1e-5 * max(1, largest), name
        assert largest > 1e-2 or name.endswith(("key.bias", "k_proj.bias")), name


def backward(logits: Tensor) -> None:
    """Take a gradient from outside that is another one for each number."""
    incoming = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4))
    (logits * incoming).sum().backward()


def written(folder: Path, config: Any, state: Mapping[str, Tensor], **changes: Any) -> Path:
    """Write a Hugging Face folder, with fields of its config.json changed; `...` takes one out."""
    config.save_pretrained(folder)
    path = folder / "config.json"
    fields = json.loads(path.read_text(encoding="utf-8")) | changes
    fields = {name: value for name, value in fields.items() if value is not ...}
    path.write_text(json.dumps(fields), encoding="utf-8")
    save_file(dict(state), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def read_strictly(cls: Any, folder: Path) -> Any:
    """Read a folder with their class; nothing may be missing or left over."""
    model, info = cls.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def saved(theirs: Any, folder: Path) -> dict[str, Tensor]:
    """Return the tensors of the file that their class writes."""
    theirs.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def assert_fields_known(config: Any, derived: str = "", harmless: str = "") -> None:
    """Assert that each field of a configuration is accounted for, and that none breaks the reader.

    derived: those that are read by the family's own functions; harmless: those that change nothing
    of what is computed from tokens. A field that a newer version of transformers adds is found.
    """
    known = hub.FAMILIES[config.model_type]
    read = {*known.theirs, known.attention_dropout}
    for theirs in known.fields.values():
        read |= {theirs} if isinstance(theirs, str) else set(theirs)
    fields = set(type(config).__annotations__)
    assert fields - read == {*derived.split(), *harmless.split()}
    written = json.loads(config.to_json_string())
    known.parse(written)
    for name in fields | read | {*known.keys, *config.attribute_map}:
        for value in (None, -1, 0, 10**30, 0.5, "x", [1], {"a": 1}, ...):
            given = written | {name: value}
            with contextlib.suppress(UserError):
                known.parse({key: given[key] for key in given if given[key] is not ...})
