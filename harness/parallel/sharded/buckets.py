"""Flat buffers: a bucket's weights, of which the model's parameters are views, and its gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradwire.codecs.interface import Layout
from gradwire.codecs.shards import Shard

MIB = 1 << 20


@dataclass(frozen=True)
class FlatBucket:
    """The parameters of `layout`, one after another: `weights`, (numel,) in the model's dtype, the same on
    all ranks, and `gradient`, (numel,) float32, that of one rank at a time. `shards` are those of all ranks.
    """

    layout: Layout
    weights: Tensor
    gradient: Tensor
    shards: tuple[Shard, ...]

    @property
    def sizes(self) -> list[int]:
        """Coordinates of each rank's shard."""
        return [shard.numel for shard in self.shards]

    def views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The parameters' places in `weights` or `gradient`, by name, in their shapes."""
        layout = self.layout
        for name, shape, offset in zip(layout.names, layout.shapes, layout.offsets, strict=True):
            yield name, flat[offset : offset + math.prod(shape)].view(shape)


def bucketed(names: Sequence[str], sizes: Mapping[str, int], cap_mb: float) -> list[tuple[str, ...]]:
    """Parameters by bucket, in their order: a bucket is closed as soon as its float32 gradients take `cap_mb`
    MiB, as DistributedDataParallel does it."""
    found: list[list[str]] = [[]]
    size = 0
    for name in names:
        if size >= cap_mb * MIB:
            found.append([])
            size = 0
        found[-1].append(name)
        size += 4 * sizes[name]
    return [tuple(bucket) for bucket in found if bucket]


def flattened(
    layout: Layout, shards: tuple[Shard, ...], parameters: Mapping[str, nn.Parameter], dtype: torch.dtype
) -> tuple[FlatBucket, Tensor]:
    """Moves parameters into flat buffers, of which they become views, in `dtype`.

    Returns the bucket and the weights as they were, (numel,) float32.
    """
    owners = [parameters[name] for name in layout.names]
    whole = torch.cat([owner.detach().reshape(-1).float() for owner in owners])
    bucket = FlatBucket(layout, whole.to(dtype, copy=True), torch.zeros_like(whole), shards)
    for owner, (_, view) in zip(owners, bucket.views(bucket.weights), strict=True):
        owner.data = view
    return bucket, whole
