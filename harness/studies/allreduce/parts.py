"""What a round consists of: one all-reduce, or, with sharded weights, a scatter of gradients and a gathering
of weights. Each part has times and bytes of its own, and begins when all ranks are ready for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from gradwire.codecs.interface import Codec, Kept, Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.world.interface import RankProgram, RankStep, Submission, World
from gradwire.harness.parallel.settings import ShardedConfig
from gradwire.harness.parallel.sharded.buckets import FlatBucket
from gradwire.harness.parallel.sharded.weights import gathering, weight_messages
from gradwire.harness.parallel.synchronize import scattering, synchronize_buckets
from gradwire.harness.runtime.seeding import derive_seed
from gradwire.harness.studies.allreduce.settings import AllReduceConfig, AllReduceTask, sharded

BLOCK = 256
"""Neighbouring coordinates share a scale. Scales are drawn log-normally, because those of gradients
differ."""

GRADIENTS, WEIGHTS = "gradients", "weights"

UPDATE = 1e-3
"""The main weights of a round are those of the one before less this share of the mean gradient, so that there
are differences to send."""


def layout(config: AllReduceConfig, device: str = "cpu") -> Layout:
    """The bucket: the matrices one after another, or one vector."""
    if not config.matrices:
        return Layout.flat(config.coordinates, device=device)
    shapes = tuple(tuple(shape) for shape in config.matrices)
    ends = tuple(accumulate(map(math.prod, shapes)))
    names = tuple(f"matrix{number}" for number in range(len(shapes)))
    return Layout(names, shapes, (0, *ends[:-1]), ends[-1], device=torch.device(device))


class Part(Protocol):
    """One rank's part of every round."""

    def program(self, number: int) -> RankProgram[object]:
        """What this rank does in round `number`."""
        ...


class Synchronization:
    """The mean of a bucket, by an all-reduce."""

    def __init__(self, config: AllReduceTask, codec: Codec, x: Tensor) -> None:
        self._codec, self._x, self._size, self._seed = codec, x, config.cluster.size, config.seed
        self._layout = layout(config.allreduce, str(x.device))

    def program(self, number: int) -> RankProgram[object]:
        buckets = [(self._layout, self._x)]
        return synchronize_buckets(self._codec, number, self._seed, self._size, buckets, check_hashes=False)


class Scatter:
    """A rank's shard of the mean of a bucket, which `mean` is until the weights are updated with it."""

    def __init__(self, config: AllReduceTask, codec: Codec, x: Tensor, bucket: FlatBucket) -> None:
        self._codec, self._x, self._bucket = codec, x, bucket
        self._size, self._seed = config.cluster.size, config.seed
        self.mean: Tensor | None = None

    def program(self, number: int) -> RankProgram[object]:
        async def run(rank_step: RankStep) -> None:
            layout, rank = self._bucket.layout, rank_step.rank
            this_round = Round(number, layout, rank, self._size, self._seed, 0)
            shard = self._bucket.shards[rank]
            self.mean = await rank_step.start(
                lambda x: scattering(self._codec, x, this_round, shard),
                self._x,
                Submission(buffers=str(layout.uid), coordinates=layout.numel, is_own=True),
            )

        return run


class Gathering:
    """The model's weights brought up to date with all ranks' main weights. Those of `rank` are updated
    before, with the mean that `scatter` has left, while no clock runs."""

    def __init__(self, config: ShardedConfig, bucket: FlatBucket, rank: int, scatter: Scatter) -> None:
        self._messages, self._bucket, self._scatter = weight_messages(config), bucket, scatter
        self._main = bucket.shards[rank].take(bucket.weights).float()

    def program(self, number: int) -> RankProgram[object]:
        assert self._scatter.mean is not None, "gradients come first"
        self._main.sub_(self._scatter.mean, alpha=UPDATE)
        self._scatter.mean = None

        async def run(rank_step: RankStep) -> None:
            layout = self._bucket.layout
            messages = await rank_step.start(
                partial(gathering, self._messages, self._bucket, rank_step.rank),
                self._main,
                Submission(
                    buffers=f"{WEIGHTS} {layout.uid}",
                    coordinates=layout.numel,
                    is_own=True,
                    has_one_result=True,
                ),
            )
            with rank_step.compute(WEIGHTS):
                rank_step.replicated(partial(self._decode, messages))

        return run

    def _decode(self, messages: Sequence[Tensor]) -> None:
        for rank, message in enumerate(messages):
            self._messages.decode(message, self._bucket, rank)


@dataclass(frozen=True)
class Rounds:
    """One rank's codec, and the parts of a round by name, in their order."""

    codec: Codec
    parts: Mapping[str, Part]


def make_rounds(config: AllReduceTask, world: World) -> dict[int, Rounds]:
    """The rounds of the ranks in this process, which share the model's weights if these are gathered."""
    codecs: dict[int, Codec] = {rank: make_codec(**config.codec) for rank in world.ranks}
    gradients = {rank: drawn(config, "allreduce", rank, world.device) for rank in world.ranks}
    settings = sharded(config)
    if settings is None:
        return {
            rank: Rounds(codec, {GRADIENTS: Synchronization(config, codec, gradients[rank])})
            for rank, codec in codecs.items()
        }
    bucket, found = _bucket(config, settings, world, next(iter(codecs.values()))), {}
    for rank, codec in codecs.items():
        scatter = Scatter(config, codec, gradients[rank], bucket)
        gathering = Gathering(settings, bucket, rank, scatter)
        found[rank] = Rounds(codec, {GRADIENTS: scatter, WEIGHTS: gathering})
    return found


def _bucket(config: AllReduceTask, settings: ShardedConfig, world: World, codec: Codec) -> FlatBucket:
    """The model's weights, in shards as the codec leaves those of gradients."""

    async def ask(comm: ScheduledCollectives) -> Kept:
        return comm.kept

    kept = world.run(dict.fromkeys(world.ranks, ask))[world.ranks[0]]
    own = layout(config.allreduce, str(world.device))
    weights = drawn(config, WEIGHTS, 0, world.device).to(getattr(torch, settings.model_dtype))
    no_gradient = weights.new_empty(0)  # each rank has its own
    return FlatBucket(own, no_gradient, weights, codec.shards(own, kept))


def drawn(config: AllReduceTask, what: str, rank: int, device: torch.device) -> Tensor:
    """One rank's gradient, or weights, from the seed: (coordinates,) float32."""
    generator = torch.Generator().manual_seed(derive_seed(config.seed, what, rank))
    numel = config.allreduce.coordinates
    scales = torch.randn(-(-numel // BLOCK), generator=generator).exp().repeat_interleave(BLOCK)[:numel]
    return (torch.randn(numel, generator=generator) * scales).to(device)
