"""One line of the benchmark: an operation, a dtype, a size, an implementation, and what it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gradwire.harness.studies.bench.clocks import Times
from gradwire.harness.studies.bench.operation import Case


@dataclass(frozen=True)
class Row:
    """`bytes_read` and `bytes_written` count what an implementation without intermediate results touches,
    `copy_bytes_per_s` is what a copy of the bucket reads and writes in the same run."""

    operation: str
    dtype: str
    numel: int
    implementation: str  # "default", "cpu", "cuda", or a peer's name
    threads: int
    times: Times
    bytes_read: int
    bytes_written: int
    value_bytes: int  # of the bucket
    copy_bytes_per_s: float
    default_s: float | None = None  # of the definition on one thread, shortest
    peers_s: Mapping[str, float] | None = None  # peers' names to their shortest times

    @classmethod
    def of(cls, case: Case, times: Times, **about: Any) -> Row:
        """The row of a case's times."""
        return cls(times=times, bytes_read=case.bytes_read, bytes_written=case.bytes_written, **about)

    @property
    def seconds(self) -> float:
        """The shortest time: what disturbs a measurement only makes it longer."""
        return self.times.shortest_s

    @property
    def ns_per_coordinate(self) -> float:
        return 1e9 * self.seconds / self.numel

    @property
    def values_gb_per_s(self) -> float:
        """10⁹ bytes of the bucket's coordinates a second: an encoder's input, a decoder's output."""
        return 1e-9 * self.value_bytes / self.seconds

    @property
    def bytes_per_coordinate(self) -> float:
        return (self.bytes_read + self.bytes_written) / self.numel

    @property
    def share_of_copy(self) -> float:
        """Bytes moved a second, relative to those of a copy: near 1, memory is what limits."""
        return (self.bytes_read + self.bytes_written) / self.seconds / self.copy_bytes_per_s

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the definition on one thread."""
        return None if self.default_s is None else self.default_s / self.seconds

    @property
    def speedup_to_peers(self) -> dict[str, float]:
        """How many times as fast as each peer."""
        return {name: seconds / self.seconds for name, seconds in (self.peers_s or {}).items()}

    def as_json(self) -> dict[str, Any]:
        """What was measured and what follows from it."""
        derived = (
            "ns_per_coordinate", "values_gb_per_s", "bytes_per_coordinate", "share_of_copy", "speedup",
            "speedup_to_peers",
        )  # fmt: skip
        return asdict(self) | {name: getattr(self, name) for name in derived}
