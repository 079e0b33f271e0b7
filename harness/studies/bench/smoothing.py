"""What the Hadamard transform costs inside a quantizer: throughput with it over without (SDP4Bit Table 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradwire.harness.studies.bench.published import published
from gradwire.harness.studies.bench.rows import Row, by_case

PAIRS = {
    "quantize": ("linear.quantize.4", "linear.quantize_hadamard.4"),
    "dequantize": ("linear.dequantize.4", "linear.dequantize_hadamard.4"),
}
"""The paper's operations and ours, without and with the transform: 4 bits, groups of 128."""


@dataclass(frozen=True)
class Smoothing:
    """Throughput in 10⁹ bytes of float values per second: ours, and the paper's on an A100 at its largest
    size."""

    operation: str
    dtype: str
    numel: int
    implementation: str
    without_gb_per_s: float
    with_gb_per_s: float
    paper_without: float | None
    paper_with: float | None

    @property
    def share(self) -> float:
        """Throughput with the transform over throughput without."""
        return self.with_gb_per_s / self.without_gb_per_s

    @property
    def paper_share(self) -> float | None:
        """The paper's ratio; None if its table is not at hand."""
        known = self.paper_with is not None and self.paper_without
        return (self.paper_with or 0) / (self.paper_without or 1) if known else None


def smoothing(rows: Sequence[Row]) -> list[Smoothing]:
    """The pairs whose operations were both measured on one thread."""
    return [
        _pair(name, found[plain], found[smooth])
        for found in by_case(rows)
        for name, (plain, smooth) in PAIRS.items()
        if plain in found and smooth in found
    ]


def _pair(name: str, plain: Row, smooth: Row) -> Smoothing:
    return Smoothing(
        name, plain.dtype, plain.numel, plain.implementation, plain.values_gb_per_s, smooth.values_gb_per_s,
        _largest(published("sdp4bit", "table5", f"{name} w/o Hadamard")),
        _largest(published("sdp4bit", "table5", f"{name} w/ Hadamard")),
    )  # fmt: skip


def _largest(rows: Sequence[Mapping[str, str]]) -> float | None:
    """The paper's figure at the largest size, where launches cost least."""
    sized = {int(row["setting"].rpartition("size_MB=")[2]): float(row["value"]) for row in rows}
    return sized[max(sized)] if sized else None
