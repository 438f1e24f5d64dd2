"""Causal language modelling: the windows, the scores by brute force, and the whole way."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ala_encoder import cards, causal_lm, command, export, runs
from ala_encoder.batches import Plan, Position, step_batches
from ala_encoder.causal_lm import Text, TokenLosses, Windows, blocks
from ala_encoder.errors import UserError
from ala_encoder.evaluation import plain
from ala_encoder.gates import watch_gates
from ala_encoder.models import CausalLM
from ala_encoder.objectives import IGNORE
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.biases import DistBias
from ala_encoder.settings.experiment import Preparation, PretrainRun
from ala_encoder.settings.tokenizer import ByteBPESettings, PretrainedSettings
from ala_encoder.settings.train import BatchSplit
from ala_encoder.tokenizer import Tokenizer, load, make, train
from pipelines import prepare_data, pretrain, train_tokenizer
from tests.launched import causal, small
from tests.strings import GPT2, clean, generated_text, odd_strings, small_bert, small_gpt2
from tests.test_causal import build

TOKENS = np.arange(100, 125, dtype=np.uint16)


def every(windows: Windows) -> np.ndarray:
    return np.arange(len(windows), dtype=np.int64)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    wanted = ByteBPESettings(path=tmp_path_factory.mktemp("bpe") / "t", kind="byte_bpe",
                             vocab_size=320)  # fmt: skip
    return train(wanted, generated_text(1))


# Windows


@pytest.mark.parametrize("length", [3, 5, 8, 23, 24, 30])
def test_every_token_but_the_first_is_predicted_once_from_those_before(length: int) -> None:
    windows = blocks(TOKENS, length, "valid")
    assert len(windows) == math.ceil(24 / length)
    inputs = windows.collate(every(windows), 0)
    seen = []
    for b, (ids, labels) in enumerate(zip(inputs["input_ids"], inputs["labels"], strict=True)):
        real = labels != IGNORE
        assert ids[real].tolist() == TOKENS[b * length : (b + 1) * length][: real.sum()].tolist()
        assert labels[real].tolist() == (ids[real] + 1).tolist()
        assert real.tolist() == windows.read(np.array([b]))[0].tolist()
        seen += labels[real].tolist()
    assert seen == TOKENS[1:].tolist()
    assert TOKENS[windows.positions].tolist() == seen
    assert windows.counts(every(windows), 0).sum() == windows.num_tokens(every(windows)) == 24


def test_an_empty_piece_has_no_label() -> None:
    found = blocks(TOKENS, 8, "train").collate(np.empty(0, dtype=np.int64), 0)
    assert found["input_ids"].shape == found["labels"].shape == (1, 8)
    assert (found["labels"] == IGNORE).all()


def test_batches_of_a_step_count_what_they_predict() -> None:
    windows = blocks(TOKENS, 5, "train")
    steps = step_batches(windows, Plan(1, len(windows), 3), Position(), rank=0, world_size=1,
                         split=BatchSplit(micro=2, accumulation=2))  # fmt: skip
    for _ in range(4):
        batch = next(steps)
        labels = torch.cat([inputs["labels"] for inputs in batch.micro_batches])
        assert batch.count == batch.num_tokens == (labels != IGNORE).sum()


def test_a_text_too_short_is_told() -> None:
    with pytest.raises(UserError, match=r"data\.length = 25: the training text has only 25 tokens"):
        blocks(TOKENS, 25, "train")
    assert len(blocks(TOKENS, 25, "valid")) == 1
    with pytest.raises(UserError, match="the valid text has nothing to predict"):
        blocks(TOKENS[:1], 8, "valid")


# Scores


def model() -> CausalLM:
    return build(vocab_size=320, positions="none").eval()


def text_of(tokenizer: Tokenizer, lines: list[str]) -> np.ndarray:
    rows = tokenizer.encode_batch(lines)
    return np.array([t for row in rows for t in [*row, tokenizer.eos_id]], dtype=np.uint16)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_scores_are_those_of_a_loop_over_the_tokens(batch_size: int, tokenizer: Tokenizer) -> None:
    lines = generated_text(3)[:12]
    tokens = text_of(tokenizer, lines)
    words = sum(len(line.split()) for line in lines)
    windows, built = blocks(tokens, 16, "valid"), model()
    losses, observed = causal_lm.token_losses(plain(built), windows, batch_size)
    assert observed == {}
    about = Text.of(tokens, tokenizer, words)
    scores = causal_lm.causal_lm_scores(losses, windows, about)
    nll, hits = [], {1: 0, 5: 0}
    for start in range(0, len(tokens) - 1, 16):
        row = torch.from_numpy(tokens[start : start + 17].astype(np.int64))
        with torch.no_grad():
            logits = built(row[None, :-1])[0]
        nll += F.cross_entropy(logits, row[1:], reduction="none").tolist()
        for k in hits:
            best = logits.topk(k).indices
            hits[k] += int((best == row[1:, None]).any(1).sum())
    count = len(tokens) - 1
    assert losses.nll.tolist() == pytest.approx(nll, rel=1e-5)
    size = sum(len(line.encode()) for line in lines)
    size -= len(tokenizer.decode(tokens[:1].tolist()).encode())
    first = tokenizer.decode(tokens[:1].tolist())
    total = math.fsum(nll)
    assert scores == pytest.approx(
        {
            "eval_loss": total / count,
            "eval_perplexity": math.exp(total / count),
            "eval_bits_per_token": total / count / math.log(2),
            "eval_bits_per_byte": total / size / math.log(2),
            "eval_word_perplexity": math.exp(total / words),
            "eval_top1": hits[1] / count,
            "eval_top5": hits[5] / count,
            "eval_targets": count,
            "eval_bytes": size,
            "eval_words": words - (first == lines[0].split()[0]),
        },
        rel=1e-6,
    )


def test_scores_that_are_no_numbers_are_none() -> None:
    windows = blocks(TOKENS, 8, "valid")
    losses = TokenLosses(np.full(24, np.nan, dtype=np.float32), np.full(24, 320))
    scores = causal_lm.causal_lm_scores(losses, windows, Text(None, None))
    assert scores == {"eval_loss": None, "eval_perplexity": None, "eval_targets": 24}
    losses = TokenLosses(np.ones(24, dtype=np.float32), np.arange(24))
    scores = causal_lm.causal_lm_scores(losses, windows, Text(None, None))
    assert scores["eval_perplexity"] == pytest.approx(math.e)
    assert (scores["eval_top1"], scores["eval_top5"]) == (1 / 24, 5 / 24)
    assert not {"eval_bits_per_byte", "eval_word_perplexity"} & scores.keys()


@pytest.mark.parametrize(
    ("text", "words"),
    [("the theory", 2), ("thee theory", 3), (" x y", 2), ("x", 1), ("héhé x", 2)],
)
def test_a_first_token_that_is_a_word_is_none_of_the_words(
    text: str, words: int, tmp_path: Path
) -> None:
    """`the` is made by no merge without a space before it, so `t` begins each word."""
    tokenizer = load(small_gpt2(tmp_path / "gpt2"))
    tokens = text_of(tokenizer, [text])
    rest = tokenizer.decode(tokens[1:].tolist())
    assert Text.of(tokens, tokenizer, len(text.split())).words == len(rest.split())


def test_bytes_of_pieces_add_up_to_those_of_any_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for one in (tokenizer, load(small_gpt2(tmp_path / "gpt2"))):
        sizes = one.piece_bytes()
        assert sizes is not None and all(sizes[index] == 0 for index in one.special_ids)
        for text in odd_strings(200):
            assert sum(sizes[i] for i in one.encode(text)) == len(clean(text).encode())
    assert load(small_bert(tmp_path / "bert")).piece_bytes() is None


# Gates


def test_alphas_and_mean_gates_are_those_of_the_modules_over_real_tokens() -> None:
    built = build("gated").eval()
    torch.manual_seed(2)
    ids = torch.randint(0, 23, (2, 9))
    real = torch.ones(2, 9, dtype=torch.bool)
    real[1, 4:] = False
    gates: list[Any] = []
    handles = [
        layer.attention.biases[0].gate_proj.register_forward_hook(
            lambda module, given, logits: gates.append(logits.sigmoid())
        )
        for layer in built.stack.layers
    ]
    with torch.no_grad(), watch_gates(built) as watch:
        watch.real = real
        built(ids)
        values = watch.values()
        whole = len(gates)
        built(ids)
        twice = watch.values()
    assert twice == pytest.approx(values)
    for handle in handles:
        handle.remove()
    for layer in range(3):
        bias: Any = built.stack.layers[layer].attention.biases[0]
        by_hand = gates[layer][real].double().mean(0)
        for head in range(4):
            assert values[f"alpha/{layer}/{head}"] == bias.distance.alpha()[head].item()
            assert values[f"gate/{layer}/{head}"] == pytest.approx(by_hand[head].item())
    assert whole == 3 and len(values) == 25
    means = [value for name, value in values.items() if name.startswith("gate")]
    assert values["eval_gate"] == pytest.approx(sum(means) / 12)
    assert not any(part._forward_hooks for part in built.modules())


def test_a_slope_without_a_gate_has_an_alpha_alone() -> None:
    attention = AttentionSettings(biases=(DistBias(kind="distbias", alpha_init=0.3),))
    built = CausalLM(causal.settings().model, attention, 40)
    with watch_gates(built) as watch:
        built(torch.zeros(1, 5, dtype=torch.long))
    assert watch.values() == pytest.approx(
        {f"alpha/{i}/{h}": 0.3 for i in (0, 1) for h in range(4)}
    )


def test_a_layer_of_several_distance_biases_has_no_one_alpha() -> None:
    kinds = ({"kind": "distbias"}, {"kind": "gated_distbias"})
    attention = AttentionSettings.model_validate({"biases": kinds})
    built = CausalLM(causal.settings().model, attention, 40)
    with watch_gates(built) as watch:
        built(torch.zeros(1, 5, dtype=torch.long))
    assert {name.partition("/")[0] for name in watch.values()} == {"gate", "eval_gate"}


# The tokenizer


def test_a_published_vocabulary_is_copied_as_it_is_or_filled_up(tmp_path: Path) -> None:
    name = str(small_gpt2(tmp_path / "gpt2"))

    def copy(folder: str, **options: Any) -> Tokenizer:
        wanted = PretrainedSettings(path=tmp_path / folder, kind="pretrained", name=name, **options)
        make(wanted, [], lambda text: None)
        return load(wanted.path)

    as_it_is = copy("plain", complete=False)
    assert as_it_is.fingerprint == load(Path(name)).fingerprint
    assert as_it_is.eos_id == as_it_is.vocab_size - 1
    with pytest.raises(UserError, match="has no mask token"):
        _ = as_it_is.mask_id
    larger = copy("larger", complete=False, unused=5, vocab_size=as_it_is.vocab_size + 5)
    for text in odd_strings(50):
        assert larger.encode(text) == as_it_is.encode(text)
    assert len(larger.special_ids) == 6 and larger.eos_id == as_it_is.eos_id
    assert copy("both", unused=3).vocab_size == copy("whole").vocab_size + 3
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size = 9: "):
        copy("wrong", complete=False, vocab_size=9)
    bert = PretrainedSettings(
        path=tmp_path / "b", kind="pretrained", name=str(small_bert(tmp_path / "bert")), unused=1
    )
    with pytest.raises(UserError, match=r"tokenizer\.unused = 1: is for byte_bpe alone, .*wordpi"):
        make(bert, [], lambda text: None)


@pytest.mark.parametrize("unused", [0, 47] if GPT2.exists() else [])
def test_gpt2s_own_vocabulary_has_the_published_size(unused: int, tmp_path: Path) -> None:
    wanted = PretrainedSettings(
        path=tmp_path / "t", kind="pretrained", name=str(GPT2), complete=False, unused=unused,
        vocab_size=50_257 + unused,
    )  # fmt: skip
    make(wanted, [], lambda text: None)
    found = load(wanted.path)
    sizes = found.piece_bytes()
    assert sizes is not None and found.eos_id == 50_256
    assert sum(sizes[i] for i in found.encode("naïve 中文")) == len("naïve 中文".encode())


# The pipelines


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: None) -> Path:
    """Return a folder of text; a run ends no process group."""
    monkeypatch.setattr(runs.engines, "stop", lambda: None)
    text = small.text()
    for name, lines in (("train", text[:60]), ("valid", text[60:80])):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def config(home: Path, **changes: Any) -> Path:
    texts = {split: [str(home / f"{split}.txt")] for split in ("train", "valid")}
    content: dict[str, Any] = {
        **causal.SETTINGS,
        "output": str(home / "runs"),
        "tokenizer": {"kind": "byte_bpe", "path": str(home / "tokenizer"), "vocab_size": 320},
        "data": {"path": str(home / "tokens"), "source": {"kind": "files", **texts}, "length": 16},
        "tracking": {"enabled": False},
    }
    content["train"] = {**content["train"], "steps": 8, "eval_every": 4}
    path = home / "config.yaml"
    path.write_text(json.dumps(content | changes))
    return path


def run(pipeline: Any, cls: Any, *words: object, **options: Any) -> int:
    argv = [str(word) for word in words]
    return command.run(pipeline.main, cls, pipeline.__doc__ or "", argv=argv, **options)


def test_a_run_learns_logs_its_gates_and_exports_what_it_trained(home: Path) -> None:
    path = config(home)
    assert run(train_tokenizer, Preparation, path, json_flag=True) == 0
    assert run(prepare_data, Preparation, path) == 0
    assert run(pretrain, PretrainRun, path) == 0
    folder = home / "runs" / "tiny-clm-7"
    losses = small.losses(folder)
    assert len(losses) == 8 and losses[8] < losses[1] - 0.3
    for name in ("alpha/0/0", "gate/1/3", "eval_gate", "eval_bits_per_byte", "eval_top5"):
        assert list(small.metrics(folder, name)) == [0, 4, 8], name
    assert small.metrics(folder, "eval_gate")[0] == pytest.approx(0.5, abs=0.02)
    assert small.metrics(folder, "alpha/1/2")[0] == pytest.approx(0.1)

    read = export.read_causal(folder)
    assert read.card.kind == "causal_lm"
    assert read.card.parameters["total"] == sum(p.numel() for p in read.build().parameters())
    scores = read.card.scores
    assert not any("/" in name for name in scores)
    assert scores["eval_unigram_loss"] > 0
    valid = (home / "valid.txt").read_text(encoding="utf-8")
    assert scores["eval_words"] in (len(valid.split()), len(valid.split()) - 1)
    tokens = np.memmap(home / "tokens" / "valid.bin", dtype=np.uint16)
    assert scores["eval_targets"] == len(tokens) - 1
    assert "A causal language model" in (folder / "export" / "README.md").read_text()
    assert "read_causal(folder)" in export.readme(read.card)
    for reader in (export.read, export.read_translation):
        with pytest.raises(UserError, match="is a causal_lm, needed is"):
            reader(folder)


def test_save_export_load_gives_the_same_logits_bitwise(home: Path, tmp_path: Path) -> None:
    given = causal.settings()
    tokenizer, _ = small.data(home)
    built = causal.model(given, tokenizer.vocab_size).eval()
    card = cards.CausalCard(
        variant="x", seed=1, run_name="x", vocab_size=tokenizer.vocab_size, model=given.model,
        decoder=given.sections["decoder"], data=given.data, data_name="x",
        parameters={"total": 1, "decoder_attention": 1, "qk_groups": 1},
    )  # fmt: skip
    export.write(tmp_path / "export", card, tokenizer, built.state_dict())
    read = export.read_any(tmp_path / "export").build()
    ids = torch.randint(0, 300, (3, 16))
    with torch.no_grad():
        assert torch.equal(built(ids), read(ids))


def test_an_interrupted_run_is_the_unbroken_one_bitwise(home: Path) -> None:
    assert run(train_tokenizer, Preparation, config(home), json_flag=True) == 0
    assert run(pretrain, PretrainRun, config(home)) == 0
    path = config(home, name="parts")
    assert run(pretrain, PretrainRun, path, "train.stop_after=3") == 0
    assert run(pretrain, PretrainRun, path) == 0
    whole, parts = (export.read_causal(home / "runs" / n) for n in ("tiny-clm-7", "parts"))
    assert small.losses(whole.folder.parent) == small.losses(parts.folder.parent)
    assert all(torch.equal(tensor, parts.state[name]) for name, tensor in whole.state.items())
    assert whole.card.scores == parts.card.scores


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data": {"mask_probability": 0.3}},
         "data.mask_probability: does nothing with objective = 'clm'"),
        ({"data": {"mask_selection": "independent"}},
         "data.mask_selection: does nothing with objective = 'clm'"),
        ({"data": {"spans": {}}}, "data.spans: does nothing with objective = 'clm'"),
        ({"data": {"length": 17}}, "data.length = 17: the model has 16 positions"),
        ({"encoder": {}}, "encoder: a model of family 'causal' has decoder alone"),
        ({"cross": {}}, "cross: a model of family 'causal' has decoder alone"),
        ({"objective": "mlm"}, "needed with objective = 'mlm' is 'encoder'; objective: clm "),
        ({"objective": "clmm"}, "(did you mean 'clm'?)"),
        ({"decoder": {"biases": [{"kind": "window", "width": 17}]}},
         "decoder: biases: window 17 hides nothing in 16 tokens"),
        (
            {"train": {"patience": 3, "eval_every": 1}},
            "train.patience: pretraining picks no best weights",
        ),
    ],
)  # fmt: skip
def test_a_setting_without_effect_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as caught:
        causal.settings(**changes)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_an_objective_has_its_family() -> None:
    with pytest.raises(UserError, match="'encoder': needed with objective = 'clm' is 'causal'"):
        small.settings(objective="clm")
