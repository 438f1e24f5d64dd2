"""Real launchers, real processes, a real MLflow store: four starts on two ranks in all.

1. every ZeRO stage, resume, offload and a poisoned gradient (tests/launched/zero.py);
2. to 4. the demo's path, tiny: pretraining under the deepspeed launcher, interrupted; resumed under
torch.distributed.run; fine-tuning under the deepspeed launcher. Plain processes do the rest.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch.nn import functional

from ala_encoder import causal_lm, evaluation, records
from ala_encoder.batches import Plan, Position
from ala_encoder.errors import UserError
from ala_encoder.files import read_json
from ala_encoder.optim import learning_rate
from ala_encoder.settings.experiment import PretrainRun
from ala_encoder.settings.loader import load
from tests import referee
from tests.launched import causal, small

pytestmark = [
    pytest.mark.launch,
    pytest.mark.filterwarnings("ignore:The ``noload`` loader:DeprecationWarning"),
]

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "configs" / "demo"
DEEPSPEED = [str(Path(sys.executable).with_name("deepspeed")), "--num_gpus", "2", "--quiet"]
TORCH = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]


def environment(**more: str) -> dict[str, str]:
    """Return what a user's shell would hand on, with the extension built once a checkout."""
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "TORCH_EXTENSIONS_DIR": str(ROOT / ".cache" / "torch_extensions"),
        "ALA_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def execute(
    command: Sequence[object], folder: Path, wanted: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command in `folder`; its output is shown when it ends otherwise than wanted."""
    words = list(map(str, command))
    env = environment(MLFLOW_TRACKING_URI=f"sqlite:///{folder}/mlflow.db")
    done = subprocess.run(
        words, cwd=folder, env=env, check=False, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == wanted, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done


def deepspeed(module: str, *words: object) -> list[object]:
    return [*DEEPSPEED, "--master_port", free_port(), "--module", module, *words]


def torchrun(module: str, *words: object) -> list[object]:
    return [*TORCH, "--master_port", free_port(), "-m", module, *words]


def plain(pipeline: str, *words: object) -> list[object]:
    return [sys.executable, "-m", f"pipelines.{pipeline}", *words]


# ---- 1: ZeRO


@pytest.fixture(scope="module")
def zero(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("zero")
    command = deepspeed("tests.launched.zero", folder)
    subprocess.run(list(map(str, command)), cwd=ROOT, env=environment(), check=True, timeout=500)
    return folder, read_json(folder / "zero.json")


def as_list(found: dict[str, float]) -> list[float]:
    return [found[str(step)] for step in range(1, 21)]


@pytest.mark.parametrize("stage", "0123")
def test_r24_every_zero_stage_on_two_ranks_equals_one_process_and_a_hand_written_loop(
    stage: str, zero: tuple[Path, dict[str, Any]], started: None, tmp_path: Path
) -> None:
    folder, found = zero
    assert found["world_size"] == 2
    run = small.settings()
    small.fit(small.loop(run, tmp_path, folder))
    losses = as_list(found["stages"][stage]["losses"])
    assert losses == pytest.approx(list(small.losses(tmp_path).values()), rel=1e-6)
    rates = [learning_rate(step, run.optim, 20) for step in range(1, 21)]
    assert losses == pytest.approx(referee.train(run, folder, rates)[0], rel=1e-6)


@pytest.mark.parametrize("stage", "0123")
def test_a_stop_and_a_resume_are_bitwise_at_every_zero_stage(
    stage: str, zero: tuple[Path, dict[str, Any]]
) -> None:
    found = zero[1]["stages"][stage]
    assert len(found["losses"]) == 20
    assert found["resumed"] == found["losses"]
    assert found["same_weights"]


def test_zero_3_holds_nothing_of_bank_and_vocabulary_between_steps(
    zero: tuple[Path, dict[str, Any]],
) -> None:
    for stage, found in zero[1]["stages"].items():
        for rank in found["held"]:
            assert len(rank) == 2
            assert all((numel == 0) == (stage == "3") for numel in rank.values())


@pytest.mark.parametrize("stage", "0123")
def test_f04_every_name_is_in_the_full_state_once(
    stage: str, zero: tuple[Path, dict[str, Any]]
) -> None:
    model = small.model(small.settings(), 300)
    expected = {name: list(p.shape) for name, p in model.named_parameters()}
    assert zero[1]["stages"][stage]["shapes"] == expected
    assert zero[1]["stages"][stage]["names"] == sorted(expected)


def test_e15_offload_and_recomputed_activations_change_no_loss(
    zero: tuple[Path, dict[str, Any]],
) -> None:
    found = zero[1]
    expected = as_list(found["stages"]["0"]["losses"])
    assert as_list(found["offloaded"]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("stage", "tied"), [(0, True), (3, True), (3, False)])
def test_the_chunked_loss_trains_as_all_logits_would_and_scores_the_same_on_two_ranks(
    stage: int, tied: bool, zero: tuple[Path, dict[str, Any]], started: None, tmp_path: Path
) -> None:
    folder, whole = zero
    found = whole[f"causal{stage}{tied}"]
    run = causal.settings(model={"tied_embeddings": tied})
    tokenizer, tokens = small.data(folder)
    windows = causal_lm.blocks(tokens[small.VALIDATION :], run.data.length, "train")
    model = causal.model(run, tokenizer.vocab_size)
    losses, moments = [], {}
    walk = Plan(run.seed, len(windows), run.train.batch_size).walk(Position())
    for step, (_, ids) in zip(range(1, 7), walk, strict=False):
        model.zero_grad()
        inputs = windows.collate(ids, 0)
        logits = model(inputs["input_ids"]).flatten(0, 1)
        loss = functional.cross_entropy(logits, inputs["labels"].flatten())
        loss.backward()
        losses.append(loss.item())
        referee.adamw(model, run, step, learning_rate(step, run.optim, 6), moments)
    assert list(found["losses"].values()) == pytest.approx(losses, rel=1e-6)
    for rank in found["held"]:
        assert len(rank) == 1 + (not tied)
        assert all((numel == 0) == (stage == 3) for numel in rank.values())
    alone = causal.scores(evaluation.plain(model.eval()), run, folder)
    assert alone.keys() == found["scores"].keys()
    assert {"eval_top5", "eval_gate", "alpha/0/0", "gate/1/3"} < alone.keys()
    assert found["scores"] == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("stage", "0123")
def test_d14_a_nan_on_rank_1_stops_all_ranks_in_its_step_and_changes_no_weight(
    stage: str, zero: tuple[Path, dict[str, Any]]
) -> None:
    found = zero[1]["poisoned"][f"stop{stage}"]
    assert found["steps"] == [4, 4]
    assert found["same_weights"]
    for ended in found["ended"]:
        assert ended.startswith("step 5: the gradient is not finite; no weight was changed.")
        assert "Loss not finite on ranks [1]" in ended
        assert "examples of the batch: " in ended


@pytest.mark.parametrize("stage", "02")
def test_the_skip_policy_goes_on_without_the_batch(
    stage: str, zero: tuple[Path, dict[str, Any]]
) -> None:
    found = zero[1]["poisoned"][f"skip{stage}"]
    assert found["ended"] == ["finished at 20, skipped 1"] * 2
    assert found["same_weights"]


def test_f01_a_run_of_two_ranks_is_not_resumed_on_one(
    zero: tuple[Path, dict[str, Any]], started: None, tmp_path: Path
) -> None:
    shutil.copytree(zero[0] / "parts0", tmp_path / "parts0")
    with pytest.raises(UserError, match="saved by 2 ranks, this run has 1"):
        small.fit(small.loop(small.settings(), tmp_path / "parts0", zero[0]))


# ---- 2 to 4 and plain processes: the demo's path


@dataclass
class Work:
    """A folder in which all pipelines have run, and what they printed."""

    folder: Path
    out: dict[str, str] = field(default_factory=dict)
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def run(self, name: str, command: Sequence[object]) -> None:
        self.out[name] = execute(command, self.folder).stdout

    def losses(self, name: str) -> dict[int, float]:
        return small.losses(self.folder / "runs" / name)


PRETRAIN = [
    DEMO / "band6_tied.yaml",
    "model.dim=32",
    "model.ffn_dim=64",
    "model.dropout=0.0",
    "tokenizer.vocab_size=400",
    "data.length=32",
    "data.source.cache=cache",
    "optim.warmup_steps=2",
    "train.steps=12",
    "train.batch_size=7",
    "train.micro_batch_size=2",
    "train.eval_every=0",
    "train.save_every=4",
    "train.log_every=1",
]
"""A batch of 7 in micro-batches of 2: uneven on two ranks and on one."""
TASK = [
    DEMO / "finetune.yaml",
    "data.cache=cache",
    "data.max_train_examples=60",
    "data.length=32",
    "optim.warmup_steps=2",
    "train.epochs=2",
    "train.batch_size=16",
    "train.log_every=1",
]
ZERO1 = ["engine.zero_stage=1", "--deepspeed_config", "deepspeed.json"]
TIED, TUNED = "band6_tied-mlm-1337", "band6_tied-sst2-1337"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Run everything a user would: text to tokens, training, fine-tuning, scores, comparison."""
    made = Work(tmp_path_factory.mktemp("work"))
    runs = made.folder / "runs"
    (made.folder / "deepspeed.json").write_text(
        '{"zero_optimization": {"reduce_bucket_size": 5000}}'
    )
    made.run("tokenizer", plain("train_tokenizer", *PRETRAIN))
    made.run("prepare", plain("prepare_data", *PRETRAIN))
    made.run("first", deepspeed("pipelines.pretrain", *PRETRAIN, *ZERO1, "train.stop_after=10"))
    made.events["first"] = events(runs / TIED)
    # as if it had been killed after step 10, before that save: steps 9 and 10 are made twice
    shutil.rmtree(runs / TIED / "checkpoints" / "step_0000010")
    made.run("second", torchrun("pipelines.pretrain", *PRETRAIN, *ZERO1))
    tune = deepspeed("pipelines.finetune_glue", *TASK, f"init=runs/{TIED}")
    alone = plain("pretrain", *PRETRAIN, "name=alone", "tracking.enabled=false")
    made.run("tuned", tune)
    made.run("alone", alone)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(made.run, *zip(*{
            "tuned alone": plain(
                "finetune_glue", *TASK, "init=runs/alone", "name=tuned-alone", "seed=2"
            ),
            "masked": plain("evaluate", f"runs/{TIED}", "--json"),
        }.items(), strict=True)))  # fmt: skip
        list(pool.map(made.run, *zip(*{
            "classifier": plain("evaluate", f"runs/{TUNED}/export", "split=test", "--json"),
            "track": plain("track", "runs/alone"),
        }.items(), strict=True)))  # fmt: skip
        list(pool.map(made.run, *zip(*{
            "compare folders": plain("compare", "runs/*", "output=folders"),
            "compare mlflow": plain("compare", "tracking.experiment=demo", "output=store"),
        }.items(), strict=True)))  # fmt: skip
    return made


