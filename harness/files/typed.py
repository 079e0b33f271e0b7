"""Checks values of JSON against the types that a dataclass declares. Reports wrong types without converting
them."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gradwire.harness.files.reading import UnusableFileError, printable

Made = TypeVar("Made")


def made(cls: type[Made], values: Mapping[str, Any], path: str | Path, *, remedy: str) -> Made:
    """Makes the instance of dataclass `cls` with `values`, which were read from `path`.

    Fields with defaults may be missing and unknown keys are ignored, because other versions of the code have
    other fields. A field whose type is a dataclass is made from an object. Raises UnusableFileError for
    missing fields and values of another type.
    """
    try:
        return cast(Made, _make(cls, values, ""))
    except _WrongTypeError as error:
        raise UnusableFileError(path, str(error), remedy) from None


class _WrongTypeError(Exception):
    """Raised with a field, its value, and the required type."""


def _make(cls: type, values: Mapping[str, Any], prefix: str) -> Any:
    hints, given = _hints(cls), dict[str, Any]()
    lacking = []
    for field in dataclasses.fields(cls):
        if field.name in values:
            key = f"{prefix}{field.name}"
            given[field.name] = _checked(values[field.name], hints[field.name], key)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            lacking.append(f"{prefix}{field.name}")
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        raise _WrongTypeError(f"lacks {', '.join(lacking[:3])}{more}")
    return cls(**given)


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _checked(value: Any, hint: Any, key: str) -> Any:
    """Returns `value` if it has the type `hint`; converts an object to the dataclass if `hint` is one."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _one_of(value, arguments, key)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return _make(cast(type, hint), value, f"{key}.")
    if origin is list and isinstance(value, list):
        return [_checked(item, arguments[0], key) for item in value]
    if origin is not None and isinstance(value, dict) and issubclass(dict, origin):
        return {name: _checked(item, arguments[1], f"{key}.{name}") for name, item in value.items()}
    if not _is(value, hint, origin, arguments):
        shown = printable(repr(value), 60)
        raise _WrongTypeError(f"{key} is {shown}, not {_named(hint)}")
    return value


def _one_of(value: Any, hints: tuple[Any, ...], key: str) -> Any:
    if value is None and type(None) in hints:
        return None
    known = [hint for hint in hints if hint is not type(None)]
    for hint in known[:-1]:
        try:
            return _checked(value, hint, key)
        except _WrongTypeError:
            continue
    return _checked(value, known[-1], key)


def _is(value: Any, hint: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    if hint is Any:
        return True
    if origin is Literal:
        return value in arguments
    if hint is float:
        return isinstance(value, float) or _is(value, int, None, ())
    if hint is int:  # true and false are no numbers; counts fit 64 bits
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(hint, type) and isinstance(value, hint)


_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "an object"}


def _named(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is list:
        return "a list"
    if origin is not None or dataclasses.is_dataclass(hint):
        return "an object"
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))
