"""Rounds of the lattice codec's hops with sizes of slots and a step of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import stream_key
from gradwire.codecs.lattice.codec import CODES, sinks_of
from gradwire.codecs.lattice.compiled_hops import CompiledLatticeHops
from gradwire.codecs.lattice.draws import Draws
from gradwire.codecs.lattice.hops import Grid, LatticeHops
from gradwire.codecs.lattice.slots import Slots
from gradwire.codecs.native.loading import library
from gradwire.codecs.shards import joined
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld

CPU = torch.device("cpu")

ALL = 10**6
"""Bits of a slot that hold whatever is sent in a test."""

Ignored: Callable[[int, Tensor], None] = lambda workers, wanted: None  # noqa: E731


class LatticeRounds:
    """Rounds of one bucket on each rank: `step` is log2 of D in units; `size`, bits of every slot or a
    function of the number of contributions. With `compiled` the kernels for CPUs do the work of hops, where
    there are any."""

    def __init__(
        self,
        xs: Sequence[Tensor],
        topology: str = "ring",
        *,
        step: int,
        size: int | Mapping[int, int] = ALL,
        code: str = "rice",
        slot: int = 16,
        nodes: int = 1,
        compiled: bool = False,
    ) -> None:
        self._library, self._packed = library("cpu") if compiled else None, code == "packed"
        self.xs, self.num_workers, self.numel = xs, len(xs), xs[0].numel()
        self._fabric = Fabric(partial(make_schedule, topology), nodes)
        self.world = VirtualWorld(self.num_workers, self._fabric, CPU, debug=True)
        self._step, self._size, self._code, self._slot = step, size, CODES[code], slot
        self.wanted: dict[int, list[int]] = {}

    def _count(self, workers: int, wanted: Tensor) -> None:
        self.wanted.setdefault(workers, []).extend(wanted.tolist())

    def slots(self, num_chunks: int) -> Slots:
        return Slots(self.numel, num_chunks, self._slot)

    def hops(self, comm: ScheduledCollectives, seed: int) -> LatticeHops:
        numbers = range(1, self.num_workers + 1)
        sizes = dict.fromkeys(numbers, self._size) if isinstance(self._size, int) else dict(self._size)
        sinks = sinks_of(comm) if any(number > 1 for number in comm.messages) else None
        grid = Grid(torch.tensor(self._step), torch.tensor(False), sizes, sinks, comm.size)
        draws = Draws(stream_key(seed, 0, 1), comm.rank)
        x, slots = self.xs[comm.rank], self.slots(comm.num_chunks)
        if self._library is not None:
            return CompiledLatticeHops(x, slots, grid, self._packed, draws, self._count, self._library)
        return LatticeHops(x, slots, grid, self._code, draws, self._count)

    def mean(self, seed: int = 0) -> Tensor:
        """The mean that all ranks get, which must be the same bits."""

        async def run(comm: ScheduledCollectives) -> Tensor:
            return await comm.all_reduce(self.hops(comm, seed))

        found = self.world.run(dict.fromkeys(range(self.num_workers), run))
        assert all(torch.equal(found[0].view(torch.int32), each.view(torch.int32)) for each in found.values())
        return found[0]

    def scattered(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        """All shards of a reduce-scatter together, (numel,), and the sink of every coordinate."""

        async def run(comm: ScheduledCollectives) -> Tensor:
            return await comm.reduce_scatter(self.hops(comm, seed))

        found = self.world.run(dict.fromkeys(range(self.num_workers), run))
        _, schedule = self._fabric.schedules(self.num_workers)
        slots = self.slots(schedule.num_chunks)
        mean, owner = torch.full((self.numel,), torch.nan), torch.full((self.numel,), -1)
        for rank, chunks in enumerate(schedule.kept):
            shard = joined(slots.shard(chunk) for chunk in chunks)
            shard.put(found[rank], mean)
            shard.put(torch.full((shard.numel,), rank), owner)
        return mean, owner


def rounded(x: Tensor, rank: int, sink: Tensor, workers: int, step: int, seed: int = 0) -> Tensor:
    """The integers, float64, that a worker sends of `x`, (numel,), by their definition; `sink` is that of
    each coordinate."""
    super_groups = torch.arange(-(-x.numel() // 256))
    found = torch.zeros(x.numel(), dtype=torch.float64)
    for owner in range(workers):
        draws = Draws(stream_key(seed, 0, 1), rank)
        noise = draws.strata(super_groups, (rank - owner - 1) % workers, workers - 1).view(-1)[: x.numel()]
        q = (x.double() / 2.0 ** (step / 64) + noise.double()).floor()
        found = torch.where(sink == owner, q, found)
    return found
