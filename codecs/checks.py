"""Refusals of a codec's settings, in one line: field, value, what is allowed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def check_range(codec: Any, field: str, low: float, high: float, hint: str) -> None:
    """Raise ValueError unless the codec's `field` lies in [low, high]; `hint` helps to choose."""
    value = getattr(codec, field)
    if not low <= value <= high:
        allowed = f"a value from {low} to {high}" if low < high else str(low)
        raise ValueError(f"codec.{field}={value}: choose {allowed} ({hint})")


def check_choice(codec: Any, field: str, allowed: Collection[object]) -> None:
    """Raise ValueError unless the codec's `field` is one of `allowed`."""
    value = getattr(codec, field)
    if value not in allowed:
        raise ValueError(f"codec.{field}={value}: choose one of {', '.join(map(str, allowed))}")
