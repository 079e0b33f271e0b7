"""Messages under way as fluid flows: each has its max-min fair rate, which changes as others begin and end.

No flow can get more without taking from a flow that has no more than it. `max_min` finds the rates by
progressive filling (Bertsekas and Gallager, Data Networks, §6.5.2): the link that can offer its flows the
smallest share fixes their rates; the remaining capacity is then shared in the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.harness.network.links import Links

Finish = tuple[float, int, int]
"""(when, flow, version): the flow's last byte leaves then, unless its version has changed by that time."""


class Flows:
    """The flows on `links`. The caller numbers the flows; times are seconds and never decrease.

    After the changes of one moment `settle` returns the new times of completion. Earlier ones of flows whose
    rate has changed are void, as `finish` says. A flow that has ended may begin again under its number. A
    lane carries one flow at a time, as a connection does; others wait in the order they came.
    """

    def __init__(self, links: Links) -> None:
        self._base = self._rates = links.rates
        self._users: list[dict[int, None]] = [{} for _ in links.rates]
        self._routes: dict[int, tuple[int, ...]] = {}
        self._state: dict[int, list[Any]] = {}  # flow: [bytes left, rate, since when, version]
        self._changed: dict[int, None] = {}
        self._lanes: dict[int, int] = {}  # flow: its lane
        self._taken: set[int] = set()
        self._queues: dict[int, deque[tuple[int, tuple[int, ...], float]]] = {}
        self._versions = 0  # over all flows: a number may be used again

    def start(self, flow: int, lane: int, route: tuple[int, ...], num_bytes: float, now: float) -> None:
        """Begins a flow that takes the links of `route`, which is not empty, as soon as its lane is free."""
        self._lanes[flow] = lane
        if lane in self._taken:
            self._queues.setdefault(lane, deque()).append((flow, route, num_bytes))
        else:
            self._taken.add(lane)
            self._begin(flow, route, num_bytes, now)

    def _begin(self, flow: int, route: tuple[int, ...], num_bytes: float, now: float) -> None:
        self._routes[flow] = route
        self._state[flow] = [num_bytes, 0, now, 0]
        for link in route:
            self._users[link][flow] = None
            self._changed[link] = None

    def rescale(self, factor: float) -> None:
        """Gives every link `factor` times its rate from this moment on."""
        self._rates = tuple(rate * factor for rate in self._base)
        for link, users in enumerate(self._users):
            if users:
                self._changed[link] = None

    def finish(self, flow: int, version: int, now: float) -> bool:
        """Whether a predicted end still holds; if so, the flow has ended."""
        state = self._state.get(flow)
        if state is None or state[3] != version:
            return False
        del self._state[flow]
        for link in self._routes.pop(flow):
            users = self._users[link]
            del users[flow]
            if users:
                self._changed[link] = None
        lane = self._lanes.pop(flow)
        if self._queues.get(lane):
            self._begin(*self._queues[lane].popleft(), now)
        else:
            self._taken.remove(lane)
        return True

    def settle(self, now: float) -> list[Finish]:
        """Shares the links anew after the changes at `now`; returns the ends of the flows whose rate has
        changed."""
        if not self._changed:
            return []
        found: list[Finish] = []
        settled: set[int] = set()
        for link in self._changed:
            for flow in self._users[link]:
                if flow not in settled:
                    self._settle_around(flow, now, settled, found)
        self._changed.clear()
        return found

    def _settle_around(self, flow: int, now: float, settled: set[int], found: list[Finish]) -> None:
        """Settles a flow and all flows that share a link with it, directly or through others."""
        flows, links, stack = {flow}, set[int](), [flow]
        while stack:
            for link in self._routes[stack.pop()]:
                if link not in links:
                    links.add(link)
                    fresh = [user for user in self._users[link] if user not in flows]
                    flows.update(fresh)
                    stack += fresh
        ordered = sorted(flows)
        rates = max_min(
            {one: self._routes[one] for one in ordered}, {link: self._rates[link] for link in links}
        )
        for one in ordered:
            self._set_rate(one, rates[one], now, found)
        settled |= flows

    def _set_rate(self, flow: int, rate: float, now: float, found: list[Finish]) -> None:
        state = self._state[flow]
        if state[1] == rate:
            return
        state[0] -= state[1] * (now - state[2])
        state[1], state[2] = rate, now
        self._versions += 1
        state[3] = self._versions
        found.append((now + max(state[0], 0) / rate, flow, state[3]))


def max_min(routes: Mapping[int, Sequence[int]], rates: Mapping[int, float]) -> dict[int, float]:
    """Returns the rate of each flow, given the links it takes and the links' rates.

    Every flow takes at least one link. Links are visited by number and flows in the order given, so the
    result is the same wherever it is computed.
    """
    left = dict(rates)
    flows_on: dict[int, list[int]] = {link: [] for link in sorted(rates)}
    for flow, links in routes.items():
        for link in links:
            flows_on[link].append(flow)
    given: dict[int, float] = {}
    open_on = {link: len(flows) for link, flows in flows_on.items()}
    while len(given) < len(routes):
        share, narrowest = min((left[link] / count, link) for link, count in open_on.items() if count)
        for flow in flows_on[narrowest]:
            if flow in given:
                continue
            given[flow] = share
            for link in routes[flow]:
                left[link] -= share
                open_on[link] -= 1
    return given
