"""Read one YAML file and dotted overrides into a settings class, strictly.

For: turning everything a user can type into a checked, frozen object, or into one line that says
where, what was given, what is allowed and the nearest match. Values are checked in JSON mode, which
takes a list for a tuple and a string for a path but refuses "3" for a number and "off" for a bool.
YAML is 1.2: 1e-4 is a number; a duplicate key and a tag such as !!python/object are errors.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import re
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ala_encoder.errors import UserError, closest, cut, nearest, reason, shown
from ala_encoder.settings.source_keys import understood

Settings = TypeVar("Settings", bound=BaseModel)
_BASE = "base"
_MAX_TEXT = 65_536  # characters of one file: a data file given by mistake is told at once
_MAX_VALUES = 100_000  # once aliases are written out: ten lines of them can mean billions
_MAX_DEPTH = 64
_MAX_BRACKETS = 500
_MAX_SHOWN = 80  # characters of a value or a key in a message
_TRAINED_BY = {
    "encoder": "`pretrain` and `finetune_glue` train it",
    "causal": "`pretrain` trains it with objective: clm",
    "encoder_decoder": "`finetune_nmt` trains it, and `pretrain` with objective: denoise",
}
_OTHER_YAML = re.compile(r"%YAML(?!\s+1\.2\s*$).*", re.MULTILINE)


def load(path: Path, overrides: Sequence[str], cls: type[Settings]) -> Settings:
    """Return `cls` filled from the YAML file at `path` and overrides such as `optim.eps=1e-6`.

    A file may name another one under `base:` (relative to itself), whose values it changes. Keys of
    Adaptive Locality Attention are understood (`source_keys`). Raises UserError for anything
    unreadable, unknown, of the wrong type or impossible.
    """
    return check(understood(apply_overrides(_read_file(path, seen=()), overrides)), cls)


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return `data` with each `section.key=value` set; values are read as YAML."""
    for override in overrides:
        _apply(data, override)
    return data


def check(data: dict[str, Any], cls: type[Settings]) -> Settings:
    """Validate plain data strictly as `cls`; raises UserError with one line."""
    try:
        text = json.dumps(data)
    except (TypeError, ValueError) as error:
        raise UserError(f"settings: {error}; values are numbers, strings, lists, maps") from None
    try:
        return cls.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise UserError(_one_line(error, cls, data)) from None


def dump(settings: BaseModel, path: Path) -> None:
    """Write settings as YAML that `load` reads back to an equal object."""
    yaml = YAML()
    yaml.default_flow_style = False
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(json.loads(settings.model_dump_json()), file)


def read_plain(path: Path) -> dict[str, Any]:
    """Return a settings file as plain data, its `base:` merged in; raises UserError as `load`."""
    return _read_file(path, seen=())


