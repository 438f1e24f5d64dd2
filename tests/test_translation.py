"""Translation: pairs as examples, exact steps over uneven ranks, scores, and a learned corpus."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ala_encoder import averaging, held_out, parallel_corpus, parallel_manifests, translation
from ala_encoder.batches import Position
from ala_encoder.engine import Engine
from ala_encoder.errors import UserError
from ala_encoder.evaluation import plain, token_loss
from ala_encoder.models import Seq2Seq
from ala_encoder.parallel_corpus import Pairs
from ala_encoder.settings.train import split_batch
from ala_encoder.settings.translation import TranslationRun
from ala_encoder.tokenizer import Tokenizer
from ala_encoder.training import plan_of
from tests import pairs as text
from tests import referee
from tests.launched import nmt, small


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return nmt.tokenizer_of(nmt.settings(tmp_path_factory.mktemp("home")))


def made(*lengths: tuple[int, int]) -> Pairs:
    """Return pairs of such lengths, their tokens numbered from 10."""
    src, trg = (np.array([pair[side] for pair in lengths]) for side in (0, 1))
    tokens = [np.arange(10, 10 + side.sum(), dtype=np.uint16) for side in (src, trg)]
    return Pairs(tokens[0], tokens[1], src.cumsum(), trg.cumsum())


def examples(tokenizer: Tokenizer, *lengths: tuple[int, int], **more: Any) -> Any:
    return translation.TranslationPairs(made(*lengths), tokenizer, name="train", **more)


# ---- examples


def test_a_decoder_reads_the_target_after_bos_and_predicts_it_with_eos(
    tokenizer: Tokenizer,
) -> None:
    found = examples(tokenizer, (2, 3), (4, 1)).collate(np.array([0, 1]), 0)
    pad, bos = tokenizer.pad_id, tokenizer.bos_id
    assert found["src_ids"].tolist() == [[10, 11, pad, pad], [12, 13, 14, 15]]
    assert found["src_segments"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert found["trg_ids"].tolist() == [[bos, 10, 11], [bos, pad, pad]]
    assert found["trg_segments"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert found["labels"].tolist() == [[10, 11, 12], [13, -100, -100]]


def test_an_empty_piece_has_no_label(tokenizer: Tokenizer) -> None:
    found = examples(tokenizer, (2, 3)).collate(np.empty(0, dtype=np.int64), 0)
    assert found["labels"].tolist() == [[-100]]
    assert found["src_ids"].shape == found["trg_ids"].shape == (1, 1)


def test_c01_longer_pairs_are_dropped_from_training_and_counted(tokenizer: Tokenizer) -> None:
    sizes = ((60, 2), (3, 3), (2, 51), (50, 50))
    some = examples(tokenizer, *sizes, max_length=50)
    assert (some.num_dropped, some.places.tolist()) == (2, [1, 3])
    assert some.lengths().tolist() == [[3, 3], [50, 50]]
    assert some.counts(np.array([1, 0]), 0).tolist() == [50, 3]
    assert some.num_tokens(np.array([0])) == 6
    assert some.collate(np.array([0]), 0)["src_ids"].tolist() == [[70, 71, 72]]
    everything = examples(tokenizer, *sizes)
    assert (everything.num_dropped, len(everything)) == (0, 4)
    with pytest.raises(UserError, match=r"train\.max_length = 1: every pair of train is longer"):
        examples(tokenizer, *sizes, max_length=1)


def test_smoothing_leaves_out_what_is_never_a_target(tokenizer: Tokenizer) -> None:
    banned = tokenizer.never_put_out
    assert tokenizer.eos_id not in banned
    assert {tokenizer.pad_id, tokenizer.bos_id, tokenizer.mask_id} <= banned
    objective = translation.smoothing(tokenizer, 0.1)
    logits = torch.zeros(1, tokenizer.vocab_size)
    before, _ = objective(logits, torch.tensor([20]))
    for index in banned:
        logits[0, index] = 3.0
    normaliser = math.log(math.fsum(map(math.exp, logits[0].tolist())))
    after, plain_loss = objective(logits, torch.tensor([20]))
    assert plain_loss.item() == pytest.approx(normaliser, rel=1e-6)
    assert after.item() == pytest.approx(normaliser, rel=1e-6)  # 0.9 of it, and 0.1 of it
    assert before.item() == pytest.approx(math.log(tokenizer.vocab_size), rel=1e-6)


# ---- exact steps


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("micro", [60, 90, 180])
def test_d11_a_step_is_the_gradient_of_the_mean_over_all_target_tokens(
    micro: int, tmp_path: Path
) -> None:
    run = nmt.settings(tmp_path, train={"micro_batch_tokens": micro, "label_smoothing": 0.2})
    job = nmt.loop(run, tmp_path / "run")
    data, split = job.goal.examples, split_batch(run.train, 1)
    assert split.accumulation >= 180 // micro
    batches = plan_of(run, data).batches(0, 0)
    ids = max(batches, key=len)
    torch.manual_seed(1)
    model = Seq2Seq(run.model, run.sections, nmt.tokenizer_of(run).vocab_size)
    engine = Engine(model, run, split)
    count = int(data.counts(ids, 0).sum())
    parts = translation_pieces(ids, split)
    for number, piece in enumerate(parts, 1):
        inputs = data.collate(piece, 0)
        loss, _ = job.goal.losses(engine, inputs)
        engine.backward(loss, count, is_last=number == len(parts))
    found = {n: p.grad.clone() for n, p in engine.module.named_parameters() if p.grad is not None}
    torch.manual_seed(1)
    by_hand = Seq2Seq(run.model, run.sections, model.vocab_size)
    total = torch.zeros(())
    for i in ids:  # sentence by sentence: nothing is padded
        inputs = data.collate(np.array([i]), 0)
        logits = by_hand(**{name: x for name, x in inputs.items() if name != "labels"})[0]
        log_p, labels = logits.log_softmax(-1), inputs["labels"][0]
        banned = nmt.tokenizer_of(run).never_put_out
        real = [k for k in range(model.vocab_size) if k not in banned]
        nll = F.nll_loss(log_p, labels, reduction="sum")
        total = total + 0.8 * nll - 0.2 * log_p[:, real].mean(-1).sum()
    (total / count).backward()
    expected = {n: p.grad for n, p in by_hand.named_parameters() if p.grad is not None}
    assert referee.distance(found, expected) < 1e-5


def translation_pieces(ids: Any, split: Any) -> Any:
    from ala_encoder.batches import pieces

    return pieces(ids, 0, 1, split)


# ---- a corpus that is learned


@pytest.mark.usefixtures("started")
def test_a_small_corpus_is_learned_by_heart(tmp_path: Path) -> None:
    """48 pairs, scored on the very pairs that are trained on."""
    words = {"man": "Mann", "dogs": "Hunde", "red": "rot", "house": "Haus", "snow": "Schnee",
             "tree": "Baum", "two": "zwei", "see": "sehen", "old": "alt"}  # fmt: skip
    draw = np.random.default_rng(0)
    src = [" ".join(draw.choice(list(words), 4)) for _ in range(48)]
    trg = [" ".join(words[word] for word in line.split()) for line in src]
    splits = ("train", "valid", "test")
    changes = {split: text.files(tmp_path / "own", split, src, trg) for split in splits}
    run = nmt.settings(
        tmp_path,
        model={"dim": 64, "ffn_dim": 128, "num_layers": 1, "num_decoder_layers": 1},
        data={**changes, "cleaning": {"max_ratio": None}},
        tokenizer={"vocab_size": 380},
        optim={"learning_rate": 5e-3, "warmup_steps": 10, "schedule": "cosine"},
        train={
            "steps": 300, "batch_tokens": 500, "micro_batch_tokens": None, "eval_every": 0,
            "save_every": 0, "average_checkpoints": None, "label_smoothing": 0.0,
        },
    )  # fmt: skip
    job = nmt.loop(run, tmp_path / "run")
    job.goal.__dict__["evaluate_start"] = lambda _: {}
    small.fit(job)
    assert small.losses(tmp_path / "run")[1] > 5
    scores = job.state.scores
    assert scores["eval_loss"] is not None and scores["eval_greedy_bleu"] is not None
    assert scores["eval_loss"] < 0.1
    assert scores["eval_greedy_bleu"] > 90


# ---- scores


def prepared(tmp_path: Path) -> tuple[TranslationRun, Tokenizer, dict[str, Pairs]]:
    """Return the small run's settings, tokenizer and pairs."""
    run = nmt.settings(tmp_path)
    tokenizer = nmt.tokenizer_of(run)
    manifest = parallel_corpus.prepare(run.data, tokenizer, say=lambda line: None)
    return run, tokenizer, parallel_corpus.open_pairs(run.data.path, manifest, tokenizer)


