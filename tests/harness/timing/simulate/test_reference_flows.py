"""Flows that come and go: at every moment max-min fair, and every byte carried."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

import pytest
from reference_flows import Flows, max_min

from gradwire.harness.network.links import LinkRoute, Links

Arrivals = list[tuple[Fraction, tuple[int, ...], Fraction]]
"""(when, links, bytes) of flow 0, 1, …"""


def random_arrivals(seed: int, max_links: int = 3) -> tuple[tuple[Fraction, ...], Arrivals]:
    drawn = random.Random(seed)
    rates = tuple(Fraction(drawn.choice((1, 2, 3, 5))) for _ in range(drawn.randint(1, 5)))
    arrivals = []
    for _ in range(drawn.randint(1, 15)):
        taken = tuple(drawn.sample(range(len(rates)), drawn.randint(1, min(max_links, len(rates)))))
        arrivals.append((Fraction(drawn.randint(0, 12), 2), taken, Fraction(drawn.randint(1, 20))))
    return rates, sorted(arrivals)


def ends_of(links: Links, arrivals: Arrivals, lanes: Sequence[int] | None = None) -> dict[int, Fraction]:
    """When each flow has ended, as the engine uses `Flows`: every change of a moment, then the new rates.

    Each flow has a lane of its own unless `lanes` are given.
    """
    flows, ends = Flows(links), dict[int, Fraction]()
    foretold: list[tuple[Fraction, int, int]] = []
    coming = [(at, flow) for flow, (at, _, _) in enumerate(arrivals)]
    while len(ends) < len(arrivals):
        now = min([at for at, _ in coming[:1]] + [at for at, _, _ in foretold[:1]])
        while foretold and foretold[0][0] == now:
            _, flow, version = heapq.heappop(foretold)
            if flows.finish(flow, version, now):
                ends[flow] = now
        while coming and coming[0][0] == now:
            _, flow = coming.pop(0)
            flows.start(flow, flow if lanes is None else lanes[flow], *arrivals[flow][1:], now)
        for found in flows.settle(now):
            heapq.heappush(foretold, found)
    return ends


def ends_moment_by_moment(rates: tuple[Fraction, ...], arrivals: Arrivals) -> dict[int, Fraction]:
    """Finds the ends by brute force: all links are shared again whenever a flow begins or ends."""
    left = {flow: size for flow, (_, _, size) in enumerate(arrivals)}
    ends, now = dict[int, Fraction](), Fraction(0)
    while left:
        here = {flow: arrivals[flow][1] for flow in left if arrivals[flow][0] <= now}
        given = max_min(here, dict(enumerate(rates)))
        until = [now + left[flow] / rate for flow, rate in given.items()]
        then = min(until + [at for at, _, _ in arrivals if at > now])
        for flow, rate in given.items():
            left[flow] -= rate * (then - now)
            if not left[flow]:
                ends[flow] = then
                del left[flow]
        now = then
    return ends


def links_of(rates: tuple[Fraction, ...]) -> Links:
    return Links(rates, lambda source, target: LinkRoute((), 0))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(200))
def test_flows_end_when_all_their_bytes_are_carried_at_fair_rates(seed: int) -> None:
    rates, arrivals = random_arrivals(seed)
    assert ends_of(links_of(rates), arrivals) == ends_moment_by_moment(rates, arrivals)


@pytest.mark.parametrize("seed", range(50))
def test_a_lane_carries_one_after_another(seed: int) -> None:
    """Each link is a lane here."""
    rates, arrivals = random_arrivals(seed, max_links=1)
    lanes = [link for _, (link,), _ in arrivals]
    ends, free = ends_of(links_of(rates), arrivals, lanes), defaultdict[int, Fraction](Fraction)
    for flow, (at, (link,), size) in enumerate(arrivals):
        free[link] = max(free[link], at) + size / rates[link]
        assert ends[flow] == free[link]


def test_a_reused_number_does_not_end_at_its_former_time() -> None:
    """Flow 0 is foretold for 10, ends at 7 as flow 1 goes, and begins anew: 10 is void for good."""
    flows = Flows(links_of((Fraction(1),)))
    flows.start(0, 0, (0,), 5, 0)
    flows.start(1, 1, (0,), 2, 0)
    old = {flow: (at, version) for at, flow, version in flows.settle(0)}
    assert old == {0: (10, old[0][1]), 1: (4, old[1][1])}
    assert flows.finish(1, old[1][1], 4)
    ((at, _, version),) = flows.settle(4)
    assert at == 7 and flows.finish(0, version, 7)
    flows.start(0, 0, (0,), 5, 7)
    ((at, _, again),) = flows.settle(7)
    assert at == 12
    assert not flows.finish(0, old[0][1], 10)
    assert not flows.finish(0, version, 10)
    assert flows.finish(0, again, 12)


def test_unchanged_flows_are_not_predicted_again() -> None:
    flows = Flows(links_of((Fraction(1), Fraction(1))))
    flows.start(0, 0, (0,), 5, 0)
    assert len(flows.settle(0)) == 1
    flows.start(1, 1, (1,), 5, 1)
    assert [flow for _, flow, _ in flows.settle(1)] == [1]
    assert flows.settle(2) == []
