"""The search: exhaustive and plain Python referees, batches, limits, what is never put out."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ala_encoder import decoding, hub
from ala_encoder.decoding import Hypothesis, Marks, largest, search, translate
from ala_encoder.errors import UserError
from ala_encoder.models import Seq2Seq
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.model import EncoderDecoderModel
from ala_encoder.settings.search import SearchSettings
from tests.test_cache import BOTH, seq2seq
from tests.test_models import shaken

PAD, BOS, EOS, UNK = range(4)
MARKS = Marks(bos=BOS, eos=EOS, pad=PAD, forbidden=())
SPECIAL = {PAD, BOS, UNK}
SCORES: list[dict[str, Any]] = [
    {"length_penalty": 0.0},
    {"length_penalty": 0.6},
    {"length_penalty": 1.0},
    {"length_penalty": 1.0, "penalty": "average"},
]


def toy_settings(**changes: Any) -> EncoderDecoderModel:
    fields = {
        "family": "encoder_decoder", "dim": 16, "num_layers": 1, "num_decoder_layers": 1,
        "num_heads": 2, "ffn_dim": 16, "dropout": 0.0, "output_bias": True,
    }  # fmt: skip
    return EncoderDecoderModel.model_validate(fields | changes)


def toy(vocab_size: int = 30, seed: int = 3, end: float = 3.0, **changes: Any) -> Seq2Seq:
    """Return a small model with drawn weights; `end` is added to the logit of eos.

    As given, its translations have 1 to 13 tokens, and every fourth reaches the limit.
    """
    model = shaken(Seq2Seq(toy_settings(**changes), {}, vocab_size))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        model.output_bias[EOS] += end
    return model  # type: ignore[no-any-return]


def sentences(number: int, vocab_size: int = 30, longest: int = 8) -> list[list[int]]:
    draw = random.Random(0)
    return [
        [draw.randrange(4, vocab_size) for _ in range(draw.randint(1, longest))] + [EOS]
        for _ in range(number)
    ]


def padded(sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, sources))
    ids = torch.tensor([[*source, *[PAD] * (width - len(source))] for source in sources])
    real = torch.tensor([[1] * len(source) + [0] * (width - len(source)) for source in sources])
    return ids, real


def run(
    model: Seq2Seq,
    sources: Sequence[Sequence[int]],
    settings: SearchSettings,
    forbidden: Collection[int] = SPECIAL,
) -> list[list[Hypothesis]]:
    return search(model, *padded(sources), settings, MARKS._replace(forbidden=forbidden))


def log_probs(model: Seq2Seq, source: Sequence[int], read: Sequence[int]) -> Tensor:
    """Return ln p of each next token after every prefix of what was read: [T, V]."""
    with torch.no_grad():
        return model(torch.tensor([source]), torch.tensor([read]))[0].log_softmax(-1)  # type: ignore[no-any-return]


def log_prob(model: Seq2Seq, source: Sequence[int], ids: Sequence[int]) -> float:
    rows = log_probs(model, source, [BOS, *ids])
    return sum(row[token].item() for row, token in zip(rows, [*ids, EOS], strict=True))


def score(total: float, length: int, settings: SearchSettings) -> float:
    alpha = settings.length_penalty
    if settings.penalty == "average":
        return total / length**alpha
    return total / (((5 + length) / 6) ** alpha)


Found = list[tuple[tuple[int, ...], float]]


def exhaustive(model: Seq2Seq, source: Sequence[int], settings: SearchSettings) -> Found:
    """Score every sequence of words that fits."""
    words = sorted(set(range(model.vocab_size)) - SPECIAL - {EOS})
    found = []
    for length in range(len(source) + settings.max_extra_tokens):
        for ids in itertools.product(words, repeat=length):
            total = log_prob(model, source, ids)
            found.append((ids, score(total, length + 1, settings)))
    return sorted(found, key=lambda one: -one[1])[: settings.n_best]


def plain_beam(model: Seq2Seq, source: Sequence[int], settings: SearchSettings) -> Found:
    """Search with lists and no cache; a sentence ends by the rule of transformers."""
    width = settings.beam_size
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    found: Found = []
    limit = len(source) + settings.max_extra_tokens
    while live:
        best = sorted((value for _, value in found), reverse=True)[:width]
        if len(best) == width and score(live[0][1], len(live[0][0]), settings) <= best[-1]:
            break
        candidates = []
        for ids, total in live:
            row = log_probs(model, source, [BOS, *ids])[-1].tolist()
            allowed = set(range(len(row))) - SPECIAL if len(ids) + 1 < limit else {EOS}
            candidates += [(total + row[token], ids, token) for token in allowed]
        candidates.sort(key=lambda one: -one[0])
        for total, ids, token in candidates[:width]:
            if token == EOS:
                found.append((ids, score(total, len(ids) + 1, settings)))
        live = [((*ids, token), total) for total, ids, token in candidates if token != EOS][:width]
    return sorted(found, key=lambda one: -one[1])[: settings.n_best]


def assert_found(ours: Sequence[Hypothesis], theirs: Found) -> None:
    assert [one.ids for one in ours] == [ids for ids, _ in theirs]
    for one, (_, value) in zip(ours, theirs, strict=True):
        assert one.score == pytest.approx(value, abs=1e-4)


# ---------------------------------------------------------------------------------------------
# Referees
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", SCORES, ids=str)
@pytest.mark.parametrize("n_best", [1, 5])
def test_c03_a_beam_that_holds_everything_equals_exhaustive_search(
    given: dict[str, Any], n_best: int
) -> None:
    settings = SearchSettings(beam_size=100, n_best=n_best, max_extra_tokens=2, **given)
    for seed in (0, 1, 8):  # in the last, what is best of all is behind at first
        model = toy(7, seed, end=0.0)
        (ours,) = run(model, [[4, 5, EOS]], settings)
        assert_found(ours, exhaustive(model, [4, 5, EOS], settings))


def test_c03_the_penalty_decides_between_short_and_long() -> None:
    """Otherwise the test above could not tell the penalties apart."""
    lengths = set()
    for given in SCORES:
        settings = SearchSettings(beam_size=100, max_extra_tokens=2, **given)
        lengths.add(tuple(run(toy(7, n, end=-1.0), [[4, 5, EOS]], settings)[0][0].length
                          for n in range(8)))  # fmt: skip
    assert len(lengths) == len(SCORES)


@pytest.mark.parametrize("width", [1, 2, 4, 7])
@pytest.mark.parametrize("given", SCORES, ids=str)
@pytest.mark.parametrize("seed", [1, 3])
def test_a_beam_equals_plain_python(width: int, given: dict[str, Any], seed: int) -> None:
    """Of two models, one of which likes to end at once."""
    settings = SearchSettings(beam_size=width, n_best=width, max_extra_tokens=4, **given)
    model, sources = toy(seed=seed), sentences(10)
    for source, ours in zip(sources, run(model, sources, settings), strict=True):
        assert_found(ours, plain_beam(model, source, settings))


@pytest.mark.parametrize("end", [3.0, 6.0])
def test_beam_1_equals_greedy(end: float) -> None:
    settings = SearchSettings(beam_size=1, max_extra_tokens=4)
    model, sources = toy(end=end), sentences(50)
    for source, (one,) in zip(sources, run(model, sources, settings), strict=True):
        read = [BOS]
        while read[-1] != EOS:
            row = log_probs(model, source, read)[-1]
            row[[PAD, BOS, UNK]] = -torch.inf
            read.append(EOS if len(read) == len(source) + 4 else int(row.argmax()))
        assert one.ids == tuple(read[1:-1])


def test_what_a_model_is_sure_of_is_found_though_a_few_end_before_it() -> None:
    """Stopping at `beam_size` finished, 16 of 60 would be below greedy's."""
    model = toy(seed=6, end=2.0)
    with torch.no_grad():
        model.vocabulary.weight *= 3
        model.output_bias *= 3
    greedy, beam = (
        run(model, sentences(60), SearchSettings(beam_size=width, max_extra_tokens=10))
        for width in (1, 4)
    )
    for (one,), (best,) in zip(greedy, beam, strict=True):
        assert best.score >= one.score - 1e-5


