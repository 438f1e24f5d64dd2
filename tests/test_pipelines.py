"""Every config that is shipped, every command that is documented, and what a mistake looks like."""

from __future__ import annotations

import ast
import importlib
import json
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from ala_encoder import cards, command, export
from ala_encoder.errors import UserError
from ala_encoder.glue import TASKS
from ala_encoder.models import Classifier
from ala_encoder.settings.compare import CompareRun
from ala_encoder.settings.corpus import NamedText
from ala_encoder.settings.evaluate import EvaluateRun
from ala_encoder.settings.experiment import (
    FinetuneRun,
    PretrainRun,
)
from ala_encoder.settings.loader import dump, load
from ala_encoder.settings.suite import SuiteRun
from ala_encoder.settings.task import TaskSettings
from pipelines.__main__ import main as ala
from pipelines.__main__ import names
from pipelines.evaluate import _folder, _resolved
from tests.launched import small
from tests.test_parameters import ENCODER_ATTENTION

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
SHIPPED = sorted(
    str(path.relative_to(CONFIGS))
    for path in CONFIGS.rglob("*.yaml")
    if path.parent.name != "common"
)
FINETUNED = [name for name in SHIPPED if name.startswith("glue/") or name == "demo/finetune.yaml"]
SCRATCH = ["small/sst2_scratch.yaml"]
COMPARED = ["small/compare_glue.yaml"]
SUITES = ["small/suite_clm.yaml", "small/suite_length.yaml"]
TRANSLATION = [name for name in SHIPPED if name.startswith(("nmt/", "nmt_small/"))]
TRANSLATION += ["demo/a3.yaml", "demo/l3.yaml"]
CAUSAL = [
    name
    for name in SHIPPED
    if name.startswith(("wt103/", "extrapolation/", "small/clm", "small/length"))
]
OTHERS = {*FINETUNED, *SCRATCH, *COMPARED, *SUITES, *TRANSLATION}
PRETRAINED = [name for name in SHIPPED if name not in OTHERS]

ATTENTION = {
    # Transformer-base, Q+K+V+O without biases: Pande et al., derived from their rows
    **{
        f"nmt/wmt14_en_{trg}_{row}.yaml": parameters
        for row, parameters in ENCODER_ATTENTION.items()
        for trg in ("de", "ru")
        if len(row) == 1
    },
    # BERT-base with biases
    **{f"bert/base{row}.yaml": 28_348_416 for row in ("", "_band2", "_band6")},
    "bert/base_band6_tied144.yaml": 14_272_640,
    "bert/base_band6_tied132.yaml": 15_453_824,
    "bert/base_band6_tied120.yaml": 16_635_008,
}
TOTAL = {
    # Adaptive Locality Attention: these round to the stated 51.20M, 51.20M and 51.23M
    "wt103/baseline.yaml": 51_197_440,
    "wt103/distbias.yaml": 51_197_504,
    "wt103/gated_distbias.yaml": 51_230_336,
    "wt103/1b.yaml": 1_010_280_448,  # as its plan of memory says
    # Chi et al.: stated
    "extrapolation/sinusoidal.yaml": 162_322_944,
}


