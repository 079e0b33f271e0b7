"""Rates of links below which codecs pay on a GPU, from the times of rounds measured there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.harness.report.gpu_record import GpuRecord
from gradwire.harness.report.names import NAMES, rate
from gradwire.harness.report.tables import escaped, number

UNCOMPRESSED = 16
"""Bits per coordinate that BF16 sends."""

WIRE_BITS = {"dynamiq": 5.0, "dynamiq_plus": 5.0, "mxfp8": 8.5}
"""Bits per coordinate that these codecs send with the settings that rounds are measured with."""

DIGITS = 2


@dataclass(frozen=True)
class Break:
    """One codec's round of a bucket on a GPU: milliseconds of a rank and the rate of a link, in Mbit/s, below
    which that is less than what it saves on the wire; None where a round of that kind has no time."""

    device: str
    bucket: str
    codec: str
    eager: tuple[float, float] | None
    captured: tuple[float, float] | None

    @property
    def cells(self) -> list[str]:
        """Its cells in a table, escaped."""
        own = (self.device, self.bucket, self.codec, _words(self.eager), _words(self.captured))
        return list(map(escaped, own))


def breaks(record: GpuRecord) -> list[Break]:
    """The rounds of codecs whose bits are known, those of one bucket and topology together."""
    return [
        Break(
            record.machine.device,
            _bucket(line),
            f"{NAMES['codec'].get(str(line['codec']), line['codec'])}, {WIRE_BITS[line['codec']]:g} bits",
            _below(line, "eager_gpu_ms_per_rank"),
            _below(line, "graph_gpu_ms_per_rank"),
        )
        for line in record.rounds
        if line.get("codec") in WIRE_BITS and "coordinates" in line
    ]


def all_breaks(records: Sequence[GpuRecord]) -> list[Break]:
    return [each for record in records for each in breaks(record)]


def _bucket(line: Mapping[str, Any]) -> str:
    return f"{line['coordinates'] * 4 / 2**20:.0f} MiB, {line['topology']} of {line['n']}"


def _below(line: Mapping[str, Any], key: str) -> tuple[float, float] | None:
    """A rank of n sends 2 (n - 1) / n times the bucket, with so many bits less for each coordinate."""
    milliseconds = line.get(key)
    if not milliseconds:
        return None
    saved = UNCOMPRESSED - WIRE_BITS[line["codec"]]
    megabits = 2 * (line["n"] - 1) / line["n"] * line["coordinates"] * saved / 1e6
    return float(milliseconds), megabits / (milliseconds / 1e3)


def _words(found: tuple[float, float] | None) -> str:
    if found is None:
        return "–"
    milliseconds, mbit = found
    rounded = float(f"{mbit:.{DIGITS}g}")
    return f"{number(milliseconds, 3)} ms, below {rate(rounded)}"
