"""Coordinates of a bucket that a chunk holds, and that a rank keeps as its shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stretches:
    """Stretches of `length` coordinates: `count` of them, the first from coordinate `start` on, the others
    `stride` apart."""

    start: int
    length: int
    stride: int = 1
    count: int = 1

    @property
    def numel(self) -> int:
        return self.length * self.count

    def stretches(self, x: Tensor) -> Tensor:
        """The coordinates of these stretches in a bucket (numel,): a view (count, length)."""
        stop = self.start + (self.count - 1) * self.stride + self.length
        return x[self.start : stop].unfold(0, self.length, self.stride)

    def within(self, start: int, stop: int) -> Iterator[Stretches]:
        """The parts of these stretches between coordinates `start` and `stop`, ascending: at most three
        runs."""
        first = min(max(-((self.start - start) // self.stride), 0), self.count)
        last = max(min((stop - self.length - self.start) // self.stride, self.count - 1), -1)
        if first > 0:
            yield from self._cut(first - 1, start, stop)
        if first <= last:
            yield Stretches(self.start + first * self.stride, self.length, self.stride, last - first + 1)
        if last + 1 < self.count and last + 1 >= first:
            yield from self._cut(last + 1, start, stop)

    def _cut(self, number: int, start: int, stop: int) -> Iterator[Stretches]:
        """The part of stretch `number` between `start` and `stop`."""
        own = self.start + number * self.stride
        low, high = max(own, start), min(own + self.length, stop)
        if low < high:
            yield Stretches(low, high - low)


@dataclass(frozen=True)
class Shard:
    """Some coordinates of a bucket in the order of `runs`, the same in every round."""

    runs: tuple[Stretches, ...] = ()

    @classmethod
    def between(cls, start: int, stop: int) -> Shard:
        """The coordinates from `start` up to `stop`."""
        return cls((Stretches(start, stop - start),) if start < stop else ())

    @property
    def numel(self) -> int:
        return sum(run.numel for run in self.runs)

    def take(self, x: Tensor) -> Tensor:
        """The shard's coordinates of a bucket (numel,), as a new tensor (shard,)."""
        parts = [run.stretches(x).reshape(-1) for run in self.runs]
        return torch.cat(parts) if parts else x[:0].clone()

    def put(self, values: Tensor, into: Tensor) -> None:
        """Writes (shard,) `values` to the shard's coordinates in the bucket `into`, (numel,)."""
        for run, own in zip(self.runs, torch.split(values, [run.numel for run in self.runs]), strict=True):
            run.stretches(into).copy_(own.view(run.count, run.length))

    def moved(self, places: Sequence[slice]) -> Shard:
        """Translates this shard of a small bucket, which consists of the `places` of a larger one, to a shard
        of the larger one."""
        starts = accumulate((place.stop - place.start for place in places), initial=0)
        ends = list(zip(pairwise(starts), places, strict=True))
        found = [
            Stretches(part.start - start + place.start, part.length, part.stride, part.count)
            for run in self.runs
            for (start, stop), place in ends
            for part in run.within(start, stop)
        ]
        return Shard(tuple(found))


def joined(shards: Iterable[Shard]) -> Shard:
    """The coordinates of several shards, one after another."""
    return Shard(tuple(run for shard in shards for run in shard.runs))
