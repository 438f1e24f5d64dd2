"""What a task's splits score and leave behind; ids A.. are the public bug reports they answer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ala_encoder import cards, export, finetuning, glue
from ala_encoder.engine import Engine
from ala_encoder.errors import UserError
from ala_encoder.evaluation import plain
from ala_encoder.finetuning import TaskData
from ala_encoder.glue import TASKS
from ala_encoder.goal import Goal
from ala_encoder.models import Classifier
from ala_encoder.settings.experiment import FinetuneRun
from ala_encoder.settings.task import TaskSettings
from ala_encoder.settings.train import split_batch
from ala_encoder.splits import locate
from ala_encoder.tracking import RunInfo, RunLog
from ala_encoder.training import fit
from tests.launched import small

HEADER = "index\tsentence1\tsentence2\t"
NLI = ("entailment", "neutral", "contradiction")


def rows(
    header: str, labels: list[str], texts: list[str] | None = None, second: str = "a town"
) -> str:
    texts = texts or ["the river"] * len(labels)
    lines = [f"{n}\t{text}\t{second}\t{label}" for n, (text, label) in
             enumerate(zip(texts, labels, strict=True))]  # fmt: skip
    return "\n".join([HEADER + header, *lines]) + "\n"


def read(folder: Path, home: Path, name: str, files: Mapping[str, str], /, **more: Any) -> TaskData:
    """Write a task's files and read those splits."""
    for split, text in files.items():
        (folder / f"{split}.tsv").write_text(text)
    tokenizer, _ = small.data(home)
    data = TaskSettings(task=name, path=folder, length=16, **more)
    return finetuning.read(locate(TASKS[name], data), data, tokenizer, tuple(files))


def always(*outputs: float) -> Any:
    """A model that gives every row the same outputs."""

    def forward(inputs: Mapping[str, Tensor]) -> Tensor:
        return torch.tensor([outputs] * len(inputs["input_ids"]))

    return forward


def saved(folder: Path, split: str) -> dict[str, Any]:
    """Read SPLIT.json as strictly as JSON is defined."""

    def refuse(word: str) -> float:
        raise AssertionError(word)

    text = (folder / f"{split}.json").read_text()
    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


# ---- scores and what is written ------------------------------------------------------------------


def test_a05_matched_and_mismatched_keep_their_own_scores(tmp_path: Path, home: Path) -> None:
    matched = ["neutral"] * 4 + ["entailment"]
    mismatched = ["neutral"] * 3 + ["contradiction"] * 2
    data = read(tmp_path, home, "mnli", {
        "dev_matched": rows("gold_label", matched),
        "dev_mismatched": rows("gold_label", mismatched),
    })  # fmt: skip
    scores: dict[str, float | None] = {}
    for split in data.splits("dev"):
        scores |= data.scores(always(0.0, 1.0, 0.0), split, 2, tmp_path / "eval")
    assert scores["eval_matched_accuracy"] == 0.8
    assert scores["eval_mismatched_accuracy"] == 0.6
    assert set(scores) == {
        f"eval_{part}_{name}"
        for part in ("matched", "mismatched")
        for name in ("accuracy", "loss", "examples")
    }
    assert saved(tmp_path / "eval", "dev_matched")["scores"]["eval_matched_accuracy"] == 0.8
    lines = (tmp_path / "eval" / "MNLI-mm-dev.tsv").read_text().splitlines()
    assert lines == ["index\tprediction", *(f"{n}\tneutral" for n in range(5))]


@pytest.mark.parametrize("name", ["rte", "stsb"])
def test_a04_an_unlabelled_test_split_is_predicted_and_its_metric_refused(
    name: str, tmp_path: Path, home: Path
) -> None:
    column = "score" if name == "stsb" else "label"
    data = read(tmp_path, home, name, {"test": rows(column, ["-1", "-1", "-1"])})
    outputs = (7.25,) if name == "stsb" else (0.0, 1.0)
    scores = data.scores(always(*outputs), "test", 2, tmp_path / "eval")
    metrics = data.task.metrics
    assert scores == {**{f"test_{metric}": None for metric in metrics}, "test_examples": 3.0}
    reasons = saved(tmp_path / "eval", "test")["undefined"]
    assert all("no labels" in reasons[f"test_{metric}"] for metric in metrics)
    server, spelled = ("STS-B.tsv", "5.000") if name == "stsb" else ("RTE.tsv", "not_entailment")
    lines = (tmp_path / "eval" / server).read_text().splitlines()
    assert lines == ["index\tprediction", *(f"{n}\t{spelled}" for n in range(3))]


