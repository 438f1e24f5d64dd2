"""Shipped variants of attention beyond the layouts: each trains, on tiny data and a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ala_encoder import command, export, runs
from ala_encoder.settings.experiment import Preparation, PretrainRun
from ala_encoder.settings.loader import load
from ala_encoder.settings.translation import TranslationRun
from pipelines import finetune_nmt, pretrain, train_tokenizer
from tests.launched import nmt, small
from tests.strings import ROOT

pytestmark = pytest.mark.usefixtures("started")
CONFIGS = ROOT / "configs"


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process group is the test session's: a run must not end it."""
    monkeypatch.setattr(runs.engines, "stop", lambda: None)


def words(sections: dict[str, Any]) -> list[str]:
    return [f"{name}={json.dumps(value)}" for name, value in sections.items()]


def translated(name: str, home: Path) -> export.TranslationExport:
    """Train a config on the dozen pairs for three steps and read its export."""
    plain = nmt.plain_settings(home)
    path = CONFIGS / "nmt_small" / f"{name}.yaml"
    full = load(path, [], TranslationRun).model
    changes = {key: plain[key] for key in ("output", "data", "tokenizer", "search", "tracking")}
    changes["model"] = {**full.model_dump(mode="json", exclude_none=True), "dim": 32, "ffn_dim": 64}
    changes["optim"] = {**plain["optim"], "warmup_steps": 1}
    changes["train"] = {"steps": 3, "batch_tokens": 180, "max_length": 60, "log_every": 1,
                        "greedy_bleu": False}  # fmt: skip
    nmt.tokenizer_of(nmt.settings(home))
    argv = [str(path), *words(changes)]
    assert command.run(finetune_nmt.main, TranslationRun, "", argv=argv) == 0
    folder = home / "runs" / f"{name}-en-de-1337"
    assert len(small.losses(folder)) == 3
    return export.read_translation(folder)


@pytest.mark.parametrize("name", ["cross_distbias", "cross_distbias_learned"])
def test_a_distance_bias_of_cross_attention_trains_with_its_ratio(
    name: str, tmp_path: Path
) -> None:
    found = translated(name, tmp_path)
    assert found.card.cross.ratio == 0.9452
    state = found.state
    slopes = [F.softplus(t) for key, t in state.items() if "cross_attention.biases" in key]
    assert len(slopes) == 2  # decoder layers
    start = torch.full((8,), 0.01)
    assert all(not torch.allclose(alpha, start, rtol=1e-4) for alpha in slopes)
    ratios = [float(tensor) for key, tensor in state.items() if key.endswith("ratio")]
    learns = name.endswith("learned")
    assert len(ratios) == 2 * learns
    assert all(ratio != pytest.approx(0.9452, abs=1e-6) for ratio in ratios)
    source, target = torch.randint(8, 300, (1, 9)), torch.randint(8, 300, (1, 7))
    assert torch.isfinite(found.build()(source, target)).all()


def test_a_window_bias_trains_and_lets_no_token_see_beyond_it(tmp_path: Path) -> None:
    lines = {"train": small.text()[:60], "valid": small.text()[60:80]}
    for split, given in lines.items():
        (tmp_path / f"{split}.txt").write_text("\n\n".join(given), encoding="utf-8")
    path = CONFIGS / "small" / "window.yaml"
    model = load(path, [], PretrainRun).model.model_dump(mode="json")
    changes: dict[str, Any] = {
        "output": str(tmp_path / "runs"),
        "model": {**model, "dim": 24, "ffn_dim": 48},
        "tokenizer": {"path": str(tmp_path / "tokenizer"), "vocab_size": 200},
        "data": {
            "path": str(tmp_path / "tokens"),
            "length": 128,
            "source": {"kind": "files", **{s: [str(tmp_path / f"{s}.txt")] for s in lines}},
        },
        "optim": {"learning_rate": 3e-3},
        "train": {"steps": 3, "batch_size": 4, "log_every": 1},
        "tracking": {"enabled": False},
    }
    argv = [str(path), *words(changes)]
    assert command.run(train_tokenizer.main, Preparation, "", json_flag=True, argv=argv) == 0
    assert command.run(pretrain.main, PretrainRun, "", argv=argv) == 0
    folder = tmp_path / "runs" / "window-mlm-1337"
    assert len(small.losses(folder)) == 3
    stack: Any = export.read(folder).build().encoder.stack
    x = torch.randn(1, 80, 24, requires_grad=True)
    (reached,) = torch.autograd.grad(stack(x, None)[0, 40].sum(), x)
    seen = reached[0].abs().sum(-1).nonzero().flatten().tolist()
    assert seen == list(range(40 - 4 * 7, 40 + 4 * 7 + 1))  # four layers of seven on either side
