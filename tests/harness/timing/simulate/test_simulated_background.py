"""Background jobs on the simulated links: they take their share as long as the step lasts, reproducibly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from reference_background import BackgroundRun
from reference_engine import run_reference
from simulated_steps import SOME_WORK, all_reduce, ends, exact_ends, post, receiving, sending, task, wait

from gradwire.harness.network.links import Links, NodeFabric, star, two_level, uplinks
from gradwire.harness.timing.simulate.background import BackgroundJobs
from gradwire.harness.timing.simulate.engine import run

RATE: Any = Fraction(5)
NO_LATENCY: Any = Fraction(0)


def one_message(size: int, num_bytes: int) -> dict[int, Any]:
    """Rank 0 sends rank 1, the others do nothing."""
    others = dict.fromkeys(range(2, size), ())
    return {0: (sending(1, num_bytes),), 1: (receiving(0, num_bytes),), **others}


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("jobs", [1, 3])
def test_a_long_message_takes_as_many_times_as_long_as_there_are_jobs(size: int, jobs: int) -> None:
    links, num_bytes = star(size, RATE, NO_LATENCY), 10_000
    background = BackgroundJobs(jobs, size, Fraction(20 * size), links, seed=3)
    found = exact_ends(one_message(size, num_bytes), links, background=background)
    assert float(found[0, 0]) == pytest.approx((jobs + 1) * num_bytes / RATE, rel=0.02)


def test_a_ring_with_background_traffic_takes_as_many_times_as_long() -> None:
    size, jobs, chunk = 4, 3, 5000
    links = star(size, 5.0, 0.0)
    background = BackgroundJobs(jobs, size, 20.0 * size, links, seed=1)
    alone = max(ends(all_reduce("ring", size, chunk), links).values())
    contended = max(ends(all_reduce("ring", size, chunk), links, background=background).values())
    assert contended == pytest.approx((jobs + 1) * alone, rel=0.02)


def test_on_a_serial_link_they_take_turns() -> None:
    """A message waits for those before it, at most one of each job."""
    links = uplinks(3, RATE, NO_LATENCY)
    background = BackgroundJobs(2, 3, Fraction(60), links, seed=3)
    found = exact_ends(one_message(3, 100), links, background=background)
    assert 100 / RATE < found[0, 0] <= (100 + 2 * 20) / RATE


def test_where_their_links_are_not_used_they_change_nothing() -> None:
    """Background jobs go round the ring, the message against it, over other links of each node."""
    links = star(3, RATE, NO_LATENCY)
    nodes = two_level(3, 2, NodeFabric(RATE, NO_LATENCY, RATE, NO_LATENCY))
    tasks: dict[int, Any] = dict.fromkeys(range(6), ())
    tasks |= {1: (sending(0, 100),), 0: (receiving(1, 100),)}
    assert (
        exact_ends(tasks, nodes, background=BackgroundJobs(3, 6, Fraction(60), nodes, seed=0))[0, 0]
        == 100 / RATE
    )
    turned = {0: (sending(2, 100),), 1: (), 2: (receiving(0, 100),)}
    assert (
        exact_ends(turned, links, background=BackgroundJobs(1, 3, Fraction(60), links, seed=0))[0, 0]
        > 100 / RATE
    )


def test_background_jobs_begin_anew_with_every_run() -> None:
    links = star(4, 5.0, 0.1)
    background = BackgroundJobs(3, 4, 40.0, links, seed=3)
    tasks = all_reduce("ring", 4, 100, work=True)
    found = [ends(tasks, links, background=background, engine=engine) for engine in (run, run_reference) * 2]
    assert found == [found[0]] * 4


def test_where_they_are_depends_on_the_seed() -> None:
    links = star(4, RATE, NO_LATENCY)
    drawn = [tuple(BackgroundJobs(3, 4, Fraction(40), links, seed).first) for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]
    assert all(0 < left <= 10 for first in drawn for left in first)
    assert len({*drawn[0]}) == 3


def test_fractions_and_floats_begin_at_the_same_point() -> None:
    links = star(4, RATE, NO_LATENCY)
    exact, rounded = BackgroundJobs(5, 4, Fraction(40), links, 1), BackgroundJobs(5, 4, 40.0, links, 1)
    assert [float(left) for left in exact.first] == rounded.first


def steps_of_a_job(size: int, links: Links, arrivals: int) -> list[int]:
    """The number of chunks that each rank's process has sent; the oldest flow under way always arrives
    first."""
    going = BackgroundRun(BackgroundJobs(1, size, Fraction(size), links, 0))
    under_way, sent = list(going.flows), [0] * size
    for _ in range(arrivals):
        flow = under_way.pop(0)
        sent[flow] += 1
        under_way += going.arrived(flow)
        assert len({*under_way}) == len(under_way) > 0
    return sent


@pytest.mark.parametrize("size", [2, 3, 8])
def test_they_never_end_and_stay_together(size: int) -> None:
    sent = steps_of_a_job(size, star(size, RATE, NO_LATENCY), 100 * size)
    assert max(sent) - min(sent) <= 1


def test_the_first_chunk_alone_is_partly_gone() -> None:
    going = BackgroundRun(BackgroundJobs(2, 2, Fraction(20), star(2, RATE, NO_LATENCY), 0))
    first = [going.bytes(flow) for flow in going.flows]
    assert first[0] == first[1] < 10 and first[2] == first[3] < 10
    assert going.arrived(0) == []
    assert sorted(going.arrived(1)) == [0, 1]
    assert [going.bytes(flow) for flow in going.flows] == [10, 10, *first[2:]]


@pytest.mark.parametrize("engine", [run, run_reference])
def test_they_do_not_hide_a_deadlock(engine: Any) -> None:
    links = star(2, 1.0, 0.0)
    tasks = {
        rank: (task(post(receives=[(1 - rank, 10)]), wait(0), post(sends=[(1 - rank, 10)]), wait(1)),)
        for rank in range(2)
    }
    with pytest.raises(RuntimeError, match="stuck: rank 0 for rank 1, rank 1 for rank 0$"):
        ends(tasks, links, background=BackgroundJobs(2, 2, 5.0, links, 0), engine=engine)


def test_work_is_as_long_with_background_traffic() -> None:
    links = star(2, RATE, NO_LATENCY)
    found = exact_ends(
        {0: (task(SOME_WORK),), 1: ()},
        links,
        work_s=Fraction(50),
        background=BackgroundJobs(1, 2, Fraction(9), links, 0),
    )
    assert found == {(0, 0): 50}


@pytest.mark.parametrize(("size", "num_bytes"), [(4, 0.0), (4, -1.0), (1, 10.0)])
def test_background_jobs_that_would_take_no_time_are_refused(size: int, num_bytes: float) -> None:
    with pytest.raises(ValueError, match="background jobs need bytes to reduce and at least 2 ranks, got"):
        BackgroundJobs(1, size, num_bytes, star(size, 1.0, 0.0), 0)
