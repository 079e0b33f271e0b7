"""Flat buckets, which the model's parameters are views of, and a rank's shard of all buckets: main weights
and Adam's moments, in float32."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradwire.codecs.interface import Layout
from gradwire.codecs.shards import Shard, Stretches
from gradwire.harness.parallel.accumulation import GradientBucket
from gradwire.harness.parallel.update import OptimizerSettings, decays, forget_moments, make_optimizer

MOMENTS = ("exp_avg", "exp_avg_sq")
STEP = "step"


@dataclass(frozen=True)
class FlatBucket(GradientBucket):
    """A gradient bucket that also holds the `weights` of its parameters, (numel,) in the model's dtype, the
    same on all ranks, and the `shards` of all ranks."""

    weights: Tensor
    shards: tuple[Shard, ...]

    @property
    def sizes(self) -> list[int]:
        """Coordinates of each rank's shard."""
        return [shard.numel for shard in self.shards]


def flattened(
    layout: Layout, shards: tuple[Shard, ...], parameters: Mapping[str, nn.Parameter], dtype: torch.dtype
) -> tuple[FlatBucket, Tensor]:
    """Moves parameters into flat buffers of type `dtype` and makes them views of these.

    Returns the bucket and the original weights, (numel,) float32.
    """
    owners = [parameters[name] for name in layout.names]
    whole = torch.cat([owner.detach().reshape(-1).float() for owner in owners])
    bucket = FlatBucket(layout, torch.zeros_like(whole), whole.to(dtype, copy=True), shards)
    for owner, (_, view) in zip(owners, bucket.views(bucket.weights), strict=True):
        owner.data = view
    return bucket, whole


class Piece(NamedTuple):
    """Coordinates of one parameter in a shard: those of `run`, relative to the parameter's first coordinate,
    are at `place` in the shard's values."""

    name: str
    run: Stretches
    place: slice


def pieces(layout: Layout, shard: Shard) -> Iterator[Piece]:
    """The pieces of a shard by parameter, in the order of the shard's values."""
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


@dataclass(frozen=True)
class Segment:
    """Consecutive values of the `bucket`-th shard that either all have weight decay or all have none; Adam
    treats them as one parameter."""

    bucket: int
    place: slice
    decays: bool
    weights: nn.Parameter


class ShardOptimizer:
    """The main weights of the shards of `rank`, and their moments; nothing here has a full model's size.

    `shards` are the main weights by bucket, (shard,) float32 each. With `keeps_main` they last, in one
    buffer. Otherwise they lie in the buckets' gradients, which a step no longer needs once they are
    scattered: there they have the same place in every step, apart from other ranks' in this process, until
    the next backward pass. The optimizer works coordinate by coordinate, so a shard may consist of any
    coordinates; only weight decay depends on parameters.
    """

    def __init__(
        self,
        buckets: Sequence[FlatBucket],
        rank: int,
        settings: OptimizerSettings,
        *,
        keeps_main: bool = True,
    ) -> None:
        self.rank, self._buckets, self._clip_norm = rank, buckets, settings.clip_norm
        sizes = [bucket.sizes[rank] for bucket in buckets]
        self.shards: Sequence[Tensor]
        if keeps_main:
            main = torch.empty(sum(sizes), dtype=torch.float32, device=buckets[0].weights.device)
            self.shards = torch.split(main, sizes)
        else:
            self.shards = [torch.split(bucket.gradient, bucket.sizes)[rank] for bucket in buckets]
        self._segments = list(self._make_segments())
        self._optimizer = make_optimizer(
            [segment.weights for segment in self._segments if segment.decays],
            [segment.weights for segment in self._segments if not segment.decays],
            settings,
        )

    def pieces(self) -> Iterator[tuple[int, Piece]]:
        """This rank's pieces of each parameter, by bucket."""
        for number, bucket in enumerate(self._buckets):
            for piece in pieces(bucket.layout, bucket.shards[self.rank]):
                yield number, piece

    def _make_segments(self) -> Iterator[Segment]:
        for number, bucket in enumerate(self._buckets):
            decaying = {name: decays(view) for name, view in bucket.views(bucket.weights)}
            stretches: list[tuple[int, int, bool]] = []
            for name, _, place in pieces(bucket.layout, bucket.shards[self.rank]):
                start = place.start
                if stretches and stretches[-1][2] == decaying[name]:
                    start = stretches.pop()[0]
                stretches.append((start, place.stop, decaying[name]))
            for start, stop, decaying_too in stretches or [(0, 0, False)]:
                place = slice(start, stop)
                weights = nn.Parameter(self.shards[number][place], requires_grad=False)
                yield Segment(number, place, decaying_too, weights)

    def warm_up(self, gradients: Sequence[Tensor]) -> None:
        """Makes an update that changes no values, so that the moments are allocated."""
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            self._step(gradients, 0.0)
        forget_moments(self._optimizer)

    def update(self, gradients: Sequence[Tensor], norm: float, learning_rate: float) -> None:
        """Clips `gradients`, the means of this rank's shards by bucket, by the `norm` over all ranks, and
        updates the main weights. `gradients` may be overwritten."""
        if self._clip_norm is not None:
            factor = min(1.0, self._clip_norm / (norm + 1e-6))  # as torch's clip_grad_norm_ has it
            for gradient in gradients:
                gradient.mul_(factor)
        self._step(gradients, learning_rate)

    def _step(self, gradients: Sequence[Tensor], learning_rate: float) -> None:
        for segment in self._segments:
            segment.weights.grad = gradients[segment.bucket][segment.place]
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def take(self, whole: Sequence[Tensor]) -> None:
        """Sets the main weights to this rank's shards of `whole` buckets, (numel,) of any dtype each."""
        for main, bucket, values in zip(self.shards, self._buckets, whole, strict=True):
            main.copy_(bucket.shards[self.rank].take(values))

    @property
    def num_steps(self) -> int:
        """Number of updates so far."""
        state = self._optimizer.state.get(self._segments[0].weights, {})
        return int(state[STEP]) if state else 0

    def moments(self, number: int) -> dict[str, Tensor]:
        """The moments of the `number`-th shard, (shard,) float32 each, as new tensors."""
        own = [segment.weights for segment in self._segments if segment.bucket == number]
        states = [self._optimizer.state.get(weights, {}) for weights in own]
        found = {}
        for field in MOMENTS:
            values = [state.get(field, torch.zeros_like(of)) for state, of in zip(states, own, strict=True)]
            found[field] = torch.cat(values)
        return found

    def load_moments(self, number: int, moments: dict[str, Tensor], num_steps: int) -> None:
        """Restores the moments and step count of the `number`-th shard."""
        for segment in self._segments:
            if segment.bucket == number:
                state = self._optimizer.state[segment.weights]
                for field in MOMENTS:
                    state[field] = moments[field][segment.place].clone()
                state[STEP] = torch.tensor(float(num_steps), device=segment.weights.device)
