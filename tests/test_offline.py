"""A job reaches nobody: all that it reads was prepared before, on a host that has a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ala_encoder import tracking
from tests.launched import nmt, small

ROOT = Path(__file__).resolve().parents[1]
REFUSING = """
import os, sys

def refuse(event, given):
    place = given[1] if event == "socket.connect" else given[0]
    host = place[0] if isinstance(place, tuple) else place
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        here = host in (None, "", "localhost", "127.0.0.1", "::1", os.uname().nodename)
        if not here and not (event == "socket.connect" and isinstance(place, (str, bytes))):
            with open(os.environ["REACHED"], "a") as file:
                print(event, place, file=file)
            raise OSError("no network: " + repr(place))

sys.addaudithook(refuse)
"""
"""As sitecustomize it is in every Python of a job, MLflow's process too; files are no hosts."""

LOOPBACK = """
import fcntl, os, socket, struct, sys
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
fcntl.ioctl(socket.socket(), SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""In a new network there is nothing but a loopback, and it is down."""


def config(path: Path, settings: dict[str, Any]) -> str:
    path.write_text(json.dumps(settings), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the login node makes: tokenizers, tokens, pairs and the rows of a task."""
    home = tmp_path_factory.mktemp("prepared")
    (home / "nmt").mkdir()
    nmt.tokenizer_of(nmt.settings(home / "nmt"))
    small.data(home)
    text = {"kind": "files", "train": [str(home / "text.txt")], "valid": [str(home / "valid.txt")]}
    (home / "valid.txt").write_text("\n".join(small.text()[:4]), encoding="utf-8")
    train = {"steps": 2, "batch_size": 15}
    config(home / "pretrain.yaml", {
        **small.SETTINGS, "train": train, "optim": {"warmup_steps": 1},
        "tokenizer": {"path": str(home / "tokenizer"), "vocab_size": 300},
        "data": {"path": str(home / "text"), "source": text, "length": 32},
    })  # fmt: skip
    (home / "sst2").mkdir()
    for split, lines in (("train", small.text()[:12]), ("dev", small.text()[12:24])):
        rows = [f"{line}\t{number % 2}" for number, line in enumerate(lines)]
        (home / "sst2" / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    config(home / "glue.yaml", {
        "init": "runs/small-mlm-7", "optim": {"warmup_steps": 1},
        "data": {"task": "sst2", "path": str(home / "sst2"), "length": 32},
        "train": {"epochs": 1, "batch_size": 6}, "tracking": {"enabled": False},
    })  # fmt: skip
    config(home / "nmt.yaml", nmt.plain_settings(home / "nmt", optim={"warmup_steps": 1}))
    for name in ("pretrain", "nmt"):
        words = [sys.executable, "-m", "pipelines.prepare_data", str(home / f"{name}.yaml")]
        done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    (home / "site").mkdir()
    (home / "site" / "sitecustomize.py").write_text(REFUSING)
    return home


def offline(home: Path, *words: str) -> None:
    """Run a pipeline where connections are refused, and as root without any network at all."""
    told = ("HF_", "TRANSFORMERS_", "ALA_OFFLINE", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(told)}
    environ |= {
        "PYTHONPATH": f"{home / 'site'}{os.pathsep}{ROOT}", "REACHED": str(home / "reached"),
        "OMP_NUM_THREADS": "1", "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db",
        "TORCH_EXTENSIONS_DIR": str(ROOT / ".cache" / "torch_extensions"),
    }  # fmt: skip
    alone = ["unshare", "-n", sys.executable, "-S", "-c", LOOPBACK]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], check=False).returncode:
        alone = []
    done = subprocess.run(
        [*alone, sys.executable, "-m", f"pipelines.{words[0]}", *words[1:]],
        cwd=home, env=environ, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    reached = home / "reached"
    assert not reached.exists(), reached.read_text()


@pytest.mark.launch
def test_training_fine_tuning_translation_and_scores_reach_nobody(prepared: Path) -> None:
    offline(prepared, "pretrain", "pretrain.yaml")
    offline(prepared, "finetune_glue", "glue.yaml")
    offline(prepared, "evaluate", "runs/small-sst2-1337")
    offline(prepared, "finetune_nmt", "nmt.yaml", f"output={prepared}/translated", "train.steps=2")
    (run,) = (prepared / "translated").glob("[!.]*")
    offline(prepared, "evaluate", str(run))
    assert tracking.history(run)


def test_the_checker_sees_a_library_that_reaches_out(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(REFUSING)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "REACHED": str(tmp_path / "reached")}
    code = "import urllib.request; urllib.request.urlopen('https://huggingface.co')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, check=False, stderr=subprocess.DEVNULL
    )
    assert done.returncode == 1
    assert "huggingface.co" in (tmp_path / "reached").read_text()
