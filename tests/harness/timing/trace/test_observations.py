"""Observations of a step for a codec that follows the clock."""

from __future__ import annotations

from gradwire.codecs.interface import Observation
from gradwire.harness.timing.trace.observations import observations
from gradwire.harness.timing.trace.step import MEASURE, Post, RankTrace, TaskTrace, Wait, Work


def task(bucket: int, at: float) -> TaskTrace:
    """Metadata of 8 bytes, then two hops of 100 bytes each that end 3 s after they began, and a hash."""
    return TaskTrace(
        bucket,
        1000,
        at,
        (
            Work(at, at + 0.5),
            Post(at + 0.5, "metadata", ((1, 8),), ((1, 8),)),
            Wait(0, at + 0.5, at + 1.0),
            Post(at + 1.0, "reduce_scatter", ((1, 100),), ((1, 100),)),
            Post(at + 1.5, "reduce_scatter", ((1, 60), (2, 40)), ()),
            Wait(1, at + 2.0, at + 3.0),
            Wait(2, at + 3.0, at + 4.0),
            Post(at + 4.0, "all_gather", ((1, 50),), ()),
            Post(at + 4.5, MEASURE, ((1, 16),), ((1, 16),)),
            Wait(4, at + 4.5, at + 6.0),
        ),
    )


def test_each_bucket_has_its_computation_and_its_phases() -> None:
    """A message that is never waited for ends when it is sent; measurements do not count."""
    trace = RankTrace.synchronous((2.0, 5.0), (task(0, 2.0), task(1, 7.0)), 0.25, 14.0)
    assert observations(trace) == (
        Observation(0, "compute", 0, 0.0, 2.0),
        Observation(0, "metadata", 8, 2.5, 3.0),
        Observation(0, "reduce_scatter", 200, 3.0, 6.0),
        Observation(0, "all_gather", 50, 6.0, 6.0),
        Observation(1, "compute", 0, 2.0, 5.0),
        Observation(1, "metadata", 8, 7.5, 8.0),
        Observation(1, "reduce_scatter", 200, 8.0, 11.0),
        Observation(1, "all_gather", 50, 11.0, 11.0),
    )


def test_a_step_without_collectives_has_no_observations() -> None:
    assert observations(RankTrace.synchronous((), (), 0.5, 0.5)) == ()