def test_the_beam_finds_what_transformers_finds() -> None:
    """A sentence at a time, since there the longest of a batch sets the limit for all of it.

    Where the limit is reached an eos costs nothing there, so those sentences are left out.
    """
    from transformers import MarianMTModel

    changes = {"norm": "post", "attention_bias": True}
    model = toy(end=6.0, **changes)
    config = hub.config_of("marian", toy_settings(**changes), 30)
    for key, value in {
        "pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": BOS,
        "forced_eos_token_id": EOS, "max_position_embeddings": 32,
    }.items():  # fmt: skip
        setattr(config, key, value)
    twin = MarianMTModel(config).eval()
    plain = {name: AttentionSettings() for name in ("encoder", "decoder", "cross")}
    state = hub.to_hub("marian", model.state_dict(), toy_settings(**changes), plain, "seq2seq")
    assert not twin.load_state_dict(state, strict=False).unexpected_keys
    settings = SearchSettings(length_penalty=1.0, penalty="average", n_best=4, max_extra_tokens=4)
    sources, compared = sentences(30), 0
    for source, ours in zip(sources, run(model, sources, settings), strict=True):
        if max(one.length for one in ours) == len(source) + 4:
            continue
        compared += 1
        theirs = twin.generate(
            input_ids=torch.tensor([source]), attention_mask=torch.ones(1, len(source)).long(),
            num_beams=4, num_return_sequences=4, early_stopping=False, length_penalty=1.0,
            max_new_tokens=len(source) + 4, do_sample=False, return_dict_in_generate=True,
            output_scores=True, suppress_tokens=sorted(SPECIAL),
        )  # fmt: skip
        found: Found = [
            (tuple(row[1 : row.index(EOS)]), value)
            for row, value in zip(
                theirs.sequences.tolist(), theirs.sequences_scores.tolist(), strict=True
            )
        ]
        assert_found(ours, found)
    assert compared >= 10


