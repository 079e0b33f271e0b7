"""A configured network as links."""

from __future__ import annotations

from dataclasses import replace

from omegaconf import DictConfig

from gradwire.harness.network.links import Change, Links, star, two_level, unlimited, uplinks

BITS = 8


def make_links(network: DictConfig, size: int) -> Links:
    """Makes the links of a validated `network` group between `size` ranks.

    A shaped network is a star here, with links at the rate that they were asked to have.
    """
    if network.name == "none":
        return unlimited()
    rate = network.rate_mbit * 1e6 / BITS
    if network.name == "paced":
        return uplinks(size, rate, network.latency_s)
    if network.name == "shaped":
        return star(size, rate, 0.0)
    rate *= network.efficiency
    links = _star_or_nodes(network, size, rate)
    return replace(links, changes=tuple(Change(at_s, factor) for at_s, factor in network.rate_changes))


def _star_or_nodes(network: DictConfig, size: int, rate: float) -> Links:
    """A simulated network's links; its NICs carry `rate` bytes per second."""
    if network.fabric == "star":
        return star(size, rate, network.latency_s)
    return two_level(
        size // network.ranks_per_node,
        network.ranks_per_node,
        nics=network.nics,
        rate=rate,
        latency_s=network.latency_s,
        intra_rate=network.intra_rate_mbit * network.efficiency * 1e6 / BITS,
        intra_latency_s=network.intra_latency_s,
        oversubscription=network.oversubscription,
    )
