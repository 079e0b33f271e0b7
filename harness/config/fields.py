"""Dataclass fields that say which values they allow, and the check that enforces it.

The allowed values stand beside the field, once, and serve the check and its message alike: those of the
command line, where Hydra has seen to names and types already, and those of a call (`check_arguments`). Only
the standard library is needed here.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
import types
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, Union, get_args, get_origin, get_type_hints

from gradwire.harness.config.errors import ConfigError, closest, did_you_mean

_PLAIN: dict[Any, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a string"),
    type(None): (type(None), "None"),
}
"""Annotations that are checked: the type of their values, and what a message calls them."""


def one_of(*allowed: str) -> Any:
    """A string field with a fixed set of values; the first is the default."""
    return dataclasses.field(default=allowed[0], metadata={"one_of": allowed})


def at_least(minimum: float, default: float | None) -> Any:
    """A number field (None allowed where the type says so) with minimum <= value."""
    return dataclasses.field(default=default, metadata={"low": minimum, "low_included": True})


def above(minimum: float, default: float | None) -> Any:
    """A number field with minimum < value."""
    return dataclasses.field(default=default, metadata={"low": minimum, "low_included": False})


def between(
    minimum: float,
    maximum: float,
    default: float | None,
    *,
    low_included: bool = True,
    high_included: bool = True,
) -> Any:
    """A number field with minimum <= value <= maximum, or < where an end is not included."""
    ends = {"low_included": low_included, "high_included": high_included}
    return dataclasses.field(default=default, metadata={"low": minimum, "high": maximum, **ends})


def check_fields(schema: type, values: dict[str, Any], prefix: str) -> None:
    """Raise ConfigError for the first of `values` that its field in `schema` does not allow.

    `prefix` is the group's key, so that the message names the field as typed on the command line.
    """
    for field in dataclasses.fields(schema):
        if field.name not in values:
            continue
        value, key = values[field.name], f"{prefix}.{field.name}" if prefix else field.name
        if "one_of" in field.metadata:
            _check_choice(key, value, field.metadata["one_of"])
        elif "low" in field.metadata and value is not None:
            _check_range(key, value, field.metadata)


def _check_choice(key: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        fix = (closest(str(value), allowed) or allowed)[0]
        raise ConfigError(f"{key}={value} is unknown; choose one of {', '.join(allowed)}, e.g. {key}={fix}")


def _check_range(key: str, value: float, metadata: Any) -> None:
    low, high = metadata["low"], metadata.get("high", math.inf)
    high_included = metadata.get("high_included", True)
    above_low = value >= low if metadata["low_included"] else value > low
    below_high = value <= high if high_included else value < high
    if not (above_low and below_high and math.isfinite(value)):
        rule = f"at least {low:g}" if metadata["low_included"] else f"above {low:g}"
        if math.isfinite(high):
            rule += f" and at most {high:g}" if high_included else f" and below {high:g}"
        raise ConfigError(f"{key}={value} is out of range; {key} must be {rule}")


def check_arguments(
    schema: type, values: Mapping[str, Any], prefix: str = "", without: Iterable[str] = ()
) -> None:
    """Raise ConfigError unless `values`, given in Python, are fields of `schema` of their types and ranges.

    `prefix` and a dot precede the names in messages. Fields in `without` are not to be given. Annotations of
    other types than booleans, numbers, strings, None, lists and unions of them are not looked at.
    """
    names = [field.name for field in dataclasses.fields(schema) if field.name not in {*without}]
    annotations = get_type_hints(schema)
    for name, value in values.items():
        key = f"{prefix}.{name}" if prefix else name
        if name not in names:
            allowed = f"choose from {', '.join(names)}" if names else "there are no options"
            raise ConfigError(f"{key}={shown(value)} is unknown: {allowed}{did_you_mean(name, names)}")
        if not _has_type(value, annotations[name]):
            raise ConfigError(
                f"{key}={shown(value)} has the wrong type; {key} must be {_words(annotations[name])}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key}={value} is out of range; {key} must be a finite number")
    check_fields(schema, dict(values), prefix)


def shown(value: object) -> str:
    """`value` as a message shows it: as Python writes it, cut where it is long."""
    shortened = reprlib.Repr()
    shortened.maxstring = shortened.maxother = shortened.maxlong = 60
    return " ".join(shortened.repr(value).split())


def _has_type(value: Any, annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return any(_has_type(value, each) for each in get_args(annotation))
    if origin in (list, tuple):
        (item, *_) = get_args(annotation)
        return isinstance(value, (list, tuple)) and all(_has_type(each, item) for each in value)
    if annotation not in _PLAIN:
        return True
    return isinstance(value, _PLAIN[annotation][0]) and (annotation is bool or not isinstance(value, bool))


def _words(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(each) for each in get_args(annotation))
    if origin in (list, tuple):
        return f"a list, each of it {_words(get_args(annotation)[0])}"
    return _PLAIN[annotation][1] if annotation in _PLAIN else getattr(annotation, "__name__", str(annotation))
