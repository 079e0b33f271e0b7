"""Profiles: the times of a step's work, calibrated once for all runs that do the same; computation by phase,
bucket or block, and codec work by operation and size."""

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
    """Seconds that were observed `count` times: the tenth, the median, the ninetieth percentile."""

    p10: float
    median: float
    p90: float
    count: int

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Quantiles:
        """The spread of one observation or more."""
        found = sorted(seconds)
        return cls(quantile(found, LOW), quantile(found, 0.5), quantile(found, HIGH), len(found))


def quantile(ascending: Sequence[float], share: float) -> float:
    """The value that so large a share of the sorted values does not exceed, between two of them in
    proportion."""
    at = share * (len(ascending) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (at - low) * (ascending[high] - ascending[low])


@dataclass(frozen=True)
class LaneStretch:
    """The `place`-th stretch of computation under a label in a rank's step.

    `rank` is null where all ranks do the same. Of passes by buckets `share` says how large a share of all
    coordinates is ready at their end, and `seconds` count from the step's begin.
    """

    label: str
    place: int
    seconds: Quantiles
    rank: int | None = None
    share: float | None = None


@dataclass(frozen=True)
class WorkPiece:
    """A piece of codec work: the labels of its parts, the coordinates of its bucket, for how large a share of
    them it works in all, and how manieth operation of its collective it is."""

    labels: list[str]
    coordinates: int
    share: float
    place: int
    seconds: Quantiles


def observed_lanes(steps: Sequence[StepTrace], *, of_codec: bool) -> list[LaneStretch]:
    """The stretches of computation in measured steps; those that encode or decode are a codec's.

    Ranks count together, but for a pipeline's, whose stages differ.
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
    """Each stretch of a rank's computation: its place, itself, its share where it is a pass by buckets, and
    since when its seconds count."""
    shares, seen = pass_shares(own), Counter[str]()
    for one in own.computation:
        if isinstance(one, Compute):
            share = shares.get(one.label)
            yield seen[one.label], one, share, one.start if share is None else 0.0
            seen[one.label] += 1


def pass_shares(own: RankTrace) -> dict[str, float]:
    """The share of all coordinates that is ready at the end of each pass by buckets, by its label."""
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
    """The pieces of codec work in measured steps, of all ranks together."""
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
    """The key of a piece of work on a bucket of `coordinates`, its collective's `place`-th operation."""
    share = round(sum(part.share for part in work.parts), 6)
    return WorkKey(tuple(part.label for part in work.parts), coordinates, share, place)


@dataclass
class LaneTimes:
    """Puts the seconds of a profile in the place of those that a rank's computation was measured to take.

    Where a run's buckets are others than those of the profile, the backward pass comes as far in a time as it
    had come through the model's coordinates; where it cuts a stretch of another kind into another number of
    parts, they are equal ones. What the profile has no label for stays as measured and is counted in
    `unknown`.
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
        """The second of the step at which so large a share of all coordinates is ready."""
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
    """Seconds of codec work by a profile: those of the same operations at the same place; else at any place;
    else in proportion to the nearest size. What the profile lacks altogether stays as measured and is counted
    in `unknown`."""

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
    """The seconds that count: the tenth percentile. What else a machine does only adds to the CPU time of
    the same work, by caches and cores that are shared, so that a low quantile repeats where a median does
    not."""
    return spread.p10
