"""Settings: every mistake is one line with its path, and what is read is what was written."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from ala_encoder.errors import UserError, closest, nearest
from ala_encoder.settings import loader
from ala_encoder.settings.compare import CompareRun
from ala_encoder.settings.demo import DemoRun
from ala_encoder.settings.engine import KNOWN_KEYS, OWNED_KEYS, REFUSED_KEYS, read_deepspeed
from ala_encoder.settings.evaluate import EvaluateRun
from ala_encoder.settings.experiment import (
    Architecture,
    FinetuneRun,
    PretrainRun,
)
from ala_encoder.settings.suite import SuiteRun
from ala_encoder.settings.train import TokenTrainSettings, TrainSettings, split_batch
from ala_encoder.settings.translation import TranslationRun

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))

PRETRAIN = """\
variant: distbias
optim: {learning_rate: 1e-4, warmup_steps: 2}
train: {steps: 20, batch_size: 8}
model: {family: encoder, dim: 16, num_layers: 2, num_heads: 2, ffn_dim: 32, max_length: 32}
encoder:
  biases:
    - {kind: distbias, alpha_init: 0.01}
tokenizer: {path: tok}
data: {path: corpus, source: {kind: files, train: [a.txt], valid: [b.txt]}, length: 32}
"""
FINETUNE = """\
variant: full
train: {epochs: 2, batch_size: 8}
model: {family: encoder, dim: 16, num_layers: 2, num_heads: 2, ffn_dim: 32, max_length: 32}
tokenizer: {path: tok}
data: {task: sst2, length: 16}
"""
COUNTED = """\
model: {family: encoder_decoder}
encoder: {layout: k}
tokenizer: {path: tok, vocab_size: 100}
"""
TEXTS: dict[type[BaseModel], str] = {
    PretrainRun: PRETRAIN, FinetuneRun: FINETUNE, Architecture: COUNTED
}  # fmt: skip


def read(folder: Path, text: str | bytes, *overrides: str, cls: Any = PretrainRun) -> Any:
    path = folder / "settings.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return loader.load(path, overrides, cls)


def refusal(folder: Path, text: str | bytes, *overrides: str, cls: Any = PretrainRun) -> str:
    """Return the one line that a mistake gives."""
    with pytest.raises(UserError) as caught:
        read(folder, text, *overrides, cls=cls)
    line = str(caught.value)
    assert line
    assert "\n" not in line
    return line


# Numbers, words, booleans


@pytest.mark.parametrize("number", ["1e-4", "1E-4", "1.0e-4", "1.e-4", "0.0001", ".0001", "+1e-04"])
def test_i01_every_spelling_of_a_float_is_a_number(number: str, tmp_path: Path) -> None:
    in_file = read(tmp_path, PRETRAIN.replace("1e-4", number))
    overridden = read(tmp_path, PRETRAIN, f"optim.learning_rate={number}")
    assert in_file.optim.learning_rate == overridden.optim.learning_rate == 1e-4


@pytest.mark.parametrize("word", ['"1e-4"', "'1E-4'", "1e-4x", "1e", "fast", "[1e-4]", "true"])
def test_i01_a_string_is_never_a_number(word: str, tmp_path: Path) -> None:
    for line in (
        refusal(tmp_path, PRETRAIN.replace("1e-4", word)),
        refusal(tmp_path, PRETRAIN, f"optim.learning_rate={word}"),
    ):
        assert line.startswith("optim.learning_rate = ")
        assert "valid number" in line


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False), ("TRUE", True)])
def test_i04_true_and_false_are_booleans(text: str, value: bool, tmp_path: Path) -> None:
    assert read(tmp_path, PRETRAIN, f"tracking.enabled={text}").tracking.enabled is value


@pytest.mark.parametrize("text", ["off", "on", "no", "yes", "0", "1", '"False"', "~", "", "f"])
def test_i04_nothing_else_is_a_boolean(text: str, tmp_path: Path) -> None:
    line = refusal(tmp_path, PRETRAIN, f"tracking.enabled={text}")
    assert line.startswith("tracking.enabled = ")
    assert "valid boolean" in line


def test_i04_yaml_1_1_where_off_is_false_is_refused(tmp_path: Path) -> None:
    text = PRETRAIN + "tracking: {enabled: off}\n"
    assert "'%YAML 1.1'" in refusal(tmp_path, "%YAML 1.1\n---\n" + text)
    assert "tracking.enabled" in refusal(tmp_path, "%YAML 1.2\n---\n" + text)
    assert read(tmp_path, "%YAML 1.2\n---\n" + PRETRAIN).variant == "distbias"


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("train.steps", "2.0", "valid integer"),
        ("train.steps", "1e1", "valid integer"),
        ("train.steps", "true", "valid integer"),
        ("train.steps", "0", "greater than or equal to 1"),
        ("seed", "-1", "greater than or equal to 0"),
        ("seed", str(2**63), "64 bits"),
        ("seed", "9" * 5000, "4300 digits"),
        ("engine.zero_stage", "true", "valid integer"),
        ("engine.zero_stage", "1.0", "valid integer"),
        ("engine.zero_stage", "4", "less than or equal to 3"),
        ("engine.precision", "float23", "did you mean 'float32'?"),
        ("variant", "1", "valid string"),
        ("variant", "..", "match pattern"),
        ("variant", "a/b", "match pattern"),
        ("variant", "2024-01-01", "a date"),
        ("output", "5", "valid string"),
        ("output", r'"a\0b"', "character"),
        ("name", r'"\ud800"', "character"),
        ("optim", "3", "should be an object"),
        ("optim", "~", "should be an object"),
        ("optim.betas", "[0.9]", "optim.betas.1: missing"),
        ("optim.betas", "[0.9, 0.99, 0.9]", "at most 2"),
        ("optim.betas", "0.9", "valid array"),
        ("optim.betas", "[0.9, 1.0]", "optim.betas.1 = 1.0: input should be less than 1"),
        ("data.length", "2", "greater than or equal to 3"),
        ("data.mask_probability", "1.0", "less than 1"),
        ("data.source.train", "a.txt", "valid array"),
        ("data.source.train", "[]", "at least 1"),
        ("data.source", "{kind: embeded}", "did you mean 'embedded'?"),
        ("data.source", "{train: [a], valid: [b]}", "data.source.kind: missing"),
        ("encoder.biases", "[{kind: windw}]", "encoder.biases.0.kind = 'windw'"),
        ("encoder.biases", "[{alpha_init: 1.0}]", "encoder.biases.0.kind: missing"),
        ("encoder.biases.0", "[1]", "encoder.biases.0 = [1]"),
        ("encoder.biases.0.alpha_init", "0", "equal to 5.421010862427522e-20"),
        ("encoder.biases.0", "{kind: alibi, shift: -40}", "greater than or equal to -32"),
        ("model", "{dim: 16}", "model.family: missing"),
        ("model.family", "encodr", "did you mean 'encoder'?"),
        ("deepspeed", "3", "deepspeed = 3"),
        ("seed", "!!set {a}", "a set"),
        ("seed", "!!binary aGVsbG8=", "a bytes"),
        ("seed", "{1: 2}", "the key 1"),
    ],
)
def test_r30_a_wrong_value_is_told_with_its_path(
    key: str, text: str, reason: str, tmp_path: Path
) -> None:
    line = refusal(tmp_path, PRETRAIN, f"{key}={text}")
    assert key in line
    assert reason in line


FLOATS = [
    "optim.learning_rate", "optim.eps", "optim.weight_decay", "optim.final_ratio",
    "optim.betas", "model.dropout", "model.init_std", "encoder.biases.0.alpha_init",
    "data.mask_probability", "deepspeed.aio.block_size",
]  # fmt: skip


@pytest.mark.parametrize("key", FLOATS)
@pytest.mark.parametrize("number", [".nan", ".inf", "-.inf", "1e999"])
def test_a_number_that_is_not_finite_is_refused_everywhere(
    key: str, number: str, tmp_path: Path
) -> None:
    value = f"[0.9, {number}]" if key == "optim.betas" else number
    line = refusal(tmp_path, PRETRAIN, f"{key}={value}")
    assert key in line
    assert "not a finite number" in line


# Unknown keys


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lerning_rate", "optim.learning_rate"),
        ("learning_rate", "optim.learning_rate"),
        ("trainer", "train"),
        ("optim.lerning_rate", "optim.learning_rate"),
        ("optim.warmup_step", "optim.warmup_steps"),
        ("optim.batch_size", "train.batch_size"),
        ("data.source.trian", "data.source.train"),
        ("encoder.biases.0.alpa_init", "encoder.biases.0.alpha_init"),
        ("encoder.bias", "encoder.biases"),
        ("tracking.url", "tracking.uri"),
    ],
)
def test_i03_an_unknown_key_at_any_depth_is_refused_with_the_nearest(
    key: str, meant: str, tmp_path: Path
) -> None:
    line = refusal(tmp_path, PRETRAIN, f"{key}=1")
    assert line.startswith(f"{key}: no such setting")
    assert f"(did you mean {meant!r}?)" in line


def test_i03_an_unknown_key_is_told_before_any_other_mistake(tmp_path: Path) -> None:
    line = refusal(tmp_path, PRETRAIN, "seed=-1", "optim.eps=no", "model.dimm=3")
    assert line.startswith("model.dimm: ")
    assert "'model.dim'" in line
    assert "2 more" in line


def test_i03_without_a_near_match_the_allowed_keys_are_listed(tmp_path: Path) -> None:
    line = refusal(tmp_path, PRETRAIN, "optim.xyz=1")
    assert "allowed in optim are learning_rate, schedule, warmup_steps, final_ratio, betas" in line


def test_i03_a_key_of_another_kind_is_not_suggested_to_itself(tmp_path: Path) -> None:
    line = refusal(tmp_path, PRETRAIN, "encoder.biases.0.kind=window")
    assert line.startswith("encoder.biases.0.alpha_init: no such setting here, it belongs")
    assert "set all of it, encoder.biases.0={kind: …}" in line
    assert "did you mean" not in line


@pytest.mark.parametrize("override", ["train", "=3", "optim..eps=1", ".=1", "trainer..lr=1", ""])
def test_i03_a_malformed_override_is_refused(override: str, tmp_path: Path) -> None:
    assert "allowed is section.key=value" in refusal(tmp_path, PRETRAIN, override)


def test_nearest_and_closest_find_the_same_word() -> None:
    assert closest("bnad", ["band", "full"]) == "band"
    assert closest("zzz", ["band"]) is None
    assert nearest("bnad", ["band", "full"]) == " (did you mean 'band'?)"
    assert nearest("zzz", ["band"]) == ""


# YAML


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.mkdir [CANARY]",
        "!!python/object/new:os.mkdir [CANARY]",
        "!!python/object:os.mkdir {}",
        "!!python/name:os.mkdir ''",
        "!!python/module:os ''",
        "!python/object/apply:os.mkdir [CANARY]",
        "!<tag:yaml.org,2002:python/object/apply:os.mkdir> [CANARY]",
        "!custom 1",
        "!!bool x",
        "!!int x",
        "!!float x",
        "!!timestamp x",
        "2024-13-45",
    ],
)
@pytest.mark.parametrize("place", ["file", "override"])
def test_i06_a_tag_is_refused_and_runs_nothing(value: str, place: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    value = value.replace("CANARY", str(canary))
    if place == "file":
        line = refusal(tmp_path, f"{PRETRAIN}name: {value}\n")
    else:
        line = refusal(tmp_path, PRETRAIN, f"name={value}")
    assert "not YAML 1.2 that is allowed here" in line
    assert not canary.exists()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"{PRETRAIN}seed: 1\nseed: 1\n", "seed"),
        (PRETRAIN.replace("dim: 16", "dim: 16, dim: 16"), "dim"),
        (PRETRAIN.replace("alpha_init: 0.01", "alpha_init: 1.0, alpha_init: 2.0"), "alpha_init"),
        (f"{PRETRAIN}variant: full\n", "variant"),
    ],
)
def test_a_key_given_twice_is_refused_at_any_depth(text: str, key: str, tmp_path: Path) -> None:
    line = refusal(tmp_path, text)
    assert f'duplicate key "{key}"' in line
    assert "settings.yaml:" in line


def test_a_key_given_twice_in_an_override_is_refused(tmp_path: Path) -> None:
    assert 'duplicate key "a"' in refusal(tmp_path, PRETRAIN, "deepspeed={aio: {a: 1, a: 2}}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds nothing"),
        ("~", "holds nothing"),
        ("[1]", "holds a list"),
        ("hello", "holds a str"),
        ("a:\n\tb: 1", "settings.yaml:2"),
        ("a: [1", "settings.yaml:"),
        ("a: *x", "undefined alias"),
        ("a: \x01", "unacceptable character"),
        (f"{PRETRAIN}---\na: 1\n", "another document"),
        ("{a: b}: 1", "settings.yaml:1"),
        ("[a]: 1", "the key ('a',)"),
        ("1: 2", "the key 1"),
        ("~: 2", "the key None"),
        (PRETRAIN.encode("utf-16"), "not UTF-8"),
        ("variant: é".encode("latin-1"), "not UTF-8"),
        ("a: " + "[" * 3000, "64 levels"),
        ("a: " + "[" * 100 + "]" * 100, "64 levels"),
        ("a: " + "x" * 70_000, "characters, allowed are 65,536"),
    ],
)
def test_a_file_that_is_no_settings_file_is_refused(
    text: str | bytes, reason: str, tmp_path: Path
) -> None:
    assert reason in refusal(tmp_path, text)


def test_a_byte_order_mark_and_crlf_change_nothing(tmp_path: Path) -> None:
    plain = read(tmp_path, PRETRAIN)
    assert read(tmp_path, b"\xef\xbb\xbf" + PRETRAIN.encode()) == plain
    assert read(tmp_path, PRETRAIN.replace("\n", "\r\n")) == plain


def test_anchors_and_merge_keys_mean_what_they_spell(tmp_path: Path) -> None:
    text = PRETRAIN.replace("{steps: 20,", "{<<: &t {steps: 20},").replace(
        "encoder:\n", "encoder:\n  heads: [&row [band1#a, full], *row]\n"
    )
    settings = read(tmp_path, text)
    assert settings.train.steps == 20
    assert settings.encoder.heads == (("band1#a", "full"), ("band1#a", "full"))


def test_an_override_changes_one_place_and_not_its_alias(tmp_path: Path) -> None:
    text = PRETRAIN.replace("encoder:\n", "encoder:\n  heads: [&row [band1#a, full], *row]\n")
    settings = read(tmp_path, text, "encoder.heads.0.0=identity")
    assert settings.encoder.heads == (("identity", "full"), ("band1#a", "full"))


def test_a_cycle_of_aliases_is_refused(tmp_path: Path) -> None:
    assert "64 levels" in refusal(tmp_path, f"{PRETRAIN}deepspeed: &d {{aio: *d}}\n")
    assert "64 levels" in refusal(tmp_path, "a: &x [*x]\n")


def test_aliases_that_mean_billions_are_refused_at_once(tmp_path: Path) -> None:
    lines = ["deepspeed:", "  k0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"  k{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    began = time.perf_counter()
    assert "100,000 values" in refusal(tmp_path, PRETRAIN + "\n".join(lines) + "\n")
    assert time.perf_counter() - began < 5


# base:


def test_a_base_is_relative_to_its_file_and_merged_key_by_key(tmp_path: Path) -> None:
    inner = tmp_path / "deep" / "er"
    inner.mkdir(parents=True)
    (inner / "root.yaml").write_text(PRETRAIN)
    (tmp_path / "deep" / "mid.yaml").write_text(
        "base: er/root.yaml\nseed: 5\nmodel: {dim: 32}\nencoder: {biases: []}\n"
    )
    settings = read(tmp_path, "base: deep/mid.yaml\nmodel: {ffn_dim: 8}\n", "seed=6")
    expected = read(
        tmp_path, PRETRAIN, "seed=6", "model.dim=32", "model.ffn_dim=8", "encoder.biases=[]"
    )
    assert settings == expected


def test_a_section_of_another_kind_than_its_base_s_takes_no_keys_from_it(tmp_path: Path) -> None:
    tokenizer = "tokenizer: {kind: sentencepiece, path: a, model: bpe}"
    (tmp_path / "root.yaml").write_text(PRETRAIN.replace("tokenizer: {path: tok}", tokenizer))
    other = read(tmp_path, "base: root.yaml\ntokenizer: {kind: byte_bpe, path: b}\n")
    assert (other.tokenizer.kind, other.tokenizer.path) == ("byte_bpe", Path("b"))
    same = read(tmp_path, "base: root.yaml\ntokenizer: {kind: sentencepiece, path: b}\n")
    assert (same.tokenizer.path, same.tokenizer.model) == (Path("b"), "bpe")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("base: settings.yaml\n", "leads back"),
        ("base: other.yaml\n", "leads back"),
        ("base: ./sub/../settings.yaml\n", "leads back"),
        ("base: nowhere.yaml\n", "nowhere.yaml: cannot read"),
        ("base: .\n", "cannot read"),
        ("base: [a.yaml]\n", "allowed is the path of one settings file"),
        ("base: list.yaml\n", "list.yaml: holds a list"),
        ('base: "a\\0b"\n', "character"),
    ],
)
def test_a_base_that_cannot_be_followed_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "other.yaml").write_text("base: settings.yaml\n")
    (tmp_path / "list.yaml").write_text("[1]\n")
    assert reason in refusal(tmp_path, text)


# Overrides


def test_overrides_reach_into_lists_and_make_sections(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        PRETRAIN,
        "encoder.biases.0.alpha_init=0.5",
        "data.source.train.0=c.txt",
        "engine.zero_stage=2",
        "tracking={enabled: false}",
        "deepspeed.zero_optimization.reduce_bucket_size=1000",
        "output=",
        "seed=1",
        "seed=2",
    )
    assert settings.encoder.biases[0].alpha_init == 0.5
    assert settings.data.source.train == ("c.txt",)
    assert settings.engine.zero_stage == 2
    assert not settings.tracking.enabled
    assert settings.deepspeed == {"zero_optimization": {"reduce_bucket_size": 1000}}
    assert settings.seed == 2


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("encoder.biases.1.alpha_init=2.0", "'1' is not an index of 1 entries"),
        ("encoder.biases.-1.alpha_init=2.0", "'-1' is not an index"),
        ("encoder.biases.x=2", "'x' is not an index"),
        ("encoder.biases.²=2", "'²' is not an index"),
        ("encoder.biases.1={kind: distbias}", "'1' is not an index"),
        ("optim.learning_rate.x=3", "nothing can be set below a value"),
        ("name.x.y=3", "nothing can be set below a value"),
        ("base=other.yaml", "base: no such setting"),
        ("seed=[", "override seed"),
        ("seed=*a", "override seed"),
        ("a" + ".b" * 3000 + "=1", "64 levels"),
    ],
)
def test_an_override_to_nowhere_is_refused(override: str, reason: str, tmp_path: Path) -> None:
    assert reason in refusal(tmp_path, f"{PRETRAIN}name: x\n", override)


def test_an_override_below_null_is_refused(tmp_path: Path) -> None:
    line = refusal(tmp_path, f"{PRETRAIN}deepspeed: ~\n", "deepspeed.aio.block_size=1")
    assert "deepspeed is null" in line


# Checks of one setting against another


@pytest.mark.parametrize(
    ("cls", "overrides", "reasons"),
    [
        (PretrainRun, ["train.epochs=2"], ["train: ", "one of steps and epochs"]),
        (PretrainRun, ["train={batch_size: 8}"], ["train: ", "one of steps and epochs"]),
        (PretrainRun, ["optim.warmup_steps=21"], ["optim.warmup_steps = 21", "20"]),
        (PretrainRun, ["engine.offload_optimizer=cpu"], ["engine.offload_optimizer", "is 0"]),
        (PretrainRun, ["engine={offload_parameters: cpu, zero_stage: 2}"],
         ["engine.offload_parameters", "is 2"]),
        (PretrainRun, ["optim.schedule=constant", "optim.final_ratio=0.1"],
         ["optim.final_ratio", "'constant'"]),
        (PretrainRun, ["optim.schedule=inverse_sqrt", "optim.final_ratio=0.1"],
         ["optim.final_ratio", "'inverse_sqrt'"]),
        (PretrainRun, ["optim.schedule=inverse_sqrt", "optim.warmup_steps=0"],
         ["optim.warmup_steps = 0"]),
        (PretrainRun, ["data.length=33"], ["data.length = 33", "32", "model.max_length"]),
        (PretrainRun, ["model.dim=15"], ["model.dim = 15", "num_heads 2"]),
        (PretrainRun, ["encoder.layout=full", "encoder.heads=[[full, full], [full, full]]"],
         ["encoder: ", "both"]),
        (PretrainRun, ["encoder.heads=[[full, full]]"], ["encoder: ", "1 rows", "2 layers"]),
        (PretrainRun, ["encoder.heads=[[full], [full, full]]"], ["encoder: ", "1 and 2"]),
        (PretrainRun, ["encoder.heads=[]"], ["encoder: no heads"]),
        (PretrainRun, ["encoder.heads=[[full, bnad1], [full, full]]"], ["encoder: ", "'band'"]),
        (PretrainRun, ["encoder.layout=bert_ful"], ["encoder: ", "'bert_full'"]),
        (PretrainRun, ["encoder.layout=a"], ["encoder: ", "6 layers x 8 heads", "2 x 2"]),
        (PretrainRun, ["encoder.mask_operator=pre_softmax"],
         ["encoder: mask_operator", "does nothing"]),
        (PretrainRun, ["encoder.heads=[[band31, full], [full, full]]"],
         ["encoder: head band31", "32"]),
        (PretrainRun, ["encoder.heads=[[prev32, full], [full, full]]"],
         ["encoder: head prev32", "32"]),
        (PretrainRun, ["encoder.heads=[[next40, full], [full, full]]"],
         ["encoder: head next40", "32"]),
        (PretrainRun, ["encoder.heads=[[prev1, prev1], [next1, identity]]",
                       "encoder.mask_operator=pre_softmax"],
         ["encoder: biases", "distbias", "heads of one key"]),
        (PretrainRun, ["encoder.biases=[{kind: window, width: 32}]"],
         ["encoder: biases", "window 32", "32"]),
        (PretrainRun, ["encoder.biases=[{kind: window, width: 1}, {kind: distbias}]"],
         ["encoder: biases: window 1 leaves each query one key"]),
        (PretrainRun, ["encoder.biases=[{kind: window, width: 4}, "
                       "{kind: multiscale_distbias, ranges: [2, 8]}]"],
         ["encoder: ranges: 8 is never reached in 4 tokens"]),
        (PretrainRun, ["encoder.heads=[[band1, full], [full, full]]", "encoder.path=sdpa"],
         ["encoder: path = 'sdpa'", "auto, dense"]),
        (PretrainRun, ["encoder.dropout=0.1", "encoder.path=sdpa"],
         ["encoder: path = 'sdpa'", "dropout"]),
        (Architecture, ["encoder.layout=bert_band6"], ["encoder: ", "6 x 8"]),
        (Architecture, ["encoder.heads=[[full]]", "encoder.layout=~"], ["encoder: heads"]),
        (Architecture, ["decoder.layout=k"], ["decoder: head next1#tied: sees nothing"]),
        (Architecture, ["cross.layout=k"], ["cross: head prev1#tied", "no local masks"]),
        (Architecture, ["cross.ratio=2.0"], ["cross: ratio: does nothing without biases"]),
        (Architecture, ["cross.biases=[{kind: kerple_power}]", "cross.ratio_learnable=true"],
         ["cross: ratio_learnable: the gradient of kerple_power"]),
        (Architecture, ["model={family: encoder}", "cross={}"],
         ["cross: a model of family 'encoder' has encoder alone"]),
        (Architecture, ["model={family: causal, max_length: 9}"],
         ["encoder: a model of family 'causal' has decoder alone"]),
        (Architecture, ["model={family: causal}"], ["model: max_length: missing"]),
        (Architecture, ["model.max_length=9"], ["model: max_length = 9: does nothing"]),
        (Architecture, ["model.pooling=mean"], ["model.pooling: no such setting"]),
        (FinetuneRun, ["init=runs/x"], ["model: ", "`init`"]),
        (FinetuneRun, ["init=runs/x", "model=~"], ["tokenizer: ", "`init`"]),
        (FinetuneRun, ["init=runs/x", "model=~", "tokenizer=~", "encoder={}"], ["encoder: "]),
        (FinetuneRun, ["model=~"], ["give `init`"]),
        (FinetuneRun, ["variant=~"], ["give `init`", "`variant`"]),
        (FinetuneRun, ["data.length=64"], ["data.length = 64", "32"]),
        (FinetuneRun, ["encoder.layout=a"], ["encoder: ", "2 x 2"]),
        (FinetuneRun, ["train.steps=5"], ["train: "]),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other_are_refused_with_both(
    cls: type[BaseModel], overrides: list[str], reasons: list[str], tmp_path: Path
) -> None:
    line = refusal(tmp_path, TEXTS[cls], *overrides, cls=cls)
    for reason in reasons:
        assert reason in line


def test_the_edges_of_those_checks_are_allowed(tmp_path: Path) -> None:
    for overrides in (
        ["optim.warmup_steps=20"],
        ["engine={offload_parameters: cpu, offload_optimizer: cpu, zero_stage: 3}"],
        ["encoder.heads=[[band30, prev31], [next31, full]]"],
        ["encoder.biases=[{kind: window, width: 31}]"],
        ["encoder.heads=[[band1, full], [full, full]]", "encoder.mask_operator=pre_softmax",
         "encoder.path=sdpa"],
        ["optim.schedule=inverse_sqrt"],
        ["optim.final_ratio=1.0"],
        ["train={epochs: 3, batch_size: 1}", "optim.warmup_steps=100000"],
    ):  # fmt: skip
        read(tmp_path, PRETRAIN, *overrides)
    read(tmp_path, FINETUNE, "init=runs/x", "model=~", "tokenizer=~", "variant=~", cls=FinetuneRun)


def test_f07_a_batch_that_is_not_the_product_is_refused_with_the_product() -> None:
    train = TrainSettings(steps=1, batch_size=32, micro_batch_size=4, gradient_accumulation_steps=2)
    with pytest.raises(UserError) as caught:
        split_batch(train, 3)
    for part in ("= 32", "micro_batch_size 4", "gradient_accumulation_steps 2", "3 ranks", "= 24"):
        assert part in str(caught.value)
    assert split_batch(train, 4).micro == 4


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_f07_what_is_left_open_is_the_smallest_that_holds_the_batch(world: int) -> None:
    for batch in range(1, 25):
        whole = split_batch(TrainSettings(steps=1, batch_size=batch), world)
        assert (whole.accumulation, whole.micro) == (1, smallest(batch, world))
        for given in range(1, 6):
            micro = split_batch(
                TrainSettings(steps=1, batch_size=batch, micro_batch_size=given), world
            )
            assert (micro.micro, micro.accumulation) == (given, smallest(batch, given * world))
            steps = split_batch(
                TrainSettings(steps=1, batch_size=batch, gradient_accumulation_steps=given), world
            )
            assert (steps.accumulation, steps.micro) == (given, smallest(batch, given * world))


def smallest(batch: int, others: int) -> int:
    factor = 1
    while factor * others < batch:
        factor += 1
    return factor


# Whole objects


def test_settings_are_frozen_at_every_depth(tmp_path: Path) -> None:
    settings = read(tmp_path, PRETRAIN)
    for section, key in (
        (settings, "seed"), (settings.optim, "eps"), (settings.encoder.biases[0], "alpha_init"),
        (settings.data.source, "train"),
    ):  # fmt: skip
        with pytest.raises(ValidationError):
            setattr(section, key, 1)


WHOLE = [
    (PretrainRun, PRETRAIN, []),
    (PretrainRun, PRETRAIN, ["name='0012'", "variant=1e5x", "encoder.biases=[]", "output='a: c'"]),
    (PretrainRun, PRETRAIN, ["encoder.heads=[['prev1#a', full], [band2, full]]", "name=null1"]),
    (PretrainRun, PRETRAIN, ["deepspeed={comms_logger: {enabled: true, x: [1, 2.5, null]}}"]),
    (PretrainRun, PRETRAIN, ["optim.learning_rate=3e-310", "optim.eps=0.1"]),
    (FinetuneRun, FINETUNE, ["variant='on'", "data.path='~'"]),
    (FinetuneRun, FINETUNE, ["model=~", "tokenizer=~", "init='1.0'"]),
    (Architecture, COUNTED, []),
    (
        Architecture,
        COUNTED,
        [
            "model.num_decoder_layers=2",
            "model.positions=learned",
            "model.max_length=7",
            "cross={biases: [{kind: t5}], ratio: 1.5}",
            "model.output_bias=true",
        ],
    ),
    (
        Architecture,
        COUNTED,
        [
            "encoder=~",
            "model={family: causal, positions: rotary}",
            "decoder={biases: [{kind: distbias}]}",
            "model.normalization=rms_norm",
        ],
    ),
    (EvaluateRun, "export: 'yes'\n", []),
    (CompareRun, "runs: ['1', 'a*']\n", []),
    (DemoRun, "ranks: 3\n", []),
]


@pytest.mark.parametrize(("cls", "text", "overrides"), WHOLE)
def test_what_is_dumped_loads_as_an_equal_object(
    cls: type[BaseModel], text: str, overrides: list[str], tmp_path: Path
) -> None:
    settings = read(tmp_path, text, *overrides, cls=cls)
    loader.dump(settings, tmp_path / "again.yaml")
    assert loader.load(tmp_path / "again.yaml", [], cls) == settings


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_shipped_settings_file_loads_and_dumps(path: Path, tmp_path: Path) -> None:
    data = loader.read_plain(path)
    cls: Any = PretrainRun
    overrides = [] if "variant" in data else ["variant=x"]  # a file that others have as their base
    if "runs" in data:
        cls, overrides = CompareRun, []
    elif "configs" in data:
        cls, overrides = SuiteRun, []
    elif "task" in data.get("data", {}):
        cls, overrides = FinetuneRun, [] if "model" in data else ["init=runs/x", "data.path=GLUE"]
    elif data["model"]["family"] != "encoder" and "objective" not in data:
        is_whole = data["model"]["family"] == "encoder_decoder" and "data" in data
        cls = TranslationRun if is_whole else Architecture
    settings = loader.load(path, overrides, cls)
    loader.dump(settings, tmp_path / "again.yaml")
    assert loader.load(tmp_path / "again.yaml", [], cls) == settings


# Batches of tokens


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize(("batch", "micro", "longest"), [(25_000, 4096, 256), (300, 70, 64),
                                                         (64, 64, 64), (1000, 999, 7)])  # fmt: skip
def test_c02_no_piece_of_a_batch_is_larger_than_a_micro_batch(
    batch: int, micro: int, longest: int, world: int
) -> None:
    train = TokenTrainSettings(
        steps=1, batch_tokens=batch, micro_batch_tokens=micro, max_length=longest
    )
    split = split_batch(train, world)
    for n in range(1, longest + 1):
        rows = batch // n
        assert -(-rows // (split.accumulation * world)) * n <= micro
    fewer = (split.accumulation - 1) * world
    assert not fewer or any(-(-(batch // n) // fewer) * n > micro for n in range(1, longest + 1))


def test_a_batch_of_tokens_without_a_micro_batch_is_one_pass() -> None:
    train = TokenTrainSettings(steps=1, batch_tokens=1000, max_length=50)
    assert split_batch(train, 4).accumulation == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_length": 3000}, "max_length = 3000: a pair may be longer than batch_tokens = 2000"),
        ({"micro_batch_tokens": 100}, "may be longer than micro_batch_tokens = 100"),
        ({"micro_batch_tokens": 4000}, "micro_batch_tokens = 4000: more than batch_tokens 2000"),
        ({"average_checkpoints": 3}, "average_checkpoints: needs save_every"),
    ],
)
def test_tokens_that_do_not_fit_are_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        TokenTrainSettings(**{"steps": 1, "batch_tokens": 2000, **given})


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("train.label_smoothin=0.1", "did you mean 'train.label_smoothing'?"),
        ("train.batch_size=3", "train.batch_size: no such setting"),
        ("engine.zero_stage=3", "train.greedy_bleu = true: needs engine.zero_stage 0, 1 or 2"),
        ("model={family: encoder_decoder, positions: learned, max_length: 100}",
         "train.max_length = 256: the model has 100 positions"),
        ("search.beam_size=0", "search.beam_size = 0"),
        ("encoder.layout=z", "encoder"),
    ],
)  # fmt: skip
def test_a_wrong_translation_setting_is_one_line(override: str, told: str) -> None:
    path = ROOT / "configs" / "nmt" / "wmt14_en_de_a.yaml"
    with pytest.raises(UserError) as caught:
        loader.load(path, [override], TranslationRun)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cls", "config", "line"),
    [
        (FinetuneRun, "wt103/distbias",
         "'causal': needed here is 'encoder'; `pretrain` trains it with objective: clm"),
        (PretrainRun, "nmt_small/a",
         "'encoder_decoder': needed with objective = 'mlm' is 'encoder'; objective: denoise"),
        (FinetuneRun, "nmt_small/a",
         "'encoder_decoder': needed here is 'encoder'; `finetune_nmt` trains it, and `pretrain`"),
        (TranslationRun, "small/books",
         "'encoder': needed here is 'encoder_decoder'; `pretrain` and `finetune_glue` train it"),
        (TranslationRun, "extrapolation/alibi",
         "'causal': needed here is 'encoder_decoder'; `pretrain` trains it with objective: clm"),
    ],
)  # fmt: skip
def test_a_model_that_a_pipeline_does_not_train_is_told_with_what_does(
    cls: Any, config: str, line: str
) -> None:
    with pytest.raises(UserError) as caught:
        loader.load(ROOT / "configs" / f"{config}.yaml", [], cls)
    assert str(caught.value).startswith(f"model.family = {line}")


@pytest.mark.parametrize("family", ["[encoder]", "{a: 1}", "3", "~", "encodr"])
def test_any_other_family_is_told_as_it_was_given(family: str, tmp_path: Path) -> None:
    assert "model.family = " in refusal(tmp_path, PRETRAIN, f"model.family={family}")


def test_pretraining_has_no_patience() -> None:
    path = ROOT / "configs" / "demo" / "full.yaml"
    with pytest.raises(UserError, match=r"train\.patience: pretraining picks no best weights"):
        loader.load(path, ["train.patience=3"], PretrainRun)


def test_flat_settings_name_every_leaf_once() -> None:
    nested = {"a": {"b": 1, "c": {}}, "d": [1, 2], "e": [{"f": 1}, {"f": 2}], "g": [["x"], ["y"]],
              "h": None, "i": []}  # fmt: skip
    assert loader.flatten(nested) == {
        "a.b": 1, "a.c": {}, "d": [1, 2], "e.0.f": 1, "e.1.f": 2, "g.0": ["x"], "g.1": ["y"],
        "h": None, "i": [],
    }  # fmt: skip


# DeepSpeed's own keys


@pytest.mark.parametrize(("key", "owner"), OWNED_KEYS.items())
def test_a_key_that_a_setting_owns_is_refused_with_that_setting(
    key: str, owner: str, tmp_path: Path
) -> None:
    for value in (1, False, "auto"):
        line = refusal(tmp_path, PRETRAIN, f"deepspeed.{key}={json.dumps(value)}")
        assert line == f"deepspeed: {key} = {json.dumps(value)}: set {owner} instead"


def test_owned_settings_exist() -> None:
    known = set(loader._paths(PretrainRun))
    for owner in OWNED_KEYS.values():
        assert owner in known


@pytest.mark.parametrize("key", REFUSED_KEYS)
def test_a_key_that_would_change_the_step_is_refused_with_the_reason(key: str) -> None:
    with pytest.raises(UserError, match=f"{key}: cannot be set, {REFUSED_KEYS[key]}"):
        section, _, last = key.rpartition(".")
        read_deepspeed({section: {last: False}} if section else {key: "sum"})


@pytest.mark.parametrize(
    ("key", "meant"),
    [("wallclock_breakdown", "wall_clock_breakdown"), ("zero_optimisation", "zero_optimization"),
     ("zzz", None)],
)  # fmt: skip
def test_i03_an_unknown_deepspeed_key_is_refused(key: str, meant: str | None) -> None:
    with pytest.raises(UserError) as caught:
        read_deepspeed({key: {}})
    assert f"{key}: DeepSpeed has no such key" in str(caught.value)
    assert (f"did you mean {meant!r}" in str(caught.value)) == (meant is not None)


@pytest.mark.parametrize("value", [{"fp16": 3}, {"bf16": None}, {"zero_optimization": [1]}])
def test_a_deepspeed_section_must_be_a_map(value: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="allowed is a map"):
        read_deepspeed(value)


def test_deepspeed_keys_come_from_a_json_file_too(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"zero_optimization": {"overlap_comm": true}}')
    settings = read(tmp_path, PRETRAIN, f"deepspeed={path}")
    assert settings.deepspeed == {"zero_optimization": {"overlap_comm": True}}
    loader.dump(settings, tmp_path / "again.yaml")
    path.unlink()
    assert loader.load(tmp_path / "again.yaml", [], PretrainRun) == settings


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"aio": {"a": 1, "a": 2}}', "'a' is given twice"),
        ('{"aio": NaN}', "NaN"),
        ("[1]", "holds a list"),
        ("{", "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (b"\xff", "not UTF-8 text"),
        ('{"optimizer": {}}', "set optim instead"),
    ],
)
def test_a_deepspeed_file_that_is_wrong_is_refused(
    content: str | bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "ds.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert reason in refusal(tmp_path, PRETRAIN, f"deepspeed={path}")
    assert "No such file" in refusal(tmp_path, PRETRAIN, f"deepspeed={tmp_path}/none.json")
    assert "Is a directory" in refusal(tmp_path, PRETRAIN, f"deepspeed={tmp_path}")


READ_BY_DEEPSPEED = """
import json
from deepspeed.runtime import config

