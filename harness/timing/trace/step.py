"""A step as data: per rank, when gradients were ready, and what each bucket's synchronization did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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
