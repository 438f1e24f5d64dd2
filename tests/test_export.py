"""Exports: read back they are the model, bit for bit; whatever does not fit is told by name."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ala_encoder import export, glue, ranks, runs
from ala_encoder.cards import Card
from ala_encoder.engine import Engine
from ala_encoder.errors import RunStopped, UserError
from ala_encoder.files import read_json, write_json
from ala_encoder.models import Classifier, MaskedLM
from ala_encoder.progress import Outcome, State
from ala_encoder.settings.experiment import PretrainRun
from ala_encoder.settings.exports import find_export
from ala_encoder.settings.task import TaskSettings
from ala_encoder.settings.tokenizer import WordPieceSettings
from ala_encoder.settings.train import split_batch
from ala_encoder.tokenizer import Tokenizer, train
from tests.launched import small

ROOT = Path(__file__).resolve().parents[1]
BANK = "encoder.stack.bank.projections"


def card_of(run: PretrainRun, tokenizer: Tokenizer, **changes: Any) -> Card:
    return Card(
        **{
            "kind": "masked_lm",
            "variant": run.variant,
            "seed": run.seed,
            "run_name": run.run_name,
            "vocab_size": tokenizer.vocab_size,
            "model": run.model,
            "encoder": run.encoder,
            "data": run.data,
            "data_name": "generated-text",
            "parameters": {"total": 1, "encoder_attention": 1, "qk_groups": 6},
            **changes,
        }
    )


@pytest.fixture
def folder(home: Path, tmp_path: Path) -> Path:
    """An export of the small model, untrained."""
    run = small.settings()
    tokenizer, _ = small.data(home)
    model = small.model(run, tokenizer.vocab_size)
    export.write(
        tmp_path / "run" / "export", card_of(run, tokenizer), tokenizer, model.state_dict()
    )
    return tmp_path / "run" / "export"


def inputs(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "input_ids": torch.randint(5, 300, (3, 11), generator=generator),
        "segments": torch.tensor([[1] * 11, [1] * 7 + [0] * 4, [1] * 2 + [0] * 9]),
        "targets": torch.tensor([0, 5, 12, 23]),
    }


# ---- round trips


@pytest.mark.usefixtures("started")
def test_r31_logits_of_a_trained_model_come_back_bitwise(home: Path, tmp_path: Path) -> None:
    run = small.settings(train={"steps": 4})
    job = small.loop(run, tmp_path / "run", home)
    outcome = small.fit(job)
    tokenizer, _ = small.data(home)
    open_run = runs.Run(tmp_path / "run", job.log)
    read = runs.write_export(open_run, job.engine, outcome, card_of(run, tokenizer), tokenizer)
    job.engine.eval()
    with torch.no_grad():
        assert torch.equal(read(**inputs()), job.engine.module(**inputs()))
    assert not read.training


@pytest.mark.usefixtures("started")
def test_the_best_weights_are_exported_when_there_are_some(home: Path, tmp_path: Path) -> None:
    run = small.settings(train={"steps": 4})
    job = small.loop(run, tmp_path / "run", home)
    small.fit(job)
    tokenizer, _ = small.data(home)
    best = {name: tensor + 1 for name, tensor in job.engine.full_state().items()}
    save_file(best, tmp_path / "best.safetensors")
    outcome = Outcome(State(), True, tmp_path / "best.safetensors")
    card = card_of(run, tokenizer)
    model = runs.write_export(
        runs.Run(tmp_path / "run", job.log), job.engine, outcome, card, tokenizer
    )
    assert all(torch.equal(tensor, best[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("labels", [(), ("a", "b"), ("a", "b", "c")])
def test_a_classifier_or_a_regression_comes_back_bitwise(
    labels: tuple[str, ...], home: Path, tmp_path: Path
) -> None:
    run = small.settings()
    tokenizer, _ = small.data(home)
    outputs = len(labels) or 1
    model = Classifier(run.model, run.encoder, tokenizer.vocab_size, outputs).eval()
    data = TaskSettings(task="stsb" if not labels else "mnli", path=Path("x"), length=32)
    card = card_of(run, tokenizer, kind="classifier", labels=labels, data=data)
    export.write(tmp_path / "export", card, tokenizer, model.state_dict())
    exported = export.read(tmp_path / "export")
    assert exported.card == card
    read = exported.build()
    given = {name: tensor for name, tensor in inputs().items() if name != "targets"}
    with torch.no_grad():
        assert read(**given).shape == (3, outputs)
        assert torch.equal(read(**given), model(**given))


def test_a_card_with_the_task_settings_of_before_is_read(folder: Path) -> None:
    before = {
        "task": "mrpc", "path": "data/MRPC", "cache": ".cache/quickstart", "length": 128,
        "on_bad_row": "error", "max_train_examples": 0,
    }  # fmt: skip
    card(lambda d: d.update(data=before, kind="classifier", labels=["no", "yes"]))(folder)
    data = export.read(folder).card.data
    assert data == TaskSettings(task="mrpc", path=Path("data/MRPC"))


def test_the_encoder_of_an_export_goes_into_a_classifier(folder: Path, home: Path) -> None:
    run, exported = small.settings(), export.read(folder)
    classifier = Classifier(run.model, run.encoder, exported.card.vocab_size, 2)
    exported.load_encoder(classifier.encoder)
    for name, tensor in classifier.encoder.state_dict().items():
        assert torch.equal(tensor, exported.state[f"encoder.{name}"])


def test_tied_projections_and_the_vocabulary_are_stored_once(folder: Path) -> None:
    """6 (W_q, W_k) serve 12 heads: #a over two layers, four of one head, #b of two."""
    state = load_file(folder / export.WEIGHTS)
    groups = [name for name in state if "q_proj.weight" in name]
    assert all(name.startswith(BANK) for name in groups)
    assert sum(state[name].shape[0] for name in groups) == 6 * 8
    assert sum("vocabulary" in name for name in state) == 1
    assert not any(
        tensor.shape == (300, 32) for name, tensor in state.items() if "vocab" not in name
    )
    model = export.read(folder).build()
    assert sorted(state) == sorted(dict(model.named_parameters()))
    assert sum(t.numel() for t in state.values()) == sum(p.numel() for p in model.parameters())


