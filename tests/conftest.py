"""What tests of the engine share: one started process, a home with a tokenizer, one thread."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.launched import small


@pytest.fixture(scope="session")
def _distributed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start torch.distributed and DeepSpeed in this process, once: DeepSpeed keeps its groups."""
    from ala_encoder import engine as engines

    given = dict(os.environ)
    engines.start(tmp_path_factory.mktemp("cache"))
    with warnings.catch_warnings():  # of torch's own modules, which DeepSpeed's optimizers load
        warnings.simplefilter("ignore")
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCH_EXTENSIONS_DIR"):
        os.environ.pop(name, None)  # other tests and their subprocesses start from a clean slate
        if name in given:
            os.environ[name] = given[name]


@pytest.fixture
def started(_distributed: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a test make engines, with one thread: small tensors, and the same sums everywhere."""
    monkeypatch.setenv("LOCAL_RANK", "0")  # DeepSpeed asks for it
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the small run's tokenizer."""
    folder = tmp_path_factory.mktemp("home")
    small.data(folder)
    return folder
