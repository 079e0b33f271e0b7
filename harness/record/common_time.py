"""The step time of a real run with a given computation time instead of its own, which may have been
disturbed.

On links of a known rate the simulated clock derives it from the trace: computation takes the given time,
codec work its measured CPU time, and messages the time on these links. On other links only the computation
time is replaced, and all else stays as measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Literal

from gradwire.harness.network.settings import recorded_network
from gradwire.harness.record.runs import Run
from gradwire.harness.record.timed_steps import recorded, traced_run
from gradwire.harness.timing.simulate.build import make_clock
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.engine import require_engine
from gradwire.harness.timing.trace.files import read_traces
from gradwire.harness.timing.trace.step import (
    Await,
    Barrier,
    Compute,
    LaneOperation,
    RankTrace,
    StepTrace,
    TaskTrace,
    Work,
    step_end,
)

How = Literal["modelled", "measured"]
"""The source of a message's time: modelled by the clock, or measured."""

MOST_STEPS = 40
"""The largest number of traced steps that are simulated, spread evenly over the run."""

LIMITED = ("paced", "shaped")
"""Networks whose links have a known rate."""


def workers_per_core(run: Run) -> float:
    """The number of a machine's workers that share a core, at least 1; each worker then gets that fraction of
    the core."""
    workers = run.done.workers_per_machine or run.done.workers
    return max(1.0, workers / (run.done.machine.get("cores") or workers))


def common_step_s(run: Run, compute_s: float, how: How) -> float | None:
    """Seconds of a step of a finished run if its computation takes `compute_s` and no other processes
    interfere; None if its record lacks the necessary data."""
    return _modelled(run, compute_s) if how == "modelled" else _measured(run, compute_s)


def _measured(run: Run, compute_s: float) -> float | None:
    own = run.done.figures.get("compute_s")
    return None if own is None else 1 / run.done.rounds_per_second - own + compute_s


def _modelled(run: Run, compute_s: float) -> float | None:
    if run.choice("network") not in LIMITED or run.workers < 2:
        return None
    try:
        clock = _clock(run)
        steps = list(_steps(run))
    except (ValueError, LookupError, OSError, RuntimeError):  # no engine, no trace, or none that can be read
        return None
    if not steps or not all(own.stands_alone for _, trace in steps for own in trace.values()):
        return None
    parts = _parts([trace for _, trace in steps], compute_s, alike=run.choice("parallel") != "pipeline")
    crowd = workers_per_core(run)
    seconds = []
    for row, trace in steps:
        codec_s = row.get("codec_cpu_s")
        given = {
            rank: _with(own, parts[rank, len(_computed(own))], None if codec_s is None else crowd * codec_s)
            for rank, own in trace.items()
        }
        seconds.append(step_end(clock.step(row["step"], given, row["train_time_s"])))
    return fmean(seconds)


def _clock(run: Run) -> SimulatedClock:
    require_engine(str(run.folder))
    return make_clock(
        recorded_network(run.setting("network", dict)),
        run.workers,
        in_flight=run.setting("overlap.buckets", int),
        overlap=run.setting("overlap.enabled", bool),
        seed=run.setting("seed", int),
        codec=run.setting("codec", dict),
    )


def _steps(run: Run) -> Iterator[tuple[Mapping[str, Any], StepTrace]]:
    """Rows of steps without an error measurement, with their traces."""
    rows = {row["step"]: row for row in run.steps if not row.get("measured")}
    traced = [number for number in recorded(run).steps if number in rows]
    chosen = set(traced[:: -(-len(traced) // MOST_STEPS) or 1])
    if chosen:
        for number, trace in read_traces(run.folder, run.workers, chosen, run=traced_run(run)):
            yield rows[number], trace


def _parts(
    traces: Sequence[StepTrace], compute_s: float, *, alike: bool
) -> dict[tuple[int, int], list[float]]:
    """Seconds of each part of a rank's computation, by rank and number of parts, from the median of its
    share: a single disturbed part on one rank would delay all ranks.

    The rank that computes longest computes for `compute_s`; with `alike`, all ranks do.
    """
    found: dict[tuple[int, int], list[list[float]]] = {}
    for trace in traces:
        for rank, own in trace.items():
            computed = _computed(own)
            found.setdefault((rank, len(computed)), []).append(computed)
    means = {key: fmean(map(sum, steps)) for key, steps in found.items()}
    most = max(means.values())
    parts = dict[tuple[int, int], list[float]]()
    for key, steps in found.items():
        others = [step for (_, count), theirs in found.items() if count == key[1] for step in theirs]
        columns = zip(*map(_shares, others if alike else steps), strict=True)
        shares = [median(column) for column in columns]
        seconds = compute_s if alike or not most else compute_s * means[key] / most
        parts[key] = [seconds * share / (sum(shares) or 1.0) for share in shares]
    return parts


def _shares(parts: Sequence[float]) -> list[float]:
    return [part / (sum(parts) or 1.0) for part in parts]


def _computed(own: RankTrace) -> list[float]:
    """Seconds of each part of a rank's computation."""
    return [one.end - one.start for one in own.computation if isinstance(one, Compute)]


def _with(own: RankTrace, parts: Sequence[float], codec_s: float | None) -> RankTrace:
    """A rank's step whose parts of computation take the given times, and whose codec work takes `codec_s` in
    total."""
    worked = sum(map(_worked_s, own.tasks))
    factor = 1.0 if codec_s is None or not worked else codec_s / worked
    tasks = tuple(_scaled(task, factor) for task in own.tasks)
    return own._replace(computation=tuple(_given(own.computation, parts)), tasks=tasks)


def _given(lane: Sequence[LaneOperation], parts: Sequence[float]) -> Iterator[LaneOperation]:
    following, since_woken = iter(parts), 0.0
    for one in lane:
        if isinstance(one, Compute):
            since_woken += next(following)
            yield one._replace(seconds=since_woken)
            continue
        if isinstance(one, Await | Barrier):
            since_woken = 0.0
        yield one


def _worked_s(task: TaskTrace) -> float:
    return sum(one.end - one.start for one in task.operations if isinstance(one, Work))


def _scaled(task: TaskTrace, factor: float) -> TaskTrace:
    operations = tuple(
        one._replace(end=one.start + factor * (one.end - one.start)) if isinstance(one, Work) else one
        for one in task.operations
    )
    return task._replace(operations=operations)
