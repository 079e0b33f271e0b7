"""Networks as data: links with a rate, and the links that a message from one rank to another takes.

This is all that the simulated clock needs to know of a network. A link is one direction of a cable or a port.
Rates are bytes of payload per second. The messages on a link share it max-min fairly; a `serial` link carries
one message after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple


class LinkRoute(NamedTuple):
    """The links that a message occupies while in flight, and the latency added to the arrival of its last
    byte, in seconds."""

    links: tuple[int, ...]
    latency_s: float


class Change(NamedTuple):
    """From second `at_s` on, every link has `factor` times its rate."""

    at_s: float
    factor: float


@dataclass(frozen=True)
class Links:
    """`rates[l]` is the rate of link l in bytes per second, `route(source, destination)` the route between
    two ranks; `changes` lists the changes of rates in order of time."""

    rates: tuple[float, ...]
    route: Callable[[int, int], LinkRoute]
    serial: bool = False
    changes: tuple[Change, ...] = ()

    def since(self, now_s: float) -> Links:
        """Returns these links with times relative to `now_s`."""
        past = [change for change in self.changes if change.at_s <= now_s]
        coming = [Change(at_s - now_s, factor) for at_s, factor in self.changes if at_s > now_s]
        return replace(self, changes=(*(Change(0.0, factor) for _, factor in past[-1:]), *coming))

    def multicast(self, source: int, destinations: Sequence[int]) -> LinkRoute:
        """The route of one message to several destinations, which uses each of its links once: it leaves the
        source once, and a copy arrives on each destination's link."""
        routes = [self.route(source, destination) for destination in destinations]
        links = dict.fromkeys(link for route in routes for link in route.links)
        return LinkRoute(tuple(links), max(route.latency_s for route in routes))


def bytes_per_second(mbit_per_second: float) -> float:
    """Converts a rate in 10⁶ bit/s, as settings give it."""
    return mbit_per_second * 1e6 / 8


def unlimited() -> Links:
    """A network without limits: messages arrive when they are sent."""
    return Links((), lambda source, destination: LinkRoute((), 0.0))


def uplinks(size: int, rate: float, latency_s: float) -> Links:
    """Serial uplinks: each carries one message after another, and incoming messages are not limited
    (`network=paced`)."""
    return Links((rate,) * size, lambda source, destination: LinkRoute((source,), latency_s), serial=True)


def star(size: int, rate: float, latency_s: float) -> Links:
    """One switch: every rank has an uplink and a downlink of `rate`; the switch itself is not a
    bottleneck.
    """

    def route(source: int, destination: int) -> LinkRoute:
        return LinkRoute((source, size + destination), latency_s)

    return Links((rate,) * (2 * size), route)


@dataclass(frozen=True)
class NodeFabric:
    """Links of nodes: inside a node a star of `intra_rate`, between nodes `nics` ports of `rate` per node.

    Ranks of a node share its ports evenly, consecutive ranks the same port. A message to another node
    occupies its sender's port and its receiver's. An oversubscribed core is shared as well: in each direction
    it carries the rate of all ports divided by `oversubscription`.
    """

    rate: float
    latency_s: float
    intra_rate: float
    intra_latency_s: float
    nics: int = 1
    oversubscription: float = 1.0


def two_level(num_nodes: int, ranks_per_node: int, fabric: NodeFabric) -> Links:
    """Nodes of ranks, connected by `fabric`."""
    size, num_ports = num_nodes * ranks_per_node, num_nodes * fabric.nics
    ranks_per_port = ranks_per_node // fabric.nics
    inside = (fabric.intra_rate,) * (2 * size)
    ports = (fabric.rate,) * (2 * num_ports)
    oversubscribed = fabric.oversubscription > 1
    core = (num_ports * fabric.rate / fabric.oversubscription,) if oversubscribed else ()
    first_port, first_core = len(inside), len(inside) + len(ports)

    def route(source: int, destination: int) -> LinkRoute:
        if source // ranks_per_node == destination // ranks_per_node:
            return LinkRoute((source, size + destination), fabric.intra_latency_s)
        way_out, way_in = source // ranks_per_port, destination // ranks_per_port
        taken = (first_port + way_out, first_port + num_ports + way_in)
        return LinkRoute(taken + tuple(range(first_core, first_core + len(core))), fabric.latency_s)

    return Links(inside + ports + core, route)
