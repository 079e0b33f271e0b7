"""Profiles: the times of a step's work, calibrated once for all runs with the same work. Computation is
recorded by phase, bucket or block, codec work by operation and size."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gradwire.harness.network.settings import FORWARD_SHARE
from gradwire.harness.timing.trace.step import (
    Await,
    Barrier,
    Compute,
    LaneOperation,
    RankTrace,
    StepTrace,
    Work,
    encodes_or_decodes,
    passes_until,
    stage_pass_of,
)

LOW, HIGH = 0.1, 0.9
"""The quantiles that describe a spread."""


@dataclass(frozen=True)
class Quantiles:
    """The tenth, fiftieth and ninetieth percentile of `count` observed times, in seconds."""

    p10: float
    median: float
    p90: float
    count: int

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Quantiles:
        """The quantiles of one or more observations."""
        found = sorted(seconds)
        return cls(quantile(found, LOW), quantile(found, 0.5), quantile(found, HIGH), len(found))


def quantile(ascending: Sequence[float], share: float) -> float:
    """The quantile of sorted values for a share, interpolated linearly."""
    at = share * (len(ascending) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (at - low) * (ascending[high] - ascending[low])


@dataclass(frozen=True)
class LaneStretch:
    """The stretch of computation number `place` under a label in a rank's step.

    `rank` is null if all ranks do the same work. For passes by buckets, `share` is the share of all
    coordinates that is ready at the end, and `seconds` are relative to the begin of the step.
    """

    label: str
    place: int
    seconds: Quantiles
    rank: int | None = None
    share: float | None = None


@dataclass(frozen=True)
class WorkPiece:
    """A piece of codec work: the labels of its parts, the coordinates of its bucket, the total share of them
    that it works on, and its index among its collective's operations."""

    labels: list[str]
    coordinates: int
    share: float
    place: int
    seconds: Quantiles


def observed_lanes(steps: Sequence[StepTrace], *, of_codec: bool) -> list[LaneStretch]:
    """The stretches of computation in measured steps, either those that encode or decode (`of_codec`) or the
    others.

    Observations of all ranks are combined, except in a pipeline, whose stages differ.
    """
    found: dict[tuple[str, int, int | None, float | None], list[float]] = defaultdict(list)
    for rank, own in ((rank, own) for step in steps for rank, own in step.items()):
        by_rank = rank if any(_stage(one) for one in own.computation) else None
        for place, one, share, since in _stretches(own):
            if encodes_or_decodes(one.label) == of_codec:
                found[one.label, place, by_rank, share].append(one.end - since)
    return [
        LaneStretch(label, place, Quantiles.of(seconds), rank, share)
        for (label, place, rank, share), seconds in found.items()
    ]


def _stage(one: LaneOperation) -> bool:
    return isinstance(one, Compute) and stage_pass_of(one.label) is not None


def _stretches(own: RankTrace) -> Iterator[tuple[int, Compute, float | None, float]]:
    """Each stretch of a rank's computation: its index, itself, its share if it is a pass by buckets, and the
    time that its seconds are relative to."""
    shares, seen = pass_shares(own), Counter[str]()
    for one in own.computation:
        if isinstance(one, Compute):
            share = shares.get(one.label)
            yield seen[one.label], one, share, one.start if share is None else 0.0
            seen[one.label] += 1


def pass_shares(own: RankTrace) -> dict[str, float]:
    """The share of all coordinates that is ready at the end of each pass by buckets, by label."""
    sizes = [task.coordinates for task in own.passes]
    done, found = 0, {}
    for bucket, size in enumerate(sizes):
        done += size
        found[passes_until(bucket)] = done / max(sum(sizes), 1)
    return found


def step_seconds(steps: Sequence[StepTrace]) -> Quantiles:
    """The seconds that a rank computes in a step."""
    return Quantiles.of(own.end for step in steps for own in step.values())


def observed_work(steps: Sequence[StepTrace]) -> list[WorkPiece]:
    """The pieces of codec work in measured steps, with all ranks combined."""
    found: dict[WorkKey, list[float]] = defaultdict(list)
    for task in (task for step in steps for own in step.values() for task in own.tasks):
        for place, one in enumerate(task.operations):
            if isinstance(one, Work):
                found[work_key(one, task.coordinates, place)].append(one.end - one.start)
    return [
        WorkPiece(list(key.labels), key.coordinates, key.share, key.place, Quantiles.of(seconds))
        for key, seconds in found.items()
    ]


