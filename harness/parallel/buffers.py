"""A model's buffers that training changes, such as BatchNorm's statistics: each rank has its own.

Before evaluation and checkpoints all ranks take over rank 0's. In between nothing is sent: what a rank
computes in training mode does not depend on them.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.world.interface import World
from gradwire.harness.timing.trace.step import CONTROL


class RankBuffers:
    """The buffers of `model` for each of the world's ranks here; the model holds one rank's at a time."""

    def __init__(self, model: nn.Module, world: World) -> None:
        self._buffers = dict(model.named_buffers())
        self._world, self._loaded = world, world.ranks[0]
        self._changing: tuple[str, ...] = ()
        self._common: dict[str, Tensor] = {}
        self._kept: dict[int, dict[str, Tensor]] = {}

    def watch(self, before: dict[str, Tensor]) -> None:
        """Finds those that training changes: the ones that differ from `before`, a pass earlier."""
        found = [name for name, buffer in self._buffers.items() if not _equal(buffer, before[name])]
        # What changes here and not elsewhere would be sent by some ranks alone.
        flags = [float(name in found) for name in self._buffers]
        rows = self._world.gather(dict.fromkeys(self._world.ranks, flags)) if flags else [[]]
        changed = [any(column) for column in zip(*rows, strict=True)]
        self._changing = tuple(name for name, own in zip(self._buffers, changed, strict=True) if own)

    def begin(self) -> None:
        """Starts anew: all ranks have the buffers that the model has now."""
        self._loaded, self._kept, self._common = self._world.ranks[0], {}, self._current()

    def load(self, rank: int) -> None:
        """Gives the model the buffers of `rank`."""
        if rank == self._loaded or not self._changing:
            return
        self._kept[self._loaded] = self._current()
        for name, value in self._kept.get(rank, self._common).items():
            self._buffers[name].copy_(value)
        self._loaded = rank

    def _current(self) -> dict[str, Tensor]:
        return {name: self._buffers[name].clone() for name in self._changing}

    def take_first(self) -> None:
        """Gives all ranks the buffers of rank 0. All processes call it."""
        if not self._changing:
            return
        ranks = self._world.ranks
        self.load(ranks[0])
        own = {rank: self._bits() if rank == 0 else torch.zeros_like(self._bits()) for rank in ranks}
        sent = self._world.run({rank: partial(_combine, own[rank]) for rank in ranks})
        self._set_bits(sent[ranks[0]])
        self.begin()

    def _bits(self) -> Tensor:
        """The bytes of the changing buffers, one after another."""
        parts = [self._buffers[name].contiguous().view(-1).view(torch.uint8) for name in self._changing]
        return torch.cat(parts)

    def _set_bits(self, bits: Tensor) -> None:
        sizes = [self._buffers[name].nbytes for name in self._changing]
        for name, part in zip(self._changing, torch.split(bits, sizes), strict=True):
            buffer = self._buffers[name]
            buffer.copy_(part.clone().view(buffer.dtype).view(buffer.shape))


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same bytes."""
    return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


async def _combine(own: Tensor, comm: ScheduledCollectives) -> Tensor:
    """Every rank's bytes, those of rank 0 if all others are zero."""
    (bits,) = await comm.in_phase(CONTROL).reduce([(own, "or")])
    return bits
