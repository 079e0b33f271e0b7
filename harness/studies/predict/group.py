"""One data-parallel group of workers that also divide tensors and stages, and its share of the network.

Workers are placed as in Megatron-LM: workers that share matrices are neighbours, followed by the replicas of
a stage, then the next stage. All groups send the same messages at the same time, so each has an equal share
of links that several groups use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradwire.harness.comm.nodes import check_divides, ranks_per_node
from gradwire.harness.network.settings import SimulatedConfig
from gradwire.harness.parallel.settings import PipelineConfig
from gradwire.harness.studies.predict.study import PredictTask


@dataclass(frozen=True)
class WorkerGroup:
    """The `size` workers that hold the same part of the model, on `num_nodes` nodes, and their network."""

    size: int
    num_nodes: int
    network: SimulatedConfig


def group_of(config: PredictTask, workers: int) -> WorkerGroup:
    """The group of each of `workers`; in a pipeline it includes all stages, with one rank for the workers
    that share matrices. Raises ValueError, one line, for numbers that do not divide."""
    tensor, stages = config.predict.tensor_parallel, config.predict.pipeline_parallel
    in_pipeline = config.parallel.stages if isinstance(config.parallel, PipelineConfig) else 1
    network, cluster = config.network, replace(config.cluster, workers=workers)
    assert isinstance(network, SimulatedConfig)
    if workers % (tensor * in_pipeline):
        raise ValueError(
            f"predict.tensor_parallel={tensor} times parallel.stages={in_pipeline} does not divide {workers} "
            "workers; use numbers whose product divides it, e.g. 1 and 1"
        )
    if workers % (tensor * stages):
        raise ValueError(
            f"predict.tensor_parallel={tensor} times predict.pipeline_parallel={stages} does not divide "
            f"{workers} workers; use numbers whose product divides it, e.g. 1 and 1"
        )
    local = ranks_per_node(cluster, network)
    num_nodes = workers // local
    if num_nodes > 1 or network.fabric == "two_level":
        check_divides("predict.tensor_parallel", tensor, "the workers of a node, which are", local)
        if num_nodes % stages:
            raise ValueError(
                f"predict.pipeline_parallel={stages} does not divide {num_nodes} nodes: a stage has nodes of "
                f"its own; use a divisor of {num_nodes}"
            )
        num_nodes //= stages
    size = workers // (tensor * stages)
    return WorkerGroup(size, num_nodes, shared_network(network, tensor, num_nodes))


def shared_network(network: SimulatedConfig, tensor: int, num_nodes: int) -> SimulatedConfig:
    """A group's share of a network whose nodes hold `tensor` groups: its own workers, and an even share of a
    port that several groups' workers use."""
    if network.fabric == "star" or network.nodes is None:
        return network
    ranks_per_port = network.ranks_per_node // network.nics
    sharing = min(tensor, ranks_per_port)
    local = network.ranks_per_node // tensor
    return replace(
        network,
        nodes=num_nodes,
        ranks_per_node=local,
        nics=local * sharing // ranks_per_port,
        rate_mbit=network.rate_mbit / sharing,
    )
