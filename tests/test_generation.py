"""Generation: equal to reading the whole text anew, windows by brute force, draws by loops."""

from __future__ import annotations

import gzip
import math
import os
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ala_encoder import command, export, generation
from ala_encoder.cache import Cache, KeyValues
from ala_encoder.errors import UserError
from ala_encoder.generation import Continuation, Generated, chosen, generate
from ala_encoder.keyed import keyed_uniform
from ala_encoder.models import CausalLM
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.generate import GenerateRun, Sampling
from ala_encoder.settings.loader import check
from ala_encoder.settings.model import CausalModel
from ala_encoder.tokenizer import load
from pipelines import generate as pipeline
from tests import test_causal
from tests.pairs import write
from tests.strings import small_gpt2
from tests.test_analyze import causal_run, prepared
from tests.test_models import shaken

VOCAB, EOS = 13, 0
GREEDY = Sampling(temperature=0.0, max_new_tokens=9)
SCHEMES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    **{name: (name, []) for name in ("learned", "sinusoidal", "rotary", "none")},
    **{name: ("none", [{"kind": name, **given}]) for name, given in {
        "alibi": {}, "kerple_log": {}, "kerple_power": {}, "sandwich": {"dim": 16},
        "t5": {"num_buckets": 4, "max_distance": 6}, "distbias": {"alpha_init": 0.3},
        "gated_distbias": {"alpha_init": 0.3}, "window": {"width": 5},
        "multiscale_distbias": {"ranges": [2, 5], "alpha_init": 0.3},
    }.items()},
    "learned gated": ("learned", [{"kind": "gated_distbias", "alpha_init": 0.3}]),
}  # fmt: skip
PROMPTS = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3], [5, 8, 9, 7]]
WINDOWED = [name for name, (positions, _) in SCHEMES.items()
            if positions != "learned" and not name.startswith("multiscale")]  # fmt: skip
"""A range as far as the window is refused."""


def build(scheme: str, *more: dict[str, Any], **changes: Any) -> CausalLM:
    """Return a model of a scheme with some further biases, the weights the same with or without."""
    positions, given = SCHEMES[scheme]
    changes |= {"max_length": 16} if positions == "learned" else {}
    settings = CausalModel(family="causal", dim=16, num_layers=3, num_heads=2, ffn_dim=24,
                           positions=positions, dropout=0.2, **changes)  # fmt: skip
    attention = AttentionSettings.model_validate({"biases": [*given, *more]})
    torch.manual_seed(0)
    model = shaken(CausalLM(settings, attention, VOCAB))
    with torch.no_grad():
        model.vocabulary.weight[EOS] *= 0.3  # drawn now and then
    return model  # type: ignore[no-any-return]


def anew(model: CausalLM, prompt: Sequence[int], settings: Sampling, number: int = 0) -> Generated:
    """Go on with a text that is read whole for each token, alone."""
    ids = list(prompt)
    with torch.no_grad():
        for step in range(settings.max_new_tokens):
            logits = model(torch.tensor([ids]))[0, -1]
            token = drawn_by_loops(
                logits, settings, float(keyed_uniform(settings.seed, number, step))
            )
            if token == EOS:
                return Generated(tuple(ids[len(prompt) :]), True)
            ids.append(token)
    return Generated(tuple(ids[len(prompt) :]), False)


def drawn_by_loops(logits: Tensor, settings: Sampling, number: float) -> int:
    values = logits.tolist()
    if settings.temperature == 0:
        return values.index(max(values))
    top = max(values)
    weights = [math.exp((value - top) / settings.temperature) for value in values]
    total = math.fsum(weights)
    weights = [weight / total for weight in weights]
    if settings.top_k is not None:
        least = sorted(weights)[-min(settings.top_k, len(weights))]
        weights = [weight if weight >= least else 0.0 for weight in weights]
    if settings.top_p is not None:
        found, total = [], math.fsum(weights)
        for weight in sorted(weights, reverse=True):
            if math.fsum(found) >= settings.top_p * total:
                break
            found.append(weight)
        weights = [weight if weight >= found[-1] else 0.0 for weight in weights]
    place, reached = number * math.fsum(weights), 0.0
    for token, weight in enumerate(weights):
        reached += weight
        if weight > 0 and reached > place:
            return token
    return max(token for token, weight in enumerate(weights) if weight > 0)  # rounding


