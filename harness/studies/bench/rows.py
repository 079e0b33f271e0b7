"""One line of the benchmark: an operation, a dtype, a size, an implementation, and what it took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gradwire.harness.studies.bench.clocks import Times
from gradwire.harness.studies.bench.operation import Case
from gradwire.harness.timing.measure.metric import quotient
from gradwire.harness.timing.measure.metrics import OPERATION


@dataclass(frozen=True)
class Row:
    """`bytes_read` and `bytes_written` count what an implementation without intermediate results touches;
    `copy_bytes_per_s` is what a copy of the bucket reads and writes in the same run.

    Figures are None where the clock has seen no time pass.
    """

    operation: str
    dtype: str
    numel: int
    implementation: str  # "default", "cpu", "cuda", or a peer's name
    threads: int
    times: Times
    bytes_read: int
    bytes_written: int
    value_bytes: int  # of the bucket
    copy_bytes_per_s: float | None
    default_s: float | None = None  # shortest time of the definition on one thread
    peers_s: Mapping[str, float] | None = None  # peers' names to their shortest times

    @classmethod
    def of(cls, case: Case, times: Times, **about: Any) -> Row:
        """Makes the row of a case from its times."""
        return cls(times=times, bytes_read=case.bytes_read, bytes_written=case.bytes_written, **about)

    @property
    def names(self) -> tuple[str, str, str, str]:
        """Its name in tables."""
        return self.operation, self.dtype, f"{self.numel:,}", self.implementation

    @property
    def figures(self) -> dict[str, float | None]:
        """Its figures by the keys of METRICS."""
        return {key: getattr(self, key) for key in OPERATION}

    @property
    def seconds(self) -> float:
        """The shortest time, because disturbances only make a measurement longer."""
        return self.times.shortest_s

    @property
    def ns_per_coordinate(self) -> float | None:
        return 1e9 * self.seconds / self.numel if self.seconds else None

    @property
    def values_gb_per_s(self) -> float | None:
        """10⁹ bytes of the bucket's values per second: an encoder's input, a decoder's output."""
        return quotient(1e-9 * self.value_bytes, self.seconds)

    @property
    def bytes_per_coordinate(self) -> float:
        return (self.bytes_read + self.bytes_written) / self.numel

    @property
    def share_of_copy(self) -> float | None:
        """Bytes moved per second relative to a copy; near 1, memory is the limit."""
        rate = quotient(self.bytes_read + self.bytes_written, self.seconds)
        return quotient(rate, self.copy_bytes_per_s)

    @property
    def speedup(self) -> float | None:
        """Speed relative to the definition on one thread."""
        return quotient(self.default_s or None, self.seconds)

    @property
    def speedup_to_peers(self) -> dict[str, float | None]:
        """Speed relative to each peer."""
        return {
            name: quotient(seconds or None, self.seconds) for name, seconds in (self.peers_s or {}).items()
        }

    def as_json(self) -> dict[str, Any]:
        """The measured values and what follows from them."""
        return asdict(self) | self.figures | {"speedup_to_peers": self.speedup_to_peers}


def by_case(rows: Iterable[Row]) -> Iterable[dict[str, Row]]:
    """The rows on one thread: for each dtype, size and implementation, its rows by operation."""
    found = dict[tuple[str, int, str], dict[str, Row]]()
    for row in rows:
        if row.threads == 1:
            found.setdefault((row.dtype, row.numel, row.implementation), {})[row.operation] = row
    return found.values()
