"""Protocols of scoring a causal language model, by brute force, and `evaluate` on an export."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn import functional as F

from ala_encoder import cards, causal_lm, command, export, runs
from ala_encoder.causal_lm import Text, blocks
from ala_encoder.corpus import prepare
from ala_encoder.errors import UserError
from ala_encoder.evaluation import plain
from ala_encoder.files import read_json
from ala_encoder.protocols import fixed_tokens, last_token, score, sliding, windows
from ala_encoder.settings.evaluate import EvaluateRun, Protocol
from ala_encoder.settings.loader import check
from ala_encoder.sources import TextSource
from pipelines import evaluate
from tests.launched import causal, small
from tests.test_causal import build

TOKENS = np.arange(100, 110, dtype=np.uint16)


# Windows


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_sliding_predicts_each_token_once_from_as_many_as_it_says(stride: int) -> None:
    """Ten tokens, a window of four: by a loop that moves the window on."""
    expected, done, start = [], 0, 0
    while done < 9:
        end = min(start + 4, 9)
        expected += [(place, list(range(start, place))) for place in range(done + 1, end + 1)]
        done, start = end, start + stride
    made = sliding(TOKENS, 4, stride)
    assert made.positions.tolist() == list(range(1, 10)) == [place for place, _ in expected]
    inputs = made.collate(np.arange(len(made)), 0)
    found = []
    for ids, labels in zip(inputs["input_ids"].tolist(), inputs["labels"].tolist(), strict=True):
        for place, label in enumerate(labels):
            if label != -100:
                found.append((label - 100, [token - 100 for token in ids[: place + 1]]))
    assert found == expected
    assert all(len(before) >= min(place, 4 - stride + 1) for place, before in found)


@pytest.mark.parametrize("size", [2, 4, 5, 8, 9, 10])
def test_a_stride_as_long_as_the_window_is_blocks(size: int) -> None:
    for length in (3, 4, 9, 20):
        ours, theirs = sliding(TOKENS[:size], length, length), blocks(TOKENS[:size], length, "x")
        for name in ("starts", "sizes", "targets", "positions"):
            assert getattr(ours, name).tolist() == getattr(theirs, name).tolist()


@pytest.mark.parametrize("stride", [0, 5])
def test_a_stride_that_leaves_tokens_out_is_refused(stride: int) -> None:
    with pytest.raises(UserError, match=rf"stride = {stride}: allowed are 1 … 4, the length of a"):
        sliding(TOKENS, 4, stride)


def test_the_fixed_tokens_depend_on_text_and_number_alone() -> None:
    tokens = np.zeros(5000, dtype=np.uint16)
    places = fixed_tokens(tokens, 1024, 300)
    assert len(set(places.tolist())) == 300 and places.min() >= 1024
    assert places.tolist() == sorted(places.tolist())
    assert fixed_tokens(tokens, 1024, 300).tolist() == places.tolist()
    assert set(fixed_tokens(tokens, 1024, 299).tolist()) < set(places.tolist())
    # those of a shorter longest length are the same where they can be
    shorter = fixed_tokens(tokens, 512, 300)
    cut = shorter[shorter >= 1024]
    assert set(cut.tolist()) <= set(places.tolist()) and len(cut) > 200
    assert fixed_tokens(tokens, 4900, 100).tolist() == list(range(4900, 5000))
    with pytest.raises(UserError, match=r"tokens = 101: the text has 100 with 4,900 tokens before"):
        fixed_tokens(tokens, 4900, 101)


def test_the_last_token_is_predicted_from_exactly_so_many() -> None:
    made = last_token(TOKENS, 3, np.array([3, 5, 9]))
    inputs = made.collate(np.arange(3), 0)
    assert inputs["input_ids"].tolist() == [[100, 101, 102], [102, 103, 104], [106, 107, 108]]
    assert inputs["labels"].tolist() == [[-100, -100, 103], [-100, -100, 105], [-100, -100, 109]]
    assert made.positions.tolist() == [3, 5, 9]


# Scores


@pytest.fixture(scope="module")
def model() -> Any:
    return build("gated", vocab_size=60, positions="none").eval()


def text(size: int = 400) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 60, size).astype(np.uint16)


def loss_at(model: Any, tokens: np.ndarray, place: int, length: int) -> float:
    row = torch.from_numpy(tokens[place - length : place].astype(np.int64))[None]
    with torch.no_grad():
        logits = model(row)[0, -1]
    return F.cross_entropy(logits, torch.tensor(int(tokens[place]))).item()


ABOUT = Text(np.arange(60), 77)


def test_lengths_are_compared_token_by_token(model: Any) -> None:
    tokens = text()
    protocol = Protocol(name="last_token", lengths=(8, 32, 16), tokens=50)
    places = fixed_tokens(tokens, 32, 50)
    found = {size: score(plain(model), tokens, protocol, ABOUT, size) for size in (1, 8)}
    scores, arrays = found[8]
    assert arrays["positions"].tolist() == places.tolist()
    by_hand = {n: np.array([loss_at(model, tokens, p, n) for p in places]) for n in (8, 32, 16)}
    for length, nll in by_hand.items():
        assert arrays[f"nll/{length}"].tolist() == pytest.approx(nll.tolist(), rel=1e-5)
        assert scores[f"eval_perplexity/{length}"] == pytest.approx(math.exp(nll.mean()), rel=1e-5)
        error = math.sqrt(sum((nll - nll.mean()) ** 2) / 49 / 50)
        assert scores[f"eval_loss_standard_error/{length}"] == pytest.approx(error, rel=1e-5)
        assert scores[f"eval_targets/{length}"] == 50
        assert scores[f"eval_bytes/{length}"] == tokens[places].sum()
        assert 0.4 < (scores[f"eval_gate/{length}"] or 0) < 0.6
        assert f"eval_word_perplexity/{length}" not in scores
    # against which length losses are held is said by `compare`, and there alone
    assert not [name for name in scores if "difference" in name]
    assert found[1].scores == pytest.approx(scores, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", ["blocks", "sliding"])
def test_one_length_has_plain_names_and_perplexity_is_that_of_all_tokens(
    name: Any, model: Any
) -> None:
    tokens = text(101)
    protocol = Protocol(name=name, lengths=(16,), stride=5 if name == "sliding" else None)
    found = {size: score(plain(model), tokens, protocol, ABOUT, size) for size in (1, 8)}
    starts = range(0, 100, 16) if name == "blocks" else range(0, 100, 5)
    by_hand, done = [], 0
    for start in starts:
        for place in range(max(done, start) + 1, min(start + 16, 100) + 1):
            by_hand.append(loss_at(model, tokens, place, place - start))
            done = place
    assert len(by_hand) == 100
    for scores, arrays in found.values():
        assert arrays["nll"].tolist() == pytest.approx(by_hand, rel=1e-5)
        assert scores["eval_perplexity"] == pytest.approx(math.exp(math.fsum(by_hand) / 100))
        assert scores["eval_word_perplexity"] == pytest.approx(math.exp(math.fsum(by_hand) / 77))
        assert list(arrays) == ["nll"]
        assert scores["eval_targets"] == 100


def test_a_long_length_is_computed_in_smaller_batches(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    whole = causal_lm.Windows.collate
    monkeypatch.setattr(
        causal_lm.Windows,
        "collate",
        lambda self, ids, epoch: (seen.append(len(ids) * int(self.sizes.max())),
                                  whole(self, ids, epoch))[1],
    )  # fmt: skip
    protocol = Protocol(name="last_token", lengths=(8, 64), tokens=20)
    score(plain(model), text(), protocol, ABOUT, 16)
    assert max(seen) <= 16 * 8 and len(seen) == 2 + 10


# The pipeline


@pytest.fixture(scope="module")
def exported(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run folder of an untrained model, its corpus prepared."""
    folder = tmp_path_factory.mktemp("causal")
    text, files = small.text(), {}
    for split, lines in (("train", text[:20]), ("valid", text[20:])):
        files[split] = [folder / f"{split}.txt"]
        files[split][0].write_text("\n".join(lines), encoding="utf-8")
    run = causal.settings(
        data={"path": str(folder / "tokens")},
        model={"positions": "none", "max_length": None},
        decoder={"biases": [{"kind": "gated_distbias", "alpha_init": 0.5}]},
    )
    tokenizer, _ = small.data(home)
    prepare(run.data.path, TextSource("toy", "nobody", files), tokenizer, say=lambda _: None)
    card = cards.CausalCard(
        variant="x", seed=1, run_name="x-clm-1", vocab_size=tokenizer.vocab_size, model=run.model,
        decoder=run.sections["decoder"], data=run.data, data_name="toy",
        parameters={"total": 1, "decoder_attention": 1, "qk_groups": 4},
    )  # fmt: skip
    state = causal.model(run, tokenizer.vocab_size).state_dict()
    export.write(folder / "run" / "export", card, tokenizer, state)
    return folder / "run"