# ---------------------------------------------------------------------------------------------
# Without a window
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "settings", [GREEDY, Sampling(max_new_tokens=9, temperature=1.5, top_p=0.9)], ids=str
)
def test_texts_are_those_of_reading_all_anew_for_each_token(
    scheme: str, settings: Sampling
) -> None:
    """Prompts of several lengths in one batch, which leave it one by one."""
    model = build(scheme)
    expected = [anew(model, prompt, settings, n) for n, prompt in enumerate(PROMPTS)]
    assert generate(model, PROMPTS, settings, eos=EOS) == expected
    assert len({one.ids for one in expected}) > 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cached_logits_are_those_of_the_whole_text(scheme: str) -> None:
    model, ids = build(scheme), torch.randint(1, VOCAB, (2, 16))
    with torch.no_grad():
        cache = model.stack.cache()
        found = [model(ids[:, :5], cache=cache)]
        found += [model(ids[:, n : n + 1], cache=cache) for n in range(5, 16)]
        torch.testing.assert_close(torch.cat(found, 1), model(ids), atol=1e-5, rtol=1e-5)


def test_a_texts_draws_do_not_depend_on_its_batch() -> None:
    model, settings = build("rotary"), Sampling(max_new_tokens=12, temperature=2.0)
    prompts = [[1, 2], [3], [1, 2], [4, 5, 6], [7], [1, 2]]
    expected = generate(model, prompts, settings, eos=EOS)
    for size in (1, 2, 5):
        assert generate(model, prompts, settings, eos=EOS, batch_size=size) == expected
    some = [5, 0, 3]
    alone = generate(model, [prompts[n] for n in some], settings, eos=EOS, numbers=some)
    assert alone == [expected[n] for n in some]
    assert len({expected[n] for n in (0, 2, 5)}) == 3  # equal prompts, other draws
    other = settings.model_copy(update={"seed": 5})
    assert generate(model, prompts, other, eos=EOS) != expected


def test_texts_end_at_eos_or_when_they_are_long_enough_and_forbidden_ids_never_come() -> None:
    model, settings = build("alibi"), Sampling(max_new_tokens=7, temperature=3.0)
    prompts = [[1 + n % 12] for n in range(200)]
    banned = {2, 3, EOS}  # eos is not forbidden
    found = generate(model, prompts, settings, eos=EOS, forbidden=banned, batch_size=64)
    assert all(one.has_ended or len(one.ids) == 7 for one in found)
    assert {one.has_ended for one in found} == {True, False}
    assert not banned & {token for one in found for token in one.ids}
    assert {1, 4, 12} < {token for one in found for token in one.ids}
    assert any(one.has_ended and not one.ids for one in found)
    assert generate(model, [], settings, eos=EOS) == []


def test_nothing_is_left_in_the_model_and_dropout_must_be_off() -> None:
    model = build("gated_distbias")
    generate(model, PROMPTS, GREEDY, eos=EOS)
    assert not any(p.is_inference() or p.grad is not None for p in model.parameters())
    with pytest.raises(AssertionError, match="dropout"):
        generate(model.train(), PROMPTS, GREEDY, eos=EOS)


# ---------------------------------------------------------------------------------------------
# Draws
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{}, {"temperature": 0.0}, {"temperature": 0.3}, {"temperature": 1e-309}, {"top_k": 1},
     {"top_k": 4}, {"top_k": 50}, {"top_p": 0.05}, {"top_p": 0.6}, {"top_p": 0.999},
     {"top_k": 5, "top_p": 0.5}, {"temperature": 4.0, "top_k": 9, "top_p": 0.9}],
    ids=str,
)  # fmt: skip
def test_a_draw_is_that_of_loops_over_the_vocabulary(changes: dict[str, Any]) -> None:
    settings = Sampling.model_validate(changes)
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(300, VOCAB, generator=generator)
    logits[:50] = logits[:50].round()  # equal ones
    logits[50:60, :4] = -torch.inf
    drawn = torch.rand(300, dtype=torch.float64, generator=generator)
    drawn[::3], drawn[1::3] = 0.0, 1.0 - 2.0**-53
    found = chosen(logits, settings, drawn)
    assert found.tolist() == [
        drawn_by_loops(row, settings, number)
        for row, number in zip(logits, drawn.tolist(), strict=True)
    ]


