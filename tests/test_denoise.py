"""`objective: denoise`: the corruption against a plain referee, the examples, and the whole way
from running text to a translation model that starts from it."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ala_encoder import command, denoising, export, runs
from ala_encoder.batches import Plan, Position, step_batches
from ala_encoder.denoising import InfilledTexts, Infilling
from ala_encoder.files import read_json
from ala_encoder.keyed import keyed_uniform
from ala_encoder.objectives import IGNORE
from ala_encoder.settings.corpus import CorpusSettings
from ala_encoder.settings.evaluate import EvaluateRun
from ala_encoder.settings.experiment import Preparation, PretrainRun
from ala_encoder.settings.loader import check, load
from ala_encoder.settings.tokenizer import ByteBPESettings, SentencePieceSettings
from ala_encoder.settings.train import BatchSplit
from ala_encoder.settings.translate import TranslateRun
from ala_encoder.settings.translation import TranslationRun
from ala_encoder.tokenizer import SPECIAL_TOKENS, Normalisation, WordPiece, train
from ala_encoder.tracking import EVENTS
from ala_encoder.transfer import start_from
from pipelines import evaluate, finetune_nmt, pretrain, train_tokenizer, translate
from tests.launched import nmt, small
from tests.pairs import PAIRS, refusal
from tests.strings import ROOT

PAD, UNK, BOS, EOS, MASK = range(5)
TOKENIZER = WordPiece([*SPECIAL_TOKENS, *(f"w{i}" for i in range(95))], Normalisation())
_LENGTH, _PLACE = 4, 5  # the streams of the hash


# The referee: one text at a time, in plain Python


def poisson(u: float, mean: float) -> int:
    """Return the smallest length at which the distribution function exceeds u."""
    length, term = 0, math.exp(-mean)
    total = term
    while u >= total:
        length += 1
        term *= mean / length
        total += term
    return length


def spans_of(n: int, example: int, epoch: int, made: Infilling) -> list[int]:
    masked, counted = max(1, round(made.probability * n)), 0
    spans: list[int] = []
    while True:
        u = float(keyed_uniform(made.seed, _LENGTH, epoch, example, len(spans)))
        drawn = poisson(u, made.mean_length)
        counted += max(drawn, 1)
        if counted >= masked:
            return [*spans, masked - sum(spans)]
        spans.append(drawn)


def infilled(text: list[int], example: int, epoch: int, made: Infilling) -> list[int]:
    spans = spans_of(len(text), example, epoch, made)
    slots = len(text) - sum(spans) + len(spans)
    order = sorted(
        range(slots),
        key=lambda slot: float(keyed_uniform(made.seed, _PLACE, epoch, example, slot)),
    )
    masks, left, out = set(order[: len(spans)]), list(text), []
    for slot in range(slots):
        if slot in masks:
            out.append(made.mask_id)
            del left[: spans.pop(0)]
        else:
            out.append(left.pop(0))
    assert not left and not spans
    return out


def examples(seed: int = 7, length: int = 24, documents: int = 40) -> InfilledTexts:
    """Return documents of 1 to 99 tokens, unknown ones among them."""
    rng = random.Random(documents)
    tokens: list[int] = []
    for _ in range(documents):
        tokens += [rng.choice([UNK, *range(5, 100)]) for _ in range(rng.randint(1, 99))] + [EOS]
    data = settings(length=length)
    return denoising.training_texts(np.array(tokens, dtype=np.uint16), data, TOKENIZER, seed)


def settings(**changes: Any) -> CorpusSettings:
    return check({"path": "x", "source": {"kind": "embedded"}, **changes}, CorpusSettings)


def every(made: InfilledTexts) -> np.ndarray:
    return np.arange(len(made), dtype=np.int64)


# Corruption


@pytest.mark.parametrize(
    ("probability", "mean"), [(0.3, 3.0), (0.05, 3.0), (0.9, 1.0), (0.5, 12.5), (0.3, 100.0)]
)
def test_spans_and_their_places_are_the_referees(probability: float, mean: float) -> None:
    made = Infilling(3, MASK, probability, mean)
    rng = random.Random(5)
    texts = [[rng.randrange(5, 100) for _ in range(n)] for n in [1, 2, 3, 4, 5, 9, 40, 200] * 4]
    ids = np.array(rng.sample(range(10**9), len(texts)), dtype=np.int64)
    sizes = np.array([len(text) for text in texts], dtype=np.int64)
    rows = np.full((len(texts), 200), PAD, dtype=np.int64)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    for epoch in (0, 1, 77):
        found, left = made.apply(rows, sizes, ids, epoch)
        spans, numbers = made.spans(sizes, ids, epoch)
        for i, text in enumerate(texts):
            assert found[i, : left[i]].tolist() == infilled(text, int(ids[i]), epoch, made)
            assert spans[i, : numbers[i]].tolist() == spans_of(len(text), int(ids[i]), epoch, made)
            assert not spans[i, numbers[i] :].any()


def test_exactly_three_tenths_of_the_tokens_are_left_out_and_no_text_grows() -> None:
    sizes = np.arange(1, 400)
    for mean in (1.0, 3.0):
        made = Infilling(1, MASK, 0.3, mean)
        rows = np.broadcast_to(np.arange(1000, 1399), (399, 399))
        found, left = made.apply(rows, sizes, sizes, 4)
        for n, row, size in zip(sizes, found, left, strict=True):
            kept = [token for token in row[:size].tolist() if token != MASK]
            assert len(kept) == n - max(1, round(0.3 * n))
            assert kept == sorted(set(kept)) and all(1000 <= token < 1000 + n for token in kept)
            assert size <= n


def test_lengths_are_of_a_poisson_distribution_and_places_are_even() -> None:
    made = Infilling(1, MASK, 0.3, 3.0)
    ids = np.arange(4000)
    spans, numbers = made.spans(np.full(4000, 400), ids, 0)
    drawn = [s for row, n in zip(spans.tolist(), numbers, strict=True) for s in row[: n - 1]]
    counts = Counter(drawn)
    for length in range(8):
        share = math.exp(-3.0) * 3.0**length / math.factorial(length)
        assert counts[length] / len(drawn) == pytest.approx(share, abs=0.003)
    # of the places for two spans among 14 kept tokens each is as likely
    rows, sizes = np.full((4000, 20), 9), np.full(4000, 20)
    found, left = made.apply(rows, sizes, ids, 0)
    pairs = found[made.spans(sizes, ids, 0)[1] == 2, :16] == MASK
    assert len(pairs) > 1000 and (pairs.sum(1) == 2).all() and (left >= 15).all()
    places = Counter(tuple(np.flatnonzero(row)) for row in pairs)
    assert len(places) == 16 * 15 // 2
    assert pairs.mean(0) == pytest.approx(np.full(16, 2 / 16), abs=0.03)


def test_a_text_is_corrupted_alike_in_any_batch_and_differently_in_every_epoch() -> None:
    made = examples()
    ids = every(made)
    together = made.collate(ids, 3)
    for some in (ids[:1], ids[::-1], ids[5:50:7]):
        found = made.collate(some, 3)
        for row, i in enumerate(some):
            ends = int(together["src_segments"][i].sum())
            assert int(found["src_segments"][row].sum()) == ends
            assert torch.equal(found["src_ids"][row, :ends], together["src_ids"][i, :ends])
    others = [made.collate(ids, 4), examples(seed=8).collate(ids, 3)]
    for other in others:
        assert torch.equal(other["labels"], together["labels"])
        width = min(other["src_ids"].shape[1], together["src_ids"].shape[1])
        assert (other["src_ids"][:, :width] != together["src_ids"][:, :width]).any(1).sum() > 100


def test_validation_is_corrupted_alike_for_every_seed() -> None:
    made = examples(seed=9)
    fixed = denoising.validation_texts(made.tokens, settings(length=24), TOKENIZER)
    again = denoising.validation_texts(made.tokens, settings(length=24, spans={}), TOKENIZER)
    assert fixed.infilling == again.infilling != made.infilling
    spans = {"probability": 0.15, "mean_length": 2.0}
    other = denoising.validation_texts(made.tokens, settings(spans=spans), TOKENIZER)
    assert (other.infilling.probability, other.infilling.mean_length) == (0.15, 2.0)


# Examples


@pytest.mark.parametrize("length", [3, 7, 24, 99, 100, 500])
def test_no_token_is_lost_and_no_text_crosses_a_document(length: int) -> None:
    made = examples(length=length)
    rows, sizes = made.texts(every(made))
    texts = [row[:size].tolist() for row, size in zip(rows, sizes, strict=True)]
    assert max(map(len, texts)) <= length - 1
    documents: list[list[int]] = [[]]
    for token in made.tokens.tolist():
        if token == EOS:
            documents.append([])
        else:
            documents[-1].append(token)
    left = iter(texts)
    for document in documents[:-1]:
        parts = [next(left) for _ in range(-(-len(document) // (length - 1)))]
        assert [token for part in parts for token in part] == document
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert not list(left)


def test_a_last_document_may_lack_its_end() -> None:
    tokens = np.array([7, 8, EOS, EOS, 9], dtype=np.uint16)
    made = InfilledTexts(tokens, 9, TOKENIZER, Infilling(1, MASK))
    assert (made.starts.tolist(), made.sizes.tolist()) == ([0, 4], [2, 1])


def test_a_large_corpus_is_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = examples()
    monkeypatch.setattr(denoising, "_AT_ONCE", 5)
    parts = examples()
    assert (whole.starts == parts.starts).all() and (whole.sizes == parts.sizes).all()


def test_a_batch_is_the_referees_and_says_how_many_targets_it_has() -> None:
    made = examples()
    ids = every(made)[3:60]
    found = {name: tensor.tolist() for name, tensor in made.collate(ids, 2).items()}
    rows, sizes = made.texts(ids)
    for row, i in enumerate(ids):
        text = rows[row, : sizes[row]].tolist()
        src = [*infilled(text, int(i), 2, made.infilling), EOS]
        wanted = {
            "src_ids": (src, PAD),
            "src_segments": ([1] * len(src), 0),
            "trg_ids": ([BOS, *text], PAD),
            "trg_segments": ([1] * (len(text) + 1), 0),
            "labels": ([*text, EOS], IGNORE),
        }
        for name, (start, padding) in wanted.items():
            there = found[name][row]
            assert there == start + [padding] * (len(there) - len(start)), name
    counts = made.counts(ids, 2)
    assert counts.tolist() == [sum(label != IGNORE for label in row) for row in found["labels"]]
    assert made.num_tokens(ids) == counts.sum()
    assert (made.lengths()[ids] == counts).all()


def test_an_empty_piece_has_a_token_and_no_target() -> None:
    found = examples().collate(np.empty(0, dtype=np.int64), 0)
    assert {tuple(tensor.shape) for tensor in found.values()} == {(1, 1)}
    assert found["labels"].tolist() == [[IGNORE]]
    assert (found["src_ids"].item(), found["trg_ids"].item()) == (EOS, BOS)


@pytest.mark.parametrize(("world", "workers"), [(2, 0), (3, 0), (1, 1)])
def test_ranks_workers_and_a_start_midway_change_no_text(world: int, workers: int) -> None:
    made = examples()
    plan = Plan(5, len(made), 13, made.lengths())

    def texts(world: int, start: Position, steps: int, workers: int = 0) -> list[Any]:
        split = BatchSplit(micro=-(-13 // (2 * world)), accumulation=2)
        found: list[Any] = [(0, Counter()) for _ in range(steps)]
        for rank in range(world):
            batches = step_batches(
                made, plan, start, rank=rank, world_size=world, split=split, num_workers=workers
            )
            for step, batch in zip(range(steps), batches):  # noqa: B905
                rows = found[step][1]
                for inputs in batch.micro_batches:
                    for src, labels in zip(inputs["src_ids"], inputs["labels"], strict=True):
                        if (labels != IGNORE).any():
                            rows[tuple(src[src != PAD].tolist())] += 1
                found[step] = (batch.count, rows)
        return found

    whole = texts(1, Position(), plan.batches_per_epoch + 3)
    assert texts(world, Position(0, 0, 4), plan.batches_per_epoch - 1, workers) == whole[4:]
    for number, (count, rows) in enumerate(whole[: plan.batches_per_epoch]):
        ids = plan.batches(0, 0)[number]
        assert rows.total() == len(ids)
        assert count == made.counts(ids, 0).sum()


# Settings


def test_the_shipped_config_has_the_sizes_and_the_tokenizer_of_nmt_small() -> None:
    configs = ROOT / "configs"
    run = load(configs / "small" / "denoise.yaml", [], PretrainRun)
    other = load(configs / "nmt_small" / "a.yaml", [], TranslationRun)
    assert (run.model, run.sections, run.tokenizer) == (
        other.model,
        other.sections,
        other.tokenizer,
    )
    assert load(configs / "small" / "denoise.yaml", [], Preparation).objective == "denoise"
    spans = denoising.training_texts(np.array([9, EOS]), run.data, TOKENIZER, 1).infilling
    assert spans == Infilling(1, MASK) == Infilling(1, MASK, 0.3, 3.0)


@pytest.mark.parametrize(
    ("config", "override", "told"),
    [
        ("small/denoise", "objective=mlm", "model.family = 'encoder_decoder': needed with"),
        ("small/denoise", "objective=denoice", "did you mean 'denoise'?"),
        ("demo/full", "objective=denoise",
         "model.family = 'encoder': needed with objective = 'denoise' is 'encoder_decoder'"),
        ("demo/full", "data.spans={}", "data.spans: does nothing with objective = 'mlm'"),
        ("demo/full", "cross={}", "cross: a model of family 'encoder' has encoder alone"),
        ("small/denoise", "data.mask_probability=0.3",
         "data.mask_probability: does nothing with objective = 'denoise'"),
        ("small/denoise", "data.spans.mean_length=0.5", "data.spans.mean_length = 0.5"),
        ("small/denoise", "data.spans.probability=1", "data.spans.probability = 1"),
        ("small/denoise", "data.length=1", "data.length = 1"),
        ("small/denoise", "model={family: encoder_decoder, positions: learned, max_length: 63}",
         "data.length = 64: the model has 63 positions"),
        ("small/denoise", "decoder.layout=a", "decoder: layout 'a' has 6 layers x 8 heads"),
        ("small/denoise", "decoder.heads=[[next1, full], [full, full]]", "decoder: "),
        ("small/denoise", "cross.heads=[[band64]]", "cross: "),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cls", [PretrainRun, Preparation])
def test_a_wrong_setting_is_one_line(cls: Any, config: str, override: str, told: str) -> None:
    assert told in refusal(load, ROOT / "configs" / f"{config}.yaml", [override], cls)


def test_pairs_are_no_running_text_nor_running_text_pairs() -> None:
    path = ROOT / "configs" / "nmt_small" / "a.yaml"
    told = refusal(load, path, ["objective=denoise"], Preparation)
    assert told == "data: objective = 'denoise' needs running text"
    data = "{path: x, source: {kind: embedded}}"
    told = refusal(load, path, [f"data={data}"], Preparation)
    assert told.endswith("needs parallel text, or objective: denoise")


# The pipelines


TABLES: dict[str, Any] = {
    "encoder": {"heads": [["band1#a", "full#a", "prev1", "full"]] * 2,
                "biases": [{"kind": "gated_distbias"}]},
    "decoder": {"heads": [["full#a", "full#a", "prev1", "full"], ["full"] * 4]},
    "cross": {"heads": [["full#a"] * 4] * 2},
}  # fmt: skip
TEXTS = [side for pair in PAIRS for side in pair]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: None) -> Path:
    """Return a folder with the translation's tokenizer and text; a run ends no process group."""
    monkeypatch.setattr(runs.engines, "stop", lambda: None)
    nmt.tokenizer_of(nmt.settings(tmp_path))
    for name, lines in (("train", TEXTS[:20]), ("valid", TEXTS[20:])):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def config(home: Path, **changes: Any) -> Path:
    given = nmt.plain_settings(home)
    texts = {split: [str(home / f"{split}.txt")] for split in ("train", "valid")}
    content: dict[str, Any] = {
        **{key: given[key] for key in ("seed", "output", "model", "tokenizer", "tracking")},
        "variant": "tiny",
        "objective": "denoise",
        "data": {"path": str(home / "text"), "source": {"kind": "files", **texts}, "length": 32},
        "optim": {"learning_rate": 3e-3, "warmup_steps": 2},
        "train": {"steps": 8, "batch_size": 10, "micro_batch_size": 4, "log_every": 1,
                  "eval_every": 4, "eval_batch_size": 3},
        **TABLES,
    }  # fmt: skip
    path = home / "config.yaml"
    path.write_text(json.dumps(content | changes))
    return path


