"""Plain data with types that are checked: the fields of a dataclass against their annotations, also from JSON."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from .text import shortened

T = TypeVar("T")
MAX_INTEGER = 10**300  # a larger one is no float
_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string", types.NoneType: "null"}


def check_fields(record: Any, ranges: Mapping[str, tuple[float, float]] | None = None) -> None:
    """Raise ValueError if a field of a dataclass has not the type of its annotation, or lies outside of its range.

    Ranges include both ends; a field that is None has none.
    """
    for name, kind in _kinds(type(record)).items():
        _check(getattr(record, name), kind, name)
    for name, (least, most) in (ranges or {}).items():
        value = getattr(record, name)
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {_number(least)}, got {shortened(repr(value), 60)}")
        if value is not None and not value <= most:
            raise ValueError(f"{name} must be at most {_number(most)}, got {shortened(repr(value), 60)}")


def from_json(kind: type[T], content: Any) -> T:
    """Build a dataclass, with dataclasses in it, from JSON of the same structure; ValueError if it has another one."""
    if not isinstance(content, dict):
        raise ValueError(f"expected an object with the fields of {kind.__name__}, got {shortened(repr(content), 60)}")
    kinds = _kinds(kind)
    if unknown := sorted(content.keys() - kinds.keys()):
        raise ValueError(f"{kind.__name__} has no field {shortened(repr(unknown[0]), 60)}")
    own = {}
    for name, value in content.items():
        own[name] = from_json(kinds[name], value) if is_dataclass(kinds[name]) else value
        _check(own[name], kinds[name], name)
    try:
        return kind(**own)
    except TypeError:  # a field without a default is missing
        raise ValueError(f"a field of {kind.__name__} is missing, of {', '.join(kinds)}") from None


def _kinds(record: type) -> dict[str, Any]:
    hints = get_type_hints(record)
    return {field.name: hints[field.name] for field in fields(record)}


def _check(value: Any, kind: Any, name: str) -> None:
    if not _fits(value, kind):
        raise ValueError(f"{name} must be {_words(kind)}, got {shortened(repr(value), 60)}")


def _fits(value: Any, kind: Any) -> bool:
    """True if a value has a type; an integer is a number, too, but a bool is neither."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is types.UnionType:
        return any(_fits(value, option) for option in inner)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is float and isinstance(value, int):
        return abs(value) <= MAX_INTEGER
    return isinstance(value, kind)


def _number(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:g}"


def _words(kind: Any) -> str:
    if get_origin(kind) is types.UnionType:
        return " or ".join(_words(option) for option in get_args(kind))
    return _WORDS.get(kind) or {list: "a list", dict: "an object"}.get(get_origin(kind)) or f"a {kind.__name__}"
