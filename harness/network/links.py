"""Networks as data: links with a rate, and which of them a message from one rank to another takes.

The simulated clock needs nothing else of a network. A link is one direction of a cable or a port; rates are
bytes of payload per second, shared by the messages on the link max-min fairly, or, where `serial`, by one
message after another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Route(NamedTuple):
    """The links that a message occupies all the time it is under way, and the seconds that are added to its
    last byte's arrival."""

    links: tuple[int, ...]
    latency_s: float


@dataclass(frozen=True)
class Links:
    """`rates[l]` of link l in bytes per second; `route(source, destination)` between two ranks."""

    rates: tuple[float, ...]
    route: Callable[[int, int], Route]
    serial: bool = False

    @cached_property
    def slowest(self) -> float:
        """The lowest rate; infinite where nothing is limited."""
        return min(self.rates, default=float("inf"))


def unlimited() -> Links:
    """Messages arrive as they are sent."""
    return Links((), lambda source, destination: Route((), 0.0))


def uplinks(size: int, rate: float, latency_s: float) -> Links:
    """Each rank's uplink carries one message after another; what comes in is not limited: `network=paced`."""
    return Links((rate,) * size, lambda source, destination: Route((source,), latency_s), serial=True)


def star(size: int, rate: float, latency_s: float) -> Links:
    """One switch: every rank has an uplink and a downlink of `rate`; the switch itself limits nothing."""

    def route(source: int, destination: int) -> Route:
        return Route((source, size + destination), latency_s)

    return Links((rate,) * (2 * size), route)


def two_level(
    num_nodes: int,
    ranks_per_node: int,
    *,
    rate: float,
    latency_s: float,
    intra_rate: float,
    intra_latency_s: float,
    oversubscription: float = 1.0,
) -> Links:
    """Nodes of ranks: inside a node a star of `intra_rate`, between nodes one port of `rate` per node.

    What leaves a node takes its port and the other node's; where the core is oversubscribed it shares that,
    too: `num_nodes · rate / oversubscription`, each way.
    """
    size = num_nodes * ranks_per_node
    inside = (intra_rate,) * (2 * size)
    ports = (rate,) * (2 * num_nodes)
    core = (num_nodes * rate / oversubscription,) if oversubscription > 1 else ()
    first_port, first_core = len(inside), len(inside) + len(ports)

    def route(source: int, destination: int) -> Route:
        node, other = source // ranks_per_node, destination // ranks_per_node
        if node == other:
            return Route((source, size + destination), intra_latency_s)
        taken = (first_port + node, first_port + num_nodes + other)
        return Route(taken + tuple(range(first_core, first_core + len(core))), latency_s)

    return Links(inside + ports + core, route)