def run(pipeline: Any, cls: Any, *words: object, **options: Any) -> int:
    argv = [str(word) for word in words]
    return command.run(pipeline.main, cls, pipeline.__doc__ or "", argv=argv, **options)


def test_a_translation_model_starts_from_what_learned_to_fill_in_spans(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(pretrain, PretrainRun, config(home)) == 0
    folder = home / "runs" / "tiny-denoise-7"
    losses = small.losses(folder)
    assert len(losses) == 8 and losses[8] < losses[1] - 0.3
    read = export.read_translation(folder)
    assert (read.card.kind, read.card.translates) == ("seq2seq", False)
    assert read.card.parameters["total"] == sum(p.numel() for p in read.build().parameters())
    assert "pretrained to fill in spans" in export.readme(read.card)
    assert read.card.scores["eval_loss"] == pytest.approx(small.metrics(folder, "eval_loss")[8])
    tokens = sum(len(read.tokenizer.encode(text)) for text in TEXTS[20:])
    made = denoising.validation_texts(
        np.memmap(home / "text" / "valid.bin", dtype=np.uint16), read.card.data, read.tokenizer
    )
    assert read.card.scores["eval_targets"] == tokens + len(made)

    # the start, bitwise, and the link
    changes = {"init": str(folder), **TABLES}
    start = start_from(nmt.settings(home, **changes), read.tokenizer)
    state = start.build().state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in read.state.items())
    assert not start.translates
    path = home / "nmt.yaml"
    plain = nmt.plain_settings(home, train={"steps": 4}, **changes)
    path.write_text(json.dumps(plain))
    assert run(finetune_nmt, TranslationRun, path) == 0
    tuned = home / "runs" / "tiny-en-de-7"
    events = (tuned / EVENTS).read_text(encoding="utf-8").splitlines()
    tags = json.loads(events[0])["tags"]
    assert (tags["pretrained_run"], tags["pretrained_kind"]) == ("tiny-denoise-7", "denoise")
    assert set(small.metrics(tuned, "eval_greedy_bleu")) == {4}  # it could not translate before
    assert set(small.metrics(tuned, "eval_loss")) == {0, 4}
    path.write_text(json.dumps(plain | {"name": "other", "decoder": {}}))
    assert run(finetune_nmt, TranslationRun, path) == 2
    assert "has other heads in decoder" in capsys.readouterr().err

    # what it scores, it scores again
    options: dict[str, Any] = {"json_flag": True, "positional": "export"}
    assert run(evaluate, EvaluateRun, folder, "--json", **options) == 0
    scored = json.loads(capsys.readouterr().out)
    assert scored["scores"] == pytest.approx(read.card.scores, rel=1e-6)
    assert read_json(folder / "eval" / "valid.json")["task"] == "denoise"
    for word in ("search.beam_size=2", "test_set=wmt14", "prune=1e-4", "task=sst2"):
        assert run(evaluate, EvaluateRun, folder, word, **options) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "seq2seq" in error
    assert run(translate, TranslateRun, folder, positional="export") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: tiny-denoise-7: is pretrained to fill in spans")
    assert error.count("\n") == 1


