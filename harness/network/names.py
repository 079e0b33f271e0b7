"""A network in a few words, for the line that a run prints first."""

from __future__ import annotations

from omegaconf import DictConfig


def network_text(network: DictConfig) -> str:
    """`shaped at 200 Mbit/s with 3 background jobs`, `simulated aqgb: star at 2.5 Gbit/s, ...`."""
    if network.name == "none":
        return "none"
    if network.name == "simulated":
        preset = "" if network.preset == "custom" else f" {network.preset}"
        return f"simulated{preset}: {_links(network)}{_more(network)}{_background(network.background_jobs)}"
    return f"{network.name} at {rate_text(network.rate_mbit)}{_background(network.get('background_jobs', 0))}"


def rate_text(rate_mbit: float) -> str:
    """`200 Mbit/s`, and from 1000 of them on `2.5 Gbit/s`."""
    return f"{rate_mbit:g} Mbit/s" if rate_mbit < 1000 else f"{rate_mbit / 1000:g} Gbit/s"


def _links(network: DictConfig) -> str:
    rate = rate_text(network.rate_mbit)
    if network.fabric == "star":
        return f"star at {rate}"
    if network.nics > 1:
        rate = f"{network.nics} x {rate}"
    inside = rate_text(network.intra_rate_mbit)
    return f"{network.nodes} nodes of {network.ranks_per_node} at {rate}, {inside} inside"


def _more(network: DictConfig) -> str:
    multicast = ", multicast" if network.multicast else ""
    return multicast + (", changing" if network.rate_changes else "")


def _background(count: int) -> str:
    if not count:
        return ""
    return f" with {count} background job{'s' * (count > 1)}"