def test_an_export_is_read_without_deepspeed_and_mlflow(folder: Path) -> None:
    code = """
import sys
from pathlib import Path
from ala_encoder import export
read = export.read(Path(sys.argv[1]))
model = read.build()
assert len(read.tokenizer.encode("the river")) > 0
heavy = sorted({"deepspeed", "mlflow", "datasets", "evaluate"} & set(sys.modules))
assert not heavy, heavy
"""
    environment = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    subprocess.run(
        [sys.executable, "-c", code, folder], cwd=ROOT, env=environment, check=True, timeout=120
    )


def test_writing_again_replaces_and_leaves_nothing_else(folder: Path, home: Path) -> None:
    (folder / "stale.txt").write_text("of an earlier export")
    exported = export.read(folder)
    export.write(folder, exported.card, exported.tokenizer, exported.state)
    assert not (folder / "stale.txt").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["export"]
    assert {"export.json", "model.safetensors", "README.md"} < {p.name for p in folder.iterdir()}


def test_a_failed_write_leaves_the_earlier_export(folder: Path) -> None:
    exported = export.read(folder)
    bad: Any = {"encoder.norm.weight": "no tensor"}
    with pytest.raises(AttributeError):
        export.write(folder, exported.card, exported.tokenizer, bad)
    assert export.read(folder).card == exported.card
    assert [path.name for path in folder.parent.iterdir()] == ["export"]