@pytest.mark.parametrize(("name", "positions"), BOTH)
def test_the_score_is_the_models_own_for_every_bias_and_position(name: str, positions: str) -> None:
    model = seq2seq(name, positions)
    sources = sentences(4, model.vocab_size, longest=6)
    settings = SearchSettings(n_best=3, beam_size=3, max_extra_tokens=3, length_penalty=0.0)
    for source, hypotheses in zip(sources, run(model, sources, settings), strict=True):
        for one in hypotheses:
            assert one.log_prob == pytest.approx(log_prob(model, source, one.ids), abs=1e-4)


def test_n_best_1_and_3_agree_on_the_best() -> None:
    """Fewer that are asked for stop the search earlier, and that changes nothing."""
    model, sources = toy(), sentences(100)
    for given in SCORES:
        one, three = (run(model, sources, SearchSettings(n_best=n, **given)) for n in (1, 3))
        assert [len(found) for found in three] == [3] * 100
        assert [found[0] for found in one] == [found[0] for found in three]
        assert all(a.score >= b.score for found in three for a, b in itertools.pairwise(found))


# ---------------------------------------------------------------------------------------------
# Batches
# ---------------------------------------------------------------------------------------------


def differing(ours: list[list[Hypothesis]], other: list[list[Hypothesis]], gap: float) -> int:
    """Count sentences of two runs with another best; asserts that their scores are `gap` apart."""
    pairs = [(a[0], b[0]) for a, b in zip(ours, other, strict=True) if a[0].ids != b[0].ids]
    assert all(abs(a.score - b.score) < gap for a, b in pairs)
    return len(pairs)