def test_a08_the_loss_of_scores_is_the_mean_squared_error(tmp_path: Path, home: Path) -> None:
    wanted = [0.0, 1.5, 5.0, 4.0, 2.0]
    data = read(tmp_path, home, "stsb", {"dev": rows("score", [str(value) for value in wanted])})
    scores = data.scores(always(2.0), "dev", 2)
    by_hand = sum((2.0 - value) ** 2 for value in wanted) / len(wanted)
    assert scores["eval_loss"] == pytest.approx(by_hand, rel=1e-12)
    alone = read(tmp_path, home, "stsb", {"dev": rows("score", ["2.0", "2.0"])})
    assert alone.scores(always(2.0), "dev", 2)["eval_loss"] == 0.0
    with pytest.raises(AssertionError):
        data.scores(always(2.0, 2.0), "dev", 2)  # two outputs are no score


def test_a09_constant_scores_have_no_correlation_and_are_valid_json(
    tmp_path: Path, home: Path
) -> None:
    data = read(tmp_path, home, "stsb", {"dev": rows("score", ["0", "1", "2", "3", "4"])})
    for outputs in (2.5, math.nan):
        scores = data.scores(always(outputs), "dev", 2, tmp_path / "eval")
        assert scores["eval_pearson"] is None
        assert scores["eval_spearmanr"] is None
        found = saved(tmp_path / "eval", "dev")
        assert {"eval_pearson", "eval_spearmanr"} <= set(found["undefined"])


def test_a11_one_class_everywhere_is_zero_with_a_note(tmp_path: Path, home: Path) -> None:
    text = "".join(f"x\t{label}\t\tthe river\n" for label in (1, 0, 1, 1))
    data = read(tmp_path, home, "cola", {"dev": text})
    scores = data.scores(always(0.0, 1.0), "dev", 3, tmp_path / "eval")
    assert scores["eval_matthews_correlation"] == 0.0
    note = saved(tmp_path / "eval", "dev")["notes"]["eval_matthews_correlation"]
    assert "all 4 predictions are of class 1" in note


@pytest.mark.parametrize(("name", "undefined"), [("mrpc", "f1"), ("stsb", "pearson spearmanr")])
def test_a12_a_dev_set_of_one_example_is_scored_as_far_as_it_goes(
    name: str, undefined: str, tmp_path: Path, home: Path
) -> None:
    header = "score" if name == "stsb" else "label"
    data = read(tmp_path, home, name, {"dev": rows(header, ["0"])})
    outputs = (1.0,) if name == "stsb" else (1.0, 0.0)
    scores = data.scores(always(*outputs), "dev", 4, tmp_path / "eval")
    missing = {key for key, value in scores.items() if value is None}
    assert missing == {f"eval_{metric}" for metric in undefined.split()}
    assert set(saved(tmp_path / "eval", "dev")["undefined"]) == missing


# ---- reading -------------------------------------------------------------------------------------


def test_all_splits_that_are_there_are_read_and_the_first_dev_split_must_be(
    tmp_path: Path, home: Path
) -> None:
    for split in ("train", "dev_matched", "test_mismatched"):
        text = rows("gold_label", ["neutral", "entailment"], second=split)
        (tmp_path / f"{split}.tsv").write_text(text)
    tokenizer, _ = small.data(home)
    settings = TaskSettings(task="mnli", path=tmp_path, max_train_examples=1)
    data = finetuning.read(locate(TASKS["mnli"], settings), settings, tokenizer)
    assert list(data.parts) == ["train", "dev_matched", "test_mismatched"]
    assert (len(data.train), len(data.parts["dev_matched"])) == (1, 2)
    (tmp_path / "dev_matched.tsv").rename(tmp_path / "dev_mismatched.tsv")
    with pytest.raises(UserError, match="split 'dev_matched' of mnli: not found in"):
        finetuning.read(locate(TASKS["mnli"], settings), settings, tokenizer)


