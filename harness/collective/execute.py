"""Runs a schedule for one rank: the one place where messages meet a codec's hops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from torch import Tensor

from gradwire.codecs.interface import Hops
from gradwire.harness.collective.arena import Arena
from gradwire.harness.topology.schedule import Receive, Send, Step
from gradwire.harness.transport.channel import Channel


class Execution:
    """One all-reduce of one rank of a group.

    `members` are the group's ranks on the channel: the schedule's peer p is `members[p]`. `phase`
    overrides the schedule's phases in the byte counters.
    """

    def __init__(
        self,
        hops: Hops,
        channel: Channel,
        members: Sequence[int],
        arena: Arena,
        num_chunks: int,
        phase: str | None = None,
    ) -> None:
        self._hops, self._channel, self._members = hops, channel, members
        self._arena, self._phase = arena, phase
        sizes = [hops.message_bytes(range(c, c + 1), len(members)) for c in range(num_chunks)]
        self._offsets = [0, *accumulate(sizes)]
        self._sealed = arena.take(self._offsets[-1])
        self._ready: dict[range, Tensor] = {}
        self._leaves: dict[range, Tensor] = {}
        self._undecoded: list[Receive] = []
        self._inner_workers: dict[range, int] = {}

    async def run(self, steps: Sequence[Step], *, scatter_only: bool = False) -> None:
        """Execute `steps`; with `scatter_only` stop where every sink holds its full sum, unsealed.

        Raises ValueError for `scatter_only` on a topology without sinks.
        """
        if scatter_only and _collects(steps):
            raise ValueError("topology=broadcast sums nothing on the way and has no reduce-scatter")
        inner = [send for step in steps for send in step.sends if send.source == "inner"]
        self._inner_workers = {send.chunks: send.workers for send in inner}
        for step in steps:
            if scatter_only and step.phase == "all_gather":
                break
            sends = [(self._members[send.peer], self._outgoing(send)) for send in step.sends]
            incoming = [(receive, self._buffer(receive)) for receive in step.receives]
            handle = self._channel.post(
                sends,
                [(self._members[receive.peer], buffer) for receive, buffer in incoming],
                self._phase or step.phase,
            )
            self._decode_gathered()  # while the next messages are in flight
            await self._channel.wait(handle)
            if _collects([step]):
                self._collect(incoming)
                continue
            for receive, buffer in incoming:
                self._process(receive, buffer, scatter_only)
        self._decode_gathered()

    def _outgoing(self, send: Send) -> Tensor:
        if send.source == "inner":
            return self._ready.pop(send.chunks)
        if send.source == "sealed":
            return self._sealed_part(send.chunks)
        if send.chunks not in self._leaves:
            message = self._arena.take(self._hops.message_bytes(send.chunks, send.workers))
            self._hops.encode(send.chunks, message)
            self._leaves[send.chunks] = message
        return self._leaves[send.chunks]

    def _buffer(self, receive: Receive) -> Tensor:
        if receive.actions[0][0] == "gather":
            return self._sealed_part(receive.chunks)
        return self._arena.take(self._hops.message_bytes(receive.chunks, receive.workers))

    def _sealed_part(self, chunks: range) -> Tensor:
        return self._sealed[self._offsets[chunks.start] : self._offsets[chunks.stop]]

    def _process(self, receive: Receive, buffer: Tensor, scatter_only: bool) -> None:
        start = 0
        for action, chunks in receive.actions:
            if action == "gather":
                self._undecoded.append(receive)
                continue
            stop = start + self._hops.message_bytes(chunks, receive.workers)
            message, start = buffer[start:stop], stop
            if action == "partial" or (action == "sink" and scatter_only):
                self._hops.accumulate(message, chunks)
            elif action == "sink":
                self._hops.seal(message, chunks, self._sealed_part(chunks))
            else:
                out = self._arena.take(self._hops.message_bytes(chunks, self._inner_workers[chunks]))
                self._hops.accumulate_encode(message, chunks, out)
                self._ready[chunks] = out

    def _collect(self, incoming: Sequence[tuple[Receive, Tensor]]) -> None:
        """Sum the messages of all ranks, the own one too, in the order of the ranks: the same on each."""
        (chunks,) = {receive.chunks for receive, _ in incoming}
        messages = {self._members[receive.peer]: buffer for receive, buffer in incoming}
        messages[self._channel.rank] = self._leaves[chunks]
        self._hops.collect([messages[rank] for rank in sorted(messages)], chunks)

    def _decode_gathered(self) -> None:
        for receive in self._undecoded:
            self._hops.decode(self._sealed_part(receive.chunks), receive.chunks)
        self._undecoded.clear()


def _collects(steps: Sequence[Step]) -> bool:
    return any(receive.actions[0][0] == "collect" for step in steps for receive in step.receives)
