"""Pipelining: the same topology with every message cut into segments, so that work overlaps sending.

A rank that has sent segment j − 1 encodes segment j while the first is on its way, and passes a segment on
before the next has arrived. What is sent to whom stays the same; there are `pieces` times as many chunks and
steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradwire.harness.comm.topology.schedule import Action, Receive, Schedule, Step


def pipelined(schedule: Schedule, pieces: int) -> Schedule:
    """Returns `schedule` with each step as `pieces` steps in a row, the j-th with segment j of every message.

    Each chunk becomes `pieces` chunks. A message of m chunks becomes messages of m of the smaller chunks, so
    the segments of one message are equally long, and both of its ends are cut alike.
    """
    assert pieces >= 1, f"{pieces} pieces"
    assert schedule.pieces == 1, "already pipelined"
    if pieces == 1:
        return schedule
    ranks = tuple(tuple(_cut(steps, pieces)) for steps in schedule.ranks)
    return replace(schedule, num_chunks=schedule.num_chunks * pieces, ranks=ranks, pieces=pieces)


def last_needed(steps: Sequence[Step]) -> list[int]:
    """For each of a rank's steps, the last earlier step that must have been received before its messages can
    be made: the last whose receives touch the same chunks; −1 if none does."""
    needed, last = [], dict[int, int]()
    for index, step in enumerate(steps):
        sent = [last.get(chunk, -1) for send in step.sends for chunk in send.chunks]
        needed.append(max(sent, default=-1))
        last.update({chunk: index for receive in step.receives for chunk in receive.chunks})
    return needed


def _cut(steps: Sequence[Step], pieces: int) -> Iterator[Step]:
    inner = [send.chunks for step in steps for send in step.sends if send.source == "inner"]
    starts = {_piece(chunks, pieces, j).start for chunks in inner for j in range(pieces)}
    for step in steps:
        for j in range(pieces):
            yield Step(
                step.phase,
                tuple(replace(send, chunks=_piece(send.chunks, pieces, j)) for send in step.sends),
                tuple(_cut_receive(receive, pieces, j, starts) for receive in step.receives),
            )


def _piece(chunks: range, pieces: int, j: int) -> range:
    start = chunks.start * pieces + j * len(chunks)
    return range(start, start + len(chunks))


def _cut_receive(receive: Receive, pieces: int, j: int, starts: set[int]) -> Receive:
    """Cuts out segment j. Its actions are divided so that each writes to one message: those begin at
    `starts`."""
    chunks = _piece(receive.chunks, pieces, j)
    actions: list[tuple[Action, range]] = []
    for action, whole in receive.actions:
        start, stop = max(whole.start * pieces, chunks.start), min(whole.stop * pieces, chunks.stop)
        inside = [chunk for chunk in range(start + 1, stop) if action == "inner" and chunk in starts]
        bounds = [start, *inside, stop] if start < stop else []
        actions += [(action, range(a, b)) for a, b in zip(bounds, bounds[1:], strict=False)]
    return Receive(receive.peer, chunks, receive.workers, tuple(actions))
