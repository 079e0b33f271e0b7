"""Background traffic on the same links: endless ring all-reduces (DynamiQ §5.2).

Each job has one process on every rank's node. In each step the process sends a chunk to its right neighbour
and receives one from its left; the next step begins when both transfers are complete. Its flows are simulated
like those of the timed job.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.harness.network.links import LinkRoute, Links
from gradwire.harness.runtime.seeding import derive_seed

FRACTIONS = 2**53
"""The number of parts that a chunk is divided into: as many as floats between 0 and 1 can distinguish, so
that fractions stay exact."""


@dataclass(frozen=True)
class BackgroundLoad:
    """Background traffic: `jobs` other ring all-reduces of `num_bytes` each, over the ranks' links."""

    jobs: int = 0
    num_bytes: float = 0.0


class BackgroundJobs:
    """`jobs` rings over `size` ranks that reduce `num_bytes` again and again.

    The position of each job within a step when the clock starts is drawn from `seed`: `first[j]` bytes of job
    j's first chunks remain; later chunks have `chunk` bytes. Raises ValueError without bytes or a second
    rank, because then no time would pass.
    """

    def __init__(self, jobs: int, size: int, num_bytes: float, links: Links, seed: int) -> None:
        if not num_bytes > 0 or size < 2:
            raise ValueError(
                f"background jobs need bytes to reduce and at least 2 ranks, got {num_bytes} bytes on {size}"
            )
        self.size = size
        self.chunk = num_bytes / size
        drawn = random.Random(derive_seed(seed, "rivals"))  # this word is part of every recorded draw
        self.first = [self.chunk * (FRACTIONS - drawn.getrandbits(53)) / FRACTIONS for _ in range(jobs)]
        self.routes: Sequence[LinkRoute] = [links.route(rank, (rank + 1) % size) for rank in range(size)]
        """The links to its right neighbour that each rank's messages take."""
