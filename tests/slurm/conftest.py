"""What jobs on the cluster train on, and one that nothing interrupts.

Outside a cluster its tests are not there: `make test-slurm` starts one, or says why not.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ala_encoder.generated import generated_text
from tests.slurm.cluster import pretrain, python, run_of

collect_ignore_glob = [] if "SLURM_CONF" in os.environ else ["test_*.py"]

TOY: dict[str, Any] = {
    "variant": "toy",
    "seed": 7,
    "model": {
        "family": "encoder", "dim": 32, "num_layers": 2, "num_heads": 4, "ffn_dim": 64,
        "max_length": 32, "dropout": 0.1,
    },
    "encoder": {"layout": "full", "biases": [{"kind": "gated_distbias"}]},
    "optim": {"learning_rate": 3e-3, "warmup_steps": 3},
    "train": {
        "steps": 30, "batch_size": 64, "micro_batch_size": 1, "log_every": 1, "eval_every": 10,
        "save_every": 10,
    },
}  # fmt: skip


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    """A folder that all nodes see: a config, its tokenizer, its text and a small task.

    Nothing tells a library to stay offline: on these nodes there is nobody to reach.
    """
    folder = Path(os.environ["SLURMCI_DIR"]) / "home"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("HF_") or name == "ALA_OFFLINE"]:
        del os.environ[name]
    os.environ.update(OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu")
    documents = generated_text(1, 40)
    for name, part in (("train", documents[:36]), ("valid", documents[36:])):
        text = "\n\n".join("\n".join(document) for document in part)
        (folder / f"{name}.txt").write_text(f"{text}\n", encoding="utf-8")
        rows = [f"{document[0]}\t{number % 2}" for number, document in enumerate(part)]
        path = folder / "sst2" / ("train.tsv" if name == "train" else "dev.tsv")
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["sentence\tlabel", *rows]) + "\n", encoding="utf-8")
    source = {"kind": "files", **{n: [str(folder / f"{n}.txt")] for n in ("train", "valid")}}
    tracking = {"uri": f"sqlite:///{folder}/mlflow.db", "experiment": "toy"}
    toy = {
        **TOY,
        "output": str(folder / "runs"),
        "tokenizer": {
            "kind": "wordpiece", "path": str(folder / "tokenizer"), "vocab_size": 300,
        },
        "data": {"path": str(folder / "text"), "source": source, "length": 32},
        "tracking": tracking,
    }  # fmt: skip
    task = {
        "data": {"task": "sst2", "path": str(folder / "sst2"), "length": 32},
        "optim": {"learning_rate": 1e-3, "warmup_steps": 1},
        "train": {"epochs": 2, "batch_size": 16, "log_every": 1},
        "output": str(folder / "tuned"),
        "tracking": tracking,
    }
    (folder / "toy.yaml").write_text(json.dumps(toy))
    (folder / "task.yaml").write_text(json.dumps(task))
    python("pipelines.train_tokenizer", folder / "toy.yaml")
    python("pipelines.prepare_data", folder / "toy.yaml")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def unbroken(home: Path) -> Path:
    """The toy by srun on two nodes, from start to end; its first lines say where it is."""
    job = pretrain(home, "unbroken")
    job.wait()
    run, first = run_of(home, "unbroken"), job.said().splitlines()[:8]
    assert first[0].startswith("nodes node1 node2; ranks 2, 1 a node; port 2")
    assert f"run folder {run}, MLflow sqlite:///{home}/mlflow.db" in first
    assert "note: sqlite is for one machine; jobs of several nodes need a server" in job.said()
    return run