def flatten(data: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested maps and lists as {dotted path: leaf}, for tables and MLflow parameters."""
    pairs: Iterator[tuple[str, Any]]
    if isinstance(data, dict) and data:
        pairs = ((str(key), value) for key, value in data.items())
    elif isinstance(data, (list, tuple)) and any(isinstance(v, (dict, list)) for v in data):
        pairs = ((str(index), value) for index, value in enumerate(data))
    else:
        return {prefix: data}
    flat: dict[str, Any] = {}
    for key, value in pairs:
        flat.update(flatten(value, f"{prefix}.{key}" if prefix else key))
    return flat


# ---------------------------------------------------------------------------------------------
# YAML and overrides
# ---------------------------------------------------------------------------------------------


def _parse_yaml(text: str, where: str) -> Any:
    """Return the plain value of a YAML text, with nothing shared between its places."""
    if len(text) > _MAX_TEXT:
        raise UserError(f"{where}: {len(text):,} characters, allowed are {_MAX_TEXT:,}")
    if other := _OTHER_YAML.search(text):
        raise UserError(f"{where}: {other[0]!r}: settings are YAML 1.2, where off is a word")
    if _open_brackets(text) > _MAX_BRACKETS:  # on which the parser takes seconds
        raise UserError(f"{where}: nested more than {_MAX_DEPTH} levels deep")
    yaml = YAML(typ="safe", pure=True)
    try:
        value = yaml.load(io.StringIO(text))
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = (getattr(error, "problem", None) or str(error)).strip().splitlines()[0]
        raise UserError(f"{where}{line}: not YAML 1.2 that is allowed here: {problem}") from None
    except RecursionError:
        raise UserError(f"{where}: nested more than {_MAX_DEPTH} levels deep") from None
    except Exception as error:  # `!!bool x` is a KeyError in there, a date of month 13 a ValueError
        raise UserError(f"{where}: not YAML 1.2 that is allowed here: {reason(error)}") from None
    try:
        return _plain(value, (), itertools.count(1))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _open_brackets(text: str) -> int:
    """Return how many brackets are open at once at most, those in words and comments included."""
    steps = (1 if bracket in "[{" else -1 for bracket in re.findall(r"[][{}]", text))
    return max(itertools.accumulate(steps), default=0)


def _plain(value: Any, path: tuple[str, ...], count: Iterator[int]) -> Any:
    """Copy a YAML value, aliases written out; raises UserError for what JSON cannot say."""
    place = cut(".".join(path) or "the value", _MAX_SHOWN)
    if next(count) > _MAX_VALUES:
        raise UserError(f"more than {_MAX_VALUES:,} values, aliases written out")
    if len(path) > _MAX_DEPTH:
        raise UserError(f"{'.'.join(path[:3])}: nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise UserError(
                    f"{place}: the key {shown(key)} is a {type(key).__name__}, not a word"
                )
            _plain(key, path, count)
        return {key: _plain(item, (*path, key), count) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, (*path, str(index)), count) for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{place} = {value}: not a finite number")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UserError(f"{place}: a whole number of more than 64 bits")
    if isinstance(value, str) and ("\0" in value or re.search("[\ud800-\udfff]", value)):
        raise UserError(f"{place} = {shown(value)}: holds a character that is none")
    if value is not None and not isinstance(value, (str, bool, int, float)):
        kind = type(value).__name__
        raise UserError(f"{place}: a {kind}, not a number, word, list or map (quote a date)")
    return value


def _read_file(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    resolved = path.resolve()
    if resolved in seen:
        raise UserError(f"{path}: `base:` leads back to this file")
    try:
        data = _parse_yaml(path.read_text(encoding="utf-8-sig"), str(path))
    except OSError as error:
        raise UserError(f"{path}: cannot read the settings: {reason(error)}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
    if not isinstance(data, dict):
        kind = "nothing" if data is None else f"a {type(data).__name__}"
        raise UserError(f"{path}: holds {kind}, a settings file is a map of sections")
    base = data.pop(_BASE, None)
    if base is None:
        return data
    if not isinstance(base, str):
        raise UserError(f"{path}: base = {shown(base)}: allowed is the path of one settings file")
    return _merge(_read_file(path.parent / base, (*seen, resolved)), data)


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return both, key by key; a section of another `kind` has other keys, so it is taken whole."""
    if "kind" in base and changes.get("kind", base["kind"]) != base["kind"]:
        return changes
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = _merge(old, value)
        else:
            merged[key] = value
    return merged


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        raise UserError(f"override {shown(override, _MAX_SHOWN)}: allowed is section.key=value")
    if len(parts) > _MAX_DEPTH:
        raise UserError(f"override {cut(key, _MAX_SHOWN)}: more than {_MAX_DEPTH} levels deep")
    value = _parse_yaml(text, f"override {key}") if text else ""
    node: Any = data
    for part, after in zip(parts, [*parts[1:], None], strict=True):
        if isinstance(node, list):
            if not part.isdecimal() or int(part) >= len(node):
                raise UserError(f"override {key}: {part!r} is not an index of {len(node)} entries")
            place: Any = int(part)
        elif isinstance(node, dict):
            place = part
        else:
            raise UserError(f"override {key}: nothing can be set below a value")
        if after is None:
            node[place] = value
        elif isinstance(node, dict):
            node = node.setdefault(place, {})
            if node is None:
                raise UserError(f"override {key}: {part} is null, set it as a whole")
        else:
            node = node[place]


# ---------------------------------------------------------------------------------------------
# One line for what went wrong
# ---------------------------------------------------------------------------------------------


def _one_line(found: ValidationError, cls: type[BaseModel], data: Any) -> str:
    errors = found.errors(include_url=False)
    for error in errors:  # a model of another family has other keys: it explains them all
        context = error.get("ctx", {})
        allowed = context.get("expected_tags") or context.get("expected")
        if error["loc"] in (("model",), ("model", "family")) and allowed:
            family, needed = data["model"]["family"], allowed.replace(", ", " or ")
            if trained := _TRAINED_BY.get(str(family)):
                return f"model.family = {family!r}: needed here is {needed}; {trained}"
        if error["loc"] == ("model",) and error["type"] == "value_error":
            return str(context["error"])
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{_describe(first, cls, data)}{more}"


def _describe(error: ErrorDetails, cls: type[BaseModel], data: Any) -> str:
    loc = _visible(error["loc"], data, is_missing=error["type"] == "missing")
    path = cut(".".join(map(str, loc)) or "settings", _MAX_SHOWN)
    kind = error["type"]
    given = cut(json.dumps(error.get("input"), default=str), _MAX_SHOWN)
    if kind == "extra_forbidden":
        return f"{path}: no such setting{_suggestion(loc, cls)}"
    if kind == "missing":
        return f"{path}: missing, it has no default"
    if kind == "value_error":
        why = str(error["ctx"]["error"])
        return why if not loc else f"{path}: {why}"
    message = error["msg"][0].lower() + error["msg"][1:]
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        context = error.get("ctx", {})
        key = str(context.get("discriminator", "kind")).strip("'")
        if kind == "union_tag_not_found":
            return f"{path}.{key}: missing"
        tag, expected = str(context["tag"]), str(context["expected_tags"])
        near = nearest(tag, expected.replace("'", "").split(", "))
        return f"{path}.{key} = {tag!r}: allowed are {expected}{near}"
    near = ""
    for bound in error.get("ctx", {}).values():
        if isinstance(bound, float) and 0 < abs(bound) < 1e-4:  # 2^-64 would have 40 digits
            message = re.sub(r"-?[\d.]+$", repr(bound), message)
    if kind == "literal_error":
        options = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        near = nearest(str(error.get("input")), options)
    return f"{path} = {given}: {message}{near}"


def _visible(loc: tuple[int | str, ...], data: Any, *, is_missing: bool) -> list[int | str]:
    """Drop the union tags that pydantic puts into a location: they are not in the user's file."""
    visible: list[int | str] = []
    for number, part in enumerate(loc, 1):
        inside = isinstance(data, dict) and part in data
        indexed = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if inside or indexed:
            data = data[part]
        elif not (is_missing and number == len(loc)):
            continue
        visible.append(part)
    return visible


def _suggestion(loc: Sequence[int | str], cls: type[BaseModel]) -> str:
    """Say what an unknown key may have meant: one beside it, else one elsewhere, else any here."""
    *above, leaf = map(str, loc)
    parent = ".".join(above)
    section = ".".join(part for part in above if not part.isdecimal())
    generic = f"{section}.{leaf}" if section else leaf
    known = dict.fromkeys(_paths(cls))
    if generic in known:
        return f" here, it belongs to another kind; set all of it, {parent}={{kind: …}}"
    beside = [key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == section]
    if near := closest(leaf, beside):
        meant = f"{parent}.{near}" if parent else near
        return f" (did you mean {meant!r}?)"
    elsewhere = {key.rpartition(".")[2]: key for key in reversed(known)}
    if near := closest(leaf, elsewhere):
        return f" (did you mean {elsewhere[near]!r}?)"
    place = f"in {cut(parent, _MAX_SHOWN)}" if parent else "here"
    return f"; allowed {place} are {', '.join(beside)}"


def _paths(cls: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a settings class, through unions and tuples."""
    for name, field in cls.model_fields.items():
        yield prefix + name
        for inner in models_in(field.annotation):
            yield from _paths(inner, f"{prefix}{name}.")


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the settings classes inside an annotation, through unions and tuples."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType, tuple, typing.Annotated):
        for argument in typing.get_args(annotation):
            yield from models_in(argument)
