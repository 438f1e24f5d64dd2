"""What --help lists: every key that a settings class takes, with default, words and meaning."""

from __future__ import annotations

import importlib
import re
import typing
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from ala_encoder.settings.base import Section
from ala_encoder.settings.experiment import Architecture, PretrainRun
from ala_encoder.settings.outline import outline
from ala_encoder.settings.translation import TranslationRun
from tests.strings import ROOT

PIPELINES = sorted(
    path.stem for path in (ROOT / "pipelines").glob("*.py") if not path.stem.startswith("_")
)


def classes(annotation: Any, in_list: bool = False) -> list[tuple[type[BaseModel], bool]]:
    """Return the settings classes in an annotation, and whether they stand in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [(annotation, in_list)]
    inside = [] if typing.get_origin(annotation) is Literal else typing.get_args(annotation)
    is_list = in_list or typing.get_origin(annotation) is tuple
    return [found for part in inside for found in classes(part, is_list)]


def keys(cls: type[BaseModel], prefix: str = "") -> list[str]:
    found = []
    for name, field in cls.model_fields.items():
        found.append(prefix + name)
        for model, in_list in classes(field.annotation):
            found += keys(model, f"{prefix}{name}.{'N.' * in_list}")
    return found


def settings_of(pipeline: str) -> type[BaseModel]:
    source = (ROOT / "pipelines" / f"{pipeline}.py").read_text(encoding="utf-8")
    match = re.search(r"run\(\s*main,\s*(\w+)", source)
    assert match is not None, pipeline
    found: type[BaseModel] = getattr(importlib.import_module(f"pipelines.{pipeline}"), match[1])
    return found


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_every_key_of_every_pipeline_is_listed_also_of_kinds_and_in_lists(pipeline: str) -> None:
    cls = settings_of(pipeline)
    lines = outline(cls).split("\n")
    listed = {line.split()[0] for line in lines[1:] if line.strip() and line[2:40].strip()}
    elsewhere = {}
    for line in lines:
        if match := re.match(r"\s+(\S+)\.…\s+as (\S+)\.…$", line):
            elsewhere[match[1]] = match[2]
    for key in keys(cls):
        for place, other in elsewhere.items():
            if key.startswith(f"{place}."):
                key = key.replace(place, other, 1)
        assert key in listed, key


@pytest.mark.parametrize(
    ("cls", "row"),
    [
        (PretrainRun, r"    optim\.learning_rate +0\.0001 +The peak"),
        (PretrainRun, r"    engine\.precision +auto +\[auto\|float32\|bf16\|fp16\] auto: bf16 on"),
        (PretrainRun, r"    encoder\.biases +\[\] +Added to the scores"),
        (PretrainRun, r"      encoder\.biases\.N\.kind +gated_distbias −alpha_h g_i"),
        (PretrainRun, r"        encoder\.biases\.N\.alpha_init +0\.01 "),
        (PretrainRun, r"        encoder\.biases\.N\.slopes +8n/H +\[8n/H\|press\|equal\] 8n/H: h"),
        (PretrainRun, r"      data\.source\.kind +datasets +A column of a data set"),
        (PretrainRun, r"        data\.source\.name +required"),
        (PretrainRun, r"    tokenizer\.kind +byte_bpe +GPT-2's kind"),
        (PretrainRun, r"      model\.norm +post +\[post\|pre\] post: a norm after each residual"),
        (PretrainRun, r"    tracking\.enabled +true"),
        (PretrainRun, r"  data +required +Running text"),
        (TranslationRun, r"      cross\.biases\.N\.… +as encoder\.biases\.N\.…"),
        (TranslationRun, r"    cross\.path +auto +\[auto\|dense\|sdpa\|slope\|banded\|flex\]"),
        (Architecture, r"    model\.family +causal +Causal language model"),
        (Architecture, r"    train +or +Training of translation in batches of tokens"),
    ],
)
def test_a_row_has_default_allowed_words_and_meaning(cls: type[BaseModel], row: str) -> None:
    assert re.search(f"^{row}", outline(cls), re.MULTILINE)


def test_a_meaning_is_told_in_full_and_once() -> None:
    text = " ".join(outline(TranslationRun).split())
    full = (
        "post_softmax: the local mask multiplies the weights (`keep`); pre_softmax: it hides keys."
    )
    assert text.count(full) == 1
    assert text.count("decoder.mask_operator post_softmax [post_softmax|pre_softmax]") == 1


class Leaf(Section):
    """A leaf."""

    kind: Literal["leaf"]
    size: int = 1
    """How large."""


class Stone(Section):
    """A stone."""

    kind: Literal["stone"]
    weight: float | None = None


class Garden(Section):
    """A garden."""

    things: tuple[Annotated[Leaf | Stone, Field(discriminator="kind")], ...] = ()
    """What lies there."""
    best: Leaf | None = None
    colour: Literal["red", "green"] | None = "red"


class World(Section):
    """All."""

    garden: Garden = Garden()


def test_the_whole_of_a_small_class() -> None:
    found = [re.sub(" +", " ", line) for line in outline(World).split("\n")]
    assert found == [
        "settings:",
        " garden A garden.",
        " garden.things [] What lies there.",
        " garden.things.N.kind leaf A leaf.",
        " garden.things.N.size 1 How large.",
        " garden.things.N.kind stone A stone.",
        " garden.things.N.weight none",
        " garden.best none A leaf.",
        " garden.best.kind required [leaf]",
        " garden.best.size 1",
        " garden.colour red [red|green]",
    ]


def test_lines_fit_a_screen() -> None:
    assert max(map(len, outline(Architecture).split("\n"))) <= 110
