"""Runs a schedule for one rank. This is the only place where messages are passed to a codec's hops."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from gradwire.codecs.collectives import Hops
from gradwire.harness.comm.collective.arena import Arena
from gradwire.harness.comm.collective.plan import Leaf, MessageWork, PlannedStep, RoutePlan
from gradwire.harness.comm.collective.planner import GroupRank, Planner, Sealing
from gradwire.harness.comm.topology.schedule import Schedule
from gradwire.harness.comm.transport.channel import Channel, Handle


class GroupChannel(NamedTuple):
    """A group's messages: its ranks on the channel are `members`, the schedule's peer p is `members[p]`; the
    arena has room for this rank's."""

    channel: Channel
    members: Sequence[int]
    arena: Arena


class Execution:
    """One all-reduce of one rank of a group.

    `phase` overrides the schedule's phases in the byte counters, `label` the names of the hops in the trace.
    """

    def __init__(
        self,
        hops: Hops,
        group: GroupChannel,
        schedule: Schedule,
        phase: str | None = None,
        label: str | None = None,
    ) -> None:
        self._hops, self._schedule, self._phase, self._label = hops, schedule, phase, label
        self._channel, self._members, self._arena = group
        self._buffers: list[Any] = []
        self._undecoded: tuple[MessageWork, ...] = ()

    async def run(self, *, scatter_only: bool = False) -> None:
        """Goes through the steps; with `scatter_only` stops when every sink holds its full sum, unsealed."""
        channel, in_flight = self._channel, deque[Handle]()
        for step, posts in self._prepare(scatter_only).moves:
            if posts:
                in_flight.append(self._post(step))
                continue
            if self._undecoded:  # while these messages are in flight
                self._decode_gathered()
            await channel.completed(in_flight.popleft())
            if step.work:
                self._process(step.work)
            self._undecoded += step.decoding
        self._decode_gathered()

    def _prepare(self, scatter_only: bool) -> RoutePlan:
        """The plan of this round, whose buffers are in place but for the leaves."""
        hops = self._hops
        sealing: Sealing = "nowhere" if scatter_only else "arena"
        room = in_place = hops.messages_in_place()
        assert in_place is None or self._schedule.segments == 1, "a segment might be overwritten while sent"
        if in_place is None and not scatter_only:
            room = hops.seal_in_result()
        if room is not None:
            sealing = "given"
        plan = self._plan(sealing, in_place is not None)
        self._buffers = plan.begin(room)
        return plan

    def _plan(self, sealing: Sealing, in_place: bool) -> RoutePlan:
        """The plan for this round's sizes of messages, made anew if there has been none."""
        hops, arena, schedule = self._hops, self._arena, self._schedule
        route = schedule.route(self._members.index(self._channel.rank))
        sizes = hops.message_offsets()
        if sizes is None:
            sizes = tuple(hops.message_bytes(range(chunk, chunk + 1), n) for chunk, n in route.counts)
        group = GroupRank(self._members, self._channel.rank, self._phase)
        planner = partial(Planner, schedule, group, hops.message_bytes, arena, sealing, in_place=in_place)
        return arena.keep((route, group, sealing, in_place, sizes), lambda: planner().plan())

    def _post(self, step: PlannedStep) -> Handle:
        buffers = self._buffers
        for leaf in step.leaves:
            if buffers[leaf.buffer] is None:  # it may go to several ranks, encoded once
                buffers[leaf.buffer] = self._leaf(leaf)
        return self._channel.start(step.messages, buffers)

    def _leaf(self, leaf: Leaf) -> Tensor:
        message = self._hops.leaf(leaf.chunks)
        if message is None:
            message = leaf.room(self._arena)
            self._hops.encode(leaf.chunks, message, leaf.workers)
            self._channel.worked(self._label or "encode", leaf.share)
        return message

    def _process(self, works: Sequence[MessageWork]) -> None:
        hops, buffers, channel, label = self._hops, self._buffers, self._channel, self._label
        for action, chunks, share, buffer, received, out, workers, collected in works:
            if action == "accumulate":
                hops.accumulate(buffers[buffer], chunks, received)
            elif action == "accumulate_encode":
                hops.accumulate_encode(buffers[buffer], chunks, buffers[out], received, workers)
            elif action == "seal":
                hops.seal(buffers[buffer], chunks, buffers[out], received, workers)
            elif action == "decode":
                hops.decode(buffers[buffer], chunks, received)
            else:
                hops.collect([buffers[each] for each in collected], chunks)
            channel.worked(label or action, share)

    def _decode_gathered(self) -> None:
        self._process(self._undecoded)
        self._undecoded = ()
