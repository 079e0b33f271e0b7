"""`allreduce.json`: one all-reduce's times, bytes, and what they compare to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from gradwire.harness.record.finite_json import dumps, loads


@dataclass(frozen=True)
class Spread:
    """Seconds over rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class AllReduceSummary:
    """Times are of the slowest rank of each round. `measured` is null without real workers."""

    codec: str  # with its bits
    topology: str
    workers: int
    coordinates: int
    pieces: int  # of each message
    network: str  # in words
    network_settings: dict[str, Any]
    rate_mbit: float | None  # nominal, of a link; null where nothing is limited
    goodput_mbit: float | None  # what a stream over one link was found to carry, and the clock goes by
    rivals: int
    repeats: int
    measured: Spread | None
    measured_codec_s: Spread | None  # codec work of the rank that has most, while the others work as well
    modelled: Spread  # on the simulated clock
    modelled_codec_s: Spread  # codec work as measured in one process, one rank at a time
    bytes_sent: int  # by all ranks, in one round
    wire_bits_per_coordinate: float | None
    kernel_backend: str
    rounds_s: list[float]  # measured, every round
    provenance: dict[str, Any]

    @property
    def ratio(self) -> float | None:
        """Measured over modelled."""
        return None if self.measured is None else self.measured.median / self.modelled.median

    @property
    def seconds(self) -> float:
        """Measured if it was, else modelled."""
        return (self.measured or self.modelled).median

    def to_json(self) -> str:
        return dumps(asdict(self) | {"measured_over_modelled": self.ratio}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> AllReduceSummary:
        values = loads(text)
        values.pop("measured_over_modelled")
        for name in ("measured", "measured_codec_s", "modelled", "modelled_codec_s"):
            values[name] = None if values[name] is None else Spread(**values[name])
        return cls(**values)