seen = set()

class Recorder(dict):
    def get(self, key, default=None):
        seen.add(key)
        return super().get(key, default)
    def __getitem__(self, key):
        seen.add(key)
        return super().__getitem__(key)
    def __contains__(self, key):
        seen.add(key)
        return super().__contains__(key)
    def keys(self):
        return self

config.DeepSpeedConfig(Recorder(train_batch_size=1))
removed = getattr(config, "_REMOVED_TOP_LEVEL_CONFIG_KEYS", {})
print("KEYS", json.dumps(sorted(seen - set(removed))))
"""


def test_the_allowed_keys_are_those_that_the_installed_deepspeed_reads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ_BY_DEEPSPEED], capture_output=True, text=True, check=True
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("KEYS "))
    keys = set(json.loads(line.removeprefix("KEYS ")))
    # read by `deepspeed.initialize` itself, before its config object is made
    before = {"sequence_parallel_size", "data_parallel_size"}
    refused = {key for key in REFUSED_KEYS if "." not in key}
    assert keys | before == KNOWN_KEYS | refused
    assert not KNOWN_KEYS & refused
    assert {key.split(".")[0] for key in OWNED_KEYS} <= KNOWN_KEYS


# Fuzz


NASTY = [
    "{", "}", "[", "]", ":", ": ", "- ", "\n", "\t", "&a ", "*a", "!!bool x", "!!set {", "| ",
    "'", '"', "#", "%YAML 1.1\n", "---\n", "...\n", "~", ".nan", "1e999", "0x", "\\", "\x00", "> ",
    "\U0001f642", "\u2028", "\ufeff", "é", "<<: *a", "? ", "2024-01-01", "-", "[[[[[[[[[[",
    "base: x\n", "=", "@", "`", ",",
    "99999999999999999999999", "!!python/object:os.system x", "!!binary x", "!!omap [",
]  # fmt: skip


def malformed(draw: random.Random, text: str) -> str:
    for _ in range(draw.choice([1, 1, 2, 3, 6, 12])):
        start = draw.randint(0, len(text))
        stop = min(len(text), start + draw.choice([0, 0, 1, 1, 3, 30]))
        middle = draw.choice(
            [draw.choice(NASTY), draw.choice(NASTY) * draw.randint(1, 40), text[start:stop] * 2,
             chr(draw.randint(0, 0x7F)), chr(draw.randint(0, 0xD7FF)), ""]
        )  # fmt: skip
        text = text[:start] + middle + text[stop:]
    return text


def test_r20_500_malformed_texts_give_settings_or_one_line(tmp_path: Path) -> None:
    draw = random.Random(20)
    kinds = {"settings": 0, "refused": 0}
    for _ in range(500):
        cls, whole = draw.choice(list(TEXTS.items()))
        text = malformed(draw, whole)
        overrides = [draw.choice(["seed=1", "a.b=" + draw.choice(NASTY), "optim.eps=1e-6"])]
        began, line = time.perf_counter(), ""
        try:
            read(tmp_path, text, *overrides[: draw.randint(0, 1)], cls=cls)
        except UserError as error:
            line = " ".join(str(error).split())
        kinds["refused" if line else "settings"] += 1
        assert len(line) < 1000, text
        assert time.perf_counter() - began < 5, text
    assert kinds["settings"] > 10
    assert kinds["refused"] > 300