def test_rows_that_are_trained_on_and_scored_are_refused(tmp_path: Path, home: Path) -> None:
    (tmp_path / "dev.tsv").write_text(rows("label", ["entailment"] * 4, ["a", "b", "c", "d"]))
    tokenizer, _ = small.data(home)
    for files, good in (({"train": "dev.tsv"}, False),
                        ({"train": "dev.tsv[:2]", "dev": "dev.tsv[2:]"}, True)):  # fmt: skip
        settings = TaskSettings(task="rte", path=tmp_path, files=files)
        if good:
            data = finetuning.read(locate(TASKS["rte"], settings), settings, tokenizer)
            assert (data.train.ids, data.parts["dev"].ids) == ([0, 1], [2, 3])
            continue
        with pytest.raises(UserError, match="train and dev share rows"):
            finetuning.read(locate(TASKS["rte"], settings), settings, tokenizer)


def test_rows_whose_texts_are_trained_on_are_counted_and_a_split_of_them_refused(
    tmp_path: Path, home: Path
) -> None:
    def two(train: list[str], dev: list[str], second: str = "a town") -> TaskData:
        labels = ["entailment"] * 3
        files = {"train": rows("label", labels, train), "dev": rows("label", labels, dev, second)}
        return read(tmp_path, home, "rte", files)

    assert two(["a", "b", "c"], ["c", "x", "a"]).notes == ["dev: 2 of 3 rows also occur in train"]
    assert two(["a", "b", "c"], ["c", "x", "a"], second="another").notes == []
    with pytest.raises(UserError, match=r"split dev: the texts of all 3 rows of .* occur in train"):
        two(["a", "b", "c"], ["c", "a", "a"])


def test_rows_of_an_earlier_training_are_refused_to_be_scored(tmp_path: Path, home: Path) -> None:
    text = rows("label", ["entailment"] * 6, list("abcdef"))
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.tsv").write_text(text)
    task = TASKS["rte"]

    def check(own: TaskSettings, split: str = "dev", **files: str) -> None:
        data = TaskSettings(task="rte", path=tmp_path / ".", files=files or None)
        finetuning.check_unseen(own, data, locate(task, data), (split,))

    own = TaskSettings(task="rte", path=tmp_path, files={"train": "dev.tsv[:4]"})
    wanted = r"rows \[0:4\] of .*dev.tsv; give it others, as in files=\{dev: 'dev.tsv\[4:\]'\}"
    for files in ({}, {"dev": "dev.tsv[3:]"}):
        with pytest.raises(UserError, match=wanted):
            check(own, **files)
    check(own, dev="dev.tsv[4:]")
    check(own, split="train", train="dev.tsv")
    check(own, split="test")
    some = own.model_copy(update={"max_train_examples": 2})
    check(some, dev="dev.tsv[2:]")
    with pytest.raises(UserError, match=r"trained on rows \[0:2\]"):
        check(some, dev="dev.tsv[1:]")
    check(own.model_copy(update={"path": tmp_path / "gone"}))


def test_a_slice_past_the_end_of_its_file_is_noted(tmp_path: Path, home: Path) -> None:
    text = rows("label", ["entailment", "x", "entailment"])
    files = {"dev": "dev.tsv[1:99]"}
    data = read(tmp_path, home, "rte", {"dev": text}, files=files, on_bad_row="skip")
    assert f"{tmp_path / 'dev.tsv'}: has 3 rows, so [1:99] gives 2" in data.notes
    whole = read(tmp_path, home, "rte", {"dev": text}, files={"dev": "dev.tsv[2:3]"})
    assert whole.notes == []


def test_the_first_rows_of_train_are_part_of_the_data_s_name(tmp_path: Path, home: Path) -> None:
    files = {"train": rows("label", ["entailment"] * 3)}
    assert read(tmp_path, home, "rte", files).name == tmp_path.name
    some = read(tmp_path, home, "rte", files, max_train_examples=2)
    assert some.name == f"{tmp_path.name} (first 2 of train)"


def test_the_digest_of_a_run_changes_with_every_split(tmp_path: Path, home: Path) -> None:
    files = {
        split: rows("label", ["entailment"], second=split) for split in ("train", "dev", "test")
    }
    found = {read(tmp_path, home, "rte", files).digest}
    for split in files:
        changed = {**files, split: files[split].replace("entailment", "not_entailment")}
        found.add(read(tmp_path, home, "rte", changed).digest)
    assert len(found) == 4
    assert read(tmp_path, home, "rte", files).digest in found


