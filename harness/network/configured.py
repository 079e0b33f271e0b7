"""A configured network: its links, the rate of a rank's link, and its name in a run's first line."""

from __future__ import annotations

from dataclasses import replace

from gradwire.harness.network.links import (
    Change,
    Links,
    bytes_per_second,
    star,
    two_level,
    unlimited,
    uplinks,
)
from gradwire.harness.network.settings import (
    NetworkConfig,
    PacedConfig,
    ShapedConfig,
    SimulatedConfig,
    UnpacedConfig,
    background_jobs,
)


def make_links(network: NetworkConfig, size: int) -> Links:
    """Makes the links of a validated `network` group between `size` ranks.

    A shaped network is a star here, with links at the rate that they were asked to have.
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
    """The changes of a validated network's rates, the earlier ones first."""
    return tuple(Change(at_s, factor) for at_s, factor in network.rate_changes)


def _star_or_nodes(network: SimulatedConfig, size: int, rate: float) -> Links:
    """A simulated network's links; its NICs carry `rate` bytes per second."""
    if network.fabric == "star":
        return star(size, rate, network.latency_s)
    assert network.intra_rate_mbit is not None
    return two_level(
        size // network.ranks_per_node,
        network.ranks_per_node,
        nics=network.nics,
        rate=rate,
        latency_s=network.latency_s,
        intra_rate=bytes_per_second(network.intra_rate_mbit * network.efficiency),
        intra_latency_s=network.intra_latency_s,
        oversubscription=network.oversubscription,
    )


def link_rate(network: NetworkConfig, size: int) -> float | None:
    """Bits of payload per second that each of `size` ranks can send on a validated `network` group.

    None if nothing limits it, or if there is no single rate: several ranks of a node share one, or it
    changes.
    """
    if isinstance(network, SimulatedConfig) and network.fabric != "star":
        return None
    links = make_links(network, size)
    rates = set() if links.changes else set(links.rates)
    return 8 * rates.pop() if len(rates) == 1 else None


def network_text(network: NetworkConfig) -> str:
    """`shaped at 200 Mbit/s with 3 background jobs`, `simulated aqgb: star at 2.5 Gbit/s, ...`."""
    if isinstance(network, UnpacedConfig):
        return "none"
    if isinstance(network, SimulatedConfig):
        preset = "" if network.preset == "custom" else f" {network.preset}"
        name = f"simulated{preset}: {_links_text(network)}{_more_text(network)}"
    else:
        name = f"{network.name} at {rate_text(network.rate_mbit)}{_changing_text(network)}"
    return name + _background_text(background_jobs(network))


def rate_text(rate_mbit: float) -> str:
    """`200 Mbit/s`, and from 1000 of them on `2.5 Gbit/s`."""
    return f"{rate_mbit:g} Mbit/s" if rate_mbit < 1000 else f"{rate_mbit / 1000:g} Gbit/s"


def _links_text(network: SimulatedConfig) -> str:
    rate = rate_text(network.rate_mbit)
    if network.fabric == "star":
        return f"star at {rate}"
    if network.nics > 1:
        rate = f"{network.nics} x {rate}"
    assert network.intra_rate_mbit is not None
    inside = rate_text(network.intra_rate_mbit)
    return f"{network.nodes} nodes of {network.ranks_per_node} at {rate}, {inside} inside"


def _more_text(network: SimulatedConfig) -> str:
    multicast = ", multicast" if network.multicast else ""
    return multicast + _changing_text(network)


def _changing_text(network: PacedConfig | ShapedConfig | SimulatedConfig) -> str:
    return ", changing" if getattr(network, "rate_changes", ()) else ""


def _background_text(count: int) -> str:
    if not count:
        return ""
    return f" with {count} background job{'s' * (count > 1)}"
