"""Records of the plain engine of broadcast rounds: rows, a worker's blocks, what it sends, and averages."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

NAN = math.nan


@dataclass
class Row:
    """One pass or transmission; the fields are the columns of `Rows`."""

    kinds: int
    worker: int
    round: int
    block: int
    start: float
    bits_sent: int = 0
    values_sent: int = 0
    end: float = NAN
    bytes: float = NAN
    ratio: float = NAN
    rate: float = NAN


@dataclass
class OwnBlock:
    """A worker's gradient of a block: `parts` are values and bits that stage one has carried."""

    deadline: float = NAN
    is_due: bool = True
    pending: int = 0
    parts: list[tuple[int, int]] = field(default_factory=list)
    refined: int = 0
    has_appeared: bool = False
    is_delivered: bool = False
    is_closed: bool = False


@dataclass
class Sending:
    """A worker's transmission under way; `bytes` of one copy, `open` copies."""

    row: Row
    block: int
    stage: int
    values: int
    bits: int
    open: int
    bytes: float
    began: float


class Averages:
    """Moving averages by key; NaN before the first."""

    def __init__(self, gain: float) -> None:
        self._gain, self._means = gain, dict[Any, float]()

    def __getitem__(self, key: Any) -> float:
        return self._means.get(key, NAN)

    def see(self, key: Any, seen: float) -> None:
        mean = self[key]
        self._means[key] = mean + self._gain * (seen - mean) if mean == mean else seen
