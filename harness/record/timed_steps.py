"""The steps of a finished run with their times: measured ones, those of its simulated clock, or those of
another clock, for which losses and metrics stay with their steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.network.settings import recorded_network
from gradwire.harness.record.attempts import Attempts
from gradwire.harness.record.profiles import count_profile, own_profile
from gradwire.harness.record.runs import Run, load_run
from gradwire.harness.runtime.progress import tracked
from gradwire.harness.timing.measure.metrics import of_ranks
from gradwire.harness.timing.measure.step_figures import rank_figures
from gradwire.harness.timing.simulate.build import make_clock
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.engine import UnfitNetworkError, require_engine
from gradwire.harness.timing.simulate.window import StepWindow
from gradwire.harness.timing.trace.files import FOLDER, REMEDY, RecordedSteps, read_traces, recorded_steps
from gradwire.harness.timing.trace.step import StepTrace, spans, step_end

Retime = Callable[[int, StepTrace], StepTrace]
"""A function from a step's number and its trace on disk to the trace with the final times."""


def timed_steps(
    directory: str | Path, steps: Collection[int] | None = None
) -> Iterator[tuple[int, StepTrace]]:
    """The steps of the run in `directory`, in order, or only `steps`: number and timed trace.

    Raises ValueError in one line if there is no run or no trace, or it cannot be read.
    """
    yield from steps_of(load_run(directory), steps)


def steps_of(run: Run, steps: Collection[int] | None = None) -> Iterator[tuple[int, StepTrace]]:
    """`timed_steps` for a run that has already been read.

    Also raises ValueError, with the step, if a clock cannot process a trace.
    """
    retime = clock_of(run)
    for number, trace in read_traces(run.folder, run.workers, _needed(run, steps), run=traced_run(run)):
        with fitting(run.folder / FOLDER, number):
            timed = retime(number, trace)
        if steps is None or number in steps:
            yield number, timed


def _needed(run: Run, steps: Collection[int] | None) -> Collection[int] | None:
    """The steps whose traces are needed to time `steps`: also all earlier ones, if messages in flight are
    carried over from step to step."""
    if not steps or not is_simulated(run):
        return steps
    near = {number - back for number in steps for back in (0, 1)}
    found = read_traces(run.folder, run.workers, near, run=traced_run(run))
    return steps if all(_stands_alone(trace) for _, trace in found) else range(max(steps) + 1)


def _stands_alone(trace: StepTrace) -> bool:
    return all(own.stands_alone for own in trace.values())


def recorded(run: Run) -> RecordedSteps:
    """The steps for which the run has a trace."""
    return recorded_steps(run.folder, run.workers, run=traced_run(run))


def traced_run(run: Run) -> str | None:
    """The id of the run that the trace belongs to: this run, or the one it was retimed from; None if
    unknown.
    """
    if run.summary is not None and run.summary.trace_of is not None:
        return run.summary.trace_of
    owner = Attempts.read(run.folder)
    return None if owner is None else owner.config_hash


@contextmanager
def fitting(trace: Path, step: int) -> Iterator[None]:
    """Raises UnusableFileError, naming the step, if a clock cannot process the rows of `trace`: a message
    with one end, or a deadlock."""
    try:
        yield
    except UnfitNetworkError:  # the trace is as good as any other
        raise
    except (ValueError, LookupError, ArithmeticError, RuntimeError) as error:
        raise UnusableFileError(trace, f"step {step} does not fit together ({error})", REMEDY) from None


def is_simulated(run: Run) -> bool:
    """True if the run's trace holds measured work that its clock converts to times."""
    return run.choice("cluster") == "virtual"


def clock_of(run: Run) -> Retime:
    """Returns the function that converts the run's trace to final times; for a run in real time it changes
    nothing."""
    if not is_simulated(run):
        return lambda number, trace: trace
    require_engine(str(run.folder))
    begins = {0: 0.0} | {row["step"] + 1: row["train_time_s"] for row in run.steps}
    clock = make_clock(
        recorded_network(run.setting("network", dict)),
        run.workers,
        in_flight=run.setting("overlap.buckets", int),
        overlap=run.setting("overlap.enabled", bool),
        seed=run.setting("seed", int),
        codec=run.setting("codec", dict),
    )
    profile = own_profile(run.folder)
    if profile is not None:
        count_profile(clock, profile)

    window = StepWindow(clock)

    def on_clock(number: int, trace: StepTrace) -> StepTrace:
        if number not in begins:
            raise ValueError(f"{run.folder}: step {number} has a trace, but step {number - 1} has no row")
        return window.step(number, trace, begins[number])

    return on_clock


Row = Mapping[str, Any]


def retimed_steps(
    rows: Sequence[Row], traces: Iterable[tuple[int, StepTrace]], clock: SimulatedClock, folder: Path
) -> list[dict[str, Any]]:
    """The rows of `steps.jsonl` with the times of their steps on `clock`.

    `traces` holds the traced steps in order, from the trace in `folder`. A step without a trace uses that of
    the nearest step, the earlier one of two; rates, jitter and background traffic are those of its own number
    and time. Its row then names that step as `trace_step`. Raises ValueError if no step has a trace, if one
    is inconsistent, or if traces are missing although steps leave messages in flight.
    """
    found, now, window = list[dict[str, Any]](), 0.0, StepWindow(clock)
    without: int | None = None
    stand_alone = True
    nearest = _nearest([row["step"] for row in rows], traces)
    for row, (step, trace) in zip(tracked(rows, "retime", "step"), nearest, strict=True):
        without = row["step"] if without is None and step != row["step"] else without
        stand_alone = stand_alone and _stands_alone(trace)
        if without is not None and not stand_alone:
            raise ValueError(
                f"{folder} has no step {without}, and steps of this run leave messages in flight, so that "
                "each needs a trace of its own; train with measure.trace_every=1"
            )
        with fitting(folder, step):
            figures = _timed(window.step(row["step"], trace, now))
        now += figures["step_time_s"]
        lent = {"trace_step": step} if step != row["step"] else {}
        found.append({**row, "train_time_s": now, **figures, **_tokens(row, figures), **lent})
    return found


def _tokens(row: Row, figures: Row) -> dict[str, float | None]:
    """Tokens per second of a step with the tokens in `row` and the time in `figures`."""
    if row.get("tokens_per_s") is None:
        return {}
    tokens, seconds = round(row["tokens_per_s"] * row["step_time_s"]), figures["step_time_s"]
    return {"tokens_per_s": tokens / seconds if seconds else None}


def _timed(trace: StepTrace) -> dict[str, Any]:
    """The timing figures of a step's row, on a clock that all ranks share."""
    end = step_end(trace)
    return of_ranks(
        [
            {"step_time_s": end, **rank_figures(spans(own), *(own.window or (0.0, end)))}
            for own in trace.values()
        ]
    )


def _nearest(
    steps: Iterable[int], traces: Iterable[tuple[int, StepTrace]]
) -> Iterator[tuple[int, StepTrace]]:
    """For each of the steps, in order, the nearest traced one."""
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
    """The rows of `evals.jsonl` with new times: an evaluation after k steps gets the time at which k steps
    are done."""
    first = steps[0]["step"] if steps else 0
    return [{**row, "train_time_s": steps[row["step"] - 1 - first]["train_time_s"]} for row in rows]
