"""The nodes of a run's ranks: all nodes hold the same number of consecutive ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from gradwire.harness.comm.settings import ClusterConfig
from gradwire.harness.network.settings import NetworkConfig, SimulatedConfig


def ranks_per_node(
    cluster: ClusterConfig,
    network: NetworkConfig | None = None,
    environment: Mapping[str, str] = os.environ,
) -> int:
    """The number of ranks on a node: `cluster.ranks_per_node`, or a default if it is null.

    The default is the node size of the two-level network, or the number of ranks that torchrun has started on
    this machine; without either, all ranks are on one node. The number of workers must be known. Raises
    ValueError in one line if the network places the ranks differently, or if they do not fill the nodes.
    """
    given, size = cluster.ranks_per_node, cluster.size
    if given is None:
        return _network_node(network) or _launched_here(cluster, size, environment) or size
    check_placement(given, network)
    check_divides("cluster.ranks_per_node", given, "cluster.workers", size)
    return given


def num_nodes(cluster: ClusterConfig, network: NetworkConfig | None = None) -> int:
    """The number of nodes that the ranks of a validated configuration are spread over."""
    return cluster.size // ranks_per_node(cluster, network)


def check_placement(given: int | None, network: NetworkConfig | None) -> None:
    """Raises ValueError if a network's nodes hold a number of ranks other than `given`; None is always
    accepted."""
    placed = _network_node(network)
    if given is not None and placed is not None and given != placed:
        raise ValueError(
            f"cluster.ranks_per_node={given} contradicts network.ranks_per_node={placed}; use the same value "
            "for both"
        )


def local_world(size: int, environment: Mapping[str, str] = os.environ) -> int | None:
    """The number of `size` ranks that a launcher has started on each machine; None if it is unknown or does
    not divide `size` (machines with different numbers of ranks)."""
    found = environment.get("LOCAL_WORLD_SIZE", "")
    if "RANK" not in environment or not (found.isascii() and found.isdigit()):
        return None
    return int(found) if int(found) and size % int(found) == 0 else None


def one_node_refusal(topology: str, size: int) -> str:
    """The reason why a topology that needs several nodes cannot be used: all ranks are on one node."""
    return (
        f"topology={topology}: all cluster.workers={size} are on one node; say how many share a node, "
        "cluster.ranks_per_node=, or use topology=ring"
    )


LaunchedNode = tuple[int | None, str]
"""The settings of a launcher's rank that determine its node: `cluster.ranks_per_node` and `LOCAL_WORLD_SIZE`,
empty if unset."""


def launched_node(cluster: ClusterConfig, environment: Mapping[str, str] = os.environ) -> LaunchedNode:
    """The node settings of this rank."""
    return cluster.ranks_per_node, environment.get("LOCAL_WORLD_SIZE", "")


def check_launched_nodes(nodes: Sequence[LaunchedNode], between: str | None) -> None:
    """Raises ValueError in one line, the same on all ranks, if the ranks of a launcher disagree on the size
    of a node, or if there is only one node and `between` names a topology that needs several. `nodes` is in
    rank order."""
    numbers = {number for number, _ in nodes}
    if numbers == {None} and len({local for _, local in nodes}) == 1:
        if between is not None and len(nodes) > 1:
            raise ValueError(one_node_refusal(between, len(nodes)))
    elif len(numbers) > 1 or None in numbers:
        ranks = dict[str, list[int]]()
        for rank, (_, local) in enumerate(nodes):
            ranks.setdefault(local or "unset", []).append(rank)
        found = ", ".join(f"{local} (rank {', '.join(map(str, own))})" for local, own in ranks.items())
        raise ValueError(
            f"LOCAL_WORLD_SIZE differs between the ranks: {found}; start as many ranks on every machine, or "
            f"say how many share a node, e.g. cluster.ranks_per_node={len(nodes)}: all of them"
        )


def check_divides(key: str, ranks: int, subject: str, size: int) -> None:
    """Raises ValueError unless `ranks`, the node size given as `key`, divides `size`, the value of
    `subject`.
    """
    if size % ranks:
        divisors = [n for n in range(1, size + 1) if size % n == 0]
        nearest = min(divisors, key=lambda n: abs(n - ranks))
        raise ValueError(
            f"{key}={ranks} does not divide {subject}={size}: every node holds as many ranks; use e.g. "
            f"{key}={nearest}"
        )


def _network_node(network: NetworkConfig | None) -> int | None:
    """The number of ranks on a node of a two-level network; None for a network without nodes."""
    if isinstance(network, SimulatedConfig) and network.fabric == "two_level":
        return network.ranks_per_node
    return None


def _launched_here(cluster: ClusterConfig, size: int, environment: Mapping[str, str]) -> int | None:
    """As `local_world`, but all ranks of a virtual cluster are in this process, whatever started it."""
    return None if cluster.name == "virtual" else local_world(size, environment)
