"""The figures of a step: the overlap of communication with computation (AQGB: ROW, OSF), and the bytes sent.

Computation overlaps with all communication in flight at the time. With DDP this is the step's own
communication, because the next forward pass starts after the update; if the forward pass waits for one block
after the other, it includes that of the step before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from gradwire.harness.timing.measure.breakdown import (
    Intervals,
    breakdown,
    clip,
    intersection,
    joined,
    measure,
    spans_by_kind,
    union,
)
from gradwire.harness.timing.measure.metrics import METRICS
from gradwire.harness.timing.measure.spans import Span

NOTHING_S = 1e-9
"""A gap between computation and a wait that is this short is a rounding error."""

LEVELS = ("local", "node")
"""Network levels that bytes travel over: between ranks of one node, and between nodes."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Overlap figures of one rank's step, in seconds."""

    compute_s: float  # T_comp = |C|
    comm_s: float  # T_comm = |N|
    overlap_s: float  # T_overlap = |C n N|
    wait_s: float  # T_wait: computation stopped for gradients that have not arrived
    update_s: float  # T_update: first send to last receive, idle time included
    update_compute_s: float  # T_overlap': computation inside T_update

    @property
    def row(self) -> float:
        """T_overlap / T_wait of this rank; infinite when it does not wait."""
        return row_of(self.overlap_s, self.wait_s)

    @property
    def osf(self) -> float:
        """T_comp / (T_comp + T_update - T_overlap'): 1 when communication is fully overlapped, NaN for an
        idle step."""
        total = self.compute_s + self.update_s - self.update_compute_s
        return self.compute_s / total if total > 0 else math.nan


def overlap(spans: Iterable[Span], start: float, end: float) -> Overlap:
    """The overlap of the step [start, end]; spans are cut to it."""
    covered = spans_by_kind(spans, start, end)
    compute, comm, waits = covered["compute"], covered["comm"], covered["wait"]
    update = (comm[0][0], comm[-1][1]) if comm else (start, start)
    return Overlap(
        compute_s=measure(compute),
        comm_s=measure(comm),
        overlap_s=measure(intersection(compute, comm)),
        wait_s=measure(waits) + _last_wait_s(joined(union(compute + waits), NOTHING_S), end),
        update_s=update[1] - update[0],
        update_compute_s=measure(clip(compute, *update)),
    )


def _last_wait_s(passes: Intervals, end: float) -> float:
    """The time from when the last gradient is ready to the start of the update, or to the end of a step whose
    update takes no time of its own. `passes` are the computation and the waits in the middle of it."""
    if len(passes) > 1:
        return passes[-1][0] - passes[-2][1]
    return end - passes[0][1] if passes else 0.0


def row_of(overlap_s: float, wait_s: float) -> float:
    """ROW: T_overlap / T_wait; infinite when no rank waits."""
    return overlap_s / wait_s if wait_s > 0 else math.inf


def rank_figures(spans: Iterable[Span], start: float, end: float) -> dict[str, float]:
    """The figures of a rank's step [start, end], by the keys of the metrics, from its spans.

    Raises ValueError for a key that is not in `METRICS`, or whose entry does not say how ranks are combined.
    """
    found = list(spans)
    hidden = overlap(found, start, end)
    figures = {
        **asdict(breakdown(found, start, end)),
        "comm_s": hidden.comm_s,
        "overlap_s": hidden.overlap_s,
        "wait_s": hidden.wait_s,
        "osf": hidden.osf,
    }
    for key in figures:
        if key not in METRICS or METRICS[key].ranks is None:
            raise ValueError(
                f"rank_figures: {key} has no entry with ranks= in METRICS; add one, or correct the key"
            )
    return figures


def utilization(num_bytes: float, bits_per_second: float, seconds: float) -> float:
    """The share of a link's capacity in `seconds` that was used."""
    return 8 * num_bytes / (bits_per_second * seconds)


def bus_bandwidth(num_bytes: float, seconds: float, workers: int) -> float | None:
    """The bus bandwidth in bytes per second: the rate of each link if `num_bytes` are all-reduced
    uncompressed in `seconds`.

    It is `S/t · 2(n − 1)/n`, as in nccl-tests; None for one worker, which sends nothing.
    """
    return num_bytes / seconds * 2 * (workers - 1) / workers if workers > 1 else None


def wire_bits(num_bytes: int, gradients_sent: float, num_coordinates: int) -> float | None:
    """Bits on the wire per coordinate, to compare with a bit budget: a synchronization sends `gradients_sent`
    encoded gradients.

    None for one rank, which sends nothing, and if the backend sends bytes that are not counted.
    """
    if gradients_sent == 0 or num_bytes == 0:
        return None
    return 8 * num_bytes / (gradients_sent * num_coordinates)


def wire_bits_by_level(
    num_bytes: int, between_nodes: int, gradients_sent: float, num_coordinates: int
) -> dict[str, float] | None:
    """The wire bits per coordinate by level: inside nodes (`local`) and between nodes (`node`). They add up
    to `wire_bits`; None where that is None."""
    if wire_bits(num_bytes, gradients_sent, num_coordinates) is None:
        return None
    counts = (num_bytes - between_nodes, between_nodes)
    bits = [wire_bits(count, gradients_sent, num_coordinates) or 0.0 for count in counts]
    return dict(zip(LEVELS, bits, strict=True))
