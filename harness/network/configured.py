"""A configured network: its links, the rate of a rank's link, and its description in tables and plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gradwire.harness.network.links import (
    Change,
    Links,
    NodeFabric,
    bytes_per_second,
    star,
    two_level,
    unlimited,
    uplinks,
)
from gradwire.harness.network.settings import (
    FROM_FILE,
    PAPERS_COMPUTATION,
    SHARED,
    NetworkConfig,
    PacedConfig,
    ShapedConfig,
    SimulatedConfig,
    UnpacedConfig,
    background_jobs,
    recorded_network,
)

MEASURED, EMULATED = "measured", "emulated"

AS_IT_IS = f"{MEASURED} (network as it is)"
"""The description of real workers on links that nothing limits."""

NO_NETWORK = "emulated, ranks share a device, messages through host memory: no network was measured"
"""The description of real workers whose messages pass no link."""

HOW = {"paced": "paced", "shaped": "shaped by the kernel"}
"""The way in which the links of real workers are limited, in words."""


def make_links(network: NetworkConfig, size: int) -> Links:
    """Makes the links of a validated `network` group between `size` ranks.

    A shaped network is a star here, whose links have the configured rate.
    """
    if isinstance(network, UnpacedConfig):
        return unlimited()
    rate = bytes_per_second(network.rate_mbit)
    if isinstance(network, PacedConfig):
        return uplinks(size, rate, network.latency_s)
    if isinstance(network, ShapedConfig):
        return replace(star(size, rate, 0.0), changes=rate_changes(network))
    links = _star_or_nodes(network, size, rate * network.efficiency)
    return replace(links, changes=rate_changes(network))


def rate_changes(network: ShapedConfig | SimulatedConfig) -> tuple[Change, ...]:
    """The changes of a validated network's rates, in order of time."""
    return tuple(Change(at_s, factor) for at_s, factor in network.rate_changes)


def _star_or_nodes(network: SimulatedConfig, size: int, rate: float) -> Links:
    """A simulated network's links; its NICs carry `rate` bytes per second."""
    if network.fabric == "star":
        return star(size, rate, network.latency_s)
    assert network.intra_rate_mbit is not None
    fabric = NodeFabric(
        rate,
        network.latency_s,
        bytes_per_second(network.intra_rate_mbit * network.efficiency),
        network.intra_latency_s,
        network.nics,
        network.oversubscription,
    )
    return two_level(size // network.ranks_per_node, network.ranks_per_node, fabric)


def link_rate(network: NetworkConfig, size: int) -> float | None:
    """Bits of payload per second that each of `size` ranks can send on a validated `network` group.

    None if nothing limits it, or if there is no single rate, because ranks of a node share a link or the rate
    changes.
    """
    if isinstance(network, SimulatedConfig) and network.fabric != "star":
        return None
    links = make_links(network, size)
    rates = set() if links.changes else set(links.rates)
    return 8 * rates.pop() if len(rates) == 1 else None


def network_text(network: NetworkConfig, kind: str) -> str:
    """The description of times on a validated `network` group: their `kind` (measured, emulated or modelled)
    and its links.

    Examples: `measured (network as it is)`, `emulated, 200 Mbit/s, paced`, `emulated, 100 Mbit/s, shaped by
    the kernel, 3 background jobs`, `modelled, 1 Gbit/s, 1 ms`, `modelled, aqgb, 2.5 Gbit/s, multicast`. Where
    nothing limits links, only ranks that share a device are emulated.
    """
    if isinstance(network, UnpacedConfig):
        return {MEASURED: AS_IT_IS, EMULATED: NO_NETWORK}.get(kind, f"{kind}, unlimited links")
    rate, latency = rate_text(network.rate_mbit), latency_text(getattr(network, "latency_s", 0.0))
    if isinstance(network, SimulatedConfig):
        preset = "" if network.preset == "custom" else network.preset
        links = [preset, *_links(network, latency), "multicast" * network.multicast]
    else:
        links = [rate, latency, HOW[network.name]]
    changing = "changing rates" if getattr(network, "rate_changes", ()) else ""
    return ", ".join(filter(None, [kind, *links, changing, _background_text(background_jobs(network))]))


def recorded_text(recorded: Mapping[str, Any] | str | None, kind: str) -> str:
    """`network_text` of a recorded `network` group. If the record lacks a rate, or only has the network's
    name, it consists of the kind and the name. Raises ValueError in one line if it is no network."""
    if recorded is None:
        return kind
    settings = {"name": recorded} if isinstance(recorded, str) else recorded
    name = str(settings.get("name"))
    if name != UnpacedConfig().name and settings.get("rate_mbit") is None:
        return f"{kind}, {HOW[name]}" if name in HOW else kind
    return network_text(recorded_network(settings), kind)


def common_text(texts: Iterable[str]) -> str:
    """The common description of several networks, by kind: `measured (network as it is) and emulated, shaped
    by the kernel`."""
    by_kind: dict[str, list[list[str]]] = {}
    for text in dict.fromkeys(texts):
        kind, *parts = text.split(", ")
        by_kind.setdefault(kind, []).append(parts)
    shared = (
        [kind, *(part for part in own[0] if all(part in other for other in own))]
        for kind, own in by_kind.items()
    )
    return " and ".join(", ".join(parts) for parts in shared)


def rate_text(rate_mbit: float) -> str:
    """A rate as text: `200 Mbit/s`, or from 1000 on `2.5 Gbit/s`."""
    return f"{rate_mbit:g} Mbit/s" if rate_mbit < 1000 else f"{rate_mbit / 1000:g} Gbit/s"


def latency_text(latency_s: float) -> str:
    """A latency as text: `1 ms`, `5 µs`; empty for 0."""
    if not latency_s:
        return ""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if latency_s * factor >= 1:
            return f"{latency_s * factor:.4g} {unit}"
    return f"{latency_s * 1e6:.4g} µs"


def _links(network: SimulatedConfig, latency: str) -> list[str]:
    rate = rate_text(network.rate_mbit)
    if network.fabric == "star":
        return [rate, latency]
    if network.nics > 1:
        rate = f"{network.nics} x {rate}"
    assert network.intra_rate_mbit is not None
    nodes = f"{network.nodes} nodes" if network.nodes is not None else "nodes"
    inside = f"{rate_text(network.intra_rate_mbit)} inside"
    return [f"{nodes} of {network.ranks_per_node}", rate, latency, inside]


def _background_text(count: int) -> str:
    return f"{count} background job{'s' * (count > 1)}" if count else ""


def whose_computation(network: Mapping[str, Any], device: str | None, *, shared: bool = False) -> str:
    """The source of a virtual cluster's compute times on this network: `this machine's CPU, measured`, or
    that they are given."""
    given = network.get("compute_s")
    papers = [
        compute_s
        for (preset, _), (compute_s, _) in PAPERS_COMPUTATION.items()
        if preset == network.get("preset")
    ]
    if given in papers:
        return f"the paper's, {given:g} s a step"
    if given is not None:
        return f"given, {given:g} s a step (network.compute_s)"
    if str(network.get("compute", SHARED)).startswith(FROM_FILE):
        return "a given profile (network.compute)"
    how = "calibrated once for the sweep" if shared else "measured"
    return f"this machine's {'GPU' if device == 'cuda' else 'CPU'}, {how}"