def test_the_loss_of_a_split_is_a_loop_over_its_sentences_whatever_the_batches(
    tmp_path: Path,
) -> None:
    run, tokenizer, found = prepared(tmp_path)
    split = translation.TranslationPairs(found["train"], tokenizer, name="train")
    torch.manual_seed(0)
    model = Seq2Seq(run.model, run.sections, tokenizer.vocab_size).eval()
    total, count = 0.0, 0
    for i in range(len(split)):
        inputs = split.collate(np.array([i]), 0)
        with torch.no_grad():
            logits = model(inputs["src_ids"], inputs["trg_ids"])[0].double()
        for row, label in zip(logits, inputs["labels"][0].tolist(), strict=True):
            total -= float(row.log_softmax(-1)[label])
            count += 1
    for tokens in (10, 100, 5000):  # 10: shorter than any pair
        loss = token_loss(plain(model), split, tokens)
        assert loss.count == count
        assert loss.total == pytest.approx(total, rel=1e-6)


def test_b07_references_are_the_text_itself_as_it_was_when_it_was_prepared(tmp_path: Path) -> None:
    run, tokenizer, found = prepared(tmp_path)
    given = (run.data, parallel_manifests.read(run.data.path), found, tokenizer)
    (tmp_path / "train.en").unlink()  # a score needs none of it
    split = held_out.of_corpus(*given, None)
    assert split["test"].references == [trg for _, trg in text.PAIRS[10:]]
    assert "the model 20 positions" in text.refusal(held_out.of_corpus, *given, 20)
    path = tmp_path / "test.de"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(reversed(lines)), encoding="utf-8")
    told = text.refusal(held_out.of_corpus, *given, None)
    assert "test.de has changed since" in told


