"""The collectives that a codec receives, over one channel and one topology."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire.codecs.interface import Hops, Level, Op
from gradwire.harness.comm.collective.execute import Arena, Execution
from gradwire.harness.comm.collective.metadata import MetadataHops
from gradwire.harness.comm.topology.pipeline import pipelined
from gradwire.harness.comm.topology.schedule import Schedule, Topology, made_for
from gradwire.harness.comm.transport.channel import Channel


@dataclass(frozen=True)
class Fabric:
    """Which schedule serves a group of ranks, how ranks are spread over nodes, and how many segments the
    messages of an all-reduce are cut into (messages of metadata are not cut)."""

    make_schedule: Topology
    num_nodes: int = 1
    segments: int = 1
    _made: dict[tuple[int, int], tuple[Schedule, Schedule]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def schedules(self, size: int, level: Level = "all") -> tuple[Schedule, Schedule]:
        """(metadata's, an all-reduce's) among the `size` ranks of a group, made once."""
        num_nodes = {"all": self.num_nodes, "local": 1, "node": size}[level]
        if (size, num_nodes) not in self._made:
            whole = made_for(self.make_schedule, size, num_nodes)
            self._made[size, num_nodes] = whole, pipelined(whole, self.segments)
        return self._made[size, num_nodes]

    def members(self, level: Level, rank: int, size: int) -> tuple[int, ...]:
        """The ranks of `rank`'s group: all, those of its node (`local`), its counterparts on every node
        (`node`): the names of a two-dimensional device mesh."""
        local = size // self.num_nodes
        if level == "local":
            return tuple(range(rank // local * local, (rank // local + 1) * local))
        if level == "node":
            return tuple(range(rank % local, size, local))
        return tuple(range(size))


class ScheduledCollectives:
    """Implements `gradwire.codecs.interface.Collectives` for one coroutine of one rank."""

    def __init__(
        self,
        channel: Channel,
        fabric: Fabric,
        arena: Arena,
        level: Level = "all",
        phase: str | None = None,
    ) -> None:
        self._channel, self._fabric, self._arena, self._phase = channel, fabric, arena, phase
        self._members = fabric.members(level, channel.rank, channel.size)
        self.rank, self.size = self._members.index(channel.rank), len(self._members)
        self._whole, self._schedule = fabric.schedules(self.size, level)
        self.num_chunks = self._schedule.num_chunks

    def group(self, level: Level) -> ScheduledCollectives:
        return ScheduledCollectives(self._channel, self._fabric, self._arena, level, self._phase)

    def in_phase(self, phase: str) -> ScheduledCollectives:
        """Returns these collectives with their bytes counted under `phase`."""
        if self._members != tuple(range(self._channel.size)):
            raise ValueError("in_phase() is for the collectives of all ranks")
        return ScheduledCollectives(self._channel, self._fabric, self._arena, "all", phase)

    async def reduce(self, parts: Sequence[tuple[Tensor, Op]]) -> list[Tensor]:
        self._channel.worked("statistics", 1.0)
        hops = MetadataHops(parts, self._whole.num_chunks)
        if self.size > 1:
            phase = self._phase or "metadata"
            await self._execution(hops, self._whole, phase, label="metadata").run()
        return hops.results()

    async def all_reduce(self, hops: Hops) -> Tensor:
        return await self._execute(hops, scatter_only=False)

    async def reduce_scatter(self, hops: Hops) -> Tensor:
        return await self._execute(hops, scatter_only=True)

    async def _execute(self, hops: Hops, *, scatter_only: bool) -> Tensor:
        self._channel.worked("plan", 1.0)
        execution = self._execution(hops, self._schedule, self._phase)
        await execution.run(scatter_only=scatter_only)
        result = hops.finish()
        self._channel.worked("finish", 1.0)
        return result

    def _execution(
        self, hops: Hops, schedule: Schedule, phase: str | None, label: str | None = None
    ) -> Execution:
        return Execution(hops, self._channel, self._members, self._arena, schedule, phase, label)

    async def all_to_all(self, send: list[Tensor]) -> list[Tensor]:
        self._channel.worked("prepare", 1.0)
        assert len(send) == self.size, f"{len(send)} tensors for {self.size} ranks"
        received = [self._like(tensor) for tensor in send]
        received[self.rank].copy_(send[self.rank])
        await self._exchange(send, received, self._phase or "reduce_scatter")
        return received

    async def all_gather(self, own: Tensor, sizes: Sequence[int] | None = None) -> list[Tensor]:
        self._channel.worked("prepare", 1.0)
        own = own.contiguous()
        lengths = sizes or [own.numel()] * self.size
        gathered = [torch.empty(length, dtype=own.dtype, device=own.device) for length in lengths]
        gathered[self.rank].copy_(own)
        await self._exchange([own] * self.size, gathered, self._phase or "all_gather")
        return gathered

    async def backend_sum(self, x: Tensor) -> Tensor:
        await self._channel.completed(self._channel.backend_sum(x))
        return x

    @staticmethod
    def _like(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)

    async def _exchange(self, sends: Sequence[Tensor], receives: Sequence[Tensor], phase: str) -> None:
        """Exchanges with every other rank at once: the i-th send goes to rank i, the i-th receive comes from
        it."""
        others = [i for i in range(self.size) if i != self.rank]
        handle = self._channel.post(
            [(self._members[i], _bytes(sends[i])) for i in others],
            [(self._members[i], _bytes(receives[i])) for i in others],
            phase,
        )
        await self._channel.completed(handle)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
