"""Pruning: its bound against the equation itself, its report, settings, configs and pipeline."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ala_encoder import attend, cards, corpus, export, manifests
from ala_encoder.errors import UserError
from ala_encoder.evaluation import masked_lm_scores, plain
from ala_encoder.examples import validation_blocks
from ala_encoder.generated import generated_text
from ala_encoder.kernels import Pruning, pruned, reach, watch_pruning, windows
from ala_encoder.models import CausalLM, Classifier
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.corpus import CorpusSettings
from ala_encoder.settings.evaluate import EvaluateRun
from ala_encoder.settings.experiment import PretrainRun, check_stack
from ala_encoder.settings.loader import load
from ala_encoder.settings.model import CausalModel
from ala_encoder.settings.task import TaskSettings
from ala_encoder.sources import TextSource
from benchmarks import pruning as benchmark
from pipelines import evaluate
from tests.launched import small

ROOT = Path(__file__).resolve().parents[1]
MODULE = sys.modules["ala_encoder.kernels.pruned"]
LENGTHS = [1, 2, 63, 64, 65, 200, 1000]
HEADS, WIDTH = 3, 8
TEXTS = ("plain", "right", "left", "documents", "scattered")
SHAPES = ("usual", "far giants", "one giant", "tiny slopes", "flat rows", "one text of padding")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let windows be taken however little they save, and however little a call costs."""
    monkeypatch.setattr(MODULE, "_WORTH", math.inf)
    monkeypatch.setattr(MODULE, "_CALL", 0)
    monkeypatch.setattr(MODULE, "_GROUP", 0)
    monkeypatch.setattr(MODULE, "_LENGTHS", 0)


