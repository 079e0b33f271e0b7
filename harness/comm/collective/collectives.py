"""The collectives that a codec receives, over one channel and one topology."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.collectives import Hops, Kept, Level, Op
from gradwire.harness.comm.collective.arena import Arena
from gradwire.harness.comm.collective.execute import Execution, GroupChannel
from gradwire.harness.comm.collective.metadata import MetadataHops
from gradwire.harness.comm.mesh import Dimension, Mesh
from gradwire.harness.comm.topology.butterfly import near_first
from gradwire.harness.comm.topology.schedule import Schedule, Topology, made_for, pipelined
from gradwire.harness.comm.transport.channel import Channel
from gradwire.harness.timing.trace.step import ACTIVATIONS


@dataclass(frozen=True)
class Fabric:
    """The schedules of groups of ranks, the nodes and stages that ranks are spread over, and the number of
    segments that the messages of an all-reduce are cut into.

    Metadata travels by recursive halving and doubling (`near_first`) whatever the topology is, because its
    messages are short: 2·⌈log2 n⌉ of them one after another, uncut, where a ring has 2(n − 1).
    """

    make_schedule: Topology
    num_nodes: int = 1
    segments: int = 1
    stages: int = 1
    _made: dict[tuple[int, int], tuple[Schedule, Schedule]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def mesh(self, size: int) -> Mesh:
        """The mesh of `size` ranks. Raises ValueError if they do not fill all nodes and stages."""
        return Mesh(size, self.num_nodes, self.stages)

    def node(self, rank: int, size: int) -> range | None:
        """The ranks on the node of `rank`, one of `size` ranks; None if all ranks are on one node."""
        return self.mesh(size).node_of(rank) if self.num_nodes > 1 else None

    def schedules(self, size: int, num_nodes: int | None = None) -> tuple[Schedule, Schedule]:
        """The schedules of metadata and of an all-reduce among `size` ranks on `num_nodes` nodes (default:
        all). They are made once."""
        num_nodes = num_nodes or self.num_nodes
        if (size, num_nodes) not in self._made:
            whole = made_for(self.make_schedule, size, num_nodes)
            self._made[size, num_nodes] = near_first(size), pipelined(whole, self.segments)
        return self._made[size, num_nodes]


class ScheduledCollectives:
    """Implements `gradwire.codecs.collectives.Collectives` for one coroutine of one rank.

    `whole` holds the ranks of `group("all")`: those of the world, or of the group along `replica` or `stage`
    that a parallelism has chosen. `members` holds the ranks of these collectives, by default the same.
    `phase`, if given, replaces the phases that bytes are counted under.
    """

    def __init__(
        self,
        channel: Channel,
        fabric: Fabric,
        arena: Arena,
        whole: tuple[int, ...] = (),
        members: tuple[int, ...] = (),
        phase: str | None = None,
    ) -> None:
        self._channel, self._fabric, self._arena, self._phase = channel, fabric, arena, phase
        self._mesh = fabric.mesh(channel.size)
        self._whole = whole or tuple(range(channel.size))
        self._members = members or self._whole
        self.rank, self.size = self._members.index(channel.rank), len(self._members)
        self._for_metadata, self._schedule = fabric.schedules(self.size, self._mesh.nodes_of(self._members))
        self.num_chunks = self._schedule.num_chunks

    def group(self, level: Level | Dimension) -> ScheduledCollectives:
        """The collectives of this rank's group along a dimension of the mesh.

        Parallelisms use `replica` and `stage`, which are groups of all ranks; a codec that is given such
        collectives only sees the ranks of its group. `all`, `node` and `local` are groups within these.
        Raises ValueError for a group that has more ranks on one node than on another.
        """
        if level in ("replica", "stage"):
            whole = self._mesh.group(level, self._channel.rank)
            return self._among(whole, whole)
        return self._among(self._whole, self._mesh.group(level, self._channel.rank, self._whole))

    def in_phase(self, phase: str) -> ScheduledCollectives:
        """Returns these collectives with their bytes counted under `phase`."""
        return self._among(self._whole, self._members, phase)

    def _among(
        self, whole: tuple[int, ...], members: tuple[int, ...], phase: str | None = None
    ) -> ScheduledCollectives:
        return ScheduledCollectives(
            self._channel, self._fabric, self._arena, whole, members, phase or self._phase
        )

    async def reduce(self, parts: Sequence[tuple[Tensor, Op]], *, in_place: bool = False) -> list[Tensor]:
        self._channel.worked("statistics", 1.0)
        hops = MetadataHops(parts, self._for_metadata.num_chunks, in_place=in_place)
        if self.size > 1:
            phase = self._phase or "metadata"
            await self._execution(hops, self._for_metadata, phase, label="metadata").run()
        return hops.results()

    @property
    def kept(self) -> Kept:
        return self._schedule.kept

    @property
    def messages(self) -> Mapping[int, int]:
        return self._schedule.messages

    async def all_reduce(self, hops: Hops) -> Tensor:
        self._channel.worked("plan", 1.0)
        await self._execution(hops, self._schedule, self._phase).run()
        result = hops.finish()
        self._channel.worked("finish", 1.0)
        return result

    async def reduce_scatter(self, hops: Hops) -> Tensor:
        own = self.kept[self.rank]
        self._channel.worked("plan", 1.0)
        await self._execution(hops, self._schedule, self._phase).run(scatter_only=True)
        shard = hops.shard(own)
        self._channel.worked("finish", len(own) / self.num_chunks)
        return shard

    def _execution(
        self, hops: Hops, schedule: Schedule, phase: str | None, label: str | None = None
    ) -> Execution:
        group = GroupChannel(self._channel, self._members, self._arena)
        return Execution(hops, group, schedule, phase, label)

    def worked(self, label: str, share: float) -> None:
        self._channel.worked(label, share)

    async def all_to_all(self, send: Tensor) -> Tensor:
        self._channel.worked("prepare", 1.0)
        assert len(send) == self.size, f"{len(send)} rows for {self.size} ranks"
        send = send.contiguous()
        received = torch.empty_like(send)
        received[self.rank].copy_(send[self.rank])
        await self._exchange(send.unbind(), received.unbind(), self._phase or "reduce_scatter")
        return received

    async def all_gather(self, own: Tensor, sizes: Sequence[int] | None = None) -> list[Tensor]:
        self._channel.worked("prepare", 1.0)
        own = own.contiguous()
        lengths = sizes or [own.numel()] * self.size
        gathered = [torch.empty(length, dtype=own.dtype, device=own.device) for length in lengths]
        gathered[self.rank].copy_(own)
        await self._exchange([own] * self.size, gathered, self._phase or "all_gather")
        return gathered

    async def send(self, x: Tensor, to: int) -> None:
        await self.send_and_receive({to: x}, {})

    async def receive(self, out: Tensor, source: int) -> Tensor:
        await self.send_and_receive({}, {source: out})
        return out

    async def send_and_receive(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        self._channel.worked("prepare", 1.0)
        assert self.rank not in {*sends, *receives}, f"rank {self.rank} sends to or receives from itself"
        assert all(out.is_contiguous() for out in receives.values()), "messages fill contiguous tensors"
        handle = self._channel.post(
            [(self._members[peer], _bytes(x)) for peer, x in sends.items()],
            [(self._members[peer], _bytes(out)) for peer, out in receives.items()],
            self._phase or ACTIVATIONS,
        )
        await self._channel.completed(handle)

    async def backend_sum(self, x: Tensor) -> Tensor:
        if self.size < self._channel.size:
            raise ValueError("codec=backend sums over all ranks and knows no groups; use codec=fp32")
        await self._channel.completed(self._channel.backend_sum(x))
        return x

    async def _exchange(self, sends: Sequence[Tensor], receives: Sequence[Tensor], phase: str) -> None:
        """Exchanges with every other rank at once: the i-th send goes to rank i, the i-th receive comes from
        rank i."""
        others = [i for i in range(self.size) if i != self.rank]
        handle = self._channel.post(
            [(self._members[i], _bytes(sends[i])) for i in others],
            [(self._members[i], _bytes(receives[i])) for i in others],
            phase,
        )
        await self._channel.completed(handle)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def all_gathering(
    own: Tensor, phase: str | None = None, sizes: Sequence[int] | None = None
) -> Callable[[ScheduledCollectives], Coroutine[Any, None, list[Tensor]]]:
    """One rank's collective that gathers every rank's tensor on all ranks, counted under `phase`; `sizes`
    gives the number of elements per rank if they differ."""

    async def run(comm: ScheduledCollectives) -> list[Tensor]:
        return await (comm if phase is None else comm.in_phase(phase)).all_gather(own, sizes)

    return run