def test_c06_a_sentences_translation_does_not_depend_on_its_batch() -> None:
    model, sources = toy(), sentences(300, longest=4)
    settings = SearchSettings(max_extra_tokens=2, batch_tokens=60)
    alone = [run(model, [source], settings)[0] for source in sources]
    counts = {}
    for rows in (2, 7, 64):
        batches = [sources[start : start + rows] for start in range(0, len(sources), rows)]
        found = [one for batch in batches for one in run(model, batch, settings)]
        counts[f"batches of {rows}"] = differing(found, alone, 1e-5)
    marks = MARKS._replace(forbidden=SPECIAL)
    found = translate(model, sources, settings, marks)
    counts["by length"] = differing(found, alone, 1e-5)
    found = translate(model, sources[::-1], settings, marks)
    counts["reversed"] = differing(found[::-1], alone, 1e-5)
    print("of 300 sentences another translation than alone have:", counts)
    assert len({one[0].length for one in alone}) >= 5
    assert max(counts.values()) <= 1


def test_c06_seven_sentences_in_batches_of_1_3_and_7_and_reversed_give_the_same() -> None:
    model, sources = toy(), sentences(7)
    settings = SearchSettings(n_best=4)
    whole = run(model, sources, settings)
    ids = [[one.ids for one in found] for found in whole]
    for order in (sources, sources[::-1]):
        for rows in (1, 3, 7):
            found = [run(model, order[n : n + rows], settings) for n in range(0, 7, rows)]
            flat = [[one.ids for one in one_of] for batch in found for one_of in batch]
            assert (flat if order is sources else flat[::-1]) == ids


def shapes_of(module: torch.nn.Module) -> list[tuple[int, ...]]:
    """Return a list that the shapes of a module's inputs are put into when it runs."""
    found: list[tuple[int, ...]] = []
    module.register_forward_hook(lambda _, given, __: found.append(tuple(given[0].shape[:2])))
    return found


def test_batches_hold_similar_lengths_and_count_their_padding() -> None:
    model, sources = toy(), [*sentences(100), [4] * 60 + [EOS]]
    shapes = shapes_of(model.encoder)
    translate(model, sources, SearchSettings(batch_tokens=40), MARKS)
    assert shapes[0] == (1, 61)  # longer than a batch may be, so it has one of its own
    assert all(rows * width <= 40 for rows, width in shapes[1:])
    assert [width for _, width in shapes] == sorted((w for _, w in shapes), reverse=True)
    assert sum(rows for rows, _ in shapes) == 101
    real = sum(map(len, sources))
    assert sum(rows * width for rows, width in shapes) < 1.1 * real


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_is_encoded_in_parts_of_similar_length(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sources = toy(), sentences(40)
    ids, segments = padded(sources)
    if side == "left":
        shifts = [ids.shape[1] - len(source) for source in sources]
        ids, segments = (
            torch.stack([row.roll(n) for row, n in zip(x, shifts, strict=True)])
            for x in (ids, segments)
        )
    settings = SearchSettings(n_best=2, max_extra_tokens=4)
    whole = search(model, ids, segments, settings, MARKS)
    monkeypatch.setattr(decoding, "_ENCODED", 30)
    shapes = shapes_of(model.encoder)
    parts = search(model, ids, segments, settings, MARKS)
    assert len(shapes) > 5 and all(rows * width <= 30 for rows, width in shapes)
    for a, b in zip(whole, parts, strict=True):
        assert_found(a, [(one.ids, one.score) for one in b])


def test_finished_sentences_leave_the_batch() -> None:
    model, sources = toy(), sentences(50)
    settings = SearchSettings(max_extra_tokens=4)
    shapes = shapes_of(model.decoder)
    for source in sources:
        run(model, [source], settings)
    steps = len(shapes)
    shapes.clear()
    run(model, sources, settings)
    assert sum(rows for rows, _ in shapes) == steps
    assert len({rows for rows, _ in shapes}) > 5


# ---------------------------------------------------------------------------------------------
# Limits, empty lines, ids that are never put out
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [0, 1, 50])
@pytest.mark.parametrize("width", [1, 4])
def test_a_translation_has_at_most_so_many_tokens_more_than_its_source(
    extra: int, width: int
) -> None:
    model, sources = toy(end=-30.0), sentences(20)
    settings = SearchSettings(beam_size=width, max_extra_tokens=extra, n_best=width)
    for source, found in zip(sources, run(model, sources, settings), strict=True):
        assert found
        for one in found:
            assert one.length == len(source) + extra  # eos is so dear that all use their room
            assert one.log_prob == pytest.approx(log_prob(model, source, one.ids), abs=1e-3)


