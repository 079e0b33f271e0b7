"""The ranks of a run as a mesh with named dimensions, and the groups of ranks along each.

There are two views of the same ranks. `stage` and `replica` describe their roles: a replica is one copy of
the model, whose parts are its stages. `node` and `local` describe their locations: a node holds consecutive
ranks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from gradwire.codecs.collectives import Level

Dimension = Literal["replica", "stage", "node", "local"]
"""The dimensions of the mesh. A group along `replica` has all ranks with the same stage, one along `stage`
all ranks of one replica. Within a group, `local` has the ranks on one node, `node` their counterparts, one on
each node."""


@dataclass(frozen=True)
class Mesh:
    """`size` ranks on `num_nodes` nodes, in `stages` stages.

    Ranks of one stage are consecutive, as in Megatron-LM by default, so that gradients stay inside a node if
    possible, and activations cross nodes. Raises ValueError unless the ranks fill all nodes and stages.
    """

    size: int
    num_nodes: int = 1
    stages: int = 1

    def __post_init__(self) -> None:
        for what, count in (("nodes", self.num_nodes), ("stages", self.stages)):
            if count < 1 or self.size % count:
                raise ValueError(f"{self.size} ranks cannot be divided evenly into {count} {what}")

    @property
    def replicas(self) -> int:
        """The number of copies of the model, which is the number of ranks in a stage."""
        return self.size // self.stages

    def node_of(self, rank: int) -> range:
        """The ranks on the node of `rank`, including itself."""
        local = self.size // self.num_nodes
        first = rank // local * local
        return range(first, first + local)

    def group(self, dimension: Dimension | Level, rank: int, of: tuple[int, ...] = ()) -> tuple[int, ...]:
        """The ranks, in ascending order, of the group along `dimension` that `rank` belongs to.

        `all`, `node` and `local` are relative to `of`, a group (by default all ranks). Raises ValueError for
        `node` and `local` if the group has more ranks on one node than on another.
        """
        members = of or tuple(range(self.size))
        if dimension == "all":
            return members
        if dimension == "replica":
            first = rank // self.replicas * self.replicas
            return tuple(range(first, first + self.replicas))
        if dimension == "stage":
            return tuple(range(rank % self.replicas, self.size, self.replicas))
        local = len(members) // self.nodes_of(members)
        index = members.index(rank)
        if dimension == "local":
            return members[index // local * local : (index // local + 1) * local]
        return members[index % local :: local]

    def nodes_of(self, members: tuple[int, ...]) -> int:
        """The number of nodes that hold these ranks. Raises ValueError if the ranks are spread unevenly."""
        if len(members) == self.size or self.num_nodes == 1:
            return self.num_nodes
        counts = Counter(self.node_of(rank).start for rank in members)
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"a group of ranks has {' and '.join(map(str, sorted(set(counts.values()))))} of them on its "
                f"nodes of {self.size // self.num_nodes} ranks; choose cluster.ranks_per_node so that every "
                "node has as many"
            )
        return len(counts)
