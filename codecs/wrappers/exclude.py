"""Parameters that travel in bf16 whatever the codec: those whose names match a glob of `codec.exclude`.

A bucket is split by its layout: the codec synchronizes the remaining parameters, then BF16 synchronizes the
excluded ones, and both means are put back in their places. A bucket without excluded parameters goes to the
codec unchanged. Excluded parameters of a dtype that no codec supports, e.g. float64, travel in that dtype.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import accumulate

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.collectives import Collectives, Kept
from gradwire.codecs.exact import BF16
from gradwire.codecs.interface import GRADIENT_DTYPES, Codec, Elapsed, Layout, Round
from gradwire.codecs.shards import Shard, joined
from gradwire.codecs.wrappers.wrapper import Wrapper

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BucketPart:
    """Some of a bucket's parameters: a layout of their own, and the place of each in the bucket."""

    layout: Layout
    places: tuple[slice, ...]

    def take(self, x: Tensor) -> Tensor:
        """These parameters' coordinates of a bucket (numel,), one after another."""
        return torch.cat([x[place] for place in self.places])

    def put(self, mean: Tensor, bucket: Tensor) -> None:
        """The inverse of `take`, into `bucket`."""
        lengths = [place.stop - place.start for place in self.places]
        for place, values in zip(self.places, torch.split(mean, lengths), strict=True):
            bucket[place] = values


def part_of(layout: Layout, chosen: Sequence[int]) -> BucketPart | None:
    """The parameters at the positions `chosen` (ascending) of a bucket; None if `chosen` is empty."""
    if not chosen:
        return None
    shapes = tuple(layout.shapes[i] for i in chosen)
    ends = list(accumulate(math.prod(shape) for shape in shapes))
    own = replace(
        layout,
        names=tuple(layout.names[i] for i in chosen),
        shapes=shapes,
        offsets=(0, *ends[:-1]),
        numel=ends[-1],
    )
    return BucketPart(own, tuple(layout.places[i] for i in chosen))


@dataclass(frozen=True)
class BucketSplit:
    """A bucket's parameters, split into those for the codec and those for BF16."""

    remaining: BucketPart | None
    excluded: BucketPart | None


class Uncompressed(Codec):
    """Sums in the bucket's own dtype."""

    name = "uncompressed"

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        (total,) = await comm.reduce([(x, "sum")])
        return total / this_round.size


