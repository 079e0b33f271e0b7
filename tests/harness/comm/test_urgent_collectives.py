"""A parallelism says how urgent a collective is, and what follows from that on the simulated clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from given_times import given_world
from pool import Workers
from urgent_jobs import BEFORE_S, BETWEEN_S, FABRIC, LITTLE, MUCH, program, urgent_rank

from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.network.links import star
from gradwire.harness.record.timed_steps import fitting
from gradwire.harness.timing.simulate.background import BackgroundLoad
from gradwire.harness.timing.simulate.engine import UnfitNetworkError
from gradwire.harness.timing.trace.files import read_traces
from gradwire.harness.timing.trace.step import ORDINARY, Post, Urgency, step_end
from gradwire.harness.timing.trace.writer import TraceWriter

RATE, LATENCY_S = 100.0, 0.125
ALL_S = (MUCH + LITTLE) / RATE + LATENCY_S
"""The time until both collectives have ended: the link is never idle."""


def run(later: Urgency, **clock: Any) -> tuple[VirtualWorld, float]:
    world, passing = given_world(2, FABRIC, star(2, RATE, LATENCY_S), **clock)
    length = world.run_step(0, dict.fromkeys(range(2), program(later, passing.passes))).simulated_s
    assert length is not None
    return world, length


def close(seconds: float) -> object:
    return pytest.approx(seconds, abs=1e-12, rel=0)


@pytest.mark.parametrize(
    ("later", "length"),
    [
        (ORDINARY, ALL_S + BETWEEN_S),  # in order: both are there at the same time
        (Urgency(1), ALL_S + BETWEEN_S),  # under way, it gives way nowhere
        (Urgency(1, boundary=50), ALL_S),  # half a second of it at a time: what is needed first comes first
        (Urgency(1, boundary=150), ALL_S),
    ],
)
def test_what_is_needed_first_goes_first(later: Urgency, length: float) -> None:
    _, found = run(later)
    assert found == close(length)


def test_when_the_urgent_one_is_there() -> None:
    world, _ = run(Urgency(1, boundary=150))
    urgent, rest = world.timed[0].tasks[1], world.timed[0].tasks[0]
    assert urgent.end == close((150 + LITTLE) / RATE + LATENCY_S) and urgent.ready == BEFORE_S
    assert rest.end == close(ALL_S)


def test_it_is_in_the_trace_and_retimed(tmp_path: Path) -> None:
    later = Urgency(1, True, 50)
    world, length = run(later)
    writer = TraceWriter(tmp_path)
    for rank, own in world.measured.items():
        writer.add(rank, {0: own})
    ((_, trace),) = read_traces(tmp_path, 2)
    found = [
        {one.urgency for one in task.operations if isinstance(one, Post)}
        for own in trace.values()
        for task in own.tasks
    ]
    assert found == [{later}, {ORDINARY}] * 2
    assert world.clock is not None
    assert step_end(world.clock.step(0, trace)) == pytest.approx(length, abs=1e-6)


def test_real_ranks_record_it(workers: Workers) -> None:
    later = Urgency(2, True, 64)
    assert workers(2)(urgent_rank, later) == [[{later}, {ORDINARY}]] * 2


def test_levels_beside_background_jobs_are_refused() -> None:
    """The error is the same where a trace is retimed, and does not blame the trace."""
    problem = r"^network.background_jobs=2 and messages of level 1 cannot be simulated together[^\n]*$"
    with pytest.raises(UnfitNetworkError, match=problem), fitting(Path("trace"), 0):
        run(Urgency(1), background=BackgroundLoad(2, 1000.0))
    run(Urgency(0, True, 8), background=BackgroundLoad(2, 1000.0))
