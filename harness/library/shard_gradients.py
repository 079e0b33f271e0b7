"""Gradients of sharded modules: PyTorch's slices mapped to a codec's shards, and means over the ranks that
hold the same parameters (the whole model, or the same shards of it)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor

from gradwire.codecs.collectives import Kept
from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.codecs.shards import Shard
from gradwire.harness.comm.world.interface import Submission
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.library.shard_modules import ShardedModule
from gradwire.harness.library.shard_places import Places
from gradwire.harness.parallel.synchronize import synchronization

UNIT = 256
"""Slices are lengthened in units of this many coordinates until a codec's shards can hold them."""

MOST_UNITS = 256
"""The largest number of units by which slices are lengthened, because few codecs have such long groups."""


class GradientSlices:
    """PyTorch's slices of a module's gradients, placed in a codec's shards: slice r belongs to rank r.

    The bucket is as long as needed for every rank's shard to hold a slice; the rest is zeros. Raises
    ValueError if some rank gets no shard.
    """

    def __init__(self, codec: Codec, kept: Kept, name: str, numel: int, device: torch.device) -> None:
        self.numel, ranks = numel, len(kept)
        length = numel
        while True:
            self.layout = Layout.flat(ranks * length, name, device)
            self.shards = codec.shards(self.layout, kept)
            if min(shard.numel for shard in self.shards) >= numel:
                break
            length = (length // UNIT + 1) * UNIT
            if length > numel + MOST_UNITS * UNIT:
                raise ValueError(
                    f"codec={codec.name} leaves some of {ranks} ranks without a shard of {name} over this "
                    "topology; use topology=ring, or shard more parameters as one module"
                )

    @contextmanager
    def placed(self, x: Tensor, places: Places | None = None) -> Iterator[Tensor]:
        """The slices of `x`, (ranks · numel,), in their places in a bucket, (bucket,) float32: one of
        `places`, or one that may share memory with `x`."""
        slices = torch.split(x, self.numel)
        as_they_are = self.shards == contiguous(len(slices), self.numel)
        if places is None and as_they_are:
            yield x.float()
            return
        with (
            nullcontext(torch.zeros(self.layout.numel, device=x.device))
            if places is None
            else places.taken("gradients", self.layout.numel, torch.float32)
        ) as bucket:
            for shard, own in zip(self.shards, slices, strict=True):
                shard.put(torch.nn.functional.pad(own.float(), (0, shard.numel - self.numel)), bucket)
            yield bucket


def gradient_slices(
    codec: Codec, kept: Kept, modules: Sequence[ShardedModule], device: torch.device
) -> list[GradientSlices]:
    """The slices of each module, for a codec and the chunks that each rank keeps. Raises ValueError if a
    codec's shards do not fit."""
    return [GradientSlices(codec, kept, each.name or "model", each.slice_numel, device) for each in modules]


def contiguous(ranks: int, numel: int) -> tuple[Shard, ...]:
    """Slices of `numel` coordinates, one after another."""
    return tuple(Shard.between(rank * numel, (rank + 1) * numel) for rank in range(ranks))


class ReplicaMeans:
    """The ranks that hold the same parameters, and the codec between them. `layouts` holds the layout of each
    module's gradients: of its parameters, or of a shard."""

    def __init__(
        self,
        world: ProcessWorld,
        codec: Codec,
        layouts: Sequence[Layout],
        *,
        seed: int,
        check_hashes: bool,
    ) -> None:
        self.world, self.codec, self.layouts = world, codec, layouts
        self._seed, self._check_hashes, self._places = seed, check_hashes, Places(world.device)
        self._rank_step = world.open_step()

    def begin_step(self) -> None:
        self._rank_step = self.world.open_step()

    def average(self, number: int, x: Tensor, step: int) -> Tensor:
        """The mean of all ranks' gradients of module `number`, (numel,) float32."""
        world, layout = self.world, self.layouts[number]
        this_round = Round(step, layout, world.rank, world.size, self._seed, number)
        submission = Submission(
            buffers=str(layout.uid), coordinates=layout.numel, in_turn=self.codec.traits.uses_backend
        )

        def run(own: Tensor) -> Tensor:
            make = partial(
                synchronization, self.codec, this_round=this_round, check_hashes=self._check_hashes
            )
            return self._rank_step.start(make, own, submission).result()

        if not world.captures or self.codec.refuses_capture(layout) is not None:
            return run(x.float())
        with self._places.taken("gradients", x.numel(), torch.float32) as place:
            return run(place.copy_(x))
