"""The synchronization of one bucket: the coroutine that every rank of every world runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.interface import Codec, Round
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.world.interface import Collective, World
from gradwire.harness.parallel.interface import GradientError
from gradwire.harness.timing.trace.step import MEASURE

SLICE = 1 << 22
"""Coordinates whose exact average is formed at once. In float64 a whole bucket would need several times its
memory, for every rank that this process hosts."""


@dataclass(frozen=True)
class MeasuredBucket:
    """Copies kept on a measured step: one rank's raw bucket and its synchronized result."""

    raw: Tensor
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
            sums = world.run({rank: _squared_sums(world, slices[rank][number]) for rank in world.ranks})
            slice_error, slice_norm = sums[world.ranks[0]]
            error, norm = error + slice_error, norm + slice_norm
    return GradientError(error, norm)


def _slices(bucket: MeasuredBucket) -> list[MeasuredBucket]:
    pairs = zip(torch.split(bucket.raw, SLICE), torch.split(bucket.synchronized, SLICE), strict=True)
    return [MeasuredBucket(raw, synchronized) for raw, synchronized in pairs]


def _squared_sums(world: World, part: MeasuredBucket) -> Collective[tuple[float, float]]:
    async def run(comm: ScheduledCollectives) -> tuple[float, float]:
        (total,) = await comm.in_phase(MEASURE).reduce([(part.raw.double(), "sum")])
        average = total / world.size
        difference = average - part.synchronized.double()
        return float(difference.square().sum()), float(average.square().sum())

    return run


def gather_raw(world: World, buckets: Mapping[int, Sequence[MeasuredBucket]]) -> Tensor:
    """All ranks' raw gradients, (ranks, coordinates) on the CPU, bucket after bucket; bytes are not counted.

    `buckets` per hosted rank. The result is the same on every rank.
    """
    gathered = []
    for index in range(len(buckets[world.ranks[0]])):
        rows = world.run({rank: _gather(buckets[rank][index].raw) for rank in world.ranks})
        gathered.append(torch.stack(rows[world.ranks[0]]).cpu())
    return torch.cat(gathered, dim=1)


def _gather(raw: Tensor) -> Collective[list[Tensor]]:
    async def run(comm: ScheduledCollectives) -> list[Tensor]:
        return await comm.in_phase(MEASURE).all_gather(raw)

    return run
