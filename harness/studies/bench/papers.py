"""The papers' figures next to those measured here: the cost of a whole ring, and of the Hadamard transform.

DynamiQ's Table 2 gives memory traffic per coordinate in bytes as const + slope·AR, AR = (n − 1)/n: each of n
workers begins the sum of one of n chunks, continues those of n − 1, and ends with all n. SDP4Bit's Table 5
gives the throughput of a quantizer with and without the transform.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.studies.bench.measure import by_case
from gradwire.harness.studies.bench.study import BenchRow
from gradwire.harness.timing.measure.metric import quotient


def published(paper: str, table: str, method: str) -> list[dict[str, str]]:
    """The rows about a method in a paper's table; empty if the table is not available."""
    return [row for row in _rows(paper, table) if row["method"] == method]


@cache
def _rows(paper: str, table: str) -> list[dict[str, str]]:
    path = conf_directory().parent / "results" / "reference" / paper / f"{table}.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True)
class Ring:
    """A codec's operations on all coordinates, on the chunk whose sum a worker begins, and on the chunks that
    it continues."""

    codec: str
    paper: str  # the row of DynamiQ's Table 2, or ""
    always: tuple[str, ...]
    first: tuple[str, ...] = ()
    hops: tuple[str, ...] = ()

    @property
    def operations(self) -> tuple[str, ...]:
        return self.always + self.first + self.hops


RINGS = (
    Ring(
        "bf16",
        "BF16",
        always=("bf16.decode",),
        first=("bf16.encode",),
        hops=("bf16.add",),
    ),
    Ring(
        "dynamiq (codes of 5 bits on average)",
        "DynamiQ",
        always=(
            "dynamiq.statistics",
            "dynamiq.plan",
            "dynamiq.decompress.mix",
        ),
        first=("dynamiq.compress.mix",),
        hops=("dynamiq.recompress.mix",),
    ),
    *(
        Ring(
            f"mxfp{bits}",
            "MXFP8" if bits == 8 else "",
            always=("mxfp.maxima", f"mxfp.quantize.{bits}", f"mxfp.copy.{bits}", f"mxfp.dequantize.{bits}"),
            hops=(f"mxfp.add.{bits}", f"mxfp.copy.{bits}"),
        )
        for bits in (8, 6, 4)
    ),
    Ring(
        "thc",
        "THC",
        always=(
            "thc.root_mean_squares.largest",
            "thc.quantize.largest",
            "bitpack.pack.8",
            "bitpack.unpack.8",
            "thc.dequantize.largest",
        ),
        hops=("bitpack.add.8",),
    ),
)


@dataclass(frozen=True)
class RingCost:
    """One implementation's memory traffic [bytes] and time [ns] per coordinate, each as const + slope·AR."""

    codec: str
    dtype: str
    numel: int
    implementation: str
    bytes_const: float
    bytes_slope: float
    ns_const: float | None
    ns_slope: float | None
    paper_const: float | None
    paper_slope: float | None

    def at(self, workers: int) -> dict[str, float | None]:
        """Bytes and nanoseconds per coordinate in a ring of `workers`."""
        share = (workers - 1) / workers
        known = self.paper_const is not None and self.paper_slope is not None
        return {
            "bytes": self.bytes_const + share * self.bytes_slope,
            "paper_bytes": (self.paper_const or 0) + share * (self.paper_slope or 0) if known else None,
            "ns": None
            if self.ns_const is None or self.ns_slope is None
            else self.ns_const + share * self.ns_slope,
        }


def ring_costs(rows: Sequence[BenchRow]) -> list[RingCost]:
    """The costs, on one thread, of every codec whose operations were all measured."""
    return [
        _cost(ring, found)
        for found in by_case(rows)
        for ring in RINGS
        if all(name in found for name in ring.operations)
    ]


def _cost(ring: Ring, found: Mapping[str, BenchRow]) -> RingCost:
    def total(names: Sequence[str], figure: str) -> float:
        return float(sum(getattr(found[name], figure) for name in names))

    def const_and_slope(figure: str) -> tuple[float, float]:
        always, first, hops = (total(names, figure) for names in (ring.always, ring.first, ring.hops))
        return always + first, hops - first

    row, (const, slope) = found[ring.operations[0]], _paper(ring.paper)
    bytes_const, bytes_slope = const_and_slope("bytes_per_coordinate")
    ns_const: float | None = None
    ns_slope: float | None = None
    if all(found[name].ns_per_coordinate is not None for name in ring.operations):
        ns_const, ns_slope = const_and_slope("ns_per_coordinate")
    about: dict[str, Any] = {"dtype": row.dtype, "numel": row.numel, "implementation": row.implementation}
    return RingCost(
        ring.codec, **about, bytes_const=bytes_const, bytes_slope=bytes_slope, ns_const=ns_const,
        ns_slope=ns_slope, paper_const=const, paper_slope=slope,
    )  # fmt: skip


def _paper(method: str) -> tuple[float | None, float | None]:
    """The paper's const and slope; None if it does not print them."""
    values = {row["metric"]: float(row["value"]) for row in published("dynamiq", "table2", method)}
    return values.get("const"), values.get("slope")


PAIRS = {
    "quantize": ("linear.quantize.4", "linear.quantize_hadamard.4"),
    "dequantize": ("linear.dequantize.4", "linear.dequantize_hadamard.4"),
}
"""The paper's operations and the corresponding ones here, without and with the transform: 4 bits, groups of
128."""


@dataclass(frozen=True)
class SmoothingSpeed:
    """Throughput in 10⁹ bytes of float values per second: measured here, and the paper's on an A100 at its
    largest size."""

    operation: str
    dtype: str
    numel: int
    implementation: str
    without_gb_per_s: float | None
    with_gb_per_s: float | None
    paper_without: float | None
    paper_with: float | None

    @property
    def share(self) -> float | None:
        """Throughput with the transform over throughput without."""
        return quotient(self.with_gb_per_s, self.without_gb_per_s)

    @property
    def paper_share(self) -> float | None:
        """The paper's ratio; None if its table is not available."""
        known = self.paper_with is not None and self.paper_without
        return (self.paper_with or 0) / (self.paper_without or 1) if known else None


def smoothing(rows: Sequence[BenchRow]) -> list[SmoothingSpeed]:
    """The pairs of operations that were both measured on one thread."""
    return [
        _pair(name, found[plain], found[smooth])
        for found in by_case(rows)
        for name, (plain, smooth) in PAIRS.items()
        if plain in found and smooth in found
    ]


def _pair(name: str, plain: BenchRow, smooth: BenchRow) -> SmoothingSpeed:
    return SmoothingSpeed(
        name, plain.dtype, plain.numel, plain.implementation, plain.values_gb_per_s, smooth.values_gb_per_s,
        _largest(published("sdp4bit", "table5", f"{name} w/o Hadamard")),
        _largest(published("sdp4bit", "table5", f"{name} w/ Hadamard")),
    )  # fmt: skip


def _largest(rows: Sequence[Mapping[str, str]]) -> float | None:
    """The paper's figure at the largest size, where launches matter least."""
    sized = {int(row["setting"].rpartition("size_MB=")[2]): float(row["value"]) for row in rows}
    return sized[max(sized)] if sized else None