# ---- averaging


def test_c10_the_last_three_of_900_1000_and_1100_are_by_number(tmp_path: Path) -> None:
    for step in (80, 900, 1000, 1100):
        state = {"w": torch.full((2,), step / 7), "tiny": torch.tensor([1e-8 * step])}
        averaging.keep(tmp_path / "weights", step, state, 4)
    state, names = averaging.mean(tmp_path / "weights", 1100, 3)
    assert names == ("step_0000900", "step_0001000", "step_0001100")
    assert torch.equal(state["w"], torch.full((2,), 1000 / 7))
    assert averaging.mean(tmp_path / "weights", 1000, 3)[1][0] == "step_0000080"


def test_only_the_newest_are_kept_and_a_later_run_s_are_left_alone(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40, 15):
        averaging.keep(tmp_path / "weights", step, {"w": torch.tensor([float(step)])}, 2)
    left = sorted(path.stem for path in (tmp_path / "weights").iterdir())
    assert left == ["step_0000015", "step_0000030", "step_0000040"]


# ---- early stop


@pytest.mark.usefixtures("started")
def test_a_run_that_gets_no_better_ends_and_a_resume_does_not_go_on(tmp_path: Path) -> None:
    run = nmt.settings(
        tmp_path, train={"patience": 4, "eval_every": 2, "greedy_bleu": False, "save_every": 0,
                         "average_checkpoints": None},
    )  # fmt: skip

    def fit() -> Any:
        job = nmt.loop(run, tmp_path / "run")
        seen = {2: 5.0, 4: 4.0, 6: 4.5, 8: 4.0, 10: 1.0}
        job.goal.__dict__["evaluate"] = lambda _: {"eval_loss": seen.get(job.state.step, 9.0)}
        outcome = small.fit(job)
        return outcome, job

    outcome, _ = fit()
    assert outcome.finished
    assert (outcome.state.step, outcome.state.best_step) == (8, 4)
    again, job = fit()
    assert again.finished
    assert again.state.step == 8
    assert job.state.position != Position()