@pytest.fixture
def run(
    exported: Path,
    started: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Any:
    monkeypatch.setattr(runs.engines, "stop", lambda: None)

    def call(*words: object) -> tuple[int, str, str]:
        argv = [str(exported), *map(str, words)]
        options: dict[str, Any] = {"json_flag": True, "positional": "export"}
        code = command.run(evaluate.main, EvaluateRun, "", argv=argv, **options)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_an_export_is_scored_by_each_protocol_in_a_folder_of_its_own(
    run: Any, exported: Path
) -> None:
    code, out, _ = run("--json")
    assert code == 0
    own = json.loads(out)
    assert own["protocol"] == {"name": "blocks", "lengths": [16], "stride": None, "tokens": None}
    assert read_json(exported / "eval" / "valid.json")["scores"] == own["scores"]
    assert read_json(exported / "eval" / "valid.json")["task"] == "clm"
    tokens = np.memmap(exported.parent / "tokens" / "valid.bin", dtype=np.uint16)
    assert len(load_file(exported / "eval" / "valid.safetensors")["nll"]) == len(tokens) - 1
    assert own["scores"]["eval_words"] > 100 and "eval_bytes" not in own["scores"]  # WordPiece

    code, out, _ = run("protocol=sliding", "stride=4", "length=8", "--json")
    assert code == 0 and json.loads(out)["protocol"]["stride"] == 4
    code, out, _ = run("protocol=sliding", "length=8")
    assert "x-clm-1 on valid of toy, sliding at 8, stride 4:" in out
    (folder,) = exported.glob("eval-toy-sliding-*")
    code, out, _ = run("protocol=last_token", "lengths=[8, 40]", "tokens=30", "--json")
    found = json.loads(out)
    assert found["scores"]["eval_targets/40"] == 30
    (folder,) = exported.glob("eval-toy-last_token-*")
    arrays = load_file(folder / "valid.safetensors")
    assert sorted(arrays) == ["nll/40", "nll/8", "positions"]
    assert arrays["positions"].tolist() == fixed_tokens(tokens, 40, 30).tolist()
    assert read_json(exported / "eval" / "valid.json")["scores"] == own["scores"]


def test_far_keys_can_be_left_out_where_texts_are_long_enough(run: Any, exported: Path) -> None:
    code, out, err = run("prune=1e-3")
    assert code == 2 and "prune: begins at 1536 tokens, texts have 16" in err
    code, out, err = run("prune=1e-3", "length=1600", "--json")
    assert code == 0
    # a record tells another `prune` than the model's own, which is another model, from its own
    told = [read_json(path) for path in exported.glob("eval*/valid.json")]
    pruned = ["prune_computed" in one["scores"] for one in told]
    assert any(pruned) and [one["prune"] for one in told] == [
        1e-3 if one else None for one in pruned
    ]
    assert 0 < json.loads(out)["scores"]["prune_computed"] < 0.7


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("stride=3", "stride: does nothing without protocol = 'sliding'"),
        ("tokens=3 protocol=blocks", "tokens: does nothing without protocol = 'last_token'"),
        ("length=8 lengths=[8]", "length and lengths are both given: keep one"),
        ("lengths=[8,8]", "lengths = [8, 8]: one of them is there twice"),
        ("lengths=[]", "lengths"),
        ("protocol=last", "protocol = \"last\": input should be 'blocks', 'sliding' or"),
        ("protocol=sliding stride=17", "stride = 17: allowed are 1 … 16, the length of a window"),
        ("protocol=last_token length=1000000", "tokens = 2000: the text has 0 with 1,000,000"),
        ("lengths=[8,1000000]", "lengths = 1000000: the text has "),
        ("protocol=sliding length=1000000", "length = 1000000: the text has "),
        ("search.beam_size=2", "search: is for translation models, this is a causal_lm"),
        ("task=sst2", "task: does nothing for a causal_lm, which is scored on `path`"),
    ],
)
def test_what_does_not_fit_is_one_line(words: str, told: str, run: Any) -> None:
    code, _, err = run(*words.split())
    assert code == 2 and told in err and err.count("\n") == 1


