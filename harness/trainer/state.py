"""The state of an attempt at a run, shared by the loop and everything around it, and its settled buckets."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwire.harness.comm.world.interface import World
from gradwire.harness.parallel.buckets import layout_hash
from gradwire.harness.parallel.interface import Parallelism
from gradwire.harness.record.writer import RunWriter
from gradwire.harness.timing.measure.clock import TrainingClock
from gradwire.harness.trainer.parts import Parts
from gradwire.harness.trainer.schedule import TrainingSchedule
from gradwire.harness.trainer.settings import RunConfig

HEX_DIGITS = 12
"""Number of digits of a hash that are compared: 48 bits, exact in a float64."""


@dataclass(frozen=True)
class AllLayouts:
    """The buckets of all groups of ranks: their `hash`, 16 hex digits, and the number of `coordinates` of a
    step."""

    hash: str
    coordinates: int


@dataclass
class TrainingState:
    """A run's settings and parts, its clock, and the state that an attempt changes.

    `writer` is None on ranks that keep no record. `started` is when the run began, by perf_counter, as if it
    had never been interrupted. `layouts` is set after the warm-up.
    """

    config: RunConfig
    parts: Parts
    directory: Path
    schedule: TrainingSchedule
    clock: TrainingClock
    writer: RunWriter | None
    started: float
    layouts: AllLayouts = field(init=False)

    @property
    def world(self) -> World:
        return self.parts.world

    @property
    def parallelism(self) -> Parallelism:
        return self.parts.parallelism

    @property
    def wall_time_s(self) -> float:
        """Seconds since the run began, without the time between its attempts."""
        return time.perf_counter() - self.started

    def settle_layouts(self) -> None:
        """Compares the buckets of all ranks. Each group of ranks that synchronize the same parameters has its
        own buckets. Every process must call it after the warm-up.

        Raises RuntimeError naming a rank whose buckets differ from those of the first rank in its group.
        """
        world, parallelism = self.world, self.parallelism
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
        found_hash = layout_hash(own[world.ranks[0]])
        if len(groups) > 1:
            hashes = " ".join(f"{int(found[0]):x}" for _, (_, found) in sorted(groups.items()))
            found_hash = hashlib.sha256(hashes.encode()).hexdigest()[:16]
        self.layouts = AllLayouts(found_hash, coordinates)

    def about(self) -> Mapping[str, Any]:
        """The settings named in every file of saved gradients, weights or entropies."""
        config = self.config
        return {
            "seed": config.seed,
            "model": config.model.name,
            "size": config.size.name,
            "codec": config.codec["name"],
        }
