"""The nodes of a run's ranks, where its topology depends on them; `comm.nodes` knows no topology."""

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
    """`cluster` with `ranks_per_node` filled in where `topology` depends on it, and with it the run's id.

    Raises ValueError as `ranks_per_node` does, and for such a topology where nothing says that there are
    several nodes: on one it would be another one. Ranks of a launcher compare their machines first, see
    `check_launched_nodes`, because each knows its own alone.
    """
    local = ranks_per_node(cluster, network, environment)
    if not depends_on_nodes(topology):
        return cluster
    if local == cluster.size > 1 and cluster.ranks_per_node is None:
        if "RANK" in environment and cluster.name == "local":
            return cluster
        raise ValueError(one_node_refusal(topology, cluster.size))
    return replace(cluster, ranks_per_node=local)
