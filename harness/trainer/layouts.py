"""The buckets of all ranks: each group of ranks that synchronize the same parameters has its own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from gradwire.harness.comm.world.interface import World
from gradwire.harness.parallel.buckets import layout_hash
from gradwire.harness.parallel.interface import Parallelism

HEX_DIGITS = 12
"""How much of a hash is compared: 48 bits, exact in a float64."""


@dataclass(frozen=True)
class AllLayouts:
    """The buckets of all groups: their `hash`, 16 hex digits, and the `coordinates` of a step."""

    hash: str
    coordinates: int


def agreed_layouts(world: World, parallelism: Parallelism) -> AllLayouts:
    """The frozen buckets of all ranks, the same on each; every process calls it.

    Raises RuntimeError naming the ranks whose buckets differ from those of the first rank in their group.
    """
    own = {rank: parallelism.layout(rank) for rank in world.ranks}
    rows = {
        rank: [
            float(parallelism.group(rank)),
            float(int(layout_hash(layouts)[:HEX_DIGITS], 16)),
            float(sum(layout.numel for layout in layouts)),
        ]
        for rank, layouts in own.items()
    }
    groups: dict[int, tuple[int, list[float]]] = {}
    for rank, (group, *found) in enumerate(world.gather(rows)):
        first, expected = groups.setdefault(int(group), (rank, found))
        if found != expected:
            raise RuntimeError(f"rank {rank} has other buckets than rank {first} after warm-up")
    coordinates = int(sum(numel for _, (_, numel) in groups.values()))
    if len(groups) == 1:
        return AllLayouts(layout_hash(own[world.ranks[0]]), coordinates)
    hashes = " ".join(f"{int(found[0]):x}" for _, (_, found) in sorted(groups.items()))
    return AllLayouts(hashlib.sha256(hashes.encode()).hexdigest()[:16], coordinates)
