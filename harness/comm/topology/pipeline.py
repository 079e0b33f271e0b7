"""Pipelining: the same topology with every message cut into segments, so that work overlaps sending.

A rank that has sent segment j − 1 encodes segment j while the first is on its way, and passes a segment on
before the next has arrived. What is sent to whom stays the same; there are `segments` times as many chunks
and steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradwire.harness.comm.topology.schedule import Action, Receive, Schedule, Step


def pipelined(schedule: Schedule, segments: int) -> Schedule:
    """Returns `schedule` with each step as `segments` steps in a row, one for each segment of its messages.

    Each chunk becomes `segments` chunks. A message of m chunks becomes messages of m of the smaller chunks,
    so the segments of one message are equally long, and both of its ends are cut alike.
    """
    assert segments >= 1, f"{segments} segments"
    assert schedule.segments == 1, "already pipelined"
    if segments == 1:
        return schedule
    ranks = tuple(tuple(_cut(steps, segments)) for steps in schedule.ranks)
    return replace(schedule, num_chunks=schedule.num_chunks * segments, ranks=ranks, segments=segments)


def _cut(steps: Sequence[Step], segments: int) -> Iterator[Step]:
    inner = [send.chunks for step in steps for send in step.sends if send.source == "inner"]
    starts = {_segment(chunks, segments, j).start for chunks in inner for j in range(segments)}
    for step in steps:
        for j in range(segments):
            yield Step(
                step.phase,
                tuple(replace(send, chunks=_segment(send.chunks, segments, j)) for send in step.sends),
                tuple(_cut_receive(receive, segments, j, starts) for receive in step.receives),
            )


def _segment(chunks: range, segments: int, j: int) -> range:
    start = chunks.start * segments + j * len(chunks)
    return range(start, start + len(chunks))


def _cut_receive(receive: Receive, segments: int, j: int, starts: set[int]) -> Receive:
    """Cuts out segment j. Its actions are divided so that each writes to one message: those begin at
    `starts`."""
    chunks = _segment(receive.chunks, segments, j)
    actions: list[tuple[Action, range]] = []
    for action, whole in receive.actions:
        start, stop = max(whole.start * segments, chunks.start), min(whole.stop * segments, chunks.stop)
        inside = [chunk for chunk in range(start + 1, stop) if action == "inner" and chunk in starts]
        bounds = [start, *inside, stop] if start < stop else []
        actions += [(action, range(a, b)) for a, b in zip(bounds, bounds[1:], strict=False)]
    return Receive(receive.peer, chunks, receive.workers, tuple(actions))
