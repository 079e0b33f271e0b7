"""Makes the plan of a rank from a schedule and the sizes of messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from torch import Tensor

from gradwire.harness.comm.collective.arena import Arena, Slot
from gradwire.harness.comm.collective.plan import Leaf, MessageWork, Move, PlannedStep, RoutePlan, cut
from gradwire.harness.comm.topology.schedule import Action, Receive, Schedule, Send, Step
from gradwire.harness.comm.transport.channel import Messages

Sealing = Literal["arena", "given", "nowhere"]
"""The memory of sealed messages: the arena's; memory that the codec gives in every round; or none, because a
scatter seals nothing."""


class GroupRank(NamedTuple):
    """The ranks of a collective on the channel, `own` among them, and the phase that its messages are counted
    under; None for those of the schedule."""

    members: Sequence[int]
    own: int
    phase: str | None


class Planner:
    """Makes the plan of `group.own`; messages lie in slots of the arena, which it takes.

    `message_bytes` gives the size of a message of some chunks with so many contributions. With `in_place`
    messages are partial sums in the memory of sealed ones.
    """

    def __init__(
        self,
        schedule: Schedule,
        group: GroupRank,
        message_bytes: Callable[[range, int], int],
        arena: Arena,
        sealing: Sealing,
        *,
        in_place: bool,
    ) -> None:
        self._route = schedule.route(group.members.index(group.own))
        self._num_chunks, self._segments = schedule.num_chunks, schedule.segments
        self._group, self._bytes, self._arena = group, message_bytes, arena
        self._sealing, self._in_place = sealing, in_place
        workers = len(group.members)
        sizes = (message_bytes(range(chunk, chunk + 1), workers) for chunk in range(self._num_chunks))
        self._offsets = [0, *accumulate(sizes)]
        self._sealed_slot = arena.take(self._offsets[-1]) if sealing == "arena" else None
        self._buffers: list[Any] = []
        self._given: list[tuple[int, int, int]] = []
        self._sealed: dict[range, int] = {}
        self._inner: dict[range, tuple[int, Slot]] = {}
        self._encoded: dict[range, int] = {}
        self._leaves: dict[int, Leaf] = {}

    def plan(self) -> RoutePlan:
        """The plan of all steps, or of those of a scatter."""
        steps = self._route.steps
        if self._sealing == "nowhere":
            steps = tuple(step for step in steps if step.phase != "all_gather")
        moves = tuple(self._moves([self._step(step) for step in steps]))
        return RoutePlan(self._route, moves, self._buffers, cut(self._given, self._offsets[-1]))

    def _moves(self, steps: Sequence[PlannedStep]) -> Iterator[Move]:
        """The number of steps in flight is the schedule's number of segments, or less if a step's messages
        need data that has not arrived yet. Steps complete in the order posted, which is the same in every
        world."""
        in_flight: deque[PlannedStep] = deque()
        for index, step in enumerate(steps):
            while index - len(in_flight) <= max(self._route.needed[index], index - self._segments):
                yield Move(in_flight.popleft(), posts=False)
            in_flight.append(step)
            yield Move(step, posts=True)
        for step in in_flight:
            yield Move(step, posts=False)

    def _step(self, step: Step) -> PlannedStep:
        """A step; messages without bytes are made and processed, but not sent."""
        members, sized = self._group.members, self._bytes
        leaving = [(send, self._outgoing(send), sized(send.chunks, send.workers)) for send in step.sends]
        arriving = [(each, *self._incoming(each), sized(each.chunks, each.workers)) for each in step.receives]
        leaves = [self._leaves[at] for _, at, _ in leaving if at in self._leaves]
        sends = [(members[send.peer], at, size) for send, at, size in leaving if size]
        receives = [(members[each.peer], at, size) for each, at, _, size in arriving if size]
        work = [each for _, _, own, _ in arriving for each in own]
        if step.collects:
            work = [self._collecting(step.receives, [each.buffer for each in work])]
        return PlannedStep(
            Messages(
                phase=self._group.phase or step.phase,
                sends=tuple((peer, size) for peer, _, size in sends),
                receives=tuple((peer, size) for peer, _, size in receives),
                outgoing=tuple((peer, at) for peer, at, _ in sends),
                incoming=tuple((peer, at) for peer, at, _ in receives),
                sent_bytes=sum(size for _, _, size in sends),
                copies=len(sends) > 1 and len({at for _, at, _ in sends}) == 1,
            ),
            leaves=tuple(dict.fromkeys(leaves)),
            work=tuple(each for each in work if each.action != "decode"),
            decoding=tuple(each for each in work if each.action == "decode"),
        )

    def _add(self, buffer: Tensor | None) -> int:
        """The number of another buffer."""
        self._buffers.append(buffer)
        return len(self._buffers) - 1

    def _share(self, chunks: range) -> float:
        return len(chunks) / self._num_chunks

    def _outgoing(self, send: Send) -> int:
        """The buffer of a message to send."""
        chunks, workers = send.chunks, send.workers
        if self._in_place or send.source == "sealed":
            return self._sealed_part(chunks)
        if send.source == "inner":
            return self._inner[chunks][0]
        if chunks not in self._encoded:
            at = self._encoded[chunks] = self._add(None)
            slot, size = self._arena.take(0), self._bytes(chunks, workers)
            self._leaves[at] = Leaf(at, chunks, workers, self._share(chunks), slot, size)
        return self._encoded[chunks]

    def _incoming(self, receive: Receive) -> tuple[int, list[MessageWork]]:
        """The buffer of a message to receive, and the work on it."""
        chunks, workers, (action, _) = receive.chunks, receive.workers, receive.actions[0]
        if action == "gather":
            at = self._sealed_part(chunks)
            decode = MessageWork("decode", chunks, self._share(chunks), at, workers)
            return at, [] if self._in_place else [decode]
        size = self._bytes(chunks, workers)
        slot = self._arena.take(size)
        at = self._add(slot.part(0, size))
        if self._in_place or action == "collect":
            assert not (self._in_place and action == "collect"), "messages of a broadcast are no partial sums"
            return at, [MessageWork("accumulate", chunks, self._share(chunks), at, workers)]
        if len(receive.actions) == 1:
            return at, [self._summing(action, chunks, at, workers)]
        work, start = [], 0
        for action, part in receive.actions:
            stop = start + self._bytes(part, workers)
            work.append(self._summing(action, part, self._add(slot.part(start, stop)), workers))
            start = stop
        return at, work

    def _summing(self, action: Action, chunks: range, buffer: int, received: int) -> MessageWork:
        """The work on a partial sum."""
        share = self._share(chunks)
        if action == "inner":
            workers = self._route.carriers[chunks.start].workers
            return MessageWork(
                "accumulate_encode", chunks, share, buffer, received, self._carrier(chunks), workers
            )
        if action == "sink" and self._sealing != "nowhere":
            sealed, workers = self._sealed_part(chunks), len(self._group.members)
            return MessageWork("seal", chunks, share, buffer, received, sealed, workers)
        return MessageWork("accumulate", chunks, share, buffer, received)

    def _collecting(self, receives: Sequence[Receive], buffers: Sequence[int]) -> MessageWork:
        """Summing the messages of all ranks, including this one's, in rank order, which is the same on every
        rank."""
        (chunks,) = {receive.chunks for receive in receives}
        members = self._group.members
        messages = {members[each.peer]: at for each, at in zip(receives, buffers, strict=True)}
        messages[self._group.own] = self._encoded[chunks]
        collected = tuple(messages[rank] for rank in sorted(messages))
        return MessageWork("collect", chunks, self._share(chunks), -1, 1, collected=collected)

    def _sealed_part(self, chunks: range) -> int:
        """The buffer of the sealed messages of `chunks`."""
        if chunks not in self._sealed:
            assert self._sealing != "nowhere", "nothing is sealed in a scatter"
            start, stop = self._offsets[chunks.start], self._offsets[chunks.stop]
            slot = self._sealed_slot
            at = self._sealed[chunks] = self._add(None if slot is None else slot.part(start, stop))
            if slot is None:
                self._given.append((at, start, stop))
        return self._sealed[chunks]

    def _carrier(self, chunks: range) -> int:
        """The buffer for `chunks` within the message that carries them on; several works may fill one
        message."""
        carrier = self._route.carriers[chunks.start]
        if carrier.chunks not in self._inner:
            size = self._bytes(carrier.chunks, carrier.workers)
            slot = self._arena.take(size)
            self._inner[carrier.chunks] = self._add(slot.part(0, size)), slot
        whole, slot = self._inner[carrier.chunks]
        if chunks == carrier.chunks:
            return whole
        before = range(carrier.chunks.start, chunks.start)
        start = self._bytes(before, carrier.workers) if before else 0
        return self._add(slot.part(start, start + self._bytes(chunks, carrier.workers)))