def test_tokens_come_as_often_as_they_are_probable() -> None:
    logits = torch.tensor([1.0, 0.0, 2.0, -1.0])
    number = torch.from_numpy(keyed_uniform(3, np.arange(40_000), 7))
    found = Counter(chosen(logits.expand(40_000, -1), Sampling(), number).tolist())
    for token, probability in enumerate(logits.softmax(-1).tolist()):
        spread = math.sqrt(40_000 * probability * (1 - probability))
        assert abs(found[token] - 40_000 * probability) < 4 * spread


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"temperature": 0, "top_k": 3}, "top_k: does nothing with temperature = 0"),
        ({"temperature": 0, "top_p": 0.3}, "top_p: does nothing with temperature = 0"),
        ({"temperature": 0, "seed": 3}, "seed: does nothing with temperature = 0"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"window": 0}, "window"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temprature": 1}, "did you mean 'temperature'?"),
    ],
)
def test_settings_without_effect_are_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        check({"export": "x", **given}, GenerateRun)
    assert line in str(caught.value)


# ---------------------------------------------------------------------------------------------
# With a window
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", WINDOWED)
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("cut", [[1] * 14, [4, 1, 1, 3, 1, 4], [14]], ids=str)
def test_dropped_keys_are_those_a_window_hides_in_every_layer(
    scheme: str, width: int, cut: list[int]
) -> None:
    """Nothing is read again, and a whole forward pass under a window mask gives the same."""
    if width == 1 and SCHEMES[scheme][1]:
        width = 3  # nothing else acts beside a window of 1
    model = build(scheme)
    masked = build("none" if scheme == "window" else scheme, {"kind": "window", "width": width})
    ids = torch.randint(1, VOCAB, (2, 14), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        cache = Cache(len(model.stack.layers), window=width)
        ends = np.cumsum([0, *cut]).tolist()
        found = [model(ids[:, a:b], cache=cache) for a, b in pairwise(ends)]
        torch.testing.assert_close(torch.cat(found, 1), masked(ids), atol=1e-5, rtol=1e-5)
        assert not torch.allclose(masked(ids), model(ids), atol=1e-3)


@pytest.mark.parametrize("scheme", ["none", "rotary", "sinusoidal", "t5", "gated_distbias"])
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("cut", [[1] * 9, [4, 1, 1, 3]], ids=str)
def test_so_it_is_with_padding_and_documents(scheme: str, width: int, cut: list[int]) -> None:
    model, masked = build(scheme), build(scheme, {"kind": "window", "width": width})
    ids = torch.randint(1, VOCAB, (3, 9), generator=torch.Generator().manual_seed(1))
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1], [1] * 9, [0, 3, 3, 3, 1, 1, 1, 1, 0]])
    with torch.no_grad():
        cache = Cache(len(model.stack.layers), window=width)
        ends = np.cumsum([0, *cut]).tolist()
        found = [model(ids[:, a:b], segments[:, a:b], cache=cache) for a, b in pairwise(ends)]
        expected = masked(ids, segments)
    real = segments > 0
    torch.testing.assert_close(torch.cat(found, 1)[real], expected[real], atol=1e-5, rtol=1e-5)


def test_a_width_of_one_with_padding_sees_the_token_itself() -> None:
    model, masked = build("rotary"), build("rotary", {"kind": "window", "width": 1})
    ids, segments = torch.randint(1, VOCAB, (2, 6)), torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    with torch.no_grad():
        cache = Cache(3, window=1)
        found = [model(ids[:, n : n + 1], segments[:, n : n + 1], cache=cache) for n in range(6)]
        real = segments > 0
        expected = masked(ids, segments)[real]
    torch.testing.assert_close(torch.cat(found, 1)[real], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ["local", "tied", "hidden", "shared"])
