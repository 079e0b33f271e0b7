"""The messages of one coroutine of one rank: post sends and receives, await their arrival.

A collective only uses `Channel`. The driver of the coroutine implements waiting: it blocks a communication
thread, or lets another rank of the same process run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Generator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwire.harness.timing.trace.log import TaskLog
from gradwire.harness.timing.trace.step import MEASURE, NOT_ENCODED

HOP_BITS = 16
MOST_MESSAGES = 1 << HOP_BITS

Message = tuple[int, Tensor]
"""A peer's rank and a contiguous uint8 buffer."""

TaggedMessage = tuple[int, Tensor, int]
"""A message and its tag."""


class Messages(NamedTuple):
    """The messages that a rank posts together: `sends` and `receives` are (peer, bytes), none of them empty,
    `outgoing` and `incoming` (peer, number of its buffer) in the same order. `sent_bytes` is the sum of what
    is sent, `copies` says that several sends are copies of one message."""

    phase: str
    sends: tuple[tuple[int, int], ...]
    receives: tuple[tuple[int, int], ...]
    outgoing: tuple[tuple[int, int], ...]
    incoming: tuple[tuple[int, int], ...]
    sent_bytes: int
    copies: bool


class Handle:
    """Messages posted together by one rank, as post `number` of their coroutine; the rank sends `sent_bytes`
    in total. Awaiting it suspends the coroutine until its driver has seen that all are delivered, those that
    are sent included."""

    sent_bytes: int = 0
    number: int = 0

    def __await__(self) -> Generator[Handle, None, None]:
        yield self


class Traffic:
    """Bytes that one rank has sent, by phase; every byte figure comes from these counters.

    `node` holds the ranks of its node: bytes to other ranks are also counted in `between_nodes`. None means
    that all ranks are on one node. A part's bytes are also counted in the `whole`.
    """

    def __init__(self, node: Collection[int] | None = None, whole: Traffic | None = None) -> None:
        self.by_phase: Counter[str] = Counter()
        self._between: Counter[str] = Counter()
        self.node, self._whole = node, whole

    def part(self) -> Traffic:
        """Separate counters, from 0 on, for some of this rank's bytes."""
        return Traffic(self.node, self)

    def add(self, messages: Messages) -> None:
        """Counts the messages that are sent."""
        phase, node = messages.phase, self.node
        self.by_phase[phase] += messages.sent_bytes
        if node is not None:
            self._between[phase] += sum(num_bytes for peer, num_bytes in messages.sends if peer not in node)
        if self._whole is not None:
            self._whole.add(messages)

    def include(self, other: Traffic) -> None:
        """Adds the counts of `other`."""
        self.by_phase.update(other.by_phase)
        self._between.update(other._between)
        if self._whole is not None:
            self._whole.include(other)

    def clear(self) -> None:
        """Resets all counts to 0."""
        self.by_phase.clear()
        self._between.clear()

    @property
    def total(self) -> int:
        return sum(self.by_phase.values())

    @property
    def between_nodes(self) -> int:
        return sum(self._between.values())

    @property
    def encoded(self) -> tuple[int, int]:
        """The bytes of gradients and weights, in total and to other nodes. Wire bits are computed from
        these.
        """
        counts = (self.by_phase, self._between)
        total, between = (sum(n for phase, n in own.items() if phase not in NOT_ENCODED) for own in counts)
        return total, between


