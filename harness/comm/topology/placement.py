"""The placement of ranks on nodes for topologies that depend on it; separate from `comm.nodes`, which must
not import topologies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from gradwire.harness.comm.nodes import one_node_refusal, ranks_per_node
from gradwire.harness.comm.settings import ClusterConfig
from gradwire.harness.comm.topology.registry import depends_on_nodes
from gradwire.harness.network.settings import NetworkConfig


def placed(
    cluster: ClusterConfig,
    network: NetworkConfig | None,
    topology: str,
    environment: Mapping[str, str] = os.environ,
) -> ClusterConfig:
    """`cluster` with `ranks_per_node` filled in if `topology` depends on it, because it is then part of the
    run's id.

    Raises ValueError as `ranks_per_node` does, and if such a topology is used on a single node, where it
    would be a different one. A launcher's ranks first compare their settings (`check_launched_nodes`),
    because each rank only knows its own machine.
    """
    local = ranks_per_node(cluster, network, environment)
    if not depends_on_nodes(topology):
        return cluster
    if local == cluster.size > 1 and cluster.ranks_per_node is None:
        if "RANK" in environment and cluster.name == "local":
            return cluster
        raise ValueError(one_node_refusal(topology, cluster.size))
    return replace(cluster, ranks_per_node=local)