def test_learned_positions_limit_the_translation() -> None:
    model = toy(end=-30.0, positions="learned", max_length=12)
    for (one,) in run(model, sentences(10), SearchSettings()):
        assert one.length == 12


def test_c13_a_source_of_unknown_symbols_alone_has_a_translation() -> None:
    marks = MARKS._replace(forbidden=SPECIAL)
    found = translate(toy(), [[UNK, UNK, EOS]], SearchSettings(), marks)
    (one,) = found[0]
    assert one.length <= 53 and not SPECIAL & set(one.ids)


def test_empty_lines_stay_where_they_are() -> None:
    model = toy()
    sources: list[list[int]] = [[], [5, 6, EOS], [EOS], [7, EOS], [EOS]]
    found = translate(model, sources, SearchSettings(n_best=2), MARKS)
    for n in (0, 2, 4):
        assert found[n] == [Hypothesis((), 0.0, 0.0)]
    for n in (1, 3):
        alone = run(model, [sources[n]], SearchSettings(n_best=2), ())[0]
        assert_found(found[n], [(one.ids, one.score) for one in alone])
    assert translate(model, [], SearchSettings(), MARKS) == []


def test_forbidden_ids_are_never_put_out_and_keep_their_probability() -> None:
    model, sources = toy(), sentences(30)
    with torch.no_grad():
        model.output_bias[[PAD, BOS, UNK]] += 5.0  # type: ignore[index]
    settings = SearchSettings(max_extra_tokens=4)
    free = {token for (one,) in run(model, sources, settings, ()) for token in one.ids}
    assert free & SPECIAL
    for source, (one,) in zip(sources, run(model, sources, settings), strict=True):
        assert not SPECIAL & set(one.ids)
        assert one.log_prob == pytest.approx(log_prob(model, source, one.ids), abs=1e-4)


def test_eos_cannot_be_forbidden() -> None:
    settings = SearchSettings(max_extra_tokens=4)
    assert run(toy(), [[5, EOS]], settings, SPECIAL | {EOS}) == run(toy(), [[5, EOS]], settings)


def test_a_model_that_gives_nan_is_told() -> None:
    model = toy()
    with torch.no_grad():
        model.output_bias[7] = torch.nan  # type: ignore[index]
    with pytest.raises(UserError, match=r"^search: the model gives NaN$"):
        run(model, sentences(3), SearchSettings())


def test_a_search_with_dropout_is_refused() -> None:
    with pytest.raises(AssertionError, match="dropout"):
        run(toy().train(), sentences(1), SearchSettings())


# ---------------------------------------------------------------------------------------------
# Parts
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [5, 64, 700, 1000, 1024])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_largest_are_those_of_topk(columns: int, k: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, columns, generator=generator)
    x[1] = -torch.inf
    x[2, : columns // 2] = -torch.inf
    x[3, -1] = 9.0
    x[4] = x[4].round()  # many are equal
    values, places = largest(x, k)
    assert torch.equal(values, x.topk(k).values)
    assert torch.equal(x.gather(1, places), values)
    assert all(len(set(row)) == k for row in places.tolist())
    x[5, -1] = x[6, 0] = torch.nan
    assert largest(x, k)[0][5:7].isnan().any(1).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"n_best": 5}, "n_best = 5: more than beam_size = 4"),
        (
            {"penalty": "average", "length_penalty": 0.0},
            "penalty = 'average': does nothing where length_penalty is 0",
        ),
    ],
)
def test_settings_without_a_meaning_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as error:
        SearchSettings.model_validate(given)
    assert words in str(error.value)
