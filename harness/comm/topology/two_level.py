"""Two-level all-reduce: reduce-scatter inside every node, all-reduce between nodes, all-gather inside.

With N ranks on each of M nodes a bucket has N slices of M chunks each. Inside a node slices travel around a
ring, after which each rank holds the node's sum of one slice. Its counterparts on the other nodes hold their
nodes' sums of the same slice, and these M ranks reduce them over another ring, chunk by chunk. The sealed
chunks travel around both rings again. A rank sends (2(N − 1)·M + 2(M − 1))/(N·M) of an encoded gradient, of
which only 2(M − 1)/(N·M) leaves its node.
"""

from __future__ import annotations

from gradwire.harness.comm.topology.schedule import Action, Receive, Schedule, Send, Source, Step


def two_level(size: int, num_nodes: int = 1) -> Schedule:
    """The two-level schedule over `num_nodes` nodes of consecutive ranks, with `size` chunks; on one node it
    is a ring.

    Raises ValueError if the ranks do not fill the nodes.
    """
    if size % num_nodes:
        raise ValueError(
            f"topology=two_level: {size} ranks do not fill {num_nodes} nodes; use a multiple of {num_nodes}"
        )
    ranks = [_NodeRank(rank, size // num_nodes, num_nodes) for rank in range(size)]
    steps = [(*each.reduce_scatter(), *each.all_gather()) for each in ranks]
    return Schedule("two_level", size, size, tuple(steps))


class _NodeRank:
    """One rank: its position in the ring inside its node, and in the ring of its counterparts on all
    nodes.
    """

    def __init__(self, rank: int, num_local: int, num_nodes: int) -> None:
        self._num_local, self._num_nodes = num_local, num_nodes
        self._node, self._local = divmod(rank, num_local)
        self._slice = (self._local + 1) % num_local
        """The slice of which this rank holds its node's sum after the ring inside."""

    def reduce_scatter(self) -> list[Step]:
        inside = [self._reduce_inside(hop) for hop in range(self._num_local - 1)]
        return inside + [self._reduce_between(hop) for hop in range(self._num_nodes - 1)]

    def all_gather(self) -> list[Step]:
        between = [self._gather_between(hop) for hop in range(self._num_nodes - 1)]
        return between + [self._gather_inside(hop) for hop in range(self._num_local - 1)]

    def _reduce_inside(self, hop: int) -> Step:
        """The step that sends slice (local − hop), summed over hop + 1 ranks, to the right, and receives the
        slice before from the left."""
        sent, received = self._chunks(self._local - hop), self._chunks(self._local - hop - 1)
        last = hop == self._num_local - 2
        actions = self._actions_on_node_sums() if last else (("inner", received),)
        return Step(
            "reduce_scatter",
            (Send(self._inside(1), sent, hop + 1, "inner" if hop else "leaf"),),
            (Receive(self._inside(-1), received, hop + 1, actions),),
        )

    def _actions_on_node_sums(self) -> tuple[tuple[Action, range], ...]:
        """The actions on the node's sum of this rank's slice: the first chunk of the ring between nodes is
        encoded for sending at once, the others are added to later."""
        if self._num_nodes == 1:
            return (("sink", self._chunks(self._slice)),)
        whole, first = self._chunks(self._slice), self._chunk(self._node)
        parts: list[tuple[Action, range]] = [
            ("partial", range(whole.start, first.start)),
            ("inner", first),
            ("partial", range(first.stop, whole.stop)),
        ]
        return tuple((action, chunks) for action, chunks in parts if chunks)

    def _reduce_between(self, hop: int) -> Step:
        """The step that sends chunk (node − hop) of the slice, summed over hop + 1 nodes, to the next node,
        and receives the chunk before from the previous node."""
        sent, received = self._chunk(self._node - hop), self._chunk(self._node - hop - 1)
        source: Source = "inner" if hop or self._num_local > 1 else "leaf"
        action: Action = "sink" if hop == self._num_nodes - 2 else "inner"
        workers = (hop + 1) * self._num_local
        return Step(
            "reduce_scatter",
            (Send(self._between(1), sent, workers, source),),
            (Receive(self._between(-1), received, workers, ((action, received),)),),
        )

    def _gather_between(self, hop: int) -> Step:
        sent, received = self._chunk(self._node + 1 - hop), self._chunk(self._node - hop)
        return self._gather(self._between(1), sent, self._between(-1), received)

    def _gather_inside(self, hop: int) -> Step:
        sent, received = self._chunks(self._slice - hop), self._chunks(self._slice - hop - 1)
        return self._gather(self._inside(1), sent, self._inside(-1), received)

    def _gather(self, to: int, sent: range, source: int, received: range) -> Step:
        size = self._num_local * self._num_nodes
        return Step(
            "all_gather",
            (Send(to, sent, size, "sealed"),),
            (Receive(source, received, size, (("gather", received),)),),
        )

    def _chunks(self, number: int) -> range:
        """The chunks of slice `number`."""
        start = number % self._num_local * self._num_nodes
        return range(start, start + self._num_nodes)

    def _chunk(self, number: int) -> range:
        """Chunk `number` of this rank's slice."""
        chunk = self._slice * self._num_nodes + number % self._num_nodes
        return range(chunk, chunk + 1)

    def _inside(self, distance: int) -> int:
        """The rank `distance` positions to the right in this node."""
        return self._node * self._num_local + (self._local + distance) % self._num_local

    def _between(self, distance: int) -> int:
        """This rank's counterpart `distance` nodes further."""
        return (self._node + distance) % self._num_nodes * self._num_local + self._local
