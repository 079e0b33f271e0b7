"""Links whose rates change while messages are under way (AQGB Fig. 9), in closed forms."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from simulated_steps import Tasks, all_reduce, ends, exact_ends, receiving, sending

from gradwire.harness.network.links import Change, Links, star, unlimited
from gradwire.harness.timing.simulate.background import BackgroundJobs
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.trace.step import RankTrace

RATE: Any = Fraction(7, 3)
LATENCY: Any = Fraction(1, 11)


def changing(size: int, *changes: tuple[Any, Any]) -> Links:
    return replace(star(size, RATE, LATENCY), changes=tuple(Change(*change) for change in changes))


def one_message(num_bytes: int) -> Tasks:
    return {0: (sending(1, num_bytes),), 1: (receiving(0, num_bytes),)}


def test_a_message_continues_at_another_rate() -> None:
    """4 of 10 bytes at the whole rate, 3 at half of it, the rest at three times of it."""
    first, second = 4 / RATE, 4 / RATE + 6 / RATE
    links = changing(2, (first, Fraction(1, 2)), (second, 3))
    assert set(exact_ends(one_message(10), links).values()) == {second + 1 / RATE + LATENCY}


def test_a_change_before_or_after_a_message_is_none_to_it() -> None:
    plain = exact_ends(one_message(10), changing(2))
    assert exact_ends(one_message(10), changing(2, (1000, 5))) == plain
    halved = exact_ends(one_message(10), changing(2, (0, Fraction(1, 2))))
    assert set(halved.values()) == {20 / RATE + LATENCY}
    late = exact_ends(one_message(10), changing(2, (3, 2)), ready=Fraction(5))
    assert set(late.values()) == {5 + 5 / RATE + LATENCY}


def test_all_flows_of_a_ring_change_together() -> None:
    size, chunk = 5, 12
    hop = chunk / RATE + LATENCY
    links = changing(size, (3 * hop, Fraction(1, 4)))
    slow = 4 * chunk / RATE + LATENCY
    hops = 2 * (size - 1)
    found = exact_ends(all_reduce("ring", size, chunk), links)
    assert set(found.values()) == {3 * hop + (hops - 3) * slow}


def test_background_jobs_are_slowed_down_as_well() -> None:
    """At half the rate everything takes twice as long, but for the latency, which is 0 here."""

    def end(factor: Any) -> Any:
        links = Links((RATE,) * 6, star(3, RATE, 0).route, changes=(Change(0, factor),))
        background = BackgroundJobs(2, 3, 30, links, seed=1)
        background.first = [Fraction(part) for part in background.first]
        background.chunk = Fraction(10)  # type: ignore[assignment]
        return max(exact_ends(all_reduce("ring", 3, 12), links, background=background).values())

    assert end(Fraction(1, 2)) == 2 * end(1) > 2 * 4 * 12 / RATE


def test_a_change_at_the_end_of_a_message_is_that_of_the_next() -> None:
    links = changing(2, (10 / RATE, Fraction(1, 2)))
    assert set(exact_ends(one_message(10), links).values()) == {10 / RATE + LATENCY}


@pytest.mark.parametrize("factor", [1e-320, 1e308])
def test_rates_beyond_floats_are_refused(factor: float) -> None:
    links = replace(star(2, 1e-4 if factor < 1 else 1e4, 0.0), changes=(Change(0.5, factor),))
    with pytest.raises(ValueError, match="rates of links must be above 0 and finite"):
        ends(one_message(10**6), links)


def test_seconds_counted_from_a_later_one() -> None:
    links = changing(2, (2, 5), (4, 7), (8, 9))
    assert links.since(0) == links
    assert links.since(4).changes == ((0, 7), (4, 9))
    assert links.since(5).changes == ((0, 7), (3, 9))
    assert links.since(100).changes == ((0, 9),)
    assert unlimited().since(3).changes == ()


@pytest.mark.parametrize(("now_s", "factors"), [(0.0, (1.0, 1.0)), (9.0, (1.0, 0.5)), (30.0, (0.5, 0.5))])
def test_a_step_knows_when_in_the_training_it_is(now_s: float, factors: tuple[float, float]) -> None:
    """Two messages, at 0 and 2 seconds of the step, of a second each; from second 10 on at half the rate."""
    links = replace(star(2, 8.0, 0.0), changes=(Change(10.0, 0.5),))
    tasks: Tasks = {
        0: (sending(1, 8, bucket=0), sending(1, 8, bucket=1)),
        1: (receiving(0, 8, bucket=0), receiving(0, 8, bucket=1)),
    }
    trace = {rank: RankTrace.synchronous((0.0, 2.0), own, 0.0, 9.0) for rank, own in tasks.items()}
    step = SimulatedClock(links).step(7, trace, now_s)
    assert [task.end for task in step[0].tasks] == [1 / factors[0], 2 + 1 / factors[1]]
