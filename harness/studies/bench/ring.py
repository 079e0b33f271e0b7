"""What a whole ring all-reduce costs a codec: its hops' operations, each on its share of the coordinates.

DynamiQ's Table 2 counts bytes of memory traffic per coordinate as const + slope·AR, AR = (n − 1)/n: each of n
workers begins the sum of one of n chunks, continues the sums of n − 1, and in the end decodes all n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.harness.studies.bench.published import published
from gradwire.harness.studies.bench.rows import Row, by_case


@dataclass(frozen=True)
class Ring:
    """A codec's operations on all coordinates, on the chunk that it begins, and on those that it
    continues."""

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
        "dynamiq (codes of 5 bits on average)",
        "DynamiQ",
        always=(
            "dynamiq.statistics",
            "dynamiq.reduced",
            "dynamiq.allocation",
            "dynamiq.order",
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
    ns_const: float
    ns_slope: float
    paper_const: float | None
    paper_slope: float | None

    def at(self, workers: int) -> dict[str, float | None]:
        """Bytes and nanoseconds per coordinate in a ring of `workers`."""
        share = (workers - 1) / workers
        known = self.paper_const is not None and self.paper_slope is not None
        return {
            "bytes": self.bytes_const + share * self.bytes_slope,
            "paper_bytes": (self.paper_const or 0) + share * (self.paper_slope or 0) if known else None,
            "ns": self.ns_const + share * self.ns_slope,
        }


def ring_costs(rows: Sequence[Row]) -> list[RingCost]:
    """The costs on one thread of every codec whose operations were all measured."""
    return [
        _cost(ring, found)
        for found in by_case(rows)
        for ring in RINGS
        if all(name in found for name in ring.operations)
    ]


def _cost(ring: Ring, found: Mapping[str, Row]) -> RingCost:
    def total(names: Sequence[str], figure: str) -> float:
        return float(sum(getattr(found[name], figure) for name in names))

    def const_and_slope(figure: str) -> tuple[float, float]:
        always, first, hops = (total(names, figure) for names in (ring.always, ring.first, ring.hops))
        return always + first, hops - first

    row, (const, slope) = found[ring.operations[0]], _paper(ring.paper)
    bytes_const, bytes_slope = const_and_slope("bytes_per_coordinate")
    ns_const, ns_slope = const_and_slope("ns_per_coordinate")
    about: dict[str, Any] = {"dtype": row.dtype, "numel": row.numel, "implementation": row.implementation}
    return RingCost(
        ring.codec, **about, bytes_const=bytes_const, bytes_slope=bytes_slope, ns_const=ns_const,
        ns_slope=ns_slope, paper_const=const, paper_slope=slope,
    )  # fmt: skip


def _paper(method: str) -> tuple[float | None, float | None]:
    """The paper's const and slope; None if it prints none."""
    values = {row["metric"]: float(row["value"]) for row in published("dynamiq", "table2", method)}
    return values.get("const"), values.get("slope")
