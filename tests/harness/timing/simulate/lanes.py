"""Lanes to simulate: computation of given lengths that starts and awaits tasks."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.harness.timing.trace.step import (
    Await,
    Barrier,
    Compute,
    LaneOperation,
    RankTrace,
    Start,
    TaskTrace,
)

BARRIER = "barrier"
Said = float | int | tuple[int, int] | str | Start
"""Seconds of computation; `starts(task)`; (task, steps back) that is awaited; a barrier."""


def starts(task: int) -> Start:
    return Start(0.0, task)


def lane(*said: Said) -> tuple[LaneOperation, ...]:
    """The operations with times as if nothing were ever waited for."""
    found, at, woken = list[LaneOperation](), 0.0, 0.0
    for one in said:
        if isinstance(one, Start):
            found.append(one._replace(at=at))
        elif isinstance(one, tuple):
            found.append(Await(one[0], at, at, one[1]))
            woken = at
        elif isinstance(one, str):
            found.append(Barrier(at, at))
            woken = at
        else:
            found.append(Compute(at, at + one, "work", at + one - woken))
            at += one
    return tuple(found)


def rank(said: Sequence[Said], *tasks: TaskTrace) -> RankTrace:
    return RankTrace(lane(*said), tasks, 0.0)
