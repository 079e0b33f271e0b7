"""JSON that stays valid when a number is not finite.

JSON has no infinity and no NaN, and `json.dumps` writes tokens that other readers refuse. Records contain the
strings "inf", "-inf" and "nan" instead. null means that there is no such number: the time to a target that is
never reached is infinity, but wire bits at n = 1 are null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def dumps(value: Any, indent: int | None = None) -> str:
    """Writes one JSON text; keys keep their order."""
    return json.dumps(_to_json(value), allow_nan=False, indent=indent, ensure_ascii=False)


def restored(value: Any) -> Any:
    """Converts the strings "inf", "-inf" and "nan" in a value written by `dumps` back to numbers."""
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [restored(item) for item in value]
    return value


def _to_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return value
