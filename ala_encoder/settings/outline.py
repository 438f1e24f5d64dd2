"""Every key of a settings class as text, for --help.

For: names as a user writes them, with defaults, allowed words and meanings, also of classes that
are chosen by a `kind` or stand in a list. Not for: checking values (`loader`).
"""

from __future__ import annotations

import json
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ala_encoder.settings.loader import models_in

_NAME, _DEFAULT, _WIDTH = 38, 12, 110
"""Columns of a key with its indent, of its default, and of a line."""


def outline(cls: type[BaseModel]) -> str:
    """Return a line for each key: where N stands, write an index; what is below a key is indented.

    A meaning is told once, so that what encoder and decoder share is not read twice.
    """
    return "\n".join(["settings:", *_Outline().keys(cls, "", 1)])


class _Outline:
    """The rows, and what earlier ones have told."""

    def __init__(self) -> None:
        self.listed: dict[tuple[type[BaseModel], ...], str] = {}
        self.told: set[tuple[str, str]] = set()

    def keys(
        self, cls: type[BaseModel], prefix: str, depth: int, tag: str | None = None
    ) -> Iterator[str]:
        """Yield the rows of a class; `tag`, the word that chose it, has its own already."""
        for name, field in cls.model_fields.items():
            if name == tag:
                continue
            path, models = prefix + name, tuple(models_in(field.annotation))
            about = _described(cls, name) or (models[0].__doc__ if len(models) == 1 else "")
            words = _literals(field.annotation)
            allowed = f"[{'|'.join(map(str, words))}] " if words else ""
            yield _row(depth, path, _default(field), allowed + self._once(name, _one_line(about)))
            if models:
                below = path + ".N" * _is_list(field.annotation)
                yield from self._below(models, below, depth + 1)

    def _below(self, models: tuple[type[BaseModel], ...], path: str, depth: int) -> Iterator[str]:
        """Yield the rows of one class or of several to choose from."""
        if depth > 2 and models in self.listed:
            yield _row(depth, f"{path}.…", "", f"as {self.listed[models]}.…")
            return
        self.listed.setdefault(models, path)
        if len(models) == 1:
            yield from self.keys(models[0], f"{path}.", depth)
            return
        for number, model in enumerate(models):
            about, tag = _one_line(model.__doc__), _tag(model)
            if tag is None:
                yield _row(depth, path, "or" if number else "either", about)
            else:
                word = _literals(model.model_fields[tag].annotation)[0]
                yield _row(depth, f"{path}.{tag}", str(word), about)
            yield from self.keys(model, f"{path}.", depth + 1, tag)

    def _once(self, name: str, about: str) -> str:
        if (name, about) in self.told:
            return ""
        self.told.add((name, about))
        return about


def _described(cls: type[BaseModel], name: str) -> str | None:
    """Return what a class says of a key, or else what those do that it is made from."""
    fields = (getattr(base, "model_fields", {}).get(name) for base in cls.__mro__)
    return next((field.description for field in fields if field and field.description), None)


def _row(depth: int, path: str, default: str, about: str) -> str:
    start = f"{'  ' * depth}{path}".ljust(_NAME) + f" {default.ljust(_DEFAULT)} "
    lines = textwrap.wrap(
        about,
        _WIDTH,
        initial_indent=start,
        subsequent_indent=" " * (_NAME + _DEFAULT + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines) or start.rstrip()


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if field.is_required():
        return "required"
    if isinstance(value, BaseModel):
        return ""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value).replace('"', "")
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value)


def _one_line(text: str | None) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join((text or "").split("\n\n")[0].split())


def _tag(model: type[BaseModel]) -> str | None:
    """Return the key whose one word chooses a class among others."""
    words = {name: _literals(field.annotation) for name, field in model.model_fields.items()}
    return next((name for name, allowed in words.items() if len(allowed) == 1), None)


def _literals(annotation: Any) -> list[Any]:
    """Return the words that an annotation allows."""
    if typing.get_origin(annotation) is typing.Literal:
        return list(typing.get_args(annotation))
    return [word for part in _parts(annotation) for word in _literals(part)]


def _is_list(annotation: Any) -> bool:
    """Tell whether classes stand in a list."""
    return typing.get_origin(annotation) is tuple or any(map(_is_list, _parts(annotation)))


def _parts(annotation: Any) -> tuple[Any, ...]:
    inside = (typing.Union, types.UnionType, typing.Annotated, tuple)
    return typing.get_args(annotation) if typing.get_origin(annotation) in inside else ()
