"""Translation on two ranks under the deepspeed launcher: one start (tests/launched/nmt.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from ala_encoder.files import read_json
from tests.launched import nmt, small
from tests.test_launch import ROOT, deepspeed, environment

pytestmark = [
    pytest.mark.launch,
    pytest.mark.filterwarnings("ignore:The ``noload`` loader:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("nmt")
    command = deepspeed("tests.launched.nmt", folder)
    subprocess.run(list(map(str, command)), cwd=ROOT, env=environment(), check=True, timeout=400)
    return read_json(folder / "nmt.json")


@pytest.mark.parametrize("stage", "02")
def test_r04_batches_of_tokens_give_the_same_losses_on_two_ranks_as_on_one(
    stage: str, found: dict[str, Any], started: None, tmp_path: Path
) -> None:
    assert found["world_size"] == 2
    job = nmt.loop(nmt.settings(tmp_path), tmp_path / "alone")
    small.fit(job)
    assert job.split.accumulation == 5  # on two ranks 3, of which one piece stays empty
    for name in ("loss", "eval_loss"):
        alone = {str(k): v for k, v in small.metrics(tmp_path / "alone", name).items()}
        assert found[stage][name] == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("stage", "02")
def test_an_interrupted_run_is_the_unbroken_one_bitwise_its_mean_too(
    stage: str, found: dict[str, Any]
) -> None:
    there = found[stage]
    assert len(there["loss"]) == 12
    assert there["resumed"] == there["loss"]
    assert there["same"]
    assert there["averaged"] == [["step_0000008", "step_0000012"]] * 2
    assert there["same_mean"]


def test_a_model_learns_its_pairs_by_heart(found: dict[str, Any]) -> None:
    assert found["by_heart"] >= 95


def test_no_shared_memory_stays_behind(found: dict[str, Any]) -> None:
    assert found["left"] == []
