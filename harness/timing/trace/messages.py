"""The messages of a step with both their ends, and the offsets between the ranks' clocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Literal, NamedTuple

from gradwire.harness.timing.trace.step import MEASURE, Post, StepTrace, TaskTrace, Wait

Interval = tuple[float, float]


class Sent(NamedTuple):
    """A message, and from when to when it was in flight as its sender and its receiver saw it, in seconds of
    their own steps: from its post to when all messages posted with it had come through."""

    source: int
    destination: int
    num_bytes: int
    phase: str
    bucket: int
    sent: Interval
    received: Interval


def messages(trace: StepTrace) -> list[Sent]:
    """All messages but those of the measurement, in the order of senders and posts.

    As in the transport, the k-th message that a rank sends another for a bucket is the k-th that one
    receives. ValueError for a message with one end.
    """
    sent, received = dict(_ends(trace, "sends")), dict(_ends(trace, "receives"))
    for source, destination, bucket, _ in sent.keys() ^ received.keys():
        raise ValueError(f"bucket {bucket}: a message between ranks {source} and {destination} has one end")
    return [
        Sent(source, destination, num_bytes, post.phase, bucket, interval, received[key][2])
        for key, (num_bytes, post, interval) in sent.items()
        for source, destination, bucket, _ in [key]
        if post.phase != MEASURE
    ]


def posts(task: TaskTrace) -> Iterator[tuple[Post, Interval]]:
    """Each post of a task, and from when to when it was in flight."""
    waits = {operation.number: operation for operation in task.operations if isinstance(operation, Wait)}
    made = (operation for operation in task.operations if isinstance(operation, Post))
    for number, post in enumerate(made):
        yield post, (post.at, waits[number].end if number in waits else post.at)


def offsets(found: Sequence[Sent], size: int) -> list[float]:
    """Seconds by which each rank's step begins after the first one's, as far as messages tell.

    Ranks that run on their own measure from their own step's start. The smallest delays are returned under
    which no message arrives before it is sent; all are 0 on a simulated clock, where ranks start together.
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


Key = tuple[int, int, int, int]
"""(source, destination, bucket, which of their messages there)"""


def _ends(
    trace: StepTrace, way: Literal["sends", "receives"]
) -> Iterator[tuple[Key, tuple[int, Post, Interval]]]:
    for rank, own in trace.items():
        for task in own.tasks:
            numbers: defaultdict[int, count[int]] = defaultdict(count)
            for post, interval in posts(task):
                for peer, num_bytes in getattr(post, way):
                    pair = (rank, peer) if way == "sends" else (peer, rank)
                    yield (*pair, task.bucket, next(numbers[peer])), (num_bytes, post, interval)
