"""The parts of a step's time (DynamiQ Fig. 6) and the bandwidth it uses over time (Fig. 17)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gradwire.harness.timing.measure.intervals import Intervals, clip, difference, measure, union
from gradwire.harness.timing.measure.spans import Kind, Span


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


def bandwidth(spans: Iterable[Span], start: float, end: float, bin_s: float = 0.01) -> list[float]:
    """Bytes per second in each bin of `bin_s` seconds of [start, end], the last bin cut at `end`.

    The bytes of a `comm` span are spread evenly over its duration; a span of duration 0 counts in its bin.
    """
    num_bins = max(1, math.ceil((end - start) / bin_s))
    carried = [0.0] * num_bins
    for span in spans:
        if span.kind == "comm" and span.bytes:
            _spread(span, start, bin_s, carried)
    widths = [min(bin_s, end - start - index * bin_s) for index in range(num_bins)]
    return [count / width for count, width in zip(carried, widths, strict=True)]


def _spread(span: Span, start: float, bin_s: float, carried: list[float]) -> None:
    """Add the bytes of one span to the bins it touches."""
    first = math.floor((span.start - start) / bin_s)
    last = math.floor((span.end - start) / bin_s)
    for index in range(max(first, 0), min(last, len(carried) - 1) + 1):
        left = max(span.start, start + index * bin_s)
        right = min(span.end, start + (index + 1) * bin_s)
        duration = span.end - span.start
        share = (right - left) / duration if duration > 0 else 1.0
        carried[index] += span.bytes * max(share, 0.0)
