"""The synchronization of one bucket: the coroutine that every rank of every world runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.world.interface import Collective, RankProgram, RankStep, World
from gradwire.harness.parallel.interface import GradientError
from gradwire.harness.timing.trace.step import MEASURE

SLICE = 1 << 22
"""Coordinates whose exact average is formed at once. In float64 a whole bucket would need several times its
memory, for every rank that this process hosts."""


@dataclass(frozen=True)
class MeasuredBucket:
    """What is kept of a measured step: one rank's raw bucket, which may have to be read, and the result."""

    read_raw: Callable[[], Tensor]
    synchronized: Tensor


def synchronization(codec: Codec, x: Tensor, this_round: Round, check_hashes: bool) -> Collective[Tensor]:
    """The coroutine that turns bucket `x` of `this_round.rank` into the mean over all ranks.

    One rank alone has nothing to synchronize: its gradient passes untouched. RuntimeError when the
    codec's result does not fit the bucket or, with `check_hashes`, differs between ranks.
    """

    async def run(comm: ScheduledCollectives) -> Tensor:
        if this_round.size == 1:
            return x
        mean = await codec.synchronize(x, this_round, comm)
        # A result of another length or dtype would be taken silently by DistributedDataParallel.
        if mean.shape != x.shape or mean.dtype != x.dtype:
            raise RuntimeError(f"codec returned {mean.dtype}{list(mean.shape)} for {x.dtype}{list(x.shape)}")
        if check_hashes:
            await _compare_hashes(mean, this_round, comm)
        return mean

    return run


def synchronize_buckets(
    codec: Codec,
    step: int,
    seed: int,
    size: int,
    buckets: Sequence[tuple[Layout, Tensor]],
    *,
    check_hashes: bool,
) -> RankProgram[list[Tensor]]:
    """A rank's program for a step of nothing but synchronization: returns the buckets' means.

    `buckets` are this rank's own, all of them ready as the step begins.
    """

    async def run(rank_step: RankStep) -> list[Tensor]:
        def make(index: int, layout: Layout, x: Tensor) -> Collective[Tensor]:
            this_round = Round(step, layout, rank_step.rank, size, seed, index)
            return synchronization(codec, x, this_round, check_hashes)

        started = [
            rank_step.start(
                partial(make, index, layout),
                x,
                buffers=str(layout.uid),
                coordinates=layout.numel,
                in_turn=codec.traits.uses_backend,
                is_own=True,
            )
            for index, (layout, x) in enumerate(buckets)
        ]
        return [await mean for mean in started]

    return run


async def _compare_hashes(mean: Tensor, this_round: Round, comm: ScheduledCollectives) -> None:
    digest = hashlib.blake2b(mean.cpu().view(torch.uint8).numpy().tobytes(), digest_size=16).digest()
    own = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(mean.device)
    hashes = await comm.in_phase(MEASURE).all_gather(own)
    different = [rank for rank, other in enumerate(hashes) if not torch.equal(other, hashes[0])]
    if different:
        raise RuntimeError(
            f"step {this_round.step}: ranks {different} hold other gradients than rank 0 after the round"
        )


def gradient_error(world: World, buckets: Mapping[int, Sequence[MeasuredBucket]]) -> GradientError:
    """vNMSE's sums over all buckets, the same on every rank; `buckets` per hosted rank.

    The exact average is the sum in float64 partial sums over the run's own topology, uncounted.
    """
    error = norm = 0.0
    for index in range(len(buckets[world.ranks[0]])):
        slices = {rank: _slices(buckets[rank][index]) for rank in world.ranks}
        for number in range(len(slices[world.ranks[0]])):
            # A collective of its own each: message buffers are used again in the next one.
            sums = world.run({rank: _squared_sums(world, *slices[rank][number]) for rank in world.ranks})
            slice_error, slice_norm = sums[world.ranks[0]]
            error, norm = error + slice_error, norm + slice_norm
    return GradientError(error, norm)


def _slices(bucket: MeasuredBucket) -> list[tuple[Tensor, Tensor]]:
    """(raw, synchronized) coordinates."""
    split = torch.split(bucket.read_raw(), SLICE), torch.split(bucket.synchronized, SLICE)
    return list(zip(*split, strict=True))


def _squared_sums(world: World, raw: Tensor, synchronized: Tensor) -> Collective[tuple[float, float]]:
    async def run(comm: ScheduledCollectives) -> tuple[float, float]:
        (total,) = await comm.in_phase(MEASURE).reduce([(raw.double(), "sum")])
        average = total / world.size
        difference = average - synchronized.double()
        return float(difference.square().sum()), float(average.square().sum())

    return run


def gather_raw(world: World, buckets: Mapping[int, Sequence[MeasuredBucket]]) -> Tensor:
    """All ranks' raw gradients, (ranks, coordinates) on the CPU, bucket after bucket; bytes are not counted.

    `buckets` per hosted rank. The result is the same on every rank.
    """
    gathered = []
    for index in range(len(buckets[world.ranks[0]])):
        rows = world.run({rank: _gather(buckets[rank][index].read_raw()) for rank in world.ranks})
        gathered.append(torch.stack(rows[world.ranks[0]]).cpu())
    return torch.cat(gathered, dim=1)


def _gather(raw: Tensor) -> Collective[list[Tensor]]:
    async def run(comm: ScheduledCollectives) -> list[Tensor]:
        return await comm.in_phase(MEASURE).all_gather(raw)

    return run
