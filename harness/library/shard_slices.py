"""Where a codec keeps the slices of gradients that PyTorch divides among ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codecs.interface import Codec, Kept, Layout
from gradwire.codecs.shards import Shard
from gradwire.harness.library.shard_modules import ShardedModule

UNIT = 256
"""Slices are made longer by so many coordinates until a codec's shards hold them."""

MOST_UNITS = 256
"""They are made longer by no more units: few codecs have groups as long."""


class GradientSlices:
    """Where a codec keeps the slices that PyTorch has of a module's gradients: slice r is rank r's.

    A bucket is as long as it takes for every rank's shard of it to hold a slice; what is left has zeros.
    Raises ValueError where some rank gets no shard.
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

    def placed(self, x: Tensor) -> Tensor:
        """The slices of `x`, (ranks · numel,), in their places: (bucket,) float32, memory of its own or that
        of `x`."""
        slices = list(torch.split(x.float(), self.numel))
        if self.layout.numel == x.numel() and self.shards == contiguous(len(slices), self.numel):
            return x.float()
        bucket = torch.zeros(self.layout.numel, dtype=torch.float32, device=x.device)
        for shard, own in zip(self.shards, slices, strict=True):
            shard.put(torch.nn.functional.pad(own, (0, shard.numel - self.numel)), bucket)
        return bucket


def gradient_slices(
    codec: Codec, kept: Kept, modules: Sequence[ShardedModule], device: torch.device
) -> list[GradientSlices]:
    """Those of each module, for a codec and what each rank keeps over a topology. Raises ValueError."""
    return [GradientSlices(codec, kept, each.name or "model", each.slice_numel, device) for each in modules]


def contiguous(ranks: int, numel: int) -> tuple[Shard, ...]:
    """Slices of `numel` coordinates, one after another."""
    return tuple(Shard.between(rank * numel, (rank + 1) * numel) for rank in range(ranks))
