"""Copies that leave their source once: AQGB's reliable broadcast on the simulated clock, in closed forms."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from reference_engine import run_reference
from simulated_steps import Tasks, all_reduce, ends, exact_ends, post, task, wait

from gradwire.harness.network.links import Links, NodeFabric, star, two_level
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.engine import run
from gradwire.harness.timing.simulate.plan import compile_plan
from gradwire.harness.timing.trace.step import RankTrace

RATE: Any = Fraction(7, 3)
LATENCY: Any = Fraction(1, 11)


def broadcasts(size: int, num_bytes: int, sources: int) -> Tasks:
    """The first `sources` ranks send all others `num_bytes`, each in a bucket of its own."""

    def part(rank: int, source: int) -> Any:
        if rank == source:
            others = [(peer, num_bytes) for peer in range(size) if peer != rank]
            return task(post(sends=others, copies=True), wait(), bucket=source)
        return task(post(receives=[(source, num_bytes)]), wait(), bucket=source)

    return {rank: tuple(part(rank, source) for source in range(sources)) for rank in range(size)}


@pytest.mark.parametrize("size", [3, 4, 7])
def test_receivers_limit_as_many_senders_as_there_are(size: int) -> None:
    """k of m workers that send at once have B / min(k, m − 1) each (AQGB's model)."""
    for senders in range(1, size + 1):
        found = exact_ends(
            broadcasts(size, 10, senders), star(size, RATE, LATENCY), in_flight=senders, multicast=True
        )
        assert set(found.values()) == {min(senders, size - 1) * 10 / RATE + LATENCY}


@pytest.mark.parametrize("size", [3, 4, 7])
def test_without_it_a_copy_leaves_for_each_receiver(size: int) -> None:
    found = exact_ends(broadcasts(size, 10, 1), star(size, RATE, LATENCY))
    assert set(found.values()) == {(size - 1) * 10 / RATE + LATENCY}


@pytest.mark.parametrize("size", [3, 6])
def test_when_all_broadcast_at_once_receivers_are_as_busy_either_way(size: int) -> None:
    tasks, links = all_reduce("broadcast", size, 12), star(size, RATE, LATENCY)
    assert exact_ends(tasks, links, multicast=True) == exact_ends(tasks, links)


def test_receivers_that_are_late_find_it_there() -> None:
    """A message sent at 0 reaches both receivers after 10 / RATE + LATENCY; one of them waits for it from 20
    on."""
    late = Fraction(20)
    ready = {(0, 0): Fraction(0), (1, 0): Fraction(0), (2, 0): late}
    found = exact_ends(broadcasts(3, 10, 1), star(3, RATE, LATENCY), ready=ready, multicast=True)
    assert found == {(0, 0): 10 / RATE + LATENCY, (1, 0): 10 / RATE + LATENCY, (2, 0): late}


def test_a_source_sends_one_after_another_to_the_same_ranks() -> None:
    copies = post(sends=[(1, 10), (2, 10)], copies=True)
    receives = post(receives=[(0, 10)])
    tasks = {0: (task(copies, copies, wait(0), wait(1)),)}
    tasks |= {rank: (task(receives, wait(0), receives, wait(1)),) for rank in (1, 2)}
    found = exact_ends(tasks, star(3, RATE, LATENCY), multicast=True)
    assert set(found.values()) == {20 / RATE + LATENCY}


def test_it_does_not_matter_in_which_order_receivers_are_named() -> None:
    posts = [post(sends=[(peer, 10) for peer in peers], copies=True) for peers in ((0, 1), (1, 0))]
    tasks = {2: tuple(task(own, wait(), bucket=bucket) for bucket, own in enumerate(posts))}
    receives = post(receives=[(2, 10)])
    tasks |= {rank: tuple(task(receives, wait(), bucket=bucket) for bucket in (0, 1)) for rank in (0, 1)}
    found = exact_ends(tasks, star(3, RATE, LATENCY), in_flight=2, multicast=True)
    assert {(found[rank, 0], found[rank, 1]) for rank in range(3)} == {
        (10 / RATE + LATENCY, 20 / RATE + LATENCY)
    }


def test_one_copy_leaves_a_node() -> None:
    """A broadcast to one rank of its node and both of the other puts one copy on each port, and one
    inside."""
    links = two_level(2, 2, NodeFabric(RATE, LATENCY, 10 * RATE, LATENCY / 10))
    found = exact_ends(broadcasts(4, 10, 1), links, multicast=True)
    assert set(found.values()) == {10 / RATE + LATENCY}
    assert max(exact_ends(broadcasts(4, 10, 1), links).values()) == 20 / RATE + LATENCY


def test_what_differs_is_not_a_copy() -> None:
    sends = [(1, 10), (2, 10)]
    tasks = {0: (task(post(sends=sends), wait()),)}
    tasks |= {rank: (task(post(receives=[(0, 10)]), wait()),) for rank in (1, 2)}
    assert len(compile_plan(tasks, 1, multicast=True).sizes) == 2
    links = star(3, RATE, LATENCY)
    assert exact_ends(tasks, links, multicast=True) == exact_ends(tasks, links)


@pytest.mark.parametrize("engine", [run, run_reference])
def test_the_ranks_of_a_deadlock_are_named(engine: Any) -> None:
    """Two ranks wait for each other's broadcast before they send their own."""
    sends = [post(sends=[(peer, 10) for peer in range(3) if peer != rank], copies=True) for rank in range(3)]
    tasks = {
        0: (task(post(receives=[(1, 10)]), wait(0), sends[0], wait(1)),),
        1: (task(post(receives=[(0, 10)]), wait(0), sends[1], wait(1)),),
        2: (task(post(receives=[(0, 10), (1, 10)]), wait(0)),),
    }
    waits = "rank 0 for rank 1, rank 1 for rank 0, rank 2 for rank 0, rank 2 for rank 1$"
    with pytest.raises(RuntimeError, match=f"stuck: {waits}"):
        ends(tasks, star(3, 7.0, 0.1), multicast=True, engine=engine)


def test_steps_that_differ_in_copies_alone_take_other_times() -> None:
    clock = SimulatedClock(star(3, 8.0, 0.0), multicast=True)

    def step(copies: bool) -> float:
        sends = post(sends=[(1, 8), (2, 8)], copies=copies)
        tasks = {0: (task(sends, wait()),)} | {
            rank: (task(post(receives=[(0, 8)]), wait()),) for rank in (1, 2)
        }
        trace = {rank: RankTrace.synchronous((0.0,), own, 0.0, 9.0) for rank, own in tasks.items()}
        return max(own.end for own in clock.step(0, trace).values())

    assert [step(True), step(False), step(True)] == [1.0, 2.0, 1.0]


def test_a_clock_with_multicast() -> None:
    """All gradients of one rank are there at 1, all others' at 3: its broadcast is through by then."""
    size, num_bytes, rate = 4, 1 << 10, 2.0**10

    def step(links: Links, *, multicast: bool) -> float:
        tasks = broadcasts(size, num_bytes, 1)
        ready = {rank: (1.0 if rank == 0 else 3.0,) for rank in range(size)}
        trace = {rank: RankTrace.synchronous(ready[rank], own, 0.5, 99.0) for rank, own in tasks.items()}
        found = SimulatedClock(links, multicast=multicast).step(0, trace)
        return max(own.end for own in found.values())

    links = star(size, rate, 0.0)
    assert step(links, multicast=True) == 3.0 + 0.5
    assert step(links, multicast=False) == 3.0 + (size - 1) * num_bytes / rate + 0.5