def test_the_card_says_what_it_is_and_how_to_read_it(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    for part in ("small-mlm-7", "variant `small`", "post_softmax", "gated_distbias",
                 "generated-text", "export.read(folder).build()"):  # fmt: skip
        assert part in text


def test_the_card_names_the_heads_without_q_and_k(home: Path) -> None:
    tokenizer, _ = small.data(home)
    pre = {
        "mask_operator": "pre_softmax",
        "biases": [],
        "heads": [["prev1", "band1", "full", "identity"], ["full"] * 4, ["full"] * 4],
    }
    text = export.readme(card_of(small.settings(encoder=pre), tokenizer))
    line = "2 in encoder: encoder layer 0 head 0 prev1, encoder layer 0 head 3 identity"
    assert f"- heads without Q and K (counted from 0): {line}\n" in text
    assert "without Q and K" not in export.readme(card_of(small.settings(), tokenizer))


# ---- finding


def test_a_run_folder_stands_for_its_export(folder: Path) -> None:
    assert find_export(folder) == find_export(folder.parent) == folder


def test_a_folder_without_export_is_told_with_the_nearest(folder: Path) -> None:
    with pytest.raises(UserError, match=r"no export there.*did you mean 'run'\?"):
        find_export(folder.parent.parent / "runn")


# ---- what does not fit


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        state = load_file(folder / export.WEIGHTS)
        change(state)
        save_file(state, folder / export.WEIGHTS)

    return apply


def card(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        data = read_json(folder / "export.json")
        change(data)
        write_json(folder / "export.json", data)

    return apply


def other_tokenizer(folder: Path) -> None:
    wanted = WordPieceSettings(path=folder.parent / "other", vocab_size=200)
    train(wanted, small.text()).save(wanted.path)
    for path in (folder.parent / "other").iterdir():
        shutil.copy(path, folder)


def no_tokenizer(folder: Path) -> None:
    for path in [*folder.glob("*token*"), *folder.glob("vocab.txt")]:
        path.unlink()


def cut(folder: Path) -> None:
    path = folder / export.WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])


def garbage(folder: Path) -> None:
    (folder / export.WEIGHTS).write_bytes((2**63).to_bytes(8, "little") + b"{}")


MISFITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (
        weights(lambda s: [s.pop("head.output_bias"), s.pop("encoder.norm.bias")]),
        "missing ['encoder.norm.bias', 'head.output_bias'], unknown nothing",
    ),
    "extra": (
        weights(lambda s: s.update(extra=torch.zeros(2))),
        "missing nothing, unknown ['extra']",
    ),
    "renamed": (
        weights(lambda s: s.update(beta=s.pop("encoder.norm.bias"))),
        "missing ['encoder.norm.bias'], unknown ['beta']",
    ),
    "misshapen": (
        weights(lambda s: s.update({"encoder.norm.bias": torch.zeros(31)})),
        "encoder.norm.bias is (31,), not (32,)",
    ),
    "another model": (
        card(lambda d: d["model"].update(num_layers=2)),
        "heads",
    ),
    "tokenizer": (other_tokenizer, "the tokenizer has 200 pieces, the model 300"),
    "no tokenizer": (no_tokenizer, "no tokenizer.json and no vocab.txt"),
    "cut weights": (cut, "model.safetensors: cannot read the weights"),
    "garbage weights": (garbage, "model.safetensors: cannot read the weights"),
    "no weights": (lambda f: (f / export.WEIGHTS).unlink(), "cannot read the weights"),
    "foreign key": (card(lambda d: d.update(architectures=["Bert"])), "architectures"),
    "near key": (card(lambda d: d.update(varient="x")), "did you mean 'variant'?"),
    "missing key": (card(lambda d: d.pop("vocab_size")), "vocab_size"),
    "another format": (card(lambda d: d.update(format=2)), "format"),
    "text for a number": (card(lambda d: d.update(vocab_size="300")), "vocab_size"),
    "a list": (lambda f: (f / "export.json").write_text("[]"), "holds a list, not an object"),
    "no JSON": (lambda f: (f / "export.json").write_text("{"), "not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_f25_what_does_not_fit_is_one_line_that_names_it(name: str, folder: Path) -> None:
    spoil, told = MISFITS[name]
    spoil(folder)
    with pytest.raises(UserError) as caught:
        export.read(folder.parent).build()
    text = str(caught.value)
    assert told in text
    assert str(folder) in text or name == "another model"
    assert "\n" not in text


@pytest.mark.parametrize(
    ("labels", "name", "told"),
    [
        (("no", "yes"), "sst2", "the classes negative, positive; small-mlm-7 .* classes no, yes"),
        (("positive", "negative"), "sst2", "classes negative, positive; .* positive, negative"),
        (("entailment", "not_entailment"), "mnli", "classes entailment, neutral, contradiction;"),
        (("no", "yes"), "stsb", "one number and no classes; .* classes no, yes"),
        ((), "rte", "classes entailment, not_entailment; .* on one number and no classes"),
    ],
)
def test_a07_a_classifier_of_other_classes_is_refused(
    labels: tuple[str, ...], name: str, told: str, folder: Path
) -> None:
    found = export.read(folder).card.model_copy(update={"labels": labels})
    with pytest.raises(UserError, match=f"task {name}: has .*{told}"):
        export.check_task(found, glue.TASKS[name])


@pytest.mark.parametrize(
    ("trained", "asked"), [("sst2", "sst2"), ("stsb", "stsb"), ("mnli", "ax"), ("rte", "qnli")]
)
def test_a_classifier_scores_a_task_of_the_same_classes(
    trained: str, asked: str, folder: Path
) -> None:
    labels = glue.TASKS[trained].labels
    found = export.read(folder).card.model_copy(update={"labels": labels})
    export.check_task(found, glue.TASKS[asked])


# ---- an export that is not the trained model


@pytest.fixture
def engine(started: None, home: Path) -> Engine:
    run = small.settings()
    tokenizer, _ = small.data(home)
    return Engine(
        MaskedLM(run.model, run.encoder, tokenizer.vocab_size), run, split_batch(run.train, 1)
    )


@pytest.mark.parametrize(
    ("score", "trained", "passes"),
    [
        (5.25, 5.25, True),
        (5.2501, 5.25, True),
        (5.3, 5.25, False),
        (0.5, 0.502, False),
        (0.5, 0.5005, True),
        (math.nan, 0.5, False),
        (None, 0.5, True),
        (0.5, None, True),
    ],
)
def test_an_export_that_scores_otherwise_stops_the_run(
    score: float | None, trained: float | None, passes: bool, engine: Engine
) -> None:
    if passes:
        runs.check_export(score, trained, engine)
        return
    with pytest.raises(RunStopped, match="the export scores"):
        runs.check_export(score, trained, engine)


def test_finish_puts_scores_into_card_readme_and_log(folder: Path, tmp_path: Path) -> None:
    from ala_encoder.tracking import EVENTS, RunInfo, RunLog

    run_folder = folder.parent
    exported = export.read(folder)
    params = {"variant": "small", "seed": 7, "task": "mlm"}
    assert ranks.is_main()
    with RunLog(run_folder, RunInfo("small-mlm-7", "test", params), uri=None, enabled=False) as log:
        runs.finish(runs.Run(run_folder, log), exported.card, {"eval_loss": 5.5, "eval_f1": None})
    assert export.read(folder).card.scores == {"eval_loss": 5.5, "eval_f1": None}
    assert "| eval_loss | 5.5 |" in (folder / "README.md").read_text(encoding="utf-8")
    events = [json.loads(line) for line in (run_folder / EVENTS).read_text().splitlines()]
    assert [e["values"] for e in events if e["event"] == "summary"] == [{"eval_loss": 5.5}]
