"""A step as data: per rank, when gradients were ready, and what each bucket's synchronization did.

Breakdown, overlap and bandwidth are made from its `spans`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gradwire.harness.timing.measure.spans import Span

MEASURE = "measure"
"""The phase of messages that belong to the measurement: neither counted nor paced."""

BACKEND = "backend"
"""The phase of what the communication library does by itself, message by message unknown to us."""

PHASES = ("metadata", "reduce_scatter", "all_gather")
"""The phases that bytes are counted under."""

Message = tuple[int, int]
"""(peer, bytes)"""


class Part(NamedTuple):
    """Seconds of work under one name (`encode`, `statistics`, …) for `share` of the bucket's coordinates."""

    label: str
    share: float
    seconds: float


class Work(NamedTuple):
    """Codec work between two messages, in seconds of the step; what no part covers is Python."""

    start: float
    end: float
    parts: tuple[Part, ...] = ()


class Post(NamedTuple):
    """Messages given to the transport together; `copies` if several peers are sent the same bytes and nobody
    anything else, which a network with multicast carries as one."""

    at: float
    phase: str
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    copies: bool = False


class Wait(NamedTuple):
    """Waiting for the `number`-th post of the task; `end` is when all its messages had come through."""

    number: int
    start: float
    end: float


Operation = Work | Post | Wait


class TaskTrace(NamedTuple):
    """The synchronization of one bucket by one rank; it could begin at `ready`, `in_turn` only after the
    bucket before it had ended."""

    bucket: int
    coordinates: int
    ready: float
    operations: tuple[Operation, ...]
    in_turn: bool = False

    @property
    def end(self) -> float:
        """When its last operation ended."""
        last = self.operations[-1]
        return last.at if isinstance(last, Post) else last.end


class RankTrace(NamedTuple):
    """One rank's step, in seconds from its start: forward and backward until `ready[b]`, when bucket b's
    gradient was there, the synchronizations, and the update, `update_s` long."""

    ready: tuple[float, ...]
    tasks: tuple[TaskTrace, ...]
    update_s: float
    end: float


StepTrace = Mapping[int, RankTrace]
"""rank → its part of the step"""


def spans(trace: RankTrace) -> list[Span]:
    """Computation, codec work and messages, real or simulated."""
    return [*compute_spans(trace), *(span for task in trace.tasks for span in task_spans(task))]


def compute_spans(trace: RankTrace) -> Iterator[Span]:
    """One span per bucket, up to its gradient's being ready, and the update."""
    start = 0.0
    for bucket, ready in enumerate(trace.ready):
        passes = "backward" if bucket else "forward, backward"
        yield Span("compute", start, ready, 0, f"{passes} until bucket {bucket}")
        start = ready
    if trace.update_s:
        yield Span("compute", trace.end - trace.update_s, trace.end, 0, "update")


def task_spans(task: TaskTrace) -> Iterator[Span]:
    """`codec` for each piece of work, `comm` from each post until its completion was seen."""
    posts: list[Post] = [operation for operation in task.operations if isinstance(operation, Post)]
    for operation in task.operations:
        if isinstance(operation, Work) and operation.end > operation.start:
            yield Span("codec", operation.start, operation.end, 0, f"bucket {task.bucket}")
        elif isinstance(operation, Wait):
            post = posts[operation.number]
            if post.phase != MEASURE:
                sent = sum(num_bytes for _, num_bytes in post.sends)
                yield Span("comm", post.at, operation.end, sent, post.phase)
