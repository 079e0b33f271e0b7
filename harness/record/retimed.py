"""A finished run's rows on another clock: the same losses and metrics at the same steps, other times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire.harness.record.timed_steps import fitting
from gradwire.harness.timing.measure.metrics import of_ranks
from gradwire.harness.timing.measure.step_figures import rank_figures
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.trace.step import StepTrace, spans

Row = Mapping[str, Any]


def retimed_steps(
    rows: Sequence[Row], traces: Iterable[tuple[int, StepTrace]], clock: SimulatedClock, folder: Path
) -> list[dict[str, Any]]:
    """The rows of `steps.jsonl` with the times of their steps on `clock`.

    `traces` has the traced steps in their order, of the trace in `folder`. A step without one takes that of
    the step nearest to it, of two the earlier one; rates, jitter and background traffic are those of its own
    number and time. Its row then has whose trace it is as `trace_step`. ValueError if no step has a trace,
    or one does not fit together.
    """
    found, now = list[dict[str, Any]](), 0.0
    for row, (step, trace) in zip(rows, _nearest([row["step"] for row in rows], traces), strict=True):
        with fitting(folder, step):
            figures = _timed(clock.step(row["step"], trace, now))
        now += figures["step_time_s"]
        lent = {"trace_step": step} if step != row["step"] else {}
        found.append({**row, "train_time_s": now, **figures, **lent})
    return found


def _timed(trace: StepTrace) -> dict[str, Any]:
    """What a row says of its step's time, on a clock that all ranks share."""
    end = max(own.end for own in trace.values())
    return of_ranks([{"step_time_s": end, **rank_figures(spans(own), 0.0, end)} for own in trace.values()])


def _nearest(
    steps: Iterable[int], traces: Iterable[tuple[int, StepTrace]]
) -> Iterator[tuple[int, StepTrace]]:
    """For each of the steps, in their order, the nearest traced one."""
    following = iter(traces)
    before, after = None, next(following, None)
    for step in steps:
        while after is not None and after[0] <= step:
            before, after = after, next(following, None)
        nearest = after if before is None else before
        if before is not None and after is not None and after[0] - step < step - before[0]:
            nearest = after
        if nearest is None:
            raise ValueError("no step has a trace")
        yield nearest


def retimed_evaluations(rows: Sequence[Row], steps: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows of `evals.jsonl` at the times of their steps: an evaluation after k steps, when k are done."""
    return [{**row, "train_time_s": steps[row["step"] - 1]["train_time_s"]} for row in rows]
