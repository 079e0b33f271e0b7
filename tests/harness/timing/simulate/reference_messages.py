"""A plan's messages in plain Python: which may begin as their ends are posted, and which threads wait for
them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from gradwire.harness.timing.simulate.plan import StepPlan
from gradwire.harness.timing.trace.step import ORDINARY, Urgency


class Messages:
    """A message between two ranks may begin when both have posted their ends, a multicast when it is sent.
    A thread that waits for a post continues when all its messages have arrived."""

    def __init__(self, plan: StepPlan) -> None:
        self.urgency = _urgency(plan)
        self._senders, self._receivers = plan.senders.tolist(), _receivers(plan)
        self._ends, self._route = plan.routes, plan.route.tolist()
        self._sent = _messages_of([[post] for post in self._senders], plan.num_posts)
        self._received = _messages_of(self._receivers, plan.num_posts)
        self._open = [
            len(sent) + len(received) for sent, received in zip(self._sent, self._received, strict=True)
        ]
        self._posted = [False] * plan.num_posts
        self._waiting = [-1] * plan.num_posts

    def post(self, post: int) -> list[int]:
        """Both sends and receives of a post are there: the messages that may begin now."""
        posted = self._posted
        posted[post] = True
        found = [
            message
            for message in self._received[post]
            if posted[self._senders[message]] and len(self._receivers[message]) == 1
        ]
        for message in self._sent[post]:
            receiver, *others = self._receivers[message]
            if others or posted[receiver]:
                found.append(message)
        return found

    def wait(self, post: int, thread: int) -> bool:
        """Returns true if the thread has to wait for a post."""
        if self._open[post]:
            self._waiting[post] = thread
        return self._open[post] > 0

    def arrived(self, message: int) -> list[int]:
        """A message is there: the threads that have waited for the last of a post."""
        found = []
        for post in (self._senders[message], *self._receivers[message]):
            self._open[post] -= 1
            if not self._open[post] and self._waiting[post] >= 0:
                found.append(self._waiting[post])
        return found

    def missing(self) -> Iterator[tuple[int, int]]:
        """Each thread that waits, and the ranks that have not posted what it needs."""
        for post, thread in enumerate(self._waiting):
            if thread >= 0 and self._open[post]:
                for message in (*self._sent[post], *self._received[post]):
                    yield from ((thread, other) for other in self._absent(message))

    def _absent(self, message: int) -> list[int]:
        """The ranks that have not posted their end of a message, if it needs that to start."""
        source, destinations = self._ends[self._route[message]]
        ends = [(source, self._senders[message])]
        if len(destinations) == 1:
            ends.append((destinations[0], self._receivers[message][0]))
        return [rank for rank, post in ends if not self._posted[post]]


def _receivers(plan: StepPlan) -> list[list[int]]:
    """The posts that receive each message."""
    receivers, first = plan.receivers.tolist(), plan.first_receivers.tolist()
    return [receivers[begin:end] for begin, end in pairwise(first)]


def _urgency(plan: StepPlan) -> list[Urgency]:
    if plan.levels is None or plan.newest_first is None or plan.boundaries is None:
        return [ORDINARY] * len(plan.sizes)
    columns = (plan.levels, plan.newest_first, plan.boundaries)
    return [Urgency(*each) for each in zip(*(column.tolist() for column in columns), strict=True)]


def _messages_of(ends: Sequence[Sequence[int]], num_posts: int) -> list[list[int]]:
    """The messages of which each post is this end, in order."""
    found: list[list[int]] = [[] for _ in range(num_posts)]
    for message, posts in enumerate(ends):
        for post in posts:
            found[post].append(message)
    return found
