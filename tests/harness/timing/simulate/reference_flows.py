"""Messages under way as fluid flows: each has its max-min fair rate, which changes as others begin and end.

No flow can get more without taking from a flow that has no more than it. `max_min` finds the rates by
progressive filling (Bertsekas and Gallager, Data Networks, §6.5.2): the link that can offer its flows the
smallest share fixes their rates; the remaining capacity is then shared in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from gradwire.harness.network.links import Links
from gradwire.harness.timing.trace.step import ORDINARY, Urgency

Finish = tuple[float, int, int]
"""(when, flow, version): the flow's last byte leaves then, unless its version has changed by that time."""


SLACK = 1e-9
"""A flow that is within so small a part of a boundary is there: seconds times rates are rounded."""


class Queued(NamedTuple):
    """A flow, or the rest of one, that waits for its lane."""

    flow: int
    route: tuple[int, ...]
    bytes: Any
    urgency: Urgency
    order: int  # in which they came

    @property
    def key(self) -> tuple[int, int]:
        """The sort key: the flow with the smaller one goes first."""
        return self.urgency.level, -self.order if self.urgency.newest_first else self.order


class Flows:
    """The flows on `links`. The caller numbers the flows; times are seconds and never decrease.

    After the changes of one moment `settle` returns the new times of completion. Earlier ones of flows whose
    rate has changed are void, as `finish` says. A flow that has ended may begin again under its number. A
    lane carries one flow at a time, as a connection does; others wait in the order they came. Flows of lower
    levels have links to themselves; higher ones share what is left.
    """

    def __init__(self, links: Links) -> None:
        self._base = self._rates = links.rates
        self._users: list[dict[int, None]] = [{} for _ in links.rates]
        self._routes: dict[int, tuple[int, ...]] = {}
        self._state: dict[int, list[Any]] = {}  # flow: [bytes left, rate, since when, version]
        self._changed: dict[int, None] = {}
        self._lanes: dict[int, int] = {}  # flow: its lane
        self._current: dict[int, Queued] = {}  # lane: what it carries
        self._rest: dict[int, Any] = {}  # flow: bytes that it will carry after it has given way
        self._cut: set[int] = set()  # flows whose ends are to be foretold anew
        self._orders = 0
        self._queues: dict[int, list[Queued]] = {}
        self._versions = 0  # over all flows: a number may be used again

    def start(
        self,
        flow: int,
        lane: int,
        route: tuple[int, ...],
        num_bytes: float,
        now: float,
        urgency: Urgency = ORDINARY,
    ) -> None:
        """Begins a flow that takes the links of `route`, which is not empty, as soon as its lane is free."""
        self._lanes[flow] = lane
        self._cut.discard(flow)
        self._orders += 1
        queued = Queued(flow, route, num_bytes, urgency, self._orders)
        if lane in self._current:
            self._enqueue(queued, lane)
            self._give_way(self._current[lane], queued, now)
        else:
            self._begin(queued, lane, now)

    def _enqueue(self, queued: Queued, lane: int) -> None:
        queue = self._queues.setdefault(lane, [])
        queue.append(queued)
        queue.sort(key=lambda one: one.key)

    def _give_way(self, carried: Queued, queued: Queued, now: float) -> None:
        """A flow under way stops at its next boundary if the new one is more urgent."""
        flow, boundary = carried.flow, carried.urgency.boundary
        if boundary == 0 or flow in self._rest or carried.key < queued.key:
            return
        stop = ceil((carried.bytes - self.left(flow, now)) / boundary - SLACK) * boundary
        if stop < carried.bytes:
            self._rest[flow] = carried.bytes - stop
            self.shorten(flow, self._rest[flow])

    def _begin(self, queued: Queued, lane: int, now: float) -> None:
        flow = queued.flow
        self._current[lane] = queued
        self._routes[flow] = queued.route
        self._state[flow] = [queued.bytes, 0, now, 0]
        for link in queued.route:
            self._users[link][flow] = None
            self._changed[link] = None

    def rescale(self, factor: float) -> None:
        """Gives every link `factor` times its rate from this moment on."""
        self._rates = tuple(rate * factor for rate in self._base)
        for link, users in enumerate(self._users):
            if users:
                self._changed[link] = None

    def finish(self, flow: int, version: int, now: float) -> bool:
        """Returns true if the predicted end still holds and the flow has ended; a flow that gives way at this
        point waits for its lane again."""
        state = self._state.get(flow)
        if state is None or state[3] != version:
            return False
        del self._state[flow]
        for link in self._routes.pop(flow):
            users = self._users[link]
            del users[flow]
            if users:
                self._changed[link] = None
        lane = self._lanes[flow]
        ended, rest = self._current.pop(lane), self._rest.pop(flow, None)
        if rest is not None:
            self._enqueue(ended._replace(bytes=rest), lane)
        if self._queues.get(lane):
            self._begin(self._queues[lane].pop(0), lane, now)
        return rest is None

    def is_active(self, flow: int) -> bool:
        """True while a flow is under way."""
        return flow in self._state

    def left(self, flow: int, now: float) -> Any:
        """Bytes that a flow under way has still to carry."""
        left, rate, since, _ = self._state[flow]
        return left - rate * (now - since)

    def shorten(self, flow: int, num_bytes: Any) -> None:
        """A flow under way carries so many bytes less than it was to."""
        self._state[flow][0] -= num_bytes
        self._cut.add(flow)
        for link in self._routes[flow]:
            self._changed[link] = None

    def stop(self, flow: int, now: float) -> None:
        """Ends a flow under way at once."""
        self.finish(flow, self._state[flow][3], now)

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
        rates, left = dict[int, Any](), {link: self._rates[link] for link in links}
        level_of = {one: self._current[self._lanes[one]].urgency.level for one in ordered}
        for level in sorted(set(level_of.values())):
            own = {one: self._routes[one] for one in ordered if level_of[one] == level}
            given = max_min(own, left)
            for one in own:
                for link in own[one]:
                    left[link] = max(0 * left[link], left[link] - given[one])
            rates |= given
        for one in ordered:
            self._set_rate(one, rates[one], now, found)
        settled |= flows

    def _set_rate(self, flow: int, rate: float, now: float, found: list[Finish]) -> None:
        state = self._state[flow]
        if state[1] == rate and flow not in self._cut:
            return
        self._cut.discard(flow)
        state[0] -= state[1] * (now - state[2])
        state[1], state[2] = rate, now
        self._versions += 1
        state[3] = self._versions
        if not state[0] > 0:
            found.append((now, flow, state[3]))
        elif rate > 0:  # else its end is foretold when it gets a rate again
            found.append((now + state[0] / rate, flow, state[3]))


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
