"""The errors of a measured step: of the mean gradient, and of the main weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradwire.harness.comm.collective.collectives import all_gathering
from gradwire.harness.comm.world.interface import World
from gradwire.harness.parallel.gradient_error import GradientError, MeasuredBucket, gradient_error
from gradwire.harness.parallel.sharded.shards import FlatBucket, ShardOptimizer
from gradwire.harness.timing.trace.step import MEASURE

Copies = Mapping[int, Sequence[MeasuredBucket]]
"""The hosted ranks' buckets of a measured step, by rank; the synchronized part is only each rank's shard."""


def sharded_error(
    world: World, buckets: Sequence[FlatBucket], copies: Copies, optimizers: Mapping[int, ShardOptimizer]
) -> GradientError:
    """The error of the scattered mean, the share of it that was set to zero and, if there are `optimizers`
    with main weights, the distance of the model's weights from the main weights."""
    found = gradient_error(world, whole_buckets(world, buckets, copies))
    figures = {} if found.zeroed is None else {"zeroed_share": found.zeroed}
    if optimizers:
        figures["weight_error"] = weight_error(world, buckets, optimizers)
    return replace(found, figures=figures)


def whole_buckets(
    world: World, buckets: Sequence[FlatBucket], copies: Copies
) -> dict[int, list[MeasuredBucket]]:
    """The buckets of the mean, assembled from all ranks' shards, for each rank of this process."""
    found: dict[int, list[MeasuredBucket]] = {rank: [] for rank in world.ranks}
    for number, bucket in enumerate(buckets):
        whole = _whole(world, bucket, {rank: copies[rank][number].synchronized for rank in world.ranks})
        for rank in world.ranks:
            found[rank].append(MeasuredBucket(copies[rank][number].read_raw, whole))
    return found


def whole_main(
    world: World, buckets: Sequence[FlatBucket], optimizers: Mapping[int, ShardOptimizer]
) -> Tensor:
    """All main weights, (numel,) float32 on the CPU, assembled from all ranks' shards."""
    found = []
    for number, bucket in enumerate(buckets):
        whole = _whole(world, bucket, {rank: own.shards[number] for rank, own in optimizers.items()})
        found.append(whole.cpu())
    return torch.cat(found)


def _whole(world: World, bucket: FlatBucket, shards: Mapping[int, Tensor]) -> Tensor:
    """A bucket's values, (numel,) float32, assembled from all ranks' shards."""
    gathered = world.run({rank: all_gathering(own, MEASURE, bucket.sizes) for rank, own in shards.items()})
    whole = torch.empty_like(bucket.gradient)
    for shard, values in zip(bucket.shards, gathered[world.ranks[0]], strict=True):
        shard.put(values, whole)
    return whole


def weight_error(
    world: World, buckets: Sequence[FlatBucket], optimizers: Mapping[int, ShardOptimizer]
) -> float:
    """|main − model| / |main| over all weights, the same on every rank."""
    rows = world.gather({rank: _squares(buckets, optimizer) for rank, optimizer in optimizers.items()})
    differences, mains = (sum(column) for column in zip(*rows, strict=True))
    return math.sqrt(differences / mains) if mains else 0.0


def _squares(buckets: Sequence[FlatBucket], optimizer: ShardOptimizer) -> tuple[float, float]:
    """The sums of the squares of main − model and of main in a rank's shards, in float64."""
    difference = main_squares = 0.0
    for main, bucket in zip(optimizer.shards, buckets, strict=True):
        model = bucket.shards[optimizer.rank].take(bucket.weights)
        difference += float(torch.linalg.vector_norm(main - model, dtype=torch.float64)) ** 2
        main_squares += float(torch.linalg.vector_norm(main, dtype=torch.float64)) ** 2
    return difference, main_squares
