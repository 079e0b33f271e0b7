"""The rate of a rank's link, which what it sends is compared with."""

from __future__ import annotations

from omegaconf import DictConfig

from gradwire.harness.network.build import BITS, make_links


def link_rate(network: DictConfig, size: int) -> float | None:
    """Bits of payload per second that each of `size` ranks can send on a validated `network` group.

    None where nothing limits it, or there is not one such rate: between nodes, several ranks share one; or it
    changes.
    """
    if network.get("fabric", "star") != "star" or network.get("rate_changes"):
        return None
    rates = set(make_links(network, size).rates)
    return BITS * rates.pop() if len(rates) == 1 else None