def test_a_row_without_finite_logits_leaves_no_score_and_is_spelled_nan(
    tmp_path: Path, home: Path
) -> None:
    data = read(tmp_path, home, "rte", {"dev": rows("label", ["entailment"] * 2)})
    scores = data.scores(always(math.nan, 0.0), "dev", 2, tmp_path / "eval")
    assert scores == {"eval_accuracy": None, "eval_loss": None, "eval_examples": 2.0}
    reasons = saved(tmp_path / "eval", "dev")["undefined"]
    assert reasons["eval_accuracy"] == "2 of 2 rows have logits that are not finite"
    lines = (tmp_path / "eval" / "RTE-dev.tsv").read_text().splitlines()
    assert lines == ["index\tprediction", "0\tnan", "1\tnan"]


def test_cut_inputs_and_skipped_rows_are_noted(tmp_path: Path, home: Path) -> None:
    text = rows("label", ["entailment", "x"], ["the river " * 20, "a"])
    data = read(tmp_path, home, "rte", {"dev": text}, on_bad_row="skip")
    assert any("1 bad rows were skipped" in note for note in data.notes)
    assert "dev: 1 inputs cut to 16 tokens" in data.notes


def test_positions_that_the_pretraining_never_saw_are_noted(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, (tokenizer, _) = small.settings(), small.data(home)
    longest = run.model.max_length
    state = small.model(run, tokenizer.vocab_size).state_dict()
    assert run.data.length <= longest
    card = cards.Card(
        kind="masked_lm", variant="small", seed=1, run_name="x", vocab_size=tokenizer.vocab_size,
        model=run.model, encoder=run.encoder, data_name="x", parameters={"total": 1,
        "encoder_attention": 1, "qk_groups": 6},
        data=run.data.model_copy(update={"length": longest - 1}),
    )  # fmt: skip
    export.write(tmp_path / "export", card, tokenizer, state)
    for length, told in ((longest - 1, False), (longest, True)):
        task = TaskSettings(task="rte", path=tmp_path, length=length)
        finetuning.start_from(FinetuneRun(init=tmp_path, data=task, train=run.train))
        captured = capsys.readouterr()
        note = f"pretrained on {longest - 1} tokens, positions from {longest - 1} on are untrained"
        assert (note in captured.out + captured.err) == told


# ---- training ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("name", ["stsb", "mnli"])
def test_a_task_trains_and_the_steering_scores_choose_the_weights(
    name: str, tmp_path: Path, home: Path
) -> None:
    draw = np.random.default_rng(0)
    texts = ["the river " * int(n) for n in draw.integers(1, 5, 24)]
    kinds = [text.count("river") - 1 for text in texts]
    labels = [str(kind) if name == "stsb" else NLI[min(kind, 2)] for kind in kinds]
    text = rows("score" if name == "stsb" else "gold_label", labels, texts)
    task = TASKS[name]
    steering = task.splits_of("dev")[0]
    held_out = text.replace("a town", "a city")
    data = read(tmp_path, home, name, {"train": text, steering: held_out})
    run = small.settings(train={"steps": 6, "eval_every": 2})
    torch.manual_seed(run.seed)
    tokenizer, _ = small.data(home)
    model = Classifier(run.model, run.encoder, tokenizer.vocab_size, task.num_outputs)
    split = split_batch(run.train, 1)
    engine = Engine(model, run, split)
    prefix = glue.prefix_of(steering)
    best, loss = f"{prefix}_{task.best_metric}", f"{prefix}_loss"
    goal = Goal(
        examples=data.train,
        evaluate=lambda forward: data.scores(forward, steering, 8),
        identity={},
        best_metric=best,
        best_loss=loss,
    )
    with RunLog(tmp_path / "run", RunInfo("x", "test", {}), uri=None, enabled=False) as log:
        outcome = fit(engine, goal, run, split, tmp_path / "run", log)
    assert outcome.best_weights is not None
    history = small.metrics(tmp_path / "run", loss)
    assert history[6] < history[0]
    assert outcome.state.best_loss == history[outcome.state.best_step or 0]
    scored = small.metrics(tmp_path / "run", best)
    assert outcome.state.best_score == max(value for step, value in scored.items() if step)
    engine.eval()
    again = data.scores(plain(engine.module), steering, 5)
    assert again[loss] == pytest.approx(history[6], rel=1e-5)
