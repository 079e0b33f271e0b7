"""Flat buffers: a bucket's weights, of which the model's parameters are views, its gradients, and its shards
parameter by parameter."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradwire.codecs.interface import Layout
from gradwire.codecs.shards import Shard, Stretches
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


class Piece(NamedTuple):
    """Coordinates of one parameter: those of `run`, counted from the parameter's first one, are at `place` in
    the shard's values."""

    name: str
    run: Stretches
    place: slice


def pieces(layout: Layout, shard: Shard) -> Iterator[Piece]:
    """What a shard has of each parameter, in the order of the shard's values."""
    stops = [*layout.offsets[1:], layout.numel]
    at = 0
    for run in shard.runs:
        first = bisect_right(layout.offsets, run.start) - 1
        last = run.start + (run.count - 1) * run.stride + run.length - 1
        for name, offset, stop in list(zip(layout.names, layout.offsets, stops, strict=True))[first:]:
            if offset > last:
                break
            for part in run.within(offset, stop):
                yield Piece(name, replace(part, start=part.start - offset), slice(at, at + part.numel))
                at += part.numel
