"""A model's buffers that training changes, such as BatchNorm's statistics: each rank has its own.

Before evaluation and checkpoints all ranks copy rank 0's buffers. Otherwise nothing is sent, because
computation in training mode does not depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.world.interface import World
from gradwire.harness.timing.trace.step import CONTROL


class RankTensors:
    """The values of each rank for `tensors`, parts of a model or its optimizer that the ranks of one process
    share.

    The tensors hold the values of one of `ranks` at a time. Initially all ranks have the tensors' current
    values.
    """

    def __init__(self, tensors: Mapping[str, Tensor], ranks: Sequence[int]) -> None:
        self._tensors, self._ranks = dict(tensors), ranks
        self._kept: dict[int, dict[str, Tensor]] = {}
        self._loaded: int | None = ranks[0]
        self._common = self._current() if len(ranks) > 1 else {}

    def load(self, rank: int) -> None:
        """Copies the values of `rank` into the tensors."""
        if rank == self._loaded:
            return
        self.park()
        with torch.no_grad():
            for name, value in self._kept.get(rank, self._common).items():
                self._tensors[name].copy_(value)
        self._loaded = rank

    def park(self) -> None:
        """Saves the current rank's values; later writes to the tensors belong to no rank."""
        if self._loaded is not None:
            self._kept[self._loaded] = self._current()
            self._loaded = None

    def _current(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self._tensors.items()}


class RankBuffers:
    """The buffers of `model` for each of the world's ranks here; the model holds one rank's at a time."""

    def __init__(self, model: nn.Module, world: World) -> None:
        self._buffers, self._world = dict(model.named_buffers()), world
        self._changing: tuple[str, ...] = ()
        self.begin()

    def watch(self, before: Mapping[str, Tensor]) -> None:
        """Finds the buffers that training changes: those that differ from `before`, their values one pass
        earlier."""
        if not self._buffers:
            return
        flags = [float(not _equal(buffer, before[name])) for name, buffer in self._buffers.items()]
        # Ranks must agree on the set: a buffer that changed on one rank alone would be sent by that rank
        # alone.
        rows = self._world.gather(dict.fromkeys(self._world.ranks, flags))
        changed = [any(column) for column in zip(*rows, strict=True)]
        self._changing = tuple(name for name, own in zip(self._buffers, changed, strict=True) if own)

    def begin(self) -> None:
        """Gives all ranks the model's current buffers."""
        self._own = RankTensors({name: self._buffers[name] for name in self._changing}, self._world.ranks)

    def load(self, rank: int) -> None:
        """Loads the buffers of `rank` into the model."""
        self._own.load(rank)

    def take_first(self) -> None:
        """Gives all ranks the buffers of rank 0. All processes must call it."""
        if not self._changing:
            return
        ranks = self._world.ranks
        self._own.load(ranks[0])
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
    """True if two tensors have the same bytes."""
    return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


async def _combine(own: Tensor, comm: ScheduledCollectives) -> Tensor:
    """Combines every rank's bytes with "or", which gives rank 0's if all others send zeros."""
    (bits,) = await comm.in_phase(CONTROL).reduce([(own, "or")])
    return bits
