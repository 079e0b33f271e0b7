"""Contestants measured in alternating blocks in one process group, and their times compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gradwire.harness.runtime.progress import tracked

Contestant = Callable[[int], object]
"""Runs so many steps."""


@dataclass(frozen=True)
class Block:
    """One block of one contestant: seconds per step, on one rank or on all of them together."""

    cpu_s: float
    wall_s: float


def alternate(
    contestants: Mapping[str, Contestant], blocks: int, steps: int, meet: Callable[[], object]
) -> dict[str, list[Block]]:
    """Runs `blocks` blocks of `steps` steps of each contestant in turn; every other round in reverse order.

    The first round is not counted. All ranks `meet` before each block. CPU time is this process's, its
    communication threads included.
    """
    found: dict[str, list[Block]] = {name: [] for name in contestants}
    for number in tracked(range(blocks + 1), "overhead", "round"):
        for name in sorted(contestants, reverse=bool(number % 2)):
            meet()
            cpu, wall = time.process_time(), time.perf_counter()
            contestants[name](steps)
            block = Block((time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps)
            if number:
                found[name].append(block)
    return found


def as_lists(blocks: Mapping[str, Sequence[Block]]) -> dict[str, list[list[float]]]:
    """Contestant to [CPU, wall] of each block, for JSON."""
    return {name: [[block.cpu_s, block.wall_s] for block in found] for name, found in blocks.items()}


def over_ranks(ranks: Sequence[Mapping[str, Sequence[Sequence[float]]]]) -> dict[str, list[Block]]:
    """Combines all ranks' blocks (as `as_lists` gives them): CPU times are summed, the longest wall time
    counts."""
    return {
        name: [
            Block(sum(cpu for cpu, _ in same), max(wall for _, wall in same))
            for same in zip(*(rank[name] for rank in ranks), strict=True)
        ]
        for name in ranks[0]
    }


def ratio(candidate: Sequence[float], baseline: Sequence[float]) -> dict[str, float] | None:
    """The ratio of the medians, and the least, middle and largest ratio of two blocks of one round; None
    where a clock has seen no time pass in one."""
    if not all(baseline):
        return None
    rounds = sorted(first / second for first, second in zip(candidate, baseline, strict=True))
    return {
        "of_medians": median(candidate) / median(baseline),
        "lowest": rounds[0],
        "median": median(rounds),
        "highest": rounds[-1],
    }


def summarize(blocks: Mapping[str, Sequence[Block]], baseline: str) -> dict[str, Any]:
    """Medians per contestant in seconds a step, ratios to `baseline`, and all blocks as [CPU, wall]."""
    base = blocks[baseline]
    return {
        "seconds_per_step": {
            name: {
                "cpu": median(block.cpu_s for block in found),
                "wall": median(block.wall_s for block in found),
            }
            for name, found in blocks.items()
        },
        "ratio": {
            name: {
                "cpu": ratio([block.cpu_s for block in found], [block.cpu_s for block in base]),
                "wall": ratio([block.wall_s for block in found], [block.wall_s for block in base]),
            }
            for name, found in blocks.items()
            if name != baseline
        },
        "blocks": as_lists(blocks),
    }
