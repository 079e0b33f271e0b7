"""Dataclass fields that say which values they allow, and the check that enforces it.

The allowed values stand beside the field, once, and serve the check and its message alike.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from gradwire.harness.config.errors import ConfigError, closest


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
        value, key = values.get(field.name), f"{prefix}.{field.name}"
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