def test_local_masks_and_shared_projections_keep_to_the_window_too(attention: str) -> None:
    model = test_causal.build(attention, positions="none")
    given = test_causal.ATTENTION[attention]
    window = {"biases": [*given.get("biases", []), {"kind": "window", "width": 4}]}
    masked = CausalLM(
        test_causal.MODEL.model_copy(update={"positions": "none", "max_length": None}),
        AttentionSettings.model_validate({**given, **window}),
        test_causal.VOCAB,
    ).eval()
    masked.load_state_dict(model.state_dict())
    ids = torch.randint(1, test_causal.VOCAB, (2, 11))
    with torch.no_grad():
        cache = Cache(3, window=4)
        found = [model(ids[:, n : n + 1], cache=cache) for n in range(11)]
        torch.testing.assert_close(torch.cat(found, 1), masked(ids), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scheme", ["none", "rotary", "sinusoidal", "alibi", "t5", "sandwich"])
@pytest.mark.parametrize("settings", [GREEDY, Sampling(max_new_tokens=9)], ids=str)
def test_windowed_texts_are_those_of_a_model_with_that_window(
    scheme: str, settings: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts shorter and longer than the window, and read in several pieces."""
    monkeypatch.setattr(generation, "_PIECE", 2)
    model, masked = build(scheme), build(scheme, {"kind": "window", "width": 3})
    prompts = [*PROMPTS, [1 + n % 12 for n in range(11)]]
    expected = [anew(masked, prompt, settings, n) for n, prompt in enumerate(prompts)]
    windowed = settings.model_copy(update={"window": 3})
    assert generate(model, prompts, windowed, eos=EOS) == expected
    assert generate(model, prompts, windowed, eos=EOS, batch_size=2) == expected
    assert settings is GREEDY or generate(model, prompts, settings, eos=EOS) != expected


def test_a_window_bounds_what_is_kept_however_long_the_text() -> None:
    model, width, one = build("alibi"), 8, torch.ones(1, 1, dtype=torch.long)
    with torch.no_grad():
        cache = Cache(3, window=width)
        for step in range(100):
            model(one, one, cache=cache)
            room = cache.own[0]._v
            assert room is not None and room.shape[2] <= 2 * width
            assert cache.own[0].length == min(step + 1, width - 1)
    assert cache.length == 100
    assert cache._segments is not None and cache._segments.shape[1] == width - 1


def test_dropping_moves_each_key_about_once() -> None:
    kept, width, moved = KeyValues(), 8, 0
    with torch.no_grad():
        for step in range(200):
            room = kept._v
            _, values = kept.append(None, torch.full((1, 1, 1, 2), float(step)))
            moved += 0 if kept._v is room else kept.length - 1
            assert values[0, 0, :, 0].tolist() == list(range(max(0, step - width + 1), step + 1))
            kept.drop(width - 1)
    assert moved <= 1.1 * 200


# ---------------------------------------------------------------------------------------------
# What cannot go on
# ---------------------------------------------------------------------------------------------


def test_learned_positions_end_with_a_clear_error_and_take_no_window() -> None:
    model = build("learned")
    settings = Sampling(temperature=0.0, max_new_tokens=8)
    text = [1] * 9
    assert len(generate(model, [text], settings, eos=EOS, forbidden=[])[0].ids) <= 8
    assert anew(model, text, settings) == generate(model, [[1], text], settings, eos=EOS)[1]
    line = "10 tokens and max_new_tokens = 8: the model has 16 positions"
    with pytest.raises(UserError, match=line):
        generate(model, [[1], [1] * 10], settings, eos=EOS)
    with pytest.raises(UserError, match="window = 4: learned positions end"):
        generate(model, [[1]], settings.model_copy(update={"window": 4}), eos=EOS)
    for scheme in ("sinusoidal", "rotary", "none"):
        long = settings.model_copy(update={"max_new_tokens": 40})
        generate(build(scheme), [[1] * 10], long, eos=EOS)


def test_a_model_that_gives_nan_is_an_error() -> None:
    model = build("none")
    with torch.no_grad():
        model.vocabulary.weight[4] = math.nan
    with pytest.raises(UserError, match="generate: the model gives NaN"):
        generate(model, [[1, 2]], GREEDY, eos=EOS)


# ---------------------------------------------------------------------------------------------
# Text
# ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[CausalLM, Any]:
    """Return a model over a small vocabulary of bytes, and its tokenizer."""
    tokenizer = load(small_gpt2(tmp_path_factory.mktemp("gpt2")))
    settings = CausalModel(family="causal", dim=16, num_layers=2, num_heads=2, ffn_dim=16,
                           positions="none", dropout=0.0)  # fmt: skip
    torch.manual_seed(0)
    attention = AttentionSettings.model_validate({"biases": [{"kind": "alibi"}]})
    return shaken(CausalLM(settings, attention, tokenizer.vocab_size)), tokenizer


LINES = ["the thing", "", "é", "  in", "the thing"]


def numbered(lines: list[str]) -> list[tuple[int, str]]:
    return list(enumerate(lines, 1))


def test_a_line_begins_a_document_and_is_written_with_what_follows(
    written: tuple[CausalLM, Any],
) -> None:
    model, tokenizer = written
    settings = Sampling(max_new_tokens=6, seed=4)
    found = Continuation(model, tokenizer, settings, 2).texts(numbered(LINES), "text")
    for number, (line, text) in enumerate(zip(LINES, found, strict=True)):
        prompt = [tokenizer.eos_id, *tokenizer.encode(line)]
        (one,) = generate(model, [prompt], settings, eos=tokenizer.eos_id, numbers=[number])
        expected = line + tokenizer.decode(one.ids)
        assert text == " ".join(expected.splitlines())
        assert "\n" not in text
    assert found[0] != found[4]


def test_chunks_of_lines_change_nothing(written: tuple[CausalLM, Any]) -> None:
    settings = Sampling(max_new_tokens=4)
    whole = Continuation(*written, settings, 8).texts(numbered(LINES), "text")
    cut = Continuation(*written, settings, 8)
    lines = numbered(LINES)
    assert cut.texts(lines[:2], "text") + cut.texts(lines[2:], "text") == whole


def test_a_line_longer_than_learned_positions_is_named(written: tuple[CausalLM, Any]) -> None:
    _, tokenizer = written
    settings = CausalModel(family="causal", dim=16, num_layers=1, num_heads=2, ffn_dim=16,
                           positions="learned", max_length=12)  # fmt: skip
    model = CausalLM(settings, AttentionSettings(), tokenizer.vocab_size).eval()
    lines = ["the", "the in the in the in the"]
    with pytest.raises(UserError, match=r"^x\.txt:2: \d+ tokens and max_new_tokens = 6: the model"):
        Continuation(model, tokenizer, Sampling(max_new_tokens=6), 2).texts(
            numbered(lines), str(Path("x.txt"))
        )


# ---------------------------------------------------------------------------------------------
# The pipeline
# ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generate")
    data = prepared(folder)
    causal_run(folder / "alibi", data, {"kind": "alibi"})
    causal_run(folder / "learned", data, positions="learned", max_length=24)
    return folder


def start(*words: object) -> int:
    argv = [str(word) for word in words]
    about = pipeline.__doc__ or ""
    return command.run(pipeline.main, GenerateRun, about, positional="export", argv=argv)


def test_lines_go_on_from_files_to_standard_output_or_a_file(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, lines = home / "alibi", ["the quick", "", "a"]
    source, packed = write(tmp_path / "a.txt", lines), tmp_path / "b.txt.gz"
    packed.write_bytes(gzip.compress("\n".join(lines).encode()))
    words = ["max_new_tokens=5", "top_k=9", "window=4", "seed=3", "batch_size=2"]
    assert start(run, f"input=[{source},{packed}]", *words) == 0
    said = capfd.readouterr().out
    exported = export.read_causal(run)
    settings = Sampling(max_new_tokens=5, top_k=9, window=4, seed=3)
    own = Continuation(exported.build(), exported.tokenizer, settings, 6)
    assert said.splitlines() == own.texts(numbered(lines * 2), "")
    made = tmp_path / "new" / "out.txt.gz"
    assert start(run, f"input=[{source},{packed}]", f"output={made}", *words) == 0
    assert gzip.decompress(made.read_bytes()).decode() == said


def test_lines_go_on_from_a_pipe(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\n")
    os.close(writer)
    before = os.dup(0)
    os.dup2(reader, 0)
    try:
        assert start(home / "alibi", "temperature=0", "max_new_tokens=3") == 0
    finally:
        os.dup2(before, 0)
        for descriptor in (before, reader):
            os.close(descriptor)
    assert len(capfd.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["GONE"], "no export there"),
        (["HOME/alibi", "input=HOME/train.tx"], "no such file (did you mean 'train.txt'?)"),
        (["HOME/alibi", "top_k=3", "temperature=0"], "top_k: does nothing"),
        (["HOME/alibi", "top_k=100000"], "top_k = 100000: does nothing, the vocabulary has "),
        (["HOME/learned", "input=HOME/train.txt"], "the model has 24 positions"),
        (["HOME/learned", "input=HOME/train.txt", "window=3"], "train.txt:1: window = 3: learned"),
        (["HOME/alibi", "output=HOME"], "not a file"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    words: list[str], told: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(*[word.replace("HOME", str(home)) for word in words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and told in err


def test_a_launcher_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert start(home / "alibi") == 2
    assert "start it without a launcher" in capsys.readouterr().err
