"""A finished run's rows on another clock: the same losses and metrics at the same steps, other times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gradwire.harness.measure.breakdown import breakdown
from gradwire.harness.measure.overlap import group_figures, overlap
from gradwire.harness.simulate.clock import SimulatedClock
from gradwire.harness.trace.spans import spans
from gradwire.harness.trace.step import StepTrace

Row = Mapping[str, Any]


def retimed_steps(
    rows: Sequence[Row], traces: Iterable[tuple[int, StepTrace]], clock: SimulatedClock
) -> list[dict[str, Any]]:
    """The rows of `steps.jsonl` with the times of their steps on `clock`.

    ValueError if a step has no trace.
    """
    found, now = list[dict[str, Any]](), 0.0
    following = iter(traces)
    for row in rows:
        step, trace = next(following, (None, None))
        if trace is None or step != row["step"]:
            raise ValueError(f"step {row['step']} has no trace")
        timed = clock.step(row["step"], trace, now)
        end = max(trace.end for trace in timed.values())
        now += end
        spans_of = [spans(own) for own in timed.values()]
        overlaps = [overlap(own, 0.0, end) for own in spans_of]
        busiest = min(range(len(overlaps)), key=lambda rank: overlaps[rank].wait_s)
        figures = asdict(breakdown(spans_of[busiest], 0.0, end))
        if len(timed) > 1:  # one rank alone has nothing to wait for
            figures |= group_figures(overlaps)
        found.append({**row, "train_time_s": now, "step_time_s": end, **figures})
    return found


def retimed_evaluations(rows: Sequence[Row], steps: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows of `evals.jsonl` at the times of their steps: an evaluation after k steps, when k are done."""
    return [{**row, "train_time_s": steps[row["step"] - 1]["train_time_s"]} for row in rows]
