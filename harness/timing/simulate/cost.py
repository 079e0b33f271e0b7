"""What a piece of codec work costs a coordinate, in terms of what a benchmark has measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cost:
    """Operations of `task=bench`, each how many times over a coordinate, and bytes that plain tensor
    arithmetic reads and writes: those take as long as in a copy. On a CPU there may be more of them."""

    operations: Mapping[str, float] = field(default_factory=dict)
    num_bytes: float = 0.0
    cpu_bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        names = {**self.operations, **other.operations}
        counts = {name: self.operations.get(name, 0) + other.operations.get(name, 0) for name in names}
        return Cost(counts, self.num_bytes + other.num_bytes, self.cpu_bytes + other.cpu_bytes)

    def __mul__(self, factor: float) -> Cost:
        counts = {name: factor * count for name, count in self.operations.items()}
        return Cost(counts, factor * self.num_bytes, factor * self.cpu_bytes)


NOTHING = Cost()


def once(*operations: str) -> Cost:
    """Each of these operations once over a coordinate; none is named twice."""
    return Cost(dict.fromkeys(operations, 1.0))


def moved(num_bytes: float, on_cpu: float | None = None) -> Cost:
    """So many bytes a coordinate, read and written; `on_cpu` if it is another number there."""
    return Cost(num_bytes=num_bytes, cpu_bytes=num_bytes if on_cpu is None else on_cpu)
