"""Refusals that tasks on saved gradients have in common."""

from __future__ import annotations

import math
from typing import Any

SMALLEST_BUCKET_MB = 1e-3


def is_number(value: Any) -> bool:
    """Whether a setting is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_count(field: str, value: Any) -> None:
    """ValueError unless `value` is a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{field}={value} must be a whole number greater than 0")


def check_megabytes(field: str, value: Any) -> None:
    """ValueError unless `value` is a size that a bucket may have."""
    if not is_number(value) or value < SMALLEST_BUCKET_MB:
        raise ValueError(f"{field}={value} must be a number of at least {SMALLEST_BUCKET_MB:g}")
