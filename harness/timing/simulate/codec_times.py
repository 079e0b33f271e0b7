"""How long a rank's codec work takes: as measured in the run, or nothing at all."""

from __future__ import annotations

from typing import Protocol

from gradwire.harness.timing.trace.step import Work


class CodecTimes(Protocol):
    """Seconds of a piece of codec work on a bucket of `coordinates`."""

    def seconds(self, work: Work, coordinates: int) -> float: ...


class MeasuredTimes:
    """As the run that made the trace measured it."""

    def seconds(self, work: Work, coordinates: int) -> float:
        return work.end - work.start


class NoTimes:
    """Codecs that cost nothing, which leaves the time of the network alone."""

    def seconds(self, work: Work, coordinates: int) -> float:
        return 0.0
