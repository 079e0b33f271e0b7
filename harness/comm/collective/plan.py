"""One rank's part of a collective as the executor goes through it: whom messages go to, their lengths and
places in memory, and what is done with those that arrive.

All of it is the same in every round of a bucket. So `planner` makes it once, and it is kept with the arena
that the messages lie in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from torch import Tensor

from gradwire.harness.comm.collective.arena import Arena, Slot
from gradwire.harness.comm.topology.schedule import Route
from gradwire.harness.comm.transport.channel import Messages


@dataclass(eq=False)
class Leaf:
    """A message that this rank encodes from its own partial sums, with the number of its buffer."""

    buffer: int
    chunks: range
    workers: int
    share: float
    slot: Slot
    num_bytes: int
    made: Tensor | None = None

    def room(self, arena: Arena) -> Tensor:
        """Memory for it, taken when it is first asked for: the message may lie in the bucket."""
        if self.made is None:
            arena.reserve(self.slot, self.num_bytes)
            self.made = self.slot.part(0, self.num_bytes)
        return self.made


class MessageWork(NamedTuple):
    """The work on a message, the sum of `received` contributions to `chunks`, that has arrived in a buffer.
    `share` is the part of the bucket that it is done for.

    `out` is the buffer of the sum of `workers` contributions, if that is encoded. `collected` holds the
    buffers that are summed together, in the order of ranks.
    """

    action: Literal["accumulate", "accumulate_encode", "seal", "decode", "collect"]
    chunks: range
    share: float
    buffer: int
    received: int
    out: int = -1
    workers: int = 0
    collected: tuple[int, ...] = ()


class PlannedStep(NamedTuple):
    """A step: its messages, the leaves among them, the work on what arrives, and the decoding, which is done
    while the next step's messages are under way."""

    messages: Messages
    leaves: tuple[Leaf, ...]
    work: tuple[MessageWork, ...]
    decoding: tuple[MessageWork, ...]


class Move(NamedTuple):
    """One move of the executor: it posts the messages of a step, or completes the oldest one in flight."""

    step: PlannedStep
    posts: bool


@dataclass(frozen=True, eq=False)
class RoutePlan:
    """A rank's moves, and the buffers of its messages by number: tensors (bytes,) uint8.

    A buffer that is None belongs to a leaf, or to a sealed message in memory that the codec gives.
    """

    route: Route
    moves: tuple[Move, ...]
    buffers: Sequence[Any]
    given: Given

    def begin(self, room: Tensor | None) -> list[Any]:
        """The buffers of a round; `room`, (bytes,) uint8, is the memory that the codec gives."""
        buffers = list(self.buffers)
        if room is not None:
            parts = room.split_with_sizes(self.given.sizes)
            for at, part in zip(self.given.pieces, parts, strict=True):
                if at is not None:
                    buffers[at] = part
            for at, start, stop in self.given.others:
                buffers[at] = room[start:stop]
        return buffers


class Given(NamedTuple):
    """The buffers of messages in memory that the codec gives: it is cut into pieces of these `sizes`, which
    takes less than as many views, and each piece is the buffer of this number, or none. `others` are (number,
    start, stop) of buffers that overlap pieces."""

    sizes: tuple[int, ...]
    pieces: tuple[int | None, ...]
    others: tuple[tuple[int, int, int], ...]


def cut(buffers: Sequence[tuple[int, int, int]], num_bytes: int) -> Given:
    """The cut of `num_bytes` bytes into buffers, given as (number, start, stop), of which no two are the
    same."""
    sizes, pieces, others, end = list[int](), list[int | None](), list[tuple[int, int, int]](), 0
    for at, start, stop in sorted(buffers, key=itemgetter(2, 1)):
        if start < end:
            others.append((at, start, stop))
            continue
        if start > end:
            sizes.append(start - end)
            pieces.append(None)
        sizes.append(stop - start)
        pieces.append(at)
        end = stop
    if end < num_bytes:
        sizes.append(num_bytes - end)
        pieces.append(None)
    return Given(tuple(sizes), tuple(pieces), tuple(others))
