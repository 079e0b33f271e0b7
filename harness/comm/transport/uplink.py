"""One rank's uplink as arithmetic: serial, with a rate and a latency.

The paced transport sleeps by it. On the simulated clock `network.links.uplinks` means the same link.
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