class Exclude(Wrapper):
    """Applies `inner` to all parameters except those whose names match one of `globs`.

    A glob that matches no parameter causes a warning at the end of the first step, when all names are known.
    """

    def __init__(self, inner: Codec, globs: Sequence[str]) -> None:
        super().__init__(inner)
        self._globs, self._bf16, self._uncompressed = tuple(globs), BF16(), Uncompressed()
        self._splits: dict[Layout, BucketSplit] = {}
        self._names: list[str] | None = []
        """The names seen in the first step on rank 0; None on other ranks, and once that step is over."""

    def options(self) -> dict[str, object]:
        return {"exclude": self._globs}

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        remaining = self._split(layout).remaining
        return None if remaining is None else self.inner.supports(topology, size, remaining.layout)

    def refuses_buckets(self, layouts: Sequence[Layout], size: int, num_chunks: int) -> str | None:
        remaining = [own.layout for own in (self._split(each).remaining for each in layouts) if own]
        return self.inner.refuses_buckets(remaining, size, num_chunks) if remaining else None

    def refuses_capture(self, layout: Layout) -> str | None:
        remaining = self._split(layout).remaining
        return None if remaining is None else self.inner.refuses_capture(remaining.layout)

    def prepare_capture(self, this_round: Round) -> None:
        remaining = self._split(this_round.layout).remaining
        if remaining is not None:
            self.inner.prepare_capture(replace(this_round, layout=remaining.layout))

    def captured_form(self, this_round: Round) -> Hashable:
        remaining = self._split(this_round.layout).remaining
        if remaining is None:
            return None
        return self.inner.captured_form(replace(this_round, layout=remaining.layout))

    def captured_key(self, this_round: Round) -> Key:
        """That of the codec's part: the excluded parameters travel without random bits."""
        remaining = self._split(this_round.layout).remaining
        if remaining is None:
            return this_round.key
        return self.inner.captured_key(replace(this_round, layout=remaining.layout))

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        self._see(this_round)
        split = self._split(this_round.layout)
        if split.excluded is None:
            return await self.inner.synchronize(x, this_round, comm)
        mean = torch.empty_like(x)
        plain = self._bf16 if x.dtype in GRADIENT_DTYPES else self._uncompressed
        for part, codec in ((split.remaining, self.inner), (split.excluded, plain)):
            if part is not None:
                own = replace(this_round, layout=part.layout)
                part.put(await codec.synchronize(part.take(x), own, comm), mean)
        return mean

    async def refine(
        self, mean: Tensor, this_round: Round, comm: Collectives, elapsed: Elapsed | None = None
    ) -> Tensor:
        split = self._split(this_round.layout)
        if split.excluded is None:
            return await self.inner.refine(mean, this_round, comm, elapsed)
        part, refined = split.remaining, mean.clone()
        if part is not None:
            own = replace(this_round, layout=part.layout)
            part.put(await self.inner.refine(part.take(mean), own, comm, elapsed), refined)
        return refined

    def shards(self, layout: Layout, kept: Kept) -> tuple[Shard, ...]:
        """Each rank's shard of the codec's parameters, then that of the excluded ones."""
        split = self._split(layout)
        parts = [
            [shard.moved(part.places) for shard in codec.shards(part.layout, kept)]
            for part, codec in ((split.remaining, self.inner), (split.excluded, self._bf16))
            if part is not None
        ]
        return tuple(joined(own) for own in zip(*parts, strict=True))

    async def scatter(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        self._see(this_round)
        split, found = self._split(this_round.layout), []
        for part, codec in ((split.remaining, self.inner), (split.excluded, self._bf16)):
            if part is not None:
                own = replace(this_round, layout=part.layout)
                found.append(await codec.scatter(part.take(x), own, comm))
        return torch.cat(found)

    def activity(self) -> Mapping[str, float]:
        """The share of coordinates in excluded parameters, and what the codec did with the others."""
        total = sum(layout.numel for layout in self._splits)
        sizes = [split.excluded.layout.numel for split in self._splits.values() if split.excluded is not None]
        return {**super().activity(), **({"excluded": sum(sizes) / total} if total else {})}

    def end_step(self, step: int) -> Mapping[str, float]:
        self._warn_of_globs_without_match()
        return super().end_step(step)

    def skip_step(self, step: int) -> Mapping[str, float]:
        self._warn_of_globs_without_match()
        return super().skip_step(step)

    def _see(self, this_round: Round) -> None:
        """Collects parameter names in the first step, on rank 0."""
        if this_round.rank:
            self._names = None
        if self._names is not None:
            self._names += this_round.layout.names

    def _split(self, layout: Layout) -> BucketSplit:
        if layout not in self._splits:
            matched = [any(fnmatchcase(name, glob) for glob in self._globs) for name in layout.names]
            if any(matched):
                excluded = part_of(layout, [i for i, match in enumerate(matched) if match])
                remaining = part_of(layout, [i for i, match in enumerate(matched) if not match])
                self._splits[layout] = BucketSplit(remaining, excluded)
            else:
                self._splits[layout] = BucketSplit(BucketPart(layout, (slice(0, layout.numel),)), None)
        return self._splits[layout]

    def _warn_of_globs_without_match(self) -> None:
        if not self._names:
            return
        for glob in self._globs:
            if not any(fnmatchcase(name, glob) for name in self._names):
                logger.warning(
                    "gradwire: exclude: no parameter's name matches %s; one is %s", glob, self._names[0]
                )
        self._names = None
