"""Ranks in one process whose messages arrive late and in any order, and a log of what each rank did."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.casts import Cast
from gradwire.codecs.collectives import Hops
from gradwire.codecs.slices import SumHops
from gradwire.harness.comm.collective.arena import Arena
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.transport.channel import Channel, Handle, TaggedMessage, Traffic

Event = tuple[Any, ...]
"""("post", its number, phase), ("wait", post), ("through", post), ("lap", label, share) or (hop, chunks)."""

CPU = torch.device("cpu")


class DrivenHandle(Handle):
    def __init__(self, post: int, messages: int) -> None:
        self.post, self.open = post, messages


class Wire:
    """Messages that one end or both have posted. `deliver` takes any, in the order of its pair of ranks."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._sends: dict[tuple[int, int, int], tuple[Tensor, Tensor, DrivenHandle]] = {}
        self._receives: dict[tuple[int, int, int], tuple[Tensor, DrivenHandle]] = {}
        self._delivered: Counter[tuple[int, int]] = Counter()

    def send(self, source: int, peer: int, buffer: Tensor, tag: int, handle: DrivenHandle) -> None:
        self._sends[source, peer, tag] = (buffer, buffer.clone(), handle)

    def receive(self, source: int, rank: int, buffer: Tensor, tag: int, handle: DrivenHandle) -> None:
        buffer.fill_(0xA5)  # a rank that reads before it has waited finds this
        self._receives[source, rank, tag] = (buffer, handle)

    def deliver(self) -> bool:
        """Delivers one message that both ends have posted; False if there is none."""
        keys = [
            key for key in self._sends if key in self._receives and key[2] == self._delivered[key[0], key[1]]
        ]
        if not keys:
            return False
        key = self._random.choice(sorted(keys))
        (sent, copy, sender), (buffer, receiver) = self._sends.pop(key), self._receives.pop(key)
        assert torch.equal(sent, copy), f"send buffer {key} was written to before it had left"
        assert sent.shape == buffer.shape, f"message {key}: {sent.shape} for {buffer.shape}"
        buffer.copy_(sent)
        self._delivered[key[0], key[1]] += 1
        sender.open -= 1
        receiver.open -= 1
        return True


class DrivenChannel(Channel):
    """A channel that notes what is posted, awaited and timed."""

    def __init__(self, rank: int, size: int, wire: Wire, events: list[Event]) -> None:
        super().__init__(rank, size, 0, Traffic())
        self._wire, self.events, self._posts = wire, events, 0

    @property
    def traffic(self) -> Traffic:
        return self._traffic

    def _post(self, sends: Sequence[TaggedMessage], receives: Sequence[TaggedMessage], phase: str) -> Handle:
        handle = DrivenHandle(self._posts, len(sends) + len(receives))
        self.events.append(("post", self._posts, phase))
        self._posts += 1
        for peer, buffer, tag in receives:
            self._wire.receive(peer, self.rank, buffer, tag, handle)
        for peer, buffer, tag in sends:
            self._wire.send(self.rank, peer, buffer, tag, handle)
        return handle

    def completed(self, handle: Handle) -> Handle:
        assert isinstance(handle, DrivenHandle)
        self.events.append(("wait", handle.post))
        return super().completed(handle)

    def worked(self, label: str, share: float) -> None:
        self.events.append(("lap", label, share))

    def backend_sum(self, x: Tensor) -> Handle:
        raise ValueError("only the backend of real processes sums by itself")


Job = Callable[[ScheduledCollectives, DrivenChannel], Coroutine[Any, None, Any]]


def drive(fabric: Fabric, size: int, job: Job, seed: int = 0) -> tuple[list[Any], list[DrivenChannel]]:
    """Runs `job` on every rank, in any order that is possible; returns results and channels by rank.

    Raises AssertionError if all ranks wait, or if a message is left over.
    """
    wire, chance = Wire(seed), random.Random(seed + 1)
    channels = [DrivenChannel(rank, size, wire, []) for rank in range(size)]
    coroutines = [job(ScheduledCollectives(channel, fabric, Arena(CPU)), channel) for channel in channels]
    results: list[Any] = [None] * size
    waits: dict[int, DrivenHandle | None] = dict.fromkeys(range(size))
    while waits:
        able = [rank for rank, handle in waits.items() if handle is None or not handle.open]
        if not able or chance.random() < 0.3:
            assert wire.deliver() or able, f"ranks {sorted(waits)} wait for ever"
            continue
        rank = chance.choice(able)
        try:
            waits[rank] = coroutines[rank].send(None)
        except StopIteration as end:
            results[rank] = end.value
            del waits[rank]
    assert not wire.deliver(), "a message that nobody waited for"
    return results, channels


class WatchedHops(SumHops):
    """Hops that sum in float32 and send the sums as they are; each call is noted."""

    def __init__(self, hops: SumHops, events: list[Event]) -> None:
        self.__dict__.update(hops.__dict__)
        self._events = events

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        self._events.append(("encode", chunks))
        super().encode(chunks, out, workers)

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        self._events.append(("accumulate", chunks))
        super().accumulate(message, chunks, workers)

    def accumulate_encode(
        self, message: Tensor, chunks: range, out: Tensor, received: int, workers: int
    ) -> None:
        self._events.append(("accumulate_encode", chunks))
        super().accumulate_encode(message, chunks, out, received, workers)

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        self._events.append(("decode", chunks))
        super().decode(message, chunks, workers)


def integers(rank: int, numel: int) -> Tensor:
    """(numel,) float32, different on every rank; sums of a few dozen are exact in float32 and bfloat16."""
    return torch.arange(numel, dtype=torch.float32).remainder(7) - rank % 3


def watched_sum(numel: int, *, scatter_only: bool = False) -> Job:
    """An all-reduce of `integers`, n times its mean; hops and messages are written down."""

    async def run(comm: ScheduledCollectives, channel: DrivenChannel) -> Tensor:
        own = SumHops(integers(comm.rank, numel), comm.size, comm.num_chunks, Cast(torch.float32))
        hops: Hops = WatchedHops(own, channel.events)
        mean = await (comm.reduce_scatter(hops) if scatter_only else comm.all_reduce(hops))
        return (mean * comm.size).round()

    return run
