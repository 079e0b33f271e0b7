"""The parts of a step's time (DynamiQ Fig. 6), and the sets of intervals that they are the measures of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradwire.harness.timing.measure.spans import Kind, Span

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


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of one step, or means over steps; the four parts sum to the step."""

    compute_s: float  # |C|: forward, backward, optimizer
    compression_s: float  # |K \ C|: codec work that computation does not hide
    exposed_comm_s: float  # |N \ (C u K)|: bytes in flight and no other work
    other_s: float  # the rest, mostly Python; shown, not hidden. Waiting for a late peer is exposed_comm_s

    @property
    def step_s(self) -> float:
        return self.compute_s + self.compression_s + self.exposed_comm_s + self.other_s


def breakdown(spans: Iterable[Span], start: float, end: float) -> Breakdown:
    """The breakdown of the step [start, end]; spans are cut to it. Raises ValueError for an empty step."""
    if not end > start:
        raise ValueError(f"a step must end after it starts, got start={start}, end={end}")
    covered = spans_by_kind(spans, start, end)
    compute, codec, comm = covered["compute"], covered["codec"], covered["comm"]
    compute_s = measure(compute)
    compression_s = measure(difference(codec, compute))
    exposed_comm_s = measure(difference(comm, union(compute + codec)))
    # The three are disjoint parts of the step, so a negative rest can only be a rounding error.
    other_s = max(0.0, (end - start) - compute_s - compression_s - exposed_comm_s)
    return Breakdown(compute_s, compression_s, exposed_comm_s, other_s)


def spans_by_kind(spans: Iterable[Span], start: float, end: float) -> dict[Kind, Intervals]:
    """The union of each kind's spans inside [start, end]."""
    found: dict[Kind, Intervals] = {"compute": [], "codec": [], "comm": [], "wait": []}
    for span in spans:
        found[span.kind].append((span.start, span.end))
    return {kind: clip(union(intervals), start, end) for kind, intervals in found.items()}
