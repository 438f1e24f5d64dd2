"""The choice of a path: what `auto` takes, how it is written, and what is refused by name."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ala_encoder.errors import UserError
from ala_encoder.heads import parse_head
from ala_encoder.settings import paths
from ala_encoder.settings.attention import AttentionSettings, case_of, check_attention, head_table
from ala_encoder.settings.loader import check
from ala_encoder.settings.paths import Case, describe, offsets, plan, refusal

SLOPES, OTHERS = Case(has_slopes=True), Case(has_others=True)


def case(cpu: bool = True, **given: Any) -> Case:
    return Case(device="cpu" if cpu else "cuda", **given)


@pytest.mark.parametrize(
    ("cells", "given", "choice"),
    [
        ("full", case(), "dense,sdpa@256"),
        ("full", case(causal=True), "sdpa"),
        ("full", case(dropout=True), "dense(dropout)"),
        ("full", case(cross=True, has_slopes=True), "dense,sdpa@512"),
        ("full", case(has_slopes=True), "dense,slope@32"),
        ("full", case(has_slopes=True, causal=True), "dense,slope@32"),
        ("full", case(has_slopes=True, is_half=True), "dense,sdpa@512"),
        ("full", case(has_slopes=True, has_others=True), "dense,sdpa@512"),
        ("full", case(has_others=True, causal=True), "dense,sdpa@192"),
        ("full", case(has_slopes=True, window=8), "dense,banded@126"),
        ("full", case(window=33), "dense,banded@226"),
        ("full", case(window=33, causal=True), "dense,banded@162"),
        ("full", case(window=400), "dense,sdpa@512,banded@1694"),
        ("band2 prev1", case(), "dense,banded@335"),
        ("band2 prev1", case(has_slopes=True), "dense"),
        ("band2 prev1", case(causal=True), "dense"),
        ("band2 prev1", case(is_half=True), "dense"),
        ("band2 full prev1 full", case(), "2xdense,banded@335+2xdense,sdpa@256"),
        ("band2 full", case(has_slopes=True), "1xdense+1xdense,slope@32"),
        ("band2 band3", case(is_pre_softmax=True), "1xdense,banded@106+1xdense,banded@110"),
        ("band2 band2", case(is_pre_softmax=True, has_others=True), "dense,banded@106"),
        ("band99", case(is_pre_softmax=True), "dense,banded@494"),
        ("band299", case(is_pre_softmax=True), "dense,sdpa@512,banded@1294"),
        ("prev1 identity next99", case(is_pre_softmax=True), "banded"),
        ("prev1 band2 full", case(is_pre_softmax=True),
         "1xbanded+1xdense,banded@106+1xdense,sdpa@256"),
        ("full", case(False), "sdpa"),
        ("full", case(False, has_slopes=True), "sdpa"),
        ("full", case(False, has_slopes=True, causal=True), "sdpa,slope@32"),
        ("full", case(False, has_others=True, causal=True), "sdpa"),
        ("full", case(False, cross=True, has_slopes=True), "sdpa"),
        ("band2", case(False), "dense"),
        ("band2", case(False, is_pre_softmax=True, is_half=True), "sdpa,banded@106"),
    ],
)  # fmt: skip
def test_auto_takes_the_fastest_that_can(cells: str, given: Case, choice: str) -> None:
    heads = [parse_head(cell) for cell in cells.split()]
    assert describe(plan(heads, given), given) == choice


def test_the_length_decides_between_the_steps_of_a_ladder() -> None:
    (part,) = plan([parse_head("full")], case(has_slopes=True, causal=True))
    start = paths.SLOPE_FROM
    assert [part.path(n) for n in (1, start - 1, start, start * 9)] == [
        "dense", "dense", "slope", "slope"
    ]  # fmt: skip


def test_what_is_dense_at_a_length_is_computed_together() -> None:
    heads = [parse_head(cell) for cell in ("band1", "full", "band3", "full")]
    given = case()
    parts = plan(heads, given)
    assert [part.heads for part in paths.at_length(parts, 100)] == [(0, 1, 2, 3)]
    assert [part.heads for part in paths.at_length(parts, 300)] == [(0, 2), (1, 3)]
    assert paths.at_length(parts, 400) == parts


def test_every_head_is_in_exactly_one_part() -> None:
    heads = [
        parse_head(cell)
        for cell in ("band1", "full", "prev1", "band2", "full", "identity", "band99")
    ]
    for is_pre_softmax in (True, False):
        parts = plan(heads, case(is_pre_softmax=is_pre_softmax))
        assert sorted(head for part in parts for head in part.heads) == list(range(7))
        assert all(
            part.has_scores or (is_pre_softmax and heads[head].is_single_key)
            for part in parts
            for head in part.heads
        )


@pytest.mark.parametrize(
    ("cell", "given", "seen"),
    [
        ("full", Case(), None), ("band2", Case(), range(-2, 3)), ("prev3", Case(), range(-3, -2)),
        ("next3", Case(), range(3, 4)), ("identity", Case(), range(1)),
        ("band2", Case(causal=True), range(-2, 1)), ("full", Case(window=3), range(-2, 3)),
        ("full", Case(window=3, causal=True), range(-2, 1)),
        ("band4", Case(window=3), range(-2, 3)), ("band1", Case(window=3), range(-1, 2)),
    ],
)  # fmt: skip
def test_the_offsets_a_head_can_see(cell: str, given: Case, seen: range | None) -> None:
    found = offsets(parse_head(cell), given)
    assert found == seen
    if found is not None:
        by_hand = [
            o for o in range(-9, 10)
            if parse_head(cell).allows(o) and (given.window is None or abs(o) < given.window)
            and not (given.causal and o > 0)
        ]  # fmt: skip
        assert list(found) == by_hand


@pytest.mark.parametrize(
    ("path", "cell", "given", "reason"),
    [
        ("sdpa", "band1", Case(), "post-softmax mask (band1)"),
        ("flex", "band1", Case(), "post-softmax mask (band1)"),
        ("sdpa", "full", Case(dropout=True), "dropout"),
        ("slope", "full", Case(), "-a|i - j|"),
        ("slope", "full", OTHERS, "-a|i - j|"),
        ("slope", "full", Case(has_slopes=True, window=9), "-a|i - j|"),
        ("slope", "band1", Case(has_slopes=True, is_pre_softmax=True), "head band1"),
        ("slope", "full", Case(has_slopes=True, cross=True), "one text"),
        ("slope", "full", Case(has_slopes=True, is_half=True), "half precision"),
        ("slope", "full", case(False, has_slopes=True), "bidirectional"),
        ("banded", "full", SLOPES, "head full sees every key"),
        ("banded", "band1", SLOPES, "a post-softmax mask (band1) beside biases"),
        ("banded", "band1", Case(causal=True), "a post-softmax mask (band1) beside causality"),
        ("banded", "band1", Case(is_half=True), "half precision"),
        ("banded", "band1", case(False), "cuda"),
        ("flex", "full", case(), "no backward on a CPU"),
        ("flex", "full", Case(device="mps"), "mps"),
        ("flex", "full", Case(cross=True), "one text"),
    ],
)
def test_a_path_that_cannot_says_why(path: Any, cell: str, given: Case, reason: str) -> None:
    found = refusal(path, parse_head(cell), given)
    assert found is not None and reason in found
    with pytest.raises(UserError) as caught:
        plan([parse_head(cell)], given, path)
    assert reason in str(caught.value) and "allowed here: auto, dense" in str(caught.value)


def test_dense_can_do_everything() -> None:
    for given in (Case(), OTHERS, Case(dropout=True), Case(cross=True), case(False)):
        assert refusal("dense", parse_head("band1"), given) is None


@pytest.mark.parametrize(
    ("given", "stack", "line"),
    [
        ({"heads": [["next1", "full"]]}, {"causal": True}, "head next1: sees nothing"),
        ({"heads": [["band1", "full"]]}, {"cross": True}, "head band1: cross-attention"),
        ({"ratio": 2.0, "biases": [{"kind": "alibi"}]}, {}, "ratio: does nothing in self"),
        ({"ratio_learnable": True, "biases": [{"kind": "alibi"}]}, {}, "ratio_learnable: does"),
        ({"ratio": 2.0}, {"cross": True}, "ratio: does nothing without biases"),
        ({"ratio_learnable": True, "biases": [{"kind": "t5"}]}, {"cross": True},
         "t5 passes it no gradient"),
        ({"compile": "on"}, {}, "compile = 'on': does nothing"),
        ({"compile": "on", "heads": [["band1", "full"]]}, {}, "compile = 'on': does nothing"),
        ({"compile": "on", "heads": [["prev1", "full"]], "mask_operator": "pre_softmax"}, {},
         "compile = 'on': does nothing"),
        ({"heads": [["band1", "band2"]], "mask_operator": "pre_softmax",
          "biases": [{"kind": "window", "width": 4}]}, {}, "window 4 hides nothing that"),
        ({"biases": [{"kind": "window", "width": 4}, {"kind": "window", "width": 9}]}, {},
         "window 9 does nothing beside window 4"),
        ({"compile": "on", "heads": [["band1", "full"]], "mask_operator": "pre_softmax"}, {},
         "compile = 'on': does nothing, `banded` begins at 102 tokens, texts have 32"),
        ({"compile": "on", "biases": [{"kind": "window", "width": 4}]}, {},
         "`banded` begins at 110 tokens, texts have 32"),
        ({"heads": [["prev20", "full"]], "biases": [{"kind": "window", "width": 10}]}, {},
         "head prev20: sees nothing beside window 10"),
        ({"heads": [["next10", "full"]], "biases": [{"kind": "window", "width": 10}]}, {},
         "head next10: sees nothing beside window 10"),
        ({"heads": [["band9", "full"]], "biases": [{"kind": "window", "width": 10}]}, {},
         "head band9: hides nothing beside window 10, write full"),
        ({"heads": [["band20", "full"]], "biases": [{"kind": "window", "width": 10}],
          "mask_operator": "pre_softmax"}, {"causal": True}, "head band20: hides nothing beside"),
        ({"biases": [{"kind": "window", "width": 64}], "ratio": 2.0}, {"cross": True},
         "window 64 hides nothing in 32 tokens"),
        ({"biases": [{"kind": "multiscale_distbias"}]}, {},
         "ranges: 512 is never reached in 32 tokens, write 32, which never ends, or less"),
        ({"biases": [{"kind": "multiscale_distbias", "ranges": [2, 31, 32]}]}, {},
         "ranges: 31 and 32 are the same in 32 tokens"),
        ({"biases": [{"kind": "t5", "max_distance": 16}]}, {"causal": True},
         "max_distance = 16: distances below 16 have buckets of their own"),
        ({"biases": [{"kind": "t5", "max_distance": 8}]}, {},
         "max_distance = 8: distances below 8"),
        ({"path": "slope"}, {}, "path = 'slope': it carries"),
        ({"path": "banded", "heads": [["band1", "full"]]}, {}, "path = 'banded': head full"),
        ({"path": "flex", "heads": [["band1", "full"]]}, {}, "path = 'flex': it never holds"),
    ],
)  # fmt: skip
def test_a_setting_without_effect_is_an_error(
    given: dict[str, Any], stack: dict[str, bool], line: str
) -> None:
    settings = AttentionSettings.model_validate(given)
    table = head_table(settings, 1, 2)
    with pytest.raises(UserError) as caught:
        check_attention(settings, table, 32, **stack)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("given", "stack"),
    [
        ({"ratio": 2.0, "ratio_learnable": True, "biases": [{"kind": "alibi"}]}, {"cross": True}),
        (
            {
                "compile": "on",
                "heads": [["band1", "full"]],
                "mask_operator": "pre_softmax",
                "path": "banded",
                "biases": [{"kind": "window", "width": 4}],
            },
            {},
        ),
        ({"compile": "on", "path": "banded", "biases": [{"kind": "window", "width": 4}]}, {}),
        ({"heads": [["prev9", "band8"]], "biases": [{"kind": "window", "width": 10}]}, {}),
        ({"biases": [{"kind": "multiscale_distbias", "ranges": [2, 30, 32]}]}, {}),
        (
            {"biases": [{"kind": "multiscale_distbias", "ranges": [2, 60, 63]}], "ratio": 2.0},
            {"cross": True},
        ),
        ({"biases": [{"kind": "window", "width": 62}], "ratio": 2.0}, {"cross": True}),
        (
            {
                "biases": [{"kind": "window", "width": 99}, {"kind": "alibi"}],
                "ratio_learnable": True,
            },
            {"cross": True},
        ),
        ({"heads": [["band2", "prev1"]]}, {"causal": True}),
        ({"path": "slope", "biases": [{"kind": "distbias"}, {"kind": "alibi"}]}, {}),
        ({"path": "banded", "heads": [["band1", "prev1"]]}, {}),
        ({"path": "flex", "biases": [{"kind": "kerple_log"}]}, {}),
        ({"biases": [{"kind": "t5", "max_distance": 17}]}, {"causal": True}),
        ({"biases": [{"kind": "t5", "max_distance": 9}]}, {}),
    ],
)
def test_the_edges_of_those_are_allowed(given: dict[str, Any], stack: dict[str, bool]) -> None:
    settings = AttentionSettings.model_validate(given)
    check_attention(settings, head_table(settings, 1, 2), 32, **stack)


@pytest.mark.parametrize(("longest", "acts"), [(101, False), (102, True), (sys.maxsize, True)])
def test_compiling_acts_from_the_length_on_that_the_choice_states(longest: int, acts: bool) -> None:
    settings = AttentionSettings.model_validate(
        {"compile": "on", "heads": [["band1", "full"]], "mask_operator": "pre_softmax"}
    )
    table = head_table(settings, 1, 2)
    assert "banded@102" in describe(plan(table.rows[0], case_of(settings)), case_of(settings))
    if acts:
        check_attention(settings, table, longest)
    else:
        with pytest.raises(UserError, match="begins at 102 tokens, texts have 101"):
            check_attention(settings, table, longest)


def test_what_the_settings_say_is_what_the_choice_depends_on() -> None:
    settings = AttentionSettings.model_validate(
        {"biases": [{"kind": "window", "width": 9}, {"kind": "window", "width": 5},
                    {"kind": "distbias"}]}
    )  # fmt: skip
    assert case_of(settings, causal=True) == Case(has_slopes=True, window=5, causal=True)
    others = AttentionSettings.model_validate({"biases": [{"kind": "t5"}], "dropout": 0.1})
    assert case_of(others, cross=True) == Case(has_others=True, cross=True, dropout=True)


def test_the_choice_needs_no_torch_and_the_package_stays_light() -> None:
    code = (
        "import sys, ala_encoder, ala_encoder.settings.paths\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()\n"
        "assert callable(ala_encoder.attend) and 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", ["distbias", "gated_distbias", "multiscale_distbias"])
@pytest.mark.parametrize("alpha", [1e300, 1e39, 5e9, 0.0, -1.0, 1e-300, 1e-46])
def test_an_alpha_that_float32_has_not_is_refused(kind: str, alpha: float) -> None:
    given = {"biases": [{"kind": kind, "alpha_init": alpha}]}
    with pytest.raises(UserError, match=r"biases\.0\.alpha_init = .*input should be"):
        check(given, AttentionSettings)


@pytest.mark.parametrize("ratio", [1e300, 1e-300, 1001.0, 0.0])
def test_a_ratio_is_that_of_two_texts(ratio: float) -> None:
    with pytest.raises(UserError, match=r"ratio = .*input should be"):
        check({"ratio": ratio, "biases": [{"kind": "alibi"}]}, AttentionSettings)


@pytest.mark.parametrize("exponent", [-33.0, 65.0])
@pytest.mark.parametrize("key", ["shift", "equal"])
def test_alibi_has_no_slope_that_float32_has_not(key: str, exponent: float) -> None:
    slopes = "equal" if key == "equal" else "8n/H"
    given = {"biases": [{"kind": "alibi", "slopes": slopes, key: exponent}]}
    with pytest.raises(ValueError, match="than or equal to"):
        AttentionSettings.model_validate(given)
