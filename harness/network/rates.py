"""The rate of a rank's link, which its sent bytes are compared with."""

from __future__ import annotations

from omegaconf import DictConfig

from gradwire.harness.network.build import BITS, make_links


def link_rate(network: DictConfig, size: int) -> float | None:
    """Bits of payload per second that each of `size` ranks can send on a validated `network` group.

    None if nothing limits it, or if there is no single rate: several ranks of a node share one, or it
    changes.
    """
    if network.get("fabric", "star") != "star" or network.get("rate_changes"):
        return None
    rates = set(make_links(network, size).rates)
    return BITS * rates.pop() if len(rates) == 1 else None
