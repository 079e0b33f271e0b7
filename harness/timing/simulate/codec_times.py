"""The times of codec work: as the run measured them, zero, or as `task=bench` measured them on another
device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gradwire.codecs.costs import NOTHING, Cost, Costs
from gradwire.codecs.interface import Codec
from gradwire.codecs.registry import codec_names, make_codec
from gradwire.codecs.wording import shortened, spelled
from gradwire.codecs.wrappers.decisions import Decisions
from gradwire.codecs.wrappers.wrapper import Wrapper
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import read_json
from gradwire.harness.timing.trace.step import Work

DTYPE = "float32"
"""The dtype of the buckets whose rows are used; most gradients have it."""

COMPILED, DEFINITION = ("cpu", "cuda"), "default"
"""Implementations whose rows are used, and the fallback for operations without such rows."""

REMEDY = "give one that task=bench wrote"

LARGEST = 1e18
"""The largest size, time or rate that is accepted."""

MERGED = {"dynamiq.plan": ("dynamiq.reduced", "dynamiq.allocation", "dynamiq.order")}
"""Operations that used to be several in older tables: their times are added up."""

ANY = "mxfp.copy.8"
"""An operation to benchmark if only the speed of copies is needed."""


class CodecTimes(Protocol):
    """Returns the seconds of a piece of codec work on a bucket of `coordinates`, operation number `place` of
    its collective."""

    def seconds(self, work: Work, coordinates: int, place: int = 0) -> float: ...


class MeasuredTimes:
    """Codec times as the run that made the trace measured them."""

    def seconds(self, work: Work, coordinates: int, place: int = 0) -> float:
        return work.end - work.start


class NoTimes:
    """Zero codec times, to isolate the time of the network."""

    def seconds(self, work: Work, coordinates: int, place: int = 0) -> float:
        return 0.0


class Rate(NamedTuple):
    """Seconds per coordinate, or per byte, for buckets of `numel` coordinates."""

    numel: int
    seconds: float


@dataclass(frozen=True)
class DeviceTimes:
    """The measurements on a device: the time of each operation, and the time per byte of a copy (read or
    write)."""

    operations: Mapping[str, Sequence[Rate]]
    copies: Sequence[Rate]
    on_cpu: bool

    def seconds(self, cost: Cost, coordinates: int) -> float:
        """The seconds per coordinate for a bucket of `coordinates`."""
        num_bytes = cost.cpu_bytes if self.on_cpu else cost.num_bytes
        copied = num_bytes * nearest(self.copies, coordinates) if num_bytes else 0.0
        return copied + sum(
            count * nearest(self.operations[name], coordinates) for name, count in cost.operations.items()
        )


@dataclass
class BenchTimes:
    """Codec times from benchmarked operations, for the share of the bucket's coordinates that a part of the
    work covers.

    The measured size nearest to the bucket's (as a ratio) is used, not the one nearest to the part's, because
    caching depends on the whole bucket. From there time is proportional to coordinates. The fastest
    implementation and number of threads are used.
    """

    parts: Costs
    table: DeviceTimes
    _known: dict[tuple[str, int], float] = field(default_factory=dict, repr=False)

    def seconds(self, work: Work, coordinates: int, place: int = 0) -> float:
        return sum(part.share * coordinates * self._each(part.label, coordinates) for part in work.parts)

    def _each(self, label: str, coordinates: int) -> float:
        key = label, coordinates
        if key not in self._known:
            self._known[key] = self.table.seconds(self.parts[label], coordinates)
        return self._known[key]


def read_bench_times(path: str | Path, codec: Codec, workers: int) -> CodecTimes:
    """The times of `codec` among `workers` on the device that was benchmarked in the `bench.json` at `path`.

    Raises ValueError, in one line, for a file without such rows, for codecs without benchmarked costs, and
    for operations that were not measured.
    """
    given = f"network.codec_times={path}"
    try:
        parts, table = costs_of(codec, workers), _table(path)
    except UnusableFileError as error:
        raise ValueError(f"{given}: not a file that task=bench writes: {error.problem}; {REMEDY}") from None
    except ValueError as error:
        raise ValueError(f"{given}: {error}") from None
    names = list(dict.fromkeys(name for cost in parts.values() for name in cost.operations))
    missing = [name for name in names if name not in table.operations]
    if not table.copies:
        missing = names or [ANY]
    if missing:
        raise ValueError(
            f"{given} has no {DTYPE} row of {missing[0]}, which codec={codec.name} needs; measure there with "
            f"task=bench bench.operations=[{','.join(missing)}]"
        )
    return BenchTimes(parts, table)


def costs_of(codec: Codec, workers: int) -> Costs:
    """The costs of all steps of this codec among `workers`.

    Raises ValueError for codecs and wrappers without benchmarked costs.
    """
    instead = "or network.codec_times=measured"
    if isinstance(codec, Decisions):  # which costs nothing itself
        codec = codec.inner
    if isinstance(codec, Wrapper):
        (option,) = (f"codec.{name}={spelled(value)}" for name, value in codec.options().items())
        raise ValueError(f"{option} has no benchmarked operations; leave it out, {instead}")
    costs = codec.costs(workers)
    if costs is None:
        known = [name for name in codec_names() if make_codec(name).costs(workers) is not None]
        raise ValueError(
            f"codec={codec.name} has no benchmarked operations; choose one of {', '.join(known)}, {instead}"
        )
    # Hashes that a run compares to be safe are the only thing prepared.
    return {"prepare": NOTHING, **costs}


def nearest(rates: Iterable[Rate], coordinates: int) -> float:
    """Seconds at the size with the smallest ratio to `coordinates`; of several rows, the fastest."""
    return min((abs(math.log(rate.numel / max(coordinates, 1))), rate.seconds) for rate in rates)[1]


def _table(path: str | Path) -> DeviceTimes:
    compiled: dict[str, list[Rate]] = {}
    definitions: dict[str, list[Rate]] = {}
    copies = set()
    found = read_json(path, remedy=REMEDY)
    try:
        for number, row in enumerate(found["rows"], start=1):
            if row["dtype"] == DTYPE:
                _check_row(row, number, path)
                if row["copy_bytes_per_s"] is not None:  # else the clock has seen no time pass
                    copies.add(Rate(row["numel"], 1 / row["copy_bytes_per_s"]))
                _keep(row, definitions if row["implementation"] == DEFINITION else compiled)
        on_cpu = found["device"] == "cpu"
    except KeyError as error:
        raise UnusableFileError(path, f"it or a row of it has no {error.args[0]}", REMEDY) from None
    except (TypeError, AttributeError):
        raise UnusableFileError(path, "it has no rows of values by name", REMEDY) from None
    return DeviceTimes(_merged(definitions) | _merged(compiled), sorted(copies), on_cpu)


def _check_row(row: Mapping[str, Any], number: int, path: str | Path) -> None:
    """Raises UnusableFileError for an implausible size or time."""
    found = [("numel", row["numel"], 1.0)]
    if row["copy_bytes_per_s"] is not None:
        found.append(("copy_bytes_per_s", row["copy_bytes_per_s"], 1.0))
    if row["implementation"] in (*COMPILED, DEFINITION):
        found.append(("times.shortest_s", row["times"]["shortest_s"], 0.0))
    for name, value, least in found:
        kinds = int if name == "numel" else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= LARGEST:
            kind = "whole number" if name == "numel" else "number"
            problem = f"row {number} has {name}={shortened(str(value))}, not a {kind} of at least {least:g}"
            raise UnusableFileError(path, problem, REMEDY)


def _merged(rates: dict[str, list[Rate]]) -> dict[str, list[Rate]]:
    """Adds the sums of `MERGED` operations if a table only has their parts."""
    for name, parts in MERGED.items():
        if name not in rates and all(part in rates for part in parts):
            sizes = sorted({rate.numel for part in parts for rate in rates[part]})
            rates[name] = [Rate(n, sum(nearest(rates[part], n) for part in parts)) for n in sizes]
    return rates


def _keep(row: Mapping[str, Any], into: dict[str, list[Rate]]) -> None:
    """Adds a row to `into`, unless it is a peer's (another library's)."""
    if row["implementation"] in (*COMPILED, DEFINITION):
        rate = Rate(row["numel"], row["times"]["shortest_s"] / row["numel"])
        into.setdefault(row["operation"], []).append(rate)