def test_an_interrupted_run_is_the_unbroken_one_bitwise(home: Path) -> None:
    changes = {"decoder": None, "cross": None, "encoder": {}}
    assert run(pretrain, PretrainRun, config(home, **changes)) == 0
    path = config(home, name="parts", **changes)
    assert run(pretrain, PretrainRun, path, "train.stop_after=3") == 0
    assert run(pretrain, PretrainRun, path) == 0
    whole, parts = (export.read_any(home / "runs" / n) for n in ("tiny-denoise-7", "parts"))
    assert small.losses(whole.folder.parent) == small.losses(parts.folder.parent)
    assert all(torch.equal(tensor, parts.state[name]) for name, tensor in whole.state.items())
    assert whole.card.scores == parts.card.scores


def test_other_spans_are_no_resume(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(pretrain, PretrainRun, config(home), "train.stop_after=1") == 0
    assert run(pretrain, PretrainRun, config(home), "data.spans={probability: 0.5}") == 2
    assert "data.spans was None, now {" in capsys.readouterr().err


def test_a_tokenizer_without_a_mask_is_told_before_text_is_read(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sentencepiece import SentencePieceTrainer

    (home / "plain").mkdir()
    SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_prefix=str(home / "plain" / "sp"), vocab_size=120,
        pad_id=0, unk_id=1, bos_id=2, eos_id=3, minloglevel=3,
    )  # fmt: skip
    tokenizer = {"kind": "sentencepiece", "path": str(home / "plain"), "vocab_size": 120}
    assert run(pretrain, PretrainRun, config(home, tokenizer=tokenizer)) == 2
    errors = capsys.readouterr().err.splitlines()
    assert "has no mask token, which pretraining needs; train_tokenizer with" in errors[-1]
    assert not (home / "text").exists()
    copy = {"kind": "pretrained", "path": str(home / "copy"), "name": str(home / "plain")}
    path = config(home, tokenizer=copy)
    assert run(train_tokenizer, Preparation, path, json_flag=True) == 0
    assert run(pretrain, PretrainRun, path, "train.steps=2") == 0


def test_a_trained_translation_tokenizer_has_a_mask() -> None:
    """train_tokenizer's SentencePiece and byte BPE have one; fairseq's style is told as above."""
    for wanted in (
        SentencePieceSettings(path=Path("x"), kind="sentencepiece", vocab_size=120),
        ByteBPESettings(path=Path("x"), kind="byte_bpe", vocab_size=300),
    ):
        made = train(wanted, TEXTS)
        assert made.mask_id in made.special_ids