class WorkKey(NamedTuple):
    """The key that distinguishes pieces of codec work: see `WorkPiece`."""

    labels: tuple[str, ...]
    coordinates: int
    share: float
    place: int


def work_key(work: Work, coordinates: int, place: int) -> WorkKey:
    """The key of a piece of work on a bucket of `coordinates`, operation number `place` of its collective."""
    share = round(sum(part.share for part in work.parts), 6)
    return WorkKey(tuple(part.label for part in work.parts), coordinates, share, place)


@dataclass
class LaneTimes:
    """Replaces the measured seconds of a rank's computation by those of a profile.

    If a run's buckets differ from the profile's, times of the backward pass are interpolated by share of
    coordinates; other stretches that are cut into a different number of parts are divided equally. Labels
    that the profile lacks keep their measured times and are counted in `unknown`.
    """

    stretches: Sequence[LaneStretch]
    unknown: int = 0
    _seconds: dict[tuple[int | None, str], list[float]] = field(default_factory=dict, repr=False)
    _ready: list[tuple[float, float]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        for one in sorted(self.stretches, key=lambda one: one.place):
            if one.share is None:
                self._seconds.setdefault((one.rank, one.label), []).append(counted(one.seconds))
        ready = {one.share: counted(one.seconds) for one in self.stretches if one.share is not None}
        self._ready = sorted(ready.items())

    def lane(self, own: RankTrace, rank: int) -> tuple[LaneOperation, ...]:
        """The rank's computation, each stretch with its `seconds` since the lane last woke."""
        shares = pass_shares(own) if self._ready else {}
        counts = Counter(one.label for one in own.computation if isinstance(one, Compute))
        seen, found, woken_s = Counter[str](), list[LaneOperation](), 0.0
        for one in own.computation:
            if isinstance(one, Compute):
                if one.label in shares:
                    woken_s = self._ready_at(shares[one.label])
                else:
                    woken_s += self._of(one, rank, seen[one.label], counts[one.label])
                seen[one.label] += 1
                found.append(one._replace(seconds=woken_s))
                continue
            if isinstance(one, Await | Barrier):
                woken_s = 0.0
            found.append(one)
        return tuple(found)

    def _of(self, one: Compute, rank: int, place: int, count: int) -> float:
        known = self._seconds.get((None, one.label)) or self._seconds.get((rank, one.label))
        if known is None:
            self.unknown += 1
            return one.end - one.start
        return known[place] if len(known) == count else sum(known) / count

    def _ready_at(self, share: float) -> float:
        """The time within the step at which this share of all coordinates is ready."""
        last_s = self._ready[-1][1]
        low_share, low_s = 0.0, min(FORWARD_SHARE * last_s, self._ready[0][1])
        for high_share, high_s in self._ready:
            if share == high_share:
                return high_s
            if share < high_share:
                return low_s + (share - low_share) / (high_share - low_share) * (high_s - low_s)
            low_share, low_s = high_share, high_s
        return last_s


@dataclass
class WorkTimes:
    """Codec times from a profile: those of the same operations at the same index, else at any index, else in
    proportion to the nearest size. Work that the profile lacks keeps its measured time and is counted in
    `unknown`."""

    pieces: Sequence[WorkPiece]
    unknown: int = 0
    _known: dict[WorkKey, float | None] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for one in self.pieces:
            key = WorkKey(tuple(one.labels), one.coordinates, one.share, one.place)
            self._known[key] = counted(one.seconds)

    def seconds(self, work: Work, coordinates: int, place: int = 0) -> float:
        key = work_key(work, coordinates, place)
        if key not in self._known:
            self._known[key] = self._nearest(key)
        found = self._known[key]
        if found is None:
            self.unknown += 1
            return work.end - work.start
        return found

    def _nearest(self, key: WorkKey) -> float | None:
        alike = [one for one in self.pieces if tuple(one.labels) == key.labels]
        if not alike:
            return None
        size = key.share * key.coordinates

        def distance(one: WorkPiece) -> tuple[float, int]:
            own = one.share * one.coordinates
            return abs(math.log(max(own, 1) / max(size, 1))), abs(one.place - key.place)

        near = min(alike, key=distance)
        own = near.share * near.coordinates
        return counted(near.seconds) * (size / own if own > 0 and size > 0 else 1.0)


def counted(spread: Quantiles) -> float:
    """The representative time: the tenth percentile. Other load on a machine can only increase the CPU time
    of the same work, through shared caches and cores, so a low quantile is reproducible where a median is
    not."""
    return spread.p10
