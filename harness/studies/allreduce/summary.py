"""`allreduce.json`: one all-reduce's times, bytes, and what they compare to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gradwire.harness.files.finite_json import dumps, restored
from gradwire.harness.files.reading import UnusableFileError, read_text
from gradwire.harness.files.structured import parse_json
from gradwire.harness.files.typed import made
from gradwire.harness.record.summary import REMEDY


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
    def read(cls, path: Path) -> AllReduceSummary:
        """The summary in the file at `path`; raises UnusableFileError."""
        text = read_text(path, remedy=REMEDY, inside=path.parent)
        values = restored(parse_json(text.encode(), path, remedy=REMEDY))
        summary = made(cls, values, path, remedy=REMEDY)
        if not (summary.modelled.median > 0 and summary.seconds > 0):
            raise UnusableFileError(path, "has a time that is not above 0", REMEDY)
        return summary
