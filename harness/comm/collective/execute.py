"""Runs a schedule for one rank. This is the only place where messages are passed to a codec's hops."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple

from torch import Tensor

from gradwire.codecs.interface import Hops
from gradwire.harness.comm.collective.arena import Arena, Slot, SlotPlace
from gradwire.harness.comm.topology.schedule import Receive, Schedule, Send, Step
from gradwire.harness.comm.transport.channel import Channel, Handle


class _InFlight(NamedTuple):
    """A step that has been posted, and the buffers its messages arrive in."""

    step: Step
    handle: Handle
    incoming: list[tuple[Receive, SlotPlace]]


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
        self._hops, self._phase, self._label = hops, phase, label
        self._channel, self._members, self._arena = group
        channel, members, _ = group
        self._segments, self._num_chunks = schedule.segments, schedule.num_chunks
        route = schedule.route(members.index(channel.rank))
        self._steps, self._needed, self._carriers = route.steps, route.needed, route.carriers
        sizes = [hops.message_bytes(range(c, c + 1), len(members)) for c in range(self._num_chunks)]
        self._offsets = [0, *accumulate(sizes)]
        self._sealed: Slot | None = None
        self._inner: dict[range, Slot] = {}
        self._leaves: dict[range, Tensor] = {}
        self._undecoded: list[Receive] = []
        self._scatter_only = False
        place = hops.messages_in_place()
        self._place = None if place is None else Slot.over(place)
        """The memory of messages that are partial sums, if they are."""
        assert place is None or self._segments == 1, "a segment might be overwritten while it is sent"

    async def run(self, *, scatter_only: bool = False) -> None:
        """Executes the steps; with `scatter_only` stops when every sink holds its full sum, unsealed.

        The number of steps in flight is the schedule's number of segments, or less if a step's messages need
        data that has not arrived yet. Steps are awaited in the order posted, which is the same in every
        world.
        """
        steps, self._scatter_only = self._steps, scatter_only
        if self._place is not None:
            self._sealed = self._place
        elif not scatter_only:
            room = self._hops.seal_in_result()
            self._sealed = self._arena.take(self._offsets[-1]) if room is None else Slot.over(room)
        if scatter_only:
            steps = tuple(takewhile(lambda step: step.phase != "all_gather", steps))
        in_flight: deque[_InFlight] = deque()
        for index, step in enumerate(steps):
            while index - len(in_flight) <= max(self._needed[index], index - self._segments):
                await self._complete(in_flight.popleft())
            in_flight.append(self._post(step))
        while in_flight:
            await self._complete(in_flight.popleft())
        self._decode_gathered()

    def _post(self, step: Step) -> _InFlight:
        sends = [(self._members[send.peer], self._outgoing(send)) for send in step.sends]
        incoming = [(receive, self._buffer(receive)) for receive in step.receives]
        receives = [(self._members[receive.peer], place.message) for receive, place in incoming]
        return _InFlight(step, self._channel.post(sends, receives, self._phase or step.phase), incoming)

    async def _complete(self, posted: _InFlight) -> None:
        self._decode_gathered()  # while these messages are in flight
        await self._channel.completed(posted.handle)
        if posted.step.collects:
            self._collect(posted.incoming)
            return
        for receive, place in posted.incoming:
            self._process(receive, place)

    def _outgoing(self, send: Send) -> Tensor:
        if self._place is not None:
            return self._sealed_part(send.chunks).message
        if send.source == "inner":
            size = self._hops.message_bytes(send.chunks, send.workers)
            return self._inner[send.chunks].part(0, size)
        if send.source == "sealed":
            return self._sealed_part(send.chunks).message
        if send.chunks not in self._leaves:
            self._leaves[send.chunks] = self._leaf(send)
        return self._leaves[send.chunks]

    def _leaf(self, send: Send) -> Tensor:
        message = self._hops.leaf(send.chunks)
        if message is None:
            message = self._room(send.chunks, send.workers).message
            self._hops.encode(send.chunks, message, send.workers)
            self._worked("encode", send.chunks)
        return message

    def _buffer(self, receive: Receive) -> SlotPlace:
        if receive.actions[0][0] == "gather":
            return self._sealed_part(receive.chunks)
        return self._room(receive.chunks, receive.workers)

    def _room(self, chunks: range, workers: int) -> SlotPlace:
        size = self._hops.message_bytes(chunks, workers)
        return SlotPlace(self._arena.take(size), 0, size)

    def _sealed_part(self, chunks: range) -> SlotPlace:
        assert self._sealed is not None, "nothing is sealed in a scatter"
        return SlotPlace(self._sealed, self._offsets[chunks.start], self._offsets[chunks.stop])

    def _inner_part(self, chunks: range) -> Tensor:
        """The part for `chunks` of the message that carries them on; several actions may fill one message."""
        carrier = self._carriers[chunks.start]
        slot = self._inner.get(carrier.chunks)
        if slot is None:
            size = self._hops.message_bytes(carrier.chunks, carrier.workers)
            slot = self._inner[carrier.chunks] = self._arena.take(size)
        before = range(carrier.chunks.start, chunks.start)
        start = self._hops.message_bytes(before, carrier.workers) if before else 0
        return slot.part(start, start + self._hops.message_bytes(chunks, carrier.workers))

    def _process(self, receive: Receive, place: SlotPlace) -> None:
        if self._place is not None:
            if receive.actions[0][0] != "gather":
                self._hops.accumulate(place.message, receive.chunks, receive.workers)
                self._worked("accumulate", receive.chunks)
            return
        start, whole = 0, len(receive.actions) == 1
        for action, chunks in receive.actions:
            if action == "gather":
                self._undecoded.append(receive)
                continue
            if whole:
                message = place.message
            else:
                stop = start + self._hops.message_bytes(chunks, receive.workers)
                message, start = place.part(start, stop), stop
            if action == "partial" or (action == "sink" and self._scatter_only):
                self._hops.accumulate(message, chunks, receive.workers)
                self._worked("accumulate", chunks)
            elif action == "sink":
                sealed = self._sealed_part(chunks).message
                self._hops.seal(message, chunks, sealed, receive.workers, len(self._members))
                self._worked("seal", chunks)
            else:
                passed_on, workers = self._inner_part(chunks), self._carriers[chunks.start].workers
                self._hops.accumulate_encode(message, chunks, passed_on, receive.workers, workers)
                self._worked("accumulate_encode", chunks)

    def _collect(self, incoming: Sequence[tuple[Receive, SlotPlace]]) -> None:
        """Sums the messages of all ranks, including this one's, in rank order, which is the same on every
        rank."""
        assert self._place is None, "messages of a broadcast are not partial sums"
        (chunks,) = {receive.chunks for receive, _ in incoming}
        messages = {self._members[receive.peer]: place.message for receive, place in incoming}
        messages[self._channel.rank] = self._leaves[chunks]
        self._hops.collect([messages[rank] for rank in sorted(messages)], chunks)
        self._worked("collect", chunks)

    def _decode_gathered(self) -> None:
        for receive in self._undecoded:
            self._hops.decode(self._sealed_part(receive.chunks).message, receive.chunks, receive.workers)
            self._worked("decode", receive.chunks)
        self._undecoded.clear()

    def _worked(self, label: str, chunks: range) -> None:
        self._channel.worked(self._label or label, len(chunks) / self._num_chunks)
