"""The bandwidth that ranks use over time (DynamiQ Fig. 17), over a few consecutive steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gradwire.harness.timing.measure.breakdown import Intervals, spans_by_kind
from gradwire.harness.timing.measure.spans import Span
from gradwire.harness.timing.trace.step import StepTrace, own_spans, step_end

BIN_S = 0.01
"""The width of a bin ..."""
FEWEST, MOST = 20, 400
"""... unless a step would have fewer bins, or all steps together more."""


@dataclass(frozen=True)
class Bandwidth:
    """Steps from second 0 on; rates in bytes per second in each bin of `bin_s` seconds, the last one cut."""

    bin_s: float
    first: list[float]  # of rank 0
    mean: list[float]  # over all ranks
    computing: Intervals  # of rank 0, in seconds
    starts: list[float]  # of the steps, in seconds
    end: float

    @property
    def edges(self) -> list[float]:
        """The edges of the bins, in seconds."""
        return [index * self.bin_s for index in range(len(self.first))] + [self.end]


def bandwidth_over(steps: Sequence[StepTrace]) -> Bandwidth:
    """The bandwidth over timed steps; each begins when the last of the ranks has ended the one before."""
    lengths = [step_end(step) for step in steps]
    *starts, end = accumulate(lengths, initial=0.0)
    bin_s = bin_width(lengths)
    by_rank = {rank: _laid_out(rank, steps, starts) for rank in steps[0]}
    rates = [bandwidth(own, 0.0, end, bin_s) for own in by_rank.values()]
    mean = [sum(bins) / len(bins) for bins in zip(*rates, strict=True)]
    computing = spans_by_kind(by_rank[0], 0.0, end)["compute"]
    return Bandwidth(bin_s, rates[0], mean, computing, starts, end)


def bin_width(lengths: Sequence[float]) -> float:
    """The bin width in seconds for steps of these lengths: 10 ms, or 1, 2 or 5 times a power of ten if 10 ms
    does not suit."""
    shortest, whole = min(lengths), sum(lengths)
    if shortest < FEWEST * BIN_S:
        return max(width for width in _round_near(shortest / FEWEST) if width * FEWEST <= shortest)
    if whole > MOST * BIN_S:
        return min(width for width in _round_near(whole / MOST) if width * MOST >= whole)
    return BIN_S


def _round_near(seconds: float) -> list[float]:
    unit = math.floor(math.log10(seconds))
    return [digit * 10.0**power for power in (unit - 1, unit, unit + 1) for digit in (1, 2, 5)]


def _laid_out(rank: int, steps: Sequence[StepTrace], starts: Sequence[float]) -> list[Span]:
    return [
        span._replace(start=span.start + start, end=span.end + start)
        for step, start in zip(steps, starts, strict=True)
        for span in own_spans(step[rank])
    ]


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