def segments_of(text: str, length: int) -> Tensor | None:
    rows, third = torch.ones(2, length, dtype=torch.long), length // 3
    if text == "plain":
        return None
    if text == "right":
        rows[1, length - third :] = 0
    if text == "left":
        rows[0, :third] = 0
    if text == "documents":
        rows[0, third:] = 2
        rows[1, length // 2 :] = 7
        rows[1, length - third // 2 :] = 0
    if text == "scattered":  # equal numbers see each other, wherever they stand
        rows[0, third : 2 * third] = 5
        rows[1, ::3] = 2
    return rows


class Drawn:
    """Random inputs of a shape that is hard for a bound."""

    def __init__(self, shape: str, text: str, length: int, seed: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(seed)
        sizes = (2, HEADS, length, WIDTH)
        q, k, v = (torch.randn(sizes, generator=generator, dtype=dtype) for _ in range(3))
        slopes = 0.5 * torch.rand(2, HEADS, length, generator=generator)
        slopes[:, 0] *= 0.1
        if shape == "far giants":  # keys at either end that outweigh their distance
            k[:, :, : 1 + length // 50] *= 30.0
            k[:, :, -1 - length // 50 :] *= 30.0
        if shape == "one giant":
            k[:, :, length // 10] = 40.0 * q[:, :, -1] / WIDTH
            v[:, :, length // 10] *= 100.0
            slopes *= 0.1
        if shape == "tiny slopes":
            slopes *= 1e-6
        if shape == "flat rows":  # gates that are closed, and a head without a slope
            slopes[:, 1, ::7] = 0.0
            slopes[:, 2] = 0.0
        self.segments = segments_of(text, length)
        if shape == "one text of padding":
            self.segments = torch.ones(2, length, dtype=torch.long)
            self.segments[1] = 0
        if self.segments is not None:
            hidden = (self.segments == 0)[:, None, :, None]
            q, k, v = (x.masked_fill(hidden, 0.0) for x in (q, k, v))
        self.q, self.k, self.v, self.slopes = q, k, v, slopes

    def exact(self, *, causal: bool) -> Tensor:
        return self.weights(causal=causal) @ self.v.double()

    def weights(self, *, causal: bool) -> Tensor:
        """Return the softmax over all keys in float64, straight from the equation: [B, H, T, T]."""
        length = self.q.shape[2]
        j = torch.arange(length)
        scores = self.q.double() @ self.k.double().transpose(2, 3) / math.sqrt(WIDTH)
        scores = scores - self.slopes.double()[..., None] * (j[:, None] - j).abs()
        hidden = (j > j[:, None]) & torch.tensor(causal)
        if self.segments is not None:
            own = self.segments[:, :, None]
            hidden = hidden | ((own != self.segments[:, None]) | (own == 0))[:, None]
        return scores.masked_fill(hidden, -math.inf).softmax(-1).nan_to_num(0.0)

    def run(self, prune: float, *, causal: bool) -> tuple[Tensor, Pruning]:
        with watch_pruning() as found:
            given = {"causal": causal, "segments": self.segments}
            out = pruned(self.q, self.k, self.v, self.slopes, prune, **given)
        (one,) = found
        return out, one


def assert_bounded(
    drawn: Drawn, prune: float, *, causal: bool, exact: Tensor | None = None
) -> Pruning:
    """Assert that what was left out is within the bound that is told, and that within `prune`."""
    out, told = drawn.run(prune, causal=causal)
    exact = drawn.exact(causal=causal) if exact is None else exact
    assert torch.isfinite(out).all() and out.dtype == drawn.v.dtype
    change = (out.double() - exact).norm(dim=-1).max().item()
    rounding = 2e-5 * max(1.0, exact.abs().max().item())
    assert change <= told.error + rounding, (change, told)
    assert 0.0 <= told.weight <= prune
    if drawn.segments is not None:
        assert (out.transpose(1, 2)[drawn.segments == 0] == 0).all()
    return told


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", LENGTHS)
def test_what_is_left_out_changes_no_more_than_is_told(length: int, causal: bool) -> None:
    """Hostile keys, slopes of 0, padding on either side, documents; float32 and float64."""
    texts = TEXTS if length < 1000 else ("documents",)  # a map is large
    for number, shape in enumerate(SHAPES):
        for text in texts:
            for dtype in (torch.float32, torch.float64)[: 2 if length < 1000 else 1]:
                drawn = Drawn(shape, text, length, 10 * number + length, dtype)
                exact = drawn.exact(causal=causal)
                for prune in (1e-1, 1e-4):
                    assert_bounded(drawn, prune, causal=causal, exact=exact)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("causal", [True, False])
def test_many_draws_keep_the_bound_and_leave_much_out(causal: bool) -> None:
    told = [
        assert_bounded(Drawn("usual", "plain", 400, seed, torch.float64), 1e-2, causal=causal)
        for seed in range(25)
    ]
    total = Pruning.together(told)
    assert total.fraction < 0.9 and total.pairs == sum(one.pairs for one in told)
    assert 1e-4 < total.weight <= 1e-2 and total.error == max(one.error for one in told)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_the_keys_left_out_weigh_no_more_than_is_told(text: str, causal: bool) -> None:
    """Row by row, on each side: the weights of the keys before the first that was computed."""
    drawn = Drawn("flat rows", text, 300, 3, torch.float64)
    length, prune = 300, 0.05
    sides = windows.sides_of(drawn.segments, length, causal=causal)
    given = (drawn.q, drawn.k, drawn.v, drawn.slopes, drawn.segments, sides)
    work = windows.Work.of(*given)
    work.compute([[1, 2, 2]] * len(sides), prune / len(sides))
    weights, j = drawn.weights(causal=causal), torch.arange(length)
    lost = (weights * (j < work.halves[0].first[..., None])).sum(-1)
    if not causal:  # reversed: key j is at place T − 1 − j
        lost += (weights * (j > length - 1 - work.halves[1].first[..., None])).sum(-1)
    assert lost.max() > 1e-12
    _, weight, _ = work.left_out(work.mixed(WIDTH), drawn.v)
    assert lost.max() <= weight <= prune


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES[:2])
def test_with_less_and_less_to_lose_it_becomes_dense(shape: str, causal: bool) -> None:
    for length in (65, 400):
        drawn = Drawn(shape, "documents", length, length, torch.float32)
        out, told = drawn.run(1e-9, causal=causal)
        exact = drawn.exact(causal=causal)
        assert (out.double() - exact).abs().max() <= 1e-5
        assert told.error <= 1e-6


def test_a_bound_without_the_norms_of_keys_would_be_noticed(
    eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mean_alone(q: Tensor, centre: Tensor, away: Tensor) -> Tensor:
        return (q @ centre.transpose(2, 3))[..., 0] * q.shape[-1] ** -0.5

    drawn = Drawn("one giant", "plain", 400, 1, torch.float64)
    assert_bounded(drawn, 1e-3, causal=True)
    monkeypatch.setattr(reach, "highest", mean_alone)
    with pytest.raises(AssertionError):
        assert_bounded(drawn, 1e-3, causal=True)


def test_windows_without_the_rows_that_need_more_would_be_noticed(
    eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = Drawn("flat rows", "plain", 400, 2, torch.float64)
    drawn.slopes[:, 2] = 0.4
    assert_bounded(drawn, 1e-3, causal=True)
    monkeypatch.setattr(windows.Half, "compute_gathered", lambda *_: None)
    with pytest.raises(AssertionError):
        assert_bounded(drawn, 1e-3, causal=True)


def test_an_infinite_text_of_keys_is_summed_as_a_series() -> None:
    slopes = torch.tensor([0.5, 0.01, 1e-9], dtype=torch.float64)
    by_hand = [sum(math.exp(-a * d) for d in range(50)) for a in slopes.tolist()]
    found = reach.decay(slopes, torch.tensor(50)).exp()
    torch.testing.assert_close(found, torch.tensor(by_hand, dtype=torch.float64), rtol=1e-5, atol=0)
    ratio = torch.zeros(3, dtype=torch.float64)
    far = reach.distance(ratio, slopes, 1e-3)
    left = reach.lost(ratio, slopes, far, torch.tensor(10**12))
    torch.testing.assert_close(left, torch.full_like(left, 1e-3))
    assert reach.distance(ratio[:1], torch.zeros(1, dtype=torch.float64), 0.5) > 1e9


class Largest(TorchDispatchMode):
    """Remembers the largest memory, in numbers, behind a tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, Tensor):
                self.numel = max(self.numel, x.untyped_storage().nbytes() // 4)
        return out


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("causal", [True, False])
def test_nothing_of_size_t_by_t_is_ever_held(causal: bool) -> None:
    length = 2048
    drawn = Drawn("flat rows", "documents", length, 0, torch.float32)
    with Largest() as largest:
        pruned(
            drawn.q, drawn.k, drawn.v, drawn.slopes, 1e-3, causal=causal, segments=drawn.segments
        )
    assert largest.numel < length * length / 8


# ---------------------------------------------------------------------------------------------
# attend and modules
# ---------------------------------------------------------------------------------------------


def drawn_for_attend(length: int) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, 4, length, WIDTH, generator=generator) for _ in range(3))
    gate = torch.rand(1, length, 4, generator=generator)
    return [q, k, v], 0.1 + 0.2 * gate.transpose(1, 2)  # laid out as a gate is


@pytest.mark.parametrize("causal", [True, False])
def test_attend_prunes_long_texts_alone(causal: bool) -> None:
    for length, watched in ((1535, 0), (2048, 1)):
        texts, slopes = drawn_for_attend(length)
        given: dict[str, Any] = {"slopes": slopes, "causal": causal}
        with watch_pruning() as found:
            near = attend(*texts, **given, prune=1e-2)
        assert len(found) == watched
        exact = attend(*texts, **given, path="slope")
        error = found[0].error if found else 0.0
        assert (near - exact).norm(dim=-1).max() <= error + 2e-5
    assert found[0].fraction < 0.6


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"prune": 1.0}, "prune = 1.0: allowed are numbers between 0 and 1"),
        ({"prune": 0.0}, "prune = 0.0: allowed"),
        ({"slopes": None}, "it carries biases -a|i - j|"),
        ({"bias": lambda o: -o.abs().float()}, "it carries biases -a|i - j|"),
        ({"heads": ["band2"] * 4}, "a post-softmax mask (band2)"),
        ({"path": "dense"}, "path = 'dense' computes all"),
        ({"cross": True}, "queries and keys of one text"),
        ({"dropout": 0.1}, "dropout"),
        ({"slopes": torch.ones(1, 4, 9, requires_grad=True)}, "prune: has no gradient"),
    ],
)
def test_attend_refuses_to_prune_what_it_cannot(given: dict[str, Any], line: str) -> None:
    texts, slopes = drawn_for_attend(9)
    with pytest.raises(UserError) as caught:
        attend(*texts, **{"slopes": slopes, "prune": 1e-3, **given})
    assert line in str(caught.value)


def causal_model(prune: float | None, **changes: Any) -> CausalLM:
    torch.manual_seed(0)
    model = CausalModel(
        family="causal", dim=32, num_layers=2, num_heads=4, ffn_dim=32, positions="none",
        dropout=0.0, init_std=0.2,
    )  # fmt: skip
    bias = {"kind": "gated_distbias", "alpha_init": 0.3}
    settings = {"biases": [bias], "prune": prune, **changes}
    return CausalLM(model, AttentionSettings.model_validate(settings), 50)


def test_a_model_prunes_in_evaluation_without_gradient_alone() -> None:
    model = causal_model(1e-3)
    ids = torch.randint(0, 50, (1, 2048), generator=torch.Generator().manual_seed(1))
    with watch_pruning() as found:
        model.train()(ids)
        with torch.no_grad():
            model.train()(ids)
        model.eval()(ids)
    assert found == []
    with watch_pruning() as found, torch.no_grad():
        near = model(ids)
    assert len(found) == 2 and all(one.fraction < 0.5 for one in found)
    exact = causal_model(None).eval()(ids)
    assert 0.0 < (near - exact).abs().max() < 1e-2
    with watch_pruning() as outside:
        assert attend(*drawn_for_attend(9)[0], slopes=torch.ones(1)).shape[2] == 9
    assert outside == []


def test_heads_without_slopes_beside_it_and_shared_groups_are_as_before() -> None:
    cells = [["band2", "full#a", "full#a", "full"]] * 2
    ids = torch.randint(0, 50, (2, 1600), generator=torch.Generator().manual_seed(1))
    segments = torch.ones_like(ids)
    segments[1, 900:] = 0
    model, exact = (causal_model(p, heads=cells, mask_operator="pre_softmax") for p in (1e-6, None))
    with torch.no_grad(), watch_pruning() as found:
        near = model.eval()(ids, segments)
        assert len(found) == 2 and found[0].pairs == 3 * (1600 * 1601 + 900 * 901) // 2
        gap = (near - exact.eval()(ids, segments))[segments > 0]
    assert gap.abs().max() < 1e-4


@pytest.mark.parametrize("slope", [0.0, 1e-4, 0.03])
def test_where_nothing_is_saved_nothing_is_left_out(slope: float) -> None:
    texts, _ = drawn_for_attend(1600)
    slopes = torch.full((1,), slope)
    with watch_pruning() as found:
        near = attend(*texts, slopes=slopes, causal=True, prune=1e-9)
    pairs = 4 * 1600 * 1601 // 2
    assert found == [Pruning(pairs, pairs, 0.0, 0.0)]
    assert torch.equal(near, attend(*texts, slopes=slopes, causal=True))
    assert Pruning.together(found).fraction == 1.0 and Pruning.together([]).fraction == 1.0


# ---------------------------------------------------------------------------------------------
# Settings, configs, the pipeline
# ---------------------------------------------------------------------------------------------

LINEAR = {"biases": [{"kind": "alibi"}], "prune": 1e-4}


@pytest.mark.parametrize(
    ("given", "length", "line"),
    [
        ({"prune": 1e-4}, 4096, "encoder: prune: leaves keys out on the path slope alone; it carr"),
        ({**LINEAR, "biases": [{"kind": "multiscale_distbias"}]}, 4096, "biases -a|i - j|"),
        ({**LINEAR, "heads": [["band2", "prev1"]]}, 4096, "a post-softmax mask (band2)"),
        ({**LINEAR, "path": "dense"}, 4096, "path = 'dense' computes all"),
        ({**LINEAR, "dropout": 0.1}, 4096, "dropout"),
        (LINEAR, 1535, "prune: begins at 1536 tokens, texts have 1535"),
    ],
)
def test_a_setting_that_leaves_nothing_out_is_an_error(
    given: dict[str, Any], length: int, line: str
) -> None:
    model = small.settings(
        model={"num_heads": 2, "num_layers": 1}, encoder={"heads": [["full"] * 2]}
    )
    check_stack(model.model, AttentionSettings.model_validate(LINEAR), 1536)
    with pytest.raises(UserError) as caught:
        check_stack(model.model, AttentionSettings.model_validate(given), length)
    assert line in str(caught.value)


@pytest.mark.parametrize("value", [0.0, 1.0, -1e-3, 2.0])
def test_the_weight_to_lose_is_between_0_and_1(value: float) -> None:
    with pytest.raises(ValueError, match="prune"):
        AttentionSettings.model_validate({**LINEAR, "prune": value})


TINY = [
    "model.dim=24", "model.num_layers=2", "model.num_heads=2", "model.ffn_dim=32",
    "train.steps=6", "train.batch_size=2", "train.log_every=1", "train.eval_every=6",
    "optim.warmup_steps=0", "optim.learning_rate=1e-2", "tracking.enabled=false",
]  # fmt: skip


def tiny(name: str, *more: str) -> PretrainRun:
    return load(ROOT / "configs" / "small" / f"{name}.yaml", [*TINY, *more], PretrainRun)


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("name", ["multiscale", "pruned"])
def test_a_config_of_ours_trains(name: str, home: Path, tmp_path: Path) -> None:
    run = tiny(name)
    job = small.loop(run, tmp_path / "run", home)
    before = {key: x.clone() for key, x in job.engine.full_state().items()}
    small.fit(job)
    losses = small.losses(tmp_path / "run")
    assert losses[6] < losses[1] and all(map(math.isfinite, losses.values()))
    after = job.engine.full_state()
    biases = [key for key in after if "biases" in key]
    scales = 3 if name == "multiscale" else 1
    assert len(biases) == run.model.num_layers * 3 * scales  # alpha; the gate's weight and bias
    assert all(not torch.equal(after[key], before[key]) for key in biases)


@pytest.fixture(scope="module")
def exported(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run folder of an untrained model with steep slopes, its corpus prepared."""
    folder = tmp_path_factory.mktemp("pruned")
    paragraphs = [p for document in generated_text(2, 60) for p in document]
    files = {}
    for split, part in (("train", paragraphs[:50]), ("valid", paragraphs[50:])):
        files[split] = [folder / f"{split}.txt"]
        files[split][0].write_text("\n".join(part), encoding="utf-8")
    bias = "encoder.biases=[{kind: gated_distbias, alpha_init: 0.5}]"
    run = tiny("pruned", bias, f"data.path={folder / 'tokens'}")
    tokenizer, _ = small.data(home)
    corpus.prepare(run.data.path, TextSource("toy", "nobody", files), tokenizer, say=lambda _: None)
    card = cards.Card(
        kind="masked_lm", variant="pruned", seed=1, run_name="pruned-mlm-1", model=run.model,
        vocab_size=tokenizer.vocab_size, encoder=run.encoder.model_copy(update={"prune": None}),
        data=run.data, data_name="toy",
        parameters={"total": 1, "encoder_attention": 1, "qk_groups": 4},
    )  # fmt: skip
    state = small.model(run, tokenizer.vocab_size).state_dict()
    export.write(folder / "run" / "export", card, tokenizer, state)
    return folder / "run"


def test_evaluate_prunes_and_says_what_that_changed(exported: Path) -> None:
    words = [sys.executable, "-m", "pipelines.evaluate", str(exported), "prune=1e-3", "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)["scores"]
    assert 0.0 < scores["prune_computed"] < 0.7
    assert 0.0 < scores["prune_weight"] <= 1e-3
    assert 0.0 < scores["prune_error"] < 0.1
    (written,) = exported.glob("eval*/valid.json")  # not among the scores without pruning
    assert written.parent.name.startswith("eval-toy-")
    assert json.loads(written.read_text())["scores"] == scores

    read = export.read(exported)
    assert isinstance(read.card.data, CorpusSettings)
    tokens = corpus.open_tokens(read.card.data.path, manifests.read(read.card.data.path),
                                read.tokenizer, verify=False)["valid"]  # fmt: skip
    blocks = validation_blocks(tokens, read.card.data, read.tokenizer)
    for model, changed in ((read.build(), 1e-3), (read.pruned(1e-3).build(), 1e-6)):
        whole = masked_lm_scores(plain(model), blocks, 64)
        assert abs(scores["eval_loss"] - whole["eval_loss"]) < changed
        assert scores["eval_targets"] == whole["eval_targets"]


def test_evaluate_refuses_to_prune_where_that_does_nothing(
    exported: Path, home: Path, tmp_path: Path
) -> None:
    read, (tokenizer, _) = export.read(exported), small.data(home)
    short = read.card.data.model_copy(update={"length": 512})
    with pytest.raises(UserError, match="prune: begins at 1536 tokens, texts have 512"):
        replace(read, card=read.card.model_copy(update={"data": short})).pruned(1e-3)
    about = {"kind": "classifier", "data": TaskSettings(task="sst2", path=tmp_path)}
    model = Classifier(read.card.model, read.card.encoder, tokenizer.vocab_size, 1)
    card = read.card.model_copy(update=about)
    export.write(tmp_path / "export", card, tokenizer, model.state_dict())
    with pytest.raises(UserError, match="prune: is measured on a language model"):
        evaluate.main(EvaluateRun(export=tmp_path, prune=1e-3), as_json=False)


def test_the_benchmark_trains_once_and_measures_what_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small_model = {"dim": 32, "num_layers": 2, "num_heads": 2, "ffn_dim": 32}
    monkeypatch.setattr(benchmark, "MODEL", benchmark.MODEL.model_copy(update=small_model))
    monkeypatch.setattr(benchmark, "_BATCH", 1)
    text = tmp_path / "text.txt"
    text.write_text("Pruned trees bear more fruit. " * 1500, encoding="utf-8")
    words = ["--text", str(text), "--lengths", "64,2048", "--prune", "0.01", "--rounds", "1",
             "--steps", "2", "--folder", str(tmp_path / "weights"), "--json"]  # fmt: skip
    for trained in (True, False):
        assert benchmark.main(words) == 0
        out, err = capsys.readouterr()
        assert ("step 2 of 2" in err) == trained
    found = json.loads(out)
    assert [(r["variant"], r["length"], r["prune"]) for r in found] == [
        (variant, length, prune)
        for variant in ("gated_distbias", "alibi")
        for length in (64, 2048)
        for prune in (None, 0.01)
    ]
    for record in found:
        assert record["error"] <= record["error_bound"] + 1e-5
        is_pruned = record["prune"] and record["length"] == 2048
        assert (record["computed"] < 1.0) == bool(is_pruned)
        assert (record["weight"] > 0.0) == bool(is_pruned)
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(["--variants", "alibis"])
    assert "'alibis': allowed are gated_distbias, alibi" in capsys.readouterr().err