@pytest.fixture
def invoke(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a pipeline as `python -m` does: (exit code, stdout, stderr)."""

    def run(name: str, *words: object) -> tuple[int, str, str]:
        module = f"pipelines.{name}"
        monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.setattr(sys, "argv", [module, *map(str, words)])
        monkeypatch.setattr(command, "leave", sys.exit)  # which would leave pytest as well
        with pytest.raises(SystemExit) as end:
            runpy.run_module(module, run_name="__main__", alter_sys=False)
        assert isinstance(end.value.code, int)
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return run


# ---- the shipped configs


def test_every_config_is_of_a_known_kind() -> None:
    assert len(SHIPPED) == len(PRETRAINED) + len(OTHERS) and set(SHIPPED) >= OTHERS
    kinds = {"bert", "demo", "small", "wt103", "extrapolation"}
    assert {name.split("/")[0] for name in PRETRAINED} == kinds
    assert {"demo/full.yaml", "demo/band6_tied.yaml", "demo/gated_distbias.yaml",
            "small/books.yaml"} < set(PRETRAINED)  # fmt: skip
    # twelve layouts each of EN-DE, EN-RU and the small version, which has two biases besides; demo
    assert len(TRANSLATION) == 41
    assert {*ATTENTION, *TOTAL} <= set(SHIPPED)


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_pretraining_config_loads(name: str, tmp_path: Path) -> None:
    settings = load(CONFIGS / name, [], PretrainRun)
    assert settings.run_name == f"{settings.variant}-{settings.objective}-1337"
    dump(settings, tmp_path / "settings.yaml")
    assert load(tmp_path / "settings.yaml", [], PretrainRun) == settings


SWEEPS = [
    (name, line)
    for name in SHIPPED
    for line in re.findall(
        r"^#   (variant=.+)$", (CONFIGS / name).read_text(encoding="utf-8"), re.MULTILINE
    )
]
"""Further rows of a paper, which a config's comment gives as overrides."""


def test_the_rows_that_the_sources_name_are_there() -> None:
    rows = {shlex.split(line)[0].partition("=")[2] for _, line in SWEEPS}
    rows |= {Path(name).stem for name in CAUSAL}
    assert {f"alibi_shift{shift}" for shift in (-3, 2, 4, 6, 8)} <= rows
    assert {f"alibi_equal{h}" for h in range(9)} <= rows
    assert {"window", *(f"window{w}" for w in (80, 100, 120, 160, 320))} <= rows
    assert {"sandwich64", "sandwich", "sandwich256", "sinusoidal", "learned", "rotary"} <= rows
    assert {"alibi", "kerple_log", "kerple_power", "t5", "distbias", "gated_distbias"} <= rows
    assert {"window160_1024", "alibi_shift6_2048"} <= rows
    assert {Path(name).stem for name in CAUSAL} >= {"length", "length_window", "length_sandwich"}


@pytest.mark.parametrize(("name", "line"), SWEEPS)
def test_a_row_that_is_given_as_overrides_loads(name: str, line: str) -> None:
    words = shlex.split(line)
    plain = load(CONFIGS / name, [], PretrainRun)
    settings = load(CONFIGS / name, words, PretrainRun)
    assert settings.variant == words[0].partition("=")[2] != plain.variant
    differ = {
        key for key in PretrainRun.model_fields if getattr(settings, key) != getattr(plain, key)
    }
    assert differ in ({"variant", "decoder"}, {"variant", "decoder", "model"})


@pytest.mark.parametrize("data", ["arxiv", "github"])
def test_the_other_data_of_extrapolation_are_given_as_overrides(data: str) -> None:
    text = (CONFIGS / "common" / "extrapolation.yaml").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^#   (data\.path=\S+/{data} .*)$", text, re.MULTILINE)
    settings = load(CONFIGS / "extrapolation" / "alibi.yaml", shlex.split(line), PretrainRun)
    assert isinstance(settings.data.source, NamedText)
    assert (settings.data.source.config or "").lower() == data


@pytest.mark.parametrize("name", FINETUNED)
def test_a_finetuning_config_wants_an_export_and_nothing_else(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give `init`"):
        load(CONFIGS / name, ["data.path=GLUE"], FinetuneRun)
    given = ["init=runs/full-mlm-1337", "data.path=GLUE"]
    settings = load(CONFIGS / name, given, FinetuneRun)
    assert settings.init == Path("runs/full-mlm-1337")
    dump(settings, tmp_path / "settings.yaml")
    assert load(tmp_path / "settings.yaml", [], FinetuneRun) == settings


@pytest.mark.parametrize("name", COMPARED)
def test_a_comparison_loads_and_says_where_its_floors_come_from(name: str, tmp_path: Path) -> None:
    settings = load(CONFIGS / name, [], CompareRun)
    assert settings.floors and settings.floors_source
    dump(settings, tmp_path / "settings.yaml")
    assert load(tmp_path / "settings.yaml", [], CompareRun) == settings


@pytest.mark.parametrize(("name", "number", "variants"), [(SUITES[0], 9, 3), (SUITES[1], 10, 10)])
def test_a_suite_s_trainings_load_and_differ_by_variant_and_seed(
    name: str, number: int, variants: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    settings = load(CONFIGS / name, [], SuiteRun)
    cells = [load(cell.config, cell.overrides, PretrainRun) for cell in settings.cells]
    assert len(cells) == number == len({(cell.variant, cell.seed) for cell in cells})
    assert len({cell.variant for cell in cells}) == variants
    assert settings.baseline in {None, *(cell.variant for cell in cells)}
    assert len({(cell.data, cell.tokenizer, cell.train) for cell in cells}) == 1


@pytest.mark.parametrize("name", SCRATCH)
def test_a_config_without_pretraining_loads_as_it_is(name: str) -> None:
    settings = load(CONFIGS / name, [], FinetuneRun)
    assert settings.init is None
    assert settings.model is not None


@pytest.mark.parametrize("name", [*TRANSLATION, *PRETRAINED, *SCRATCH])
def test_params_counts_a_config_and_states_the_sources_numbers(
    name: str, invoke: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = invoke("params", CONFIGS / name, "--json")
    assert (code, err) == (0, "")
    counts = json.loads(out)
    part = "decoder_attention" if name in CAUSAL else "encoder_attention"
    assert counts["total"] > counts[part] > 0
    assert counts["total"] == TOTAL.get(name, counts["total"])
    if name in ATTENTION:
        assert counts["encoder_attention"] == ATTENTION[name]
    if name.startswith("bert/"):
        apart = counts["encoder_with_pooler"] - counts["encoder_attention"]
        assert apart == 109_482_240 - 28_348_416
    _, text, _ = invoke("params", CONFIGS / name)
    assert f"{counts[part]:,}" in text


def test_params_names_the_heads_that_have_no_q_and_k(
    invoke: Callable[..., tuple[int, str, str]],
) -> None:
    layout_k = CONFIGS / "nmt_small" / "k.yaml"
    code, out, _ = invoke("params", layout_k, "encoder.mask_operator=pre_softmax", "--json")
    assert code == 0
    names = json.loads(out)["heads_without_qk"]
    single = {0: "prev1", 1: "prev2", 2: "next1", 3: "next2", 6: "identity", 7: "identity"}
    assert names == {
        "encoder": [
            f"encoder layer {layer} head {head} {mask}#tied"
            for layer in range(3)
            for head, mask in single.items()
        ],
        "decoder": [],
        "cross": [],
    }
    _, text, _ = invoke("params", layout_k, "encoder.mask_operator=pre_softmax")
    lines = text.splitlines()
    start = lines.index("encoder: 18 of 48 heads have no Q and K (counted from 0):")
    assert [line.strip() for line in lines[start + 1 :]] == names["encoder"]
    _, text, _ = invoke("params", layout_k)
    assert "no Q and K" not in text


def test_the_variants_of_the_demo_differ_in_attention_alone() -> None:
    full, *others = (
        load(CONFIGS / "demo" / f"{name}.yaml", [], PretrainRun).model_dump(mode="json")
        for name in ("full", "band6_tied", "gated_distbias")
    )
    for other in others:
        differ = {key for key in full if full[key] != other[key]}
        assert differ == {"variant", "encoder"}


# ---- the command lines


def signature(name: str) -> tuple[type[BaseModel], dict[str, Any]]:
    """Return the settings class and the options with which a pipeline calls `command.run`."""
    module = importlib.import_module(f"pipelines.{name}")
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    (call,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "run"
    )
    assert isinstance(call.args[1], ast.Name)
    options = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
    return getattr(module, call.args[1].id), options


@pytest.mark.parametrize("name", names())
def test_help_names_every_setting(name: str, invoke: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = invoke(name, "--help")
    assert (code, err) == (0, "")
    cls, options = signature(name)
    for field in cls.model_fields:
        assert re.search(rf"^  {field} ", out, re.MULTILINE), field
    if name in ("pretrain", "finetune_glue", "finetune_nmt"):
        assert f"train.batch_{'tokens' if name == 'finetune_nmt' else 'size'}" in out
    assert ("--json" in out) == bool(options.get("json_flag"))


def documented() -> list[str]:
    """Return the commands that start a pipeline, of the shell blocks of README and docs/causal."""
    pages = (ROOT / "README.md", ROOT / "docs" / "causal.md")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [
        line for line in lines if re.match(r"(python -m|deepspeed .*--module) pipelines\.", line)
    ]


def test_the_readme_has_commands() -> None:
    assert len(documented()) >= 5


@pytest.mark.parametrize("line", documented())
def test_a_command_of_the_readme_is_accepted(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    given = shlex.split(line, comments=True)
    globs = {word for word in given if "*" in word and "=" not in word}  # the shell finds two
    words = [w for word in given for w in ([f"{word}1", f"{word}2"] if word in globs else [word])]
    place = next(i for i, word in enumerate(words) if word.startswith("pipelines."))
    cls, options = signature(words[place].removeprefix("pipelines."))
    code = command.run(lambda *_: None, cls, "", argv=words[place + 1 :], **options)
    assert code == 0


# ---- ala


def run_ala(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ala", *words])
    with pytest.raises(SystemExit) as end:
        ala()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_ala_lists_the_pipelines(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_ala(monkeypatch, *words) == 0
    out = capsys.readouterr().out
    files = sorted(p.stem for p in (ROOT / "pipelines").glob("*.py") if p.stem[0] != "_")
    assert names() == files
    for name in files:
        assert re.search(rf"^  {name} +\S", out, re.MULTILINE)


def test_ala_tells_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_ala(monkeypatch, "pretrian") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: no pipeline 'pretrian': allowed are analyze, compare, demo,")
    assert "did you mean 'pretrain'?" in err


def test_ala_runs_a_pipeline_with_its_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "pipelines.params", raising=False)
    assert run_ala(monkeypatch, "params", str(CONFIGS / "demo" / "full.yaml"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["encoder_attention"] == 198_144


# ---- what was not made yet


@pytest.fixture
def tokenizer(home: Path) -> Path:
    return home / "tokenizer"


@pytest.fixture
def text(tmp_path: Path) -> list[str]:
    """Overrides that name a little text."""
    for split, lines in (("train", small.text()[:40]), ("valid", small.text()[40:50])):
        (tmp_path / f"{split}.txt").write_text("\n".join(lines), encoding="utf-8")
    source = {
        "kind": "files",
        "train": [str(tmp_path / "train.txt")],
        "valid": [str(tmp_path / "valid.txt")],
    }
    return [f"data.source={json.dumps(source)}"]


DEMO, SST2 = CONFIGS / "demo" / "full.yaml", CONFIGS / "glue" / "sst2.yaml"
NOT_MADE: dict[str, tuple[list[object], str]] = {
    "pretrain: tokenizer": (["pretrain", DEMO, "tokenizer.path=GONE"], "run train_tokenizer first"),
    "prepare_data: tokenizer": (
        ["prepare_data", DEMO, "tokenizer.path=GONE"], "run train_tokenizer first"
    ),
    "finetune: export": (["finetune_glue", SST2, "init=GONE"], "no export there"),
    "finetune: tokenizer": (
        ["finetune_glue", CONFIGS / "small" / "sst2_scratch.yaml", "tokenizer.path=GONE"],
        "run train_tokenizer first",
    ),
    "evaluate: export": (["evaluate", "GONE"], "no export there"),
    "compare: run": (["compare", "GONE"], "there is no such folder"),
    "track: run": (["track", "GONE"], "name a run folder"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_MADE)
def test_what_is_missing_is_one_line_that_says_what_to_run_first(
    case: str,
    invoke: Callable[..., tuple[int, str, str]],
    tokenizer: Path,
    text: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (name, *words), told = NOT_MADE[case]
    gone = str(tmp_path / "nowhere")
    given = [str(w).replace("GONE", gone).replace("TOKENIZER", str(tokenizer)) for w in words]
    if name in ("pretrain", "prepare_data"):
        given += text
    code, out, err = invoke(str(name), *given)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert gone in err
    assert told in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["glue/mrpc.yaml"],
            "data: path: missing, so is dataset; the embedded set is for sst2",
        ),
        (["glue/mnli.yaml", "data.task=ax", "data.path=x"], "fine-tune mnli, then evaluate with"),
        (["glue/rte.yaml", "data.path=x", "data.dataset=glue"], "path and dataset: both say where"),
        (["glue/rte.yaml", "data.task=rt"], "did you mean 'rte'?"),
        (["glue/rte.yaml", "data.path=x", "data.files={valid: x}"], "the splits of rte are train"),
    ],
)
def test_finetuning_needs_a_task_and_its_rows_before_anything_starts(
    words: list[str], told: str, invoke: Callable[..., tuple[int, str, str]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    config, *more = words
    code, out, err = invoke("finetune_glue", CONFIGS / config, "init=x", *more)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert told in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "told"),
    [("init=GONE", "no export there (export.json)"), ("data.path=GONE", "no folder to read sst2")],
)
def test_a_path_that_is_not_there_is_told_before_torch_is_loaded(
    word: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "export.json").touch()
    words = [str(SST2), f"init={tmp_path}", "data.path=.", word.replace("GONE", f"{tmp_path}/gone")]
    code = f"""
import sys
from ala_encoder.command import run
from pipelines import finetune_glue
sys.argv[1:] = {words!r}
code = run(finetune_glue.main, finetune_glue.FinetuneRun, "")
assert code == 2 and "torch" not in sys.modules, code
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert told in done.stderr


@pytest.fixture(scope="session")
def nli(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run folder of an untrained classifier of mnli, with the task's files beside it."""
    folder = tmp_path_factory.mktemp("nli")
    header = "index\tsentence1\tsentence2"
    (folder / "diagnostic.tsv").write_text(f"{header}\n0\ta\tb\n1\tc\td\n")
    for split in ("dev_matched", "dev_mismatched"):
        (folder / f"{split}.tsv").write_text(f"{header}\tgold_label\n0\ta\tb\tneutral\n")
    run, (tokenizer, _) = small.settings(), small.data(home)
    labels = TASKS["mnli"].labels
    model = Classifier(run.model, run.encoder, tokenizer.vocab_size, len(labels))
    card = cards.Card(
        kind="classifier", variant="small", seed=1, run_name="small-mnli-1",
        vocab_size=tokenizer.vocab_size, model=run.model, encoder=run.encoder,
        data=TaskSettings(task="mnli", path=folder, length=16), data_name=folder.name,
        labels=labels, parameters={"total": 1, "encoder_attention": 1, "qk_groups": 6},
    )  # fmt: skip
    export.write(folder / "run" / "export", card, tokenizer, model.state_dict())
    return folder / "run"


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("split=dev", "split = 'dev': mnli has train, dev_matched, dev_mismatched, test_matched"),
        ("task=rte", "task rte: has the classes entailment, not_entailment; small-mnli-1 was trai"),
        ("task=stsb", "task stsb: has one number and no classes; small-mnli-1 was trained on the"),
        ("task=axx", "task = 'axx': allowed are"),
        ("files={dev: x}", "files.dev: the splits of mnli are"),
        ("config=mnli", "config: does nothing without `dataset`"),
        ("path=GONE", "no folder to read mnli from"),
    ],
)
def test_a07_what_a_classifier_cannot_score_is_one_line(
    word: str, told: str, nli: Path, invoke: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = invoke("evaluate", nli, word)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert told in err
    assert not (nli / "eval").exists()


def evaluated(*words: object) -> dict[str, Any]:
    """Run evaluate in a process of its own and return its JSON."""
    command = [sys.executable, "-m", "pipelines.evaluate", *map(str, words), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_a05_every_dev_split_is_scored_apart_and_the_diagnostic_set_by_its_task(nli: Path) -> None:
    both = evaluated(nli)
    assert both["splits"] == ["dev_matched", "dev_mismatched"] and "split" not in both
    assert {"eval_matched_accuracy", "eval_mismatched_accuracy"} < set(both["scores"])
    own = sorted(path.name for path in (nli / "eval").iterdir())
    assert own == [
        "MNLI-m-dev.tsv", "MNLI-mm-dev.tsv", "dev_matched.json", "dev_mismatched.json"
    ]  # fmt: skip
    same = evaluated(nli, "task=mnli", "split=dev_matched")
    assert (same["split"], same["splits"]) == ("dev_matched", ["dev_matched"])
    assert not list(nli.glob("eval-*"))
    ax = evaluated(nli, "task=ax")
    assert ax["scores"] == {"test_matthews_correlation": None, "test_examples": 2.0}
    assert list(ax["undefined"]) == ["test_matthews_correlation"] and ax["notes"] == {}
    (other,) = nli.glob(f"eval-{nli.parent.name}-ax-????????")
    rows = (other / "AX.tsv").read_text().splitlines()
    assert [row.split("\t")[0] for row in rows] == ["index", "0", "1"]
    assert all(row.split("\t")[1] in TASKS["mnli"].labels for row in rows[1:])


def test_other_data_has_a_folder_of_its_own_whatever_its_name(nli: Path, tmp_path: Path) -> None:
    settings = EvaluateRun(export=nli)
    exported = export.read(nli)
    own = _resolved(TaskSettings(task="mnli", path=nli.parent))
    same = _resolved(TaskSettings(task="mnli", path=nli / ".."))
    assert _folder(exported, settings, "x", same, own) == nli / "eval"
    others = [
        TaskSettings(task="mnli", path=tmp_path / place, files={"dev_matched": rows})
        for place in ("a/x", "b/x")
        for rows in ("dev.tsv[:4000]", "dev.tsv[4000:]")
    ]
    made = {_folder(exported, settings, "x", _resolved(data), own) for data in others}
    assert len(made) == 4
    assert all(re.fullmatch("eval-x-[0-9a-f]{8}", folder.name) for folder in made)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("optim.lerning_rate=1", "did you mean 'optim.learning_rate'?"),
        ("train.batch_size=many", "train.batch_size"),
        ("engine.zero_stage=4", "engine.zero_stage"),
        ("train.micro_batch_size=3 train.gradient_accumulation_steps=4", "x 1 ranks = 12"),
        ("deepspeed.optimizer.type=Adam", "set optim instead"),
    ],
)
def test_a_wrong_setting_is_one_line_before_anything_starts(
    override: str, told: str, invoke: Callable[..., tuple[int, str, str]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code, out, err = invoke("pretrain", DEMO, *override.split())
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert told in err
    assert list(tmp_path.iterdir()) == []
