"""All-reduces of low-rank gradients over their rank: EDGC's linear model of T(r) (§IV-D1, Figure 9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gradwire.harness.studies.allreduce.summary import AllReduceSummary
from gradwire.harness.timing.measure.line_fit import fit_line

FEWEST = 3
"""Ranks that a line is drawn through: two are always on one."""


def rank_lines(runs: Sequence[AllReduceSummary], ranks: Sequence[int | None]) -> Iterator[str]:
    """A remark for each codec, gradient and network with times at three ranks or more: the line through the
    medians, and its mean relative error. `ranks` are those of the runs."""
    alike: dict[tuple[object, ...], dict[int, AllReduceSummary]] = {}
    for run, rank in zip(runs, ranks, strict=True):
        if rank is not None:
            about = (run.codec, run.workers, run.coordinates, run.network, run.pieces)
            alike.setdefault(about, {})[rank] = run
    for (codec, workers, coordinates, network, _), by_rank in alike.items():
        if len(by_rank) < FEWEST:
            continue
        for kind, times in _times(by_rank).items():
            found = fit_line(list(times.items()))
            yield (
                f"{codec}, {workers} workers, {coordinates:,} coordinates, network {network}, {kind}: the "
                f"time at rank r is {found.slope * 1e3:.4g} ms · r + {found.constant * 1e3:.4g} ms, with a "
                f"mean error of {found.error:.2%} (MAPE) at ranks {', '.join(map(str, sorted(times)))}."
            )


def _times(by_rank: Mapping[int, AllReduceSummary]) -> dict[str, dict[int, float]]:
    """The median seconds by rank, as measured, if all were, and on the simulated clock."""
    measured = {rank: run.measured.median for rank, run in by_rank.items() if run.measured is not None}
    found = {"measured": measured} if len(measured) == len(by_rank) else {}
    return found | {"modelled": {rank: run.modelled.median for rank, run in by_rank.items()}}
