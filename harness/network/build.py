"""A configured network as links."""

from __future__ import annotations

from omegaconf import DictConfig

from gradwire.harness.network.links import Links, star, two_level, unlimited, uplinks

BITS = 8


def make_links(network: DictConfig, size: int) -> Links:
    """The links of a validated `network` group between `size` ranks.

    A shaped network is a star here: what its links are meant to be, at the rate they have been given.
    """
    if network.name == "none":
        return unlimited()
    rate = network.rate_mbit * 1e6 / BITS
    if network.name == "paced":
        return uplinks(size, rate, network.latency_s)
    if network.name == "shaped":
        return star(size, rate, 0.0)
    rate *= network.efficiency
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