def events(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_tokenizer_and_tokens_are_made_and_described(work: Work) -> None:
    assert "400 pieces" in work.out["tokenizer"]
    assert "train: " in work.out["prepare"]
    assert read_json(work.folder / "data/demo/wikipedia/manifest.json")["name"] == "generated-text"


def test_an_interrupted_run_says_so_and_has_no_export_yet(work: Work) -> None:
    first = work.events["first"]
    assert [event["status"] for event in first if event["event"] == "end"] == ["KILLED"]
    assert max(event["step"] for event in first if event["event"] == "metrics") == 10


def test_both_launchers_and_one_process_give_the_same_losses(work: Work) -> None:
    first = {
        event["step"]: event["values"]["loss"]
        for event in work.events["first"]
        if event["event"] == "metrics" and "loss" in event["values"]
    }
    second = {
        event["step"]: event["values"]["loss"]
        for event in events(work.folder / "runs" / TIED)[len(work.events["first"]) :]
        if event["event"] == "metrics" and "loss" in event["values"]
    }
    assert list(first) == list(range(1, 11))
    assert list(second) == list(range(9, 13))
    for step in (9, 10):  # made by deepspeed's launcher, and again by torch.distributed.run
        assert second[step] == pytest.approx(first[step], rel=1e-6)
    alone = work.losses("alone")
    assert {**first, **second} == pytest.approx(alone, rel=1e-5)
    assert len(alone) == 12


def test_a_run_folder_holds_what_the_run_was(work: Work) -> None:
    folder = work.folder / "runs" / TIED
    settings = load(folder / "settings.yaml", [], PretrainRun)
    assert (settings.train.batch_size, settings.engine.zero_stage) == (7, 1)
    assert settings.deepspeed == {"zero_optimization": {"reduce_bucket_size": 5000}}
    assert read_json(folder / "environment.json")["world_size"] == 2
    config = read_json(folder / "deepspeed.json")
    assert config["zero_optimization"] == {"reduce_bucket_size": 5000, "stage": 1}
    assert config["gradient_clipping"] == 1.0
    assert (folder / "loss.png").stat().st_size > 1000
    card = read_json(folder / "export" / "export.json")
    assert card["kind"] == "masked_lm"
    assert card["data_name"] == "generated-text"
    assert card["scores"]["eval_loss"] > 0
    assert card["scores"]["eval_unigram_loss"] > 0


def test_mlflow_has_every_run_finished_and_linked(work: Work) -> None:
    rows = store(work)
    assert set(rows) == {TIED, TUNED, "alone", "tuned-alone"}  # resumed is one run, not two
    assert {row["status"] for row in rows.values()} == {"FINISHED"}
    assert rows[TUNED]["tags.pretrained_run_id"] == rows[TIED]["run_id"]
    assert rows[TUNED]["tags.pretrained_run"] == TIED
    assert rows["tuned-alone"]["tags.pretrained_run"] == "alone"
    ids = {name: read_json(work.folder / "runs" / name / "export" / "export.json")["mlflow_run_id"]
           for name in (TIED, TUNED)}  # fmt: skip
    assert ids == {name: rows[name]["run_id"] for name in ids}


def test_a_comparison_can_be_made_from_mlflow_search_runs_alone(work: Work) -> None:
    rows = store(work)
    for name, row in rows.items():
        summary, _ = records.read_folder(work.folder / "runs" / name)
        assert row["params.variant"] == "band6_tied"
        assert row["params.seed"] == ("2" if name == "tuned-alone" else "1337")
        assert row["params.model_family"] == "encoder"
        assert row["params.task"] == ("mlm" if name in (TIED, "alone") else "sst2")
        for part in ("encoder_attention", "qk_groups", "total"):
            assert int(row[f"params.params/{part}"]) == summary.parameters[part]
        scored = [key for key in summary.scores if key.startswith(("eval_", "test_"))]
        assert len(scored) >= 2
        for metric in scored:
            assert row[f"metrics.{metric}"] == pytest.approx(summary.scores[metric], rel=1e-12)
    assert rows[TIED]["params.params/qk_groups"] == "5"
    assert rows[TUNED]["metrics.eval_accuracy"] >= 0


def test_mlflow_has_curves_artifacts_and_the_data(work: Work) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{work.folder}/mlflow.db")
    for name, row in store(work).items():
        run_id = row["run_id"]
        artifacts = {item.path for item in client.list_artifacts(run_id)}
        assert {"settings.yaml", "environment.json", "deepspeed.json", "plots"} <= artifacts
        assert [item.path for item in client.list_artifacts(run_id, "plots")] == ["plots/loss.png"]
        steps = [point.step for point in client.get_metric_history(run_id, "loss")]
        logged = work.losses(name)
        assert sorted(set(steps)) == sorted(logged)
        found = client.get_run(run_id).inputs
        assert found is not None
        inputs = found.dataset_inputs
        named = {item.dataset.name for item in inputs}
        contexts = {tag.value for item in inputs for tag in item.tags}
        if name in (TIED, "alone"):
            assert named == {"generated-text"}
            assert contexts == {"training", "evaluation"}
        else:
            assert named == {"generated-sentiment (first 60 of train)"}
            assert contexts == {"training", "evaluation", "test"}


def store(work: Work) -> dict[str, dict[str, Any]]:
    """Return MLflow's own table of runs by name."""
    import mlflow

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{work.folder}/mlflow.db")
        frame = mlflow.search_runs(experiment_names=["demo"])
    return {row["tags.mlflow.runName"]: row for row in frame.to_dict("records")}


def test_predictions_and_scores_of_the_classifier_are_written(work: Work) -> None:
    folder = work.folder / "runs" / TUNED
    assert read_json(folder / "export" / "export.json")["labels"] == ["negative", "positive"]
    for split, prefix, name in (("dev", "eval", "SST-2-dev"), ("test", "test", "SST-2")):
        found = read_json(folder / "eval" / f"{split}.json")
        scores = found["scores"]
        lines = (folder / "eval" / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
        assert len(lines) - 1 == scores[f"{prefix}_examples"]


def test_evaluate_gives_again_what_the_run_said(work: Work) -> None:
    masked = json.loads(work.out["masked"].splitlines()[-1])
    card = read_json(work.folder / "runs" / TIED / "export" / "export.json")
    assert masked["split"] == "valid"
    assert masked["scores"]["eval_loss"] == pytest.approx(card["scores"]["eval_loss"], rel=1e-6)
    classifier = json.loads(work.out["classifier"].splitlines()[-1])
    said = read_json(work.folder / "runs" / TUNED / "export" / "export.json")["scores"]
    assert classifier["scores"]["test_accuracy"] == said["test_accuracy"]
    assert classifier["data"] == "generated-sentiment (first 60 of train)"


def test_compare_reads_the_same_from_folders_and_from_mlflow(work: Work) -> None:
    reports = {}
    for name in ("folders", "store"):
        text = (work.folder / name / "report.md").read_text(encoding="utf-8")
        assert "band6_tied" in text
        assert "generated" in text
        assert (work.folder / name / "scores.png").stat().st_size > 1000
        lines = (work.folder / name / "report.csv").read_text(encoding="utf-8").splitlines()
        reports[name] = {
            (row["run"], row["metric"]): float(row["value"])
            for row in csv.DictReader(lines)
            if row["final"] == "true"
        }
        assert work.out[f"compare {'mlflow' if name == 'store' else name}"].startswith(
            "# Comparison"
        )
    assert reports["folders"].keys() == reports["store"].keys()
    assert reports["store"] == pytest.approx(reports["folders"], rel=1e-12)


def test_track_sends_a_run_that_mlflow_had_not_seen(work: Work) -> None:
    assert "events sent to MLflow" in work.out["track"]
    again = execute(plain("track", "runs/alone"), work.folder)
    assert "MLflow has everything" in again.stdout


def test_a_finished_run_refuses_other_settings_with_exit_code_2(work: Work) -> None:
    done = execute(
        plain("pretrain", *PRETRAIN, "name=alone", "optim.learning_rate=0.1"), work.folder, 2
    )
    assert "is finished with optim.learning_rate = 0.002, now 0.1" in done.stderr
    assert "Traceback" not in done.stderr
