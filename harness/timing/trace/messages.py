"""The messages of a step, each with its sender's and its receiver's times, and the offsets between the ranks'
clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from gradwire.harness.timing.trace.step import MEASURE, Post, StepTrace, TaskTrace, Wait

Interval = tuple[float, float]


class Sent(NamedTuple):
    """A message, and the intervals in which it was in flight as seen by its sender and by its receiver, in
    seconds of their own steps: from its post until all messages posted with it had completed."""

    source: int
    destination: int
    num_bytes: int
    phase: str
    bucket: int
    sent: Interval
    received: Interval


End = TypeVar("End")


class Matching(Generic[End]):
    """Matches the two ends of messages.

    As in the transport, the k-th message that a rank sends to another for a bucket is the k-th that the other
    receives.
    """

    def __init__(self) -> None:
        self._counts = Counter[tuple[int, int, int, bool]]()
        self._half: dict[tuple[int, int, int, int], End] = {}

    def add(self, rank: int, peer: int, bucket: int, sent: bool, end: End) -> tuple[End, End] | None:
        """Adds `rank`'s end of its next message with `peer`. Returns the sender's and the receiver's end once
        both have been added."""
        source, destination = (rank, peer) if sent else (peer, rank)
        side = (source, destination, bucket, sent)
        key = (source, destination, bucket, self._counts[side])
        self._counts[side] += 1
        if key not in self._half:
            self._half[key] = end
            return None
        other = self._half.pop(key)
        return (end, other) if sent else (other, end)

    def check(self) -> None:
        """Raises ValueError for a message with only one end."""
        for source, destination, bucket, _ in self._half:
            raise ValueError(
                f"bucket {bucket}: a message between ranks {source} and {destination} has one end"
            )


def messages(trace: StepTrace) -> list[Sent]:
    """All messages except those of the measurement, in the order of senders and posts. Raises ValueError for
    a message with only one end."""
    matching, found = Matching[tuple[int, Interval]](), list[tuple[int, Sent]]()
    ends = ((rank, task, *made) for rank, own in trace.items() for task in own.tasks for made in posts(task))
    for number, (rank, task, post, interval) in enumerate(ends):
        for sent, others in ((True, post.sends), (False, post.receives)):
            for peer, num_bytes in others:
                both = matching.add(rank, peer, task.bucket, sent, (number, interval))
                if both is not None and post.phase != MEASURE:
                    (order, left), (_, arrived) = both
                    ways = (rank, peer) if sent else (peer, rank)
                    found.append((order, Sent(*ways, num_bytes, post.phase, task.bucket, left, arrived)))
    matching.check()
    return [message for _, message in sorted(found, key=itemgetter(0))]


def posts(task: TaskTrace) -> Iterator[tuple[Post, Interval]]:
    """Each post of a task, and the interval in which it was in flight."""
    waits = {operation.number: operation for operation in task.operations if isinstance(operation, Wait)}
    made = (operation for operation in task.operations if isinstance(operation, Post))
    for number, post in enumerate(made):
        yield post, (post.at, waits[number].end if number in waits else post.at)


def offsets(found: Sequence[Sent], size: int) -> list[float]:
    """Seconds by which each rank's step begins after the first one's, estimated from messages.

    Ranks with independent clocks measure from the start of their own step. The result is the smallest delays
    for which no message arrives before it is sent; all are 0 on a simulated clock, where ranks start
    together.
    """
    ahead: dict[tuple[int, int], float] = {}
    for message in found:
        pair, lag = (message.source, message.destination), message.sent[0] - message.received[1]
        ahead[pair] = max(lag, ahead.get(pair, lag))
    delays = [0.0] * size
    for _ in range(size):  # a delay passes from rank to rank at most so often
        for (source, destination), lag in ahead.items():
            delays[destination] = max(delays[destination], delays[source] + lag)
    return delays
