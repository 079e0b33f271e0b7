"""Flat buffers: a bucket's weights, of which the model's parameters are views, and its gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradwire.codecs.interface import Layout
from gradwire.codecs.shards import Shard
from gradwire.harness.parallel.accumulation import GradientBucket


@dataclass(frozen=True)
class FlatBucket(GradientBucket):
    """Also the `weights` of its parameters, (numel,) in the model's dtype, the same on all ranks, and the
    `shards` of all ranks."""

    weights: Tensor
    shards: tuple[Shard, ...]

    @property
    def sizes(self) -> list[int]:
        """Coordinates of each rank's shard."""
        return [shard.numel for shard in self.shards]


def flattened(
    layout: Layout, shards: tuple[Shard, ...], parameters: Mapping[str, nn.Parameter], dtype: torch.dtype
) -> tuple[FlatBucket, Tensor]:
    """Moves parameters into flat buffers, of which they become views, in `dtype`.

    Returns the bucket and the weights as they were, (numel,) float32.
    """
    owners = [parameters[name] for name in layout.names]
    whole = torch.cat([owner.detach().reshape(-1).float() for owner in owners])
    bucket = FlatBucket(layout, torch.zeros_like(whole), whole.to(dtype, copy=True), shards)
    for owner, (_, view) in zip(owners, bucket.views(bucket.weights), strict=True):
        owner.data = view
    return bucket, whole
