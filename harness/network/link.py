"""One rank's uplink as arithmetic: serial, with a rate and a latency.

The paced transport sleeps by it and the simulated clock counts by it, so that a paced run and a
virtual one mean the same link.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Link:
    """A serial uplink: messages leave one after another at `bytes_per_second`.

    `bytes_per_second = inf` and `latency_s = 0` is the link that costs nothing.
    """

    bytes_per_second: float
    latency_s: float = 0.0
    free_at: float = 0.0

    def transmit(self, now: float, num_bytes: int) -> float:
        """Arrival time (s) of a message posted at `now`; the link is busy until its last bit left."""
        self.free_at = max(now, self.free_at) + num_bytes / self.bytes_per_second
        return self.free_at + self.latency_s


def make_link(network: str, rate_mbit: float, latency_s: float) -> Link:
    """The uplink of `network=none|paced`; `rate_mbit` in 10⁶ bit/s."""
    if network == "none":
        return Link(float("inf"))
    if network != "paced":
        raise ValueError(f"network={network} is unknown; choose none or paced")
    if not rate_mbit > 0 or not latency_s >= 0:
        raise ValueError(f"network.rate_mbit={rate_mbit} must be > 0 and network.latency_s={latency_s} ≥ 0")
    return Link(rate_mbit * 1e6 / 8, latency_s)
