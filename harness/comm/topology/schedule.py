"""A topology as data: what each rank sends, receives and does with it, step by step.

A schedule is checked without running anything (`check.py`); one executor runs them all
(`harness.comm.collective.execute`). Chunks are the units of the reduction: the bucket is cut in
`num_chunks` base chunks, a message carries a contiguous range of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from typing import Literal

Source = Literal["leaf", "inner", "sealed"]
"""The source of the bytes of a send. `leaf`: this rank encodes its own partial sums now. `inner` or
`sealed`: it forwards what an earlier INNER action, or SINK/GATHER action, has left ready."""

Action = Literal["partial", "inner", "sink", "gather", "collect"]
"""The action of a receiver on a range of chunks: accumulate; accumulate and encode for the next send;
accumulate and seal; keep the sealed bytes and decode them; or, with its own message and those of all other
ranks, decode the first rank's and accumulate the others' in their order."""

Phase = Literal["reduce_scatter", "all_gather"]


@dataclass(frozen=True)
class Send:
    """One message to `peer`: the sum of `workers` contributions to `chunks`."""

    peer: int
    chunks: range
    workers: int
    source: Source


@dataclass(frozen=True)
class Receive:
    """One message from `peer`; `actions` cover its chunks in ascending order."""

    peer: int
    chunks: range
    workers: int
    actions: tuple[tuple[Action, range], ...]


@dataclass(frozen=True)
class Step:
    """Messages posted together by one rank, at most one to and one from each peer. The step ends when all
    have arrived."""

    phase: Phase
    sends: tuple[Send, ...] = ()
    receives: tuple[Receive, ...] = ()

    @cached_property
    def collects(self) -> bool:
        """True if the messages that arrive are summed together, in the order of ranks."""
        return any(receive.actions[0][0] == "collect" for receive in self.receives)


@dataclass(frozen=True, eq=False)
class Route:
    """One rank's steps, with properties derived from them. Routes are compared by identity."""

    steps: tuple[Step, ...]
    needed: tuple[int, ...]
    """For each step the last earlier one that must have been received before its messages can be made; see
    `last_needed`."""
    carriers: Mapping[int, Send]
    """For each chunk that this rank sends on, the message that carries its sum."""

    @cached_property
    def counts(self) -> tuple[tuple[int, int], ...]:
        """Each chunk with each number of contributions that its messages hold."""
        found = dict[tuple[int, int], None]()
        for step in self.steps:
            messages: tuple[Send | Receive, ...] = (*step.sends, *step.receives)
            found.update(((chunk, each.workers), None) for each in messages for chunk in each.chunks)
        return tuple(found)


@dataclass(frozen=True)
class Schedule:
    """An all-reduce: `ranks[r]` holds the steps of rank r.

    A rank may have as many steps in flight at once as messages have `segments`. If the number of ranks is a
    power of two, all ranks send equally much, unless `balanced` is false.
    """

    name: str
    size: int
    num_chunks: int
    ranks: tuple[tuple[Step, ...], ...]
    segments: int = 1
    balanced: bool = True
    _routes: dict[int, Route] = field(default_factory=dict, init=False, repr=False, compare=False)

    def route(self, rank: int) -> Route:
        """A rank's steps, computed once."""
        if rank not in self._routes:
            steps = self.ranks[rank]
            inner = [send for step in steps for send in step.sends if send.source == "inner"]
            carriers = {chunk: send for send in inner for chunk in send.chunks}
            self._routes[rank] = Route(steps, tuple(last_needed(steps)), carriers)
        return self._routes[rank]

    @property
    def gradients_sent(self) -> float:
        """The number of encoded gradients that all ranks send in total: 2(n − 1) for any all-reduce that sums
        hop by hop."""
        sends = [send for steps in self.ranks for step in steps for send in step.sends]
        return sum(len(send.chunks) for send in sends) / self.num_chunks

    @cached_property
    def messages(self) -> Mapping[int, int]:
        """The number of chunks' messages that all ranks send together, by the number of contributions."""
        found = Counter[int]()
        for steps in self.ranks:
            for step in steps:
                for send in step.sends:
                    found[send.workers] += len(send.chunks)
        return found

    @property
    def sums_on_the_way(self) -> bool:
        """True if messages hold partial sums; False if every rank collects the other ranks' own messages."""
        receives = [receive for steps in self.ranks for step in steps for receive in step.receives]
        return not any(action == "collect" for receive in receives for action, _ in receive.actions)

    @property
    def kept(self) -> tuple[tuple[int, ...], ...]:
        """The chunks that each rank keeps after a reduce-scatter. Raises ValueError if messages hold no
        partial sums."""
        if self.size == 1:
            return (tuple(range(self.num_chunks)),)
        if not self.sums_on_the_way:
            raise ValueError(f"topology={self.name} computes no partial sums and has no reduce-scatter")
        return tuple(tuple(sorted(self.sealed_by(rank))) for rank in range(self.size))

    def sealed_by(self, rank: int) -> tuple[int, ...]:
        """The chunks whose sum is complete at `rank`, and only there, after the reduce-scatter."""
        receives = [receive for step in self.ranks[rank] for receive in step.receives]
        actions = [found for receive in receives for found in receive.actions]
        return tuple(chunk for action, chunks in actions if action == "sink" for chunk in chunks)


def last_needed(steps: Sequence[Step]) -> list[int]:
    """For each of a rank's steps, the last earlier step that must have been received before its messages can
    be made: the last one whose receives touch the same chunks, or −1 if there is none."""
    needed, last = [], dict[int, int]()
    for index, step in enumerate(steps):
        sent = [last.get(chunk, -1) for send in step.sends for chunk in send.chunks]
        needed.append(max(sent, default=-1))
        last.update({chunk: index for receive in step.receives for chunk in receive.chunks})
    return needed


Topology = Callable[..., Schedule]
"""A topology: a function from world size to schedule. If it has a parameter `num_nodes`, it also gets the
number of nodes, over which ranks are spread evenly, consecutive ranks on the same node."""


def made_for(topology: Topology, size: int, num_nodes: int) -> Schedule:
    """Returns the schedule that `topology` makes for `size` ranks on `num_nodes` nodes."""
    if knows_nodes(topology):
        return topology(size, num_nodes=num_nodes)
    return topology(size)


def knows_nodes(topology: Topology) -> bool:
    """True if a topology has a parameter for the number of nodes."""
    return "num_nodes" in signature(topology).parameters


def pipelined(schedule: Schedule, segments: int) -> Schedule:
    """Returns `schedule` with each step split into `segments` successive steps, one for each segment of its
    messages, so that work overlaps sending.

    A rank encodes segment j while segment j − 1 is on its way, and passes a segment on before the next has
    arrived. Each rank sends the same data to the same ranks, in `segments` times as many chunks and steps.

    Each chunk becomes `segments` chunks. A message of m chunks becomes messages of m of the smaller chunks,
    so the segments of one message are equally long, and sender and receiver cut it in the same way.
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
    """Cuts out segment j of a receive. Its actions are divided at `starts` so that each writes to one
    message."""
    chunks = _segment(receive.chunks, segments, j)
    actions: list[tuple[Action, range]] = []
    for action, whole in receive.actions:
        start, stop = max(whole.start * segments, chunks.start), min(whole.stop * segments, chunks.stop)
        inside = [chunk for chunk in range(start + 1, stop) if action == "inner" and chunk in starts]
        bounds = [start, *inside, stop] if start < stop else []
        actions += [(action, range(a, b)) for a, b in zip(bounds, bounds[1:], strict=False)]
    return Receive(receive.peer, chunks, receive.workers, tuple(actions))