def test_learned_positions_beyond_their_end_are_refused() -> None:
    for given in ({"length": 17}, {"lengths": [8, 17]}):
        asked = check({"export": "x", **given}, EvaluateRun)
        with pytest.raises(UserError, match=r"length.* = 17: the model has 16 learned positions"):
            asked.causal_protocol(16, 16)
        assert max(asked.causal_protocol(16, None).lengths) == 17


def test_a_protocol_is_for_causal_language_models(
    home: Path, tmp_path: Path, started: None, capsys: pytest.CaptureFixture[str]
) -> None:
    given = small.settings()
    tokenizer, _ = small.data(home)
    card = cards.Card(
        kind="masked_lm", variant="x", seed=1, run_name="x", vocab_size=tokenizer.vocab_size,
        model=given.model, encoder=given.encoder, data=given.data, data_name="x",
        parameters={"total": 1, "encoder_attention": 1, "qk_groups": 1},
    )  # fmt: skip
    state = small.model(given, tokenizer.vocab_size).state_dict()
    export.write(tmp_path / "export", card, tokenizer, state)
    for word in ("protocol=blocks", "length=8", "lengths=[8]"):
        argv, options = [str(tmp_path), word], {"json_flag": True, "positional": "export"}
        code = command.run(evaluate.main, EvaluateRun, "", argv=argv, **options)  # type: ignore
        name = word.partition("=")[0]
        told = f"error: {name}: is for causal language models, this is a masked_lm\n"
        assert (code, capsys.readouterr().err) == (2, told)


def test_windows_of_a_protocol_are_those_of_its_name() -> None:
    for name in ("blocks", "sliding", "last_token"):
        protocol = check({"name": name, "lengths": [4], "stride": 2, "tokens": 3}, Protocol)
        made = windows(protocol, TOKENS, 4)
        assert len(made) == {"blocks": 3, "sliding": 4, "last_token": 3}[name]
