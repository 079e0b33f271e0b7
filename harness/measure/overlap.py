"""How well communication hides behind computation (AQGB: ROW, OSF, utilization)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradwire.harness.measure.breakdown import spans_by_kind
from gradwire.harness.measure.intervals import clip, intersection, measure
from gradwire.harness.measure.timeline import Span


@dataclass(frozen=True, slots=True)
class Overlap:
    """Seconds of one rank's step."""

    compute_s: float  # T_comp = |C|
    comm_s: float  # T_comm = |N|
    overlap_s: float  # T_overlap = |C n N|
    wait_s: float  # T_wait: computation stopped for gradients that have not arrived
    update_s: float  # T_update: first send to last receive, idle time included
    update_compute_s: float  # T_overlap': computation inside T_update

    @property
    def row(self) -> float:
        """T_overlap / T_wait of this rank; infinite when it does not wait."""
        return self.overlap_s / self.wait_s if self.wait_s > 0 else math.inf

    @property
    def osf(self) -> float:
        """T_comp / (T_comp + T_update - T_overlap'): 1 when communication is hidden, NaN for an idle step."""
        total = self.compute_s + self.update_s - self.update_compute_s
        return self.compute_s / total if total > 0 else math.nan


def overlap(spans: Iterable[Span], start: float, end: float, wait_s: float) -> Overlap:
    """The overlap of the step [start, end]; `wait_s` is what the caller measured as T_wait."""
    covered = spans_by_kind(spans, start, end)
    compute, comm = covered["compute"], covered["comm"]
    update = (comm[0][0], comm[-1][1]) if comm else (start, start)
    return Overlap(
        compute_s=measure(compute),
        comm_s=measure(comm),
        overlap_s=measure(intersection(compute, comm)),
        wait_s=wait_s,
        update_s=update[1] - update[0],
        update_compute_s=measure(clip(compute, *update)),
    )


def group_row(ranks: Sequence[Overlap]) -> float:
    """min_i T_overlap_i / max_i T_wait_i; infinite when nobody waits."""
    longest_wait = max(rank.wait_s for rank in ranks)
    return min(rank.overlap_s for rank in ranks) / longest_wait if longest_wait > 0 else math.inf


def utilization(num_bytes: int, bits_per_second: float, seconds: float) -> float:
    """The share of what a link could have carried in `seconds` that it did carry."""
    return 8 * num_bytes / (bits_per_second * seconds)
