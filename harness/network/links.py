"""Networks as data: links with a rate, and the links that a message from one rank to another takes.

The simulated clock needs nothing else of a network. A link is one direction of a cable or a port. Rates are
bytes of payload per second. The messages on a link share it max-min fairly; a `serial` link carries one
message after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple


class LinkRoute(NamedTuple):
    """The links that a message occupies while it is under way, and the seconds added to the arrival of its
    last byte."""

    links: tuple[int, ...]
    latency_s: float


class Change(NamedTuple):
    """From second `at_s` on, every link has `factor` times its rate."""

    at_s: float
    factor: float


@dataclass(frozen=True)
class Links:
    """`rates[l]` of link l in bytes per second; `route(source, destination)` between two ranks; `changes` of
    the rates, the earlier ones first."""

    rates: tuple[float, ...]
    route: Callable[[int, int], LinkRoute]
    serial: bool = False
    changes: tuple[Change, ...] = ()

    def since(self, now_s: float) -> Links:
        """Returns these links with seconds counted from `now_s` on."""
        past = [change for change in self.changes if change.at_s <= now_s]
        coming = [Change(at_s - now_s, factor) for at_s, factor in self.changes if at_s > now_s]
        return replace(self, changes=(*(Change(0.0, factor) for _, factor in past[-1:]), *coming))

    def multicast(self, source: int, destinations: Sequence[int]) -> LinkRoute:
        """The route of one message to several destinations, which takes each of its links once: it leaves the
        source once, and each destination's link carries a copy."""
        routes = [self.route(source, destination) for destination in destinations]
        links = dict.fromkeys(link for route in routes for link in route.links)
        return LinkRoute(tuple(links), max(route.latency_s for route in routes))


def bytes_per_second(mbit_per_second: float) -> float:
    """Converts a rate in 10⁶ bit/s, as settings give it."""
    return mbit_per_second * 1e6 / 8


def unlimited() -> Links:
    """A network without limits: messages arrive as they are sent."""
    return Links((), lambda source, destination: LinkRoute((), 0.0))


def uplinks(size: int, rate: float, latency_s: float) -> Links:
    """Serial uplinks: each carries one message after another, and nothing limits what comes in
    (`network=paced`)."""
    return Links((rate,) * size, lambda source, destination: LinkRoute((source,), latency_s), serial=True)


def star(size: int, rate: float, latency_s: float) -> Links:
    """One switch: every rank has an uplink and a downlink of `rate`; the switch itself limits nothing."""

    def route(source: int, destination: int) -> LinkRoute:
        return LinkRoute((source, size + destination), latency_s)

    return Links((rate,) * (2 * size), route)


@dataclass(frozen=True)
class NodeFabric:
    """Links of nodes: inside a node a star of `intra_rate`, between nodes `nics` ports of `rate` per node.

    Ranks of a node share its ports evenly, consecutive ranks the same port. A message to another node takes
    its sender's port and its receiver's. An oversubscribed core is shared as well: each way it carries the
    rate of all ports divided by `oversubscription`.
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
