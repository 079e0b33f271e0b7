"""A second bit allocation: exact fractions, with every threshold and every choice of widths tried."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np

f32 = np.float32
PATTERNS = np.arange(0x7F81)
"""The non-negative bf16 patterns up to infinity."""


def energy(pattern: int) -> Fraction:
    """The square of a bf16, exactly."""
    mantissa = pattern & 0x7F | (0x80 if pattern >> 7 else 0)
    return Fraction(mantissa * mantissa) * Fraction(4) ** (max(pattern >> 7, 1) - 134)


def benefit(a: int, b: int) -> Fraction:
    """The worth of one bit at energy 1 when a width a becomes b: the inverse of T_ab (DynamiQ §3.2)."""
    return Fraction(4 ** (b - a) - 1, 4**b * (b - a))


def code_bytes(widths: Sequence[int]) -> int:
    """Bytes of the codes of super-groups with these widths."""
    return sum(32 * width for width in widths)


def exact_widths(patterns: Sequence[int], spare: int, widths: Sequence[int]) -> list[int]:
    """The longest prefix of all increments, sorted by worth, that `spare` bytes pay for."""
    events = [
        (benefit(a, b) * energy(pattern), 32 * (b - a), index, b)
        for a, b in pairwise(widths)
        for index, pattern in enumerate(patterns)
        if pattern
    ]
    chosen = [widths[0]] * len(patterns)
    for _, cost, index, width in sorted(events, key=lambda event: -event[0]):
        spare -= cost
        if spare < 0:
            break
        chosen[index] = width
    return chosen


def thresholds(widths: Sequence[int]) -> np.ndarray:
    """(increments, 0x7f81): every increment's threshold for every threshold of the first one."""
    steps = [benefit(a, b) for a, b in pairwise(widths)]
    norms = (PATTERNS.astype(np.uint32) << 16).view(f32)
    rows = []
    for step in steps:
        with np.errstate(over="ignore"):
            bits = (norms * f32(math.sqrt(steps[0] / step))).view(np.uint32).astype(np.int64)
        rows.append((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    return np.stack(rows)


def fast_widths(patterns: Sequence[int], spare: int, widths: Sequence[int]) -> list[int]:
    """The smallest first threshold that `spare` bytes pay for, and what they pay for of the next one."""
    table, steps = thresholds(widths), [32 * (b - a) for a, b in pairwise(widths)]
    raised = np.array(patterns)[None, None] >= table[:, :, None]
    costs = (raised.sum(axis=2) * np.array(steps)[:, None]).sum(axis=0)
    first = next(t for t in range(1, 0x7F81) if costs[t] <= spare)
    chosen = [widths[level] for level in raised[:, first].sum(axis=0)]
    spare -= int(costs[first])
    tied = raised[:, first - 1] & ~raised[:, first]
    events = itertools.product(range(len(steps)), range(len(patterns)))
    for increment, index in events if first > 1 else ():
        if tied[increment, index]:
            spare -= steps[increment]
            if spare < 0:
                break
            chosen[index] = widths[increment + 1]
    return chosen


def modelled_error(patterns: Sequence[int], chosen: Sequence[int]) -> Fraction:
    """Σ F·4^−w."""
    return sum(
        (energy(pattern) / 4**width for pattern, width in zip(patterns, chosen, strict=True)), Fraction(0)
    )