class Channel(ABC):
    """One coroutine's connection to its peers.

    `number` distinguishes the coroutines of one rank that are in flight together; it is the same on all ranks
    for the same bucket. Within a coroutine, the k-th message sent to a peer is matched with the k-th message
    that the peer receives from this rank, because ranks may take different numbers of steps (in a folded
    butterfly).
    """

    def __init__(
        self, rank: int, size: int, number: int, traffic: Traffic, log: TaskLog | None = None
    ) -> None:
        self.rank, self.size = rank, size
        self._traffic, self._log = traffic, log
        self._first_tag = (number << HOP_BITS) & 0x7FFF_FFFF
        self._sent, self._received = dict[int, int](), dict[int, int]()

    def post(self, sends: Sequence[Message], receives: Sequence[Message], phase: str) -> Handle:
        """Start messages: `sends` leave these buffers, `receives` fill these.

        Buffers belong to the transport until the handle has been awaited. Empty messages are not sent, so
        sender and receiver must both know the sizes. At most one message per peer and direction.
        """
        sends = [message for message in sends if message[1].nbytes]
        receives = [message for message in receives if message[1].nbytes]
        sent = tuple((peer, buffer.nbytes) for peer, buffer in sends)
        messages = Messages(
            phase=phase,
            sends=sent,
            receives=tuple((peer, buffer.nbytes) for peer, buffer in receives),
            outgoing=tuple((peer, at) for at, (peer, _) in enumerate(sends)),
            incoming=tuple((peer, at) for at, (peer, _) in enumerate(receives, len(sends))),
            sent_bytes=sum(num_bytes for _, num_bytes in sent),
            copies=_are_copies(sends),
        )
        return self.start(messages, [buffer for _, buffer in (*sends, *receives)])

    def start(self, messages: Messages, buffers: Sequence[Tensor]) -> Handle:
        """`post` of messages that are prepared, in buffers by number."""
        phase, sends, receives, outgoing, incoming, sent_bytes, copies = messages
        leaving = self._tagged(outgoing, buffers, self._sent)
        arriving = self._tagged(incoming, buffers, self._received)
        if phase != MEASURE:
            self._traffic.add(messages)
        log = self._log
        number = 0 if log is None else log.post(phase, sends, receives, copies=copies)
        handle = self._post(leaving, arriving, phase)
        handle.sent_bytes, handle.number = sent_bytes, number
        return handle

    def worked(self, label: str, share: float) -> None:
        """Labels the work since the last span or message `label`, done for this share of the bucket."""
        if self._log is not None:
            self._log.worked(label, share)

    def _tagged(
        self, places: Sequence[tuple[int, int]], buffers: Sequence[Tensor], counts: dict[int, int]
    ) -> list[TaggedMessage]:
        """Messages, given as (peer, number of the buffer), with their buffers and tags."""
        tagged: list[TaggedMessage] = []
        for peer, at in places:
            number = counts.get(peer, 0)
            if number == MOST_MESSAGES:
                raise RuntimeError(f"a collective sends a peer at most {MOST_MESSAGES} messages")
            counts[peer] = number + 1
            tagged.append((peer, buffers[at], self._first_tag + number))
        return tagged

    def completed(self, handle: Handle) -> Handle:
        """Returns an awaitable that ends when all messages of `handle`, sent ones included, are delivered."""
        return handle

    @abstractmethod
    def _post(
        self, sends: Sequence[TaggedMessage], receives: Sequence[TaggedMessage], phase: str
    ) -> Handle: ...

    @abstractmethod
    def backend_sum(self, x: Tensor) -> Handle:
        """Starts the backend's own in-place all-reduce (sum) of `x`."""


def _are_copies(messages: Sequence[Message]) -> bool:
    """True if two or more messages are the same bytes in memory for different peers."""
    if len(messages) < 2 or len({peer for peer, _ in messages}) < len(messages):
        return False
    return len({(buffer.data_ptr(), buffer.nbytes) for _, buffer in messages}) == 1


class CollectiveTask:
    """A coroutine, with the callbacks for its result and for its failure."""

    def __init__(
        self,
        coroutine: Coroutine[Handle, None, Any],
        finish: Callable[[Any], None],
        fail: Callable[[BaseException], None],
        log: TaskLog | None = None,
        *,
        recorded: bool = True,
    ) -> None:
        self._coroutine, self._finish, self._fail, self.log = coroutine, finish, fail, log
        self.recorded = recorded
        """True if it leaves spans."""
        self.handle: Any = None
        """The handle that the coroutine waits for, its channel's; None before the start and after the end."""
        self.ready: torch.cuda.Event | None = None
        """On CUDA: when the inputs are ready on the stream that made them."""

    def advance(self) -> bool:
        """Runs until it awaits messages; False once the coroutine has ended and its result is delivered."""
        try:
            self.handle = self._coroutine.send(None)
        except StopIteration as end:
            self.handle = None
            if self.log is not None:  # what others do with the result is not this task's work
                self.log.suspend(self.log.timestamp())
                self.log.has_ended = True
            self._finish(end.value)
            return False
        return True

    def cancel(self, error: BaseException) -> None:
        """Abandons the coroutine and reports `error` as its outcome."""
        self._coroutine.close()
        self._fail(error)
