"""Sets of real numbers written as sorted, disjoint, half-open intervals."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[float, float]
Intervals = list[Interval]
"""Sorted and disjoint intervals, as `union` makes them. All functions here except `union` and `clip` require
this."""


def union(intervals: Iterable[Interval]) -> Intervals:
    """The points covered by any of `intervals`, which may overlap, touch, be empty and come in any order."""
    merged: Intervals = []
    for start, end in sorted(intervals):
        assert end >= start, f"interval ends before it starts: ({start}, {end})"
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def joined(intervals: Intervals, gap: float) -> Intervals:
    """`intervals`, with those at most `gap` apart merged."""
    found: Intervals = []
    for start, end in intervals:
        if found and start - found[-1][1] <= gap:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def clip(intervals: Iterable[Interval], start: float, end: float) -> Intervals:
    """The parts of `intervals` inside [start, end); the result is as sorted and disjoint as the input."""
    inside = ((max(a, start), min(b, end)) for a, b in intervals)
    return [(a, b) for a, b in inside if b > a]


def measure(intervals: Intervals) -> float:
    """Total length."""
    return sum(end - start for start, end in intervals)


def intersection(first: Intervals, second: Intervals) -> Intervals:
    """The points covered by both."""
    common: Intervals = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if end > start:
            common.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return common


def difference(first: Intervals, second: Intervals) -> Intervals:
    """The points of `first` that `second` does not cover."""
    rest: Intervals = []
    j = 0
    for start, end in first:
        while j < len(second) and second[j][1] <= start:
            j += 1
        k = j
        while k < len(second) and second[k][0] < end:
            if second[k][0] > start:
                rest.append((start, second[k][0]))
            start = max(start, second[k][1])
            k += 1
        if end > start:
            rest.append((start, end))
    return rest
